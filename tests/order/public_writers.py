"""Writers that use the public producers, blocking and for asyncio.

Owns their settings, and the way of an outcome from the clients' loop to the loop of the run. Not
what they write and note: see ``aware_clients``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import tidelog
import tidelog.aio
from tests.order.aware_clients import BATCH_BYTES, DELIVERY_MS, SendCall, Writer
from tidelog.client.cluster import Cluster
from tidelog.client.producing.record_metadata import RecordMetadata


class PublicWriter(Writer):
    """A writer with ``tidelog.aio.Producer``."""

    def configs(self) -> dict[str, Any]:
        """Return the settings of the producer."""
        return {
            "bootstrap_servers": cast("Any", self._setting).bootstrap,
            "client_id": self.name,
            "metadata_max_age_ms": self._max_age_ms,
            "retry_backoff_ms": 20,
            "retry_backoff_max_ms": 200,
            **self.of_records(),
        }

    def of_records(self) -> dict[str, Any]:
        """Return the settings that are not those of the view of the cluster."""
        return {
            "batch_size": BATCH_BYTES,
            "linger_ms": self._rng.choice((0, 20)),
            "compression_type": self._rng.choice(("none", "lz4")),
            "request_timeout_ms": 10_000,
            "delivery_timeout_ms": DELIVERY_MS,
        }

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[SendCall, Cluster]]:
        """Yield how to send, and the view of the cluster; at the end all has its outcome."""
        async with tidelog.aio.Producer(**self.configs()) as producer:
            yield producer.send, producer._cluster


class SimulatedWriter(PublicWriter):
    """A writer with ``tidelog.aio.Producer`` on the network and the clock of its setting."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[SendCall, Cluster]]:
        """Yield how to send, and the view of the cluster; at the end all has its outcome."""
        view = self._setting.cluster(self.name, self._max_age_ms)
        configs = {**self.of_records(), "max_block_ms": 600_000}
        producer = tidelog.aio.Producer(cluster=view, clock=self._setting.clock, **configs)
        async with producer:
            yield producer.send, view


class BlockingWriter(PublicWriter):
    """A writer with ``tidelog.Producer``, which is called in a thread."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[SendCall, Cluster]]:
        """Yield how to send, and the view of the cluster; at the end all has its outcome."""
        loop = asyncio.get_running_loop()
        producer = await asyncio.to_thread(tidelog.Producer, **self.configs())

        async def send(topic: str, value: bytes, key: bytes) -> asyncio.Future[RecordMetadata]:
            here: asyncio.Future[RecordMetadata] = loop.create_future()
            sent = await asyncio.to_thread(producer.send, topic, value, key)
            sent.add_callback(lambda found: loop.call_soon_threadsafe(here.set_result, found))
            sent.add_errback(lambda error: loop.call_soon_threadsafe(here.set_exception, error))
            return here

        try:
            yield send, producer._inner._cluster
        finally:
            await asyncio.to_thread(producer.close)
            # The outcomes reach this loop in their order; this call is after all of them.
            arrived = asyncio.Event()
            loop.call_soon_threadsafe(arrived.set)
            await arrived.wait()
