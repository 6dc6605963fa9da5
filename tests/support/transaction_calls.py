"""Calls of the public asyncio clients for tests of transactions: write, read, wait."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any

from tests.support.processes import DEADLINE_S
from tidelog.aio import Consumer, Producer, TopicPartition

PARTITIONS = 3
"""Of each topic that these read."""


def limited(work: Coroutine[Any, Any, None]) -> None:
    """Run the asyncio part of a test."""

    async def run() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await work

    asyncio.run(run())


def producer_of(bootstrap: str, transactional_id: str | None = None, **configs: Any) -> Producer:
    name = transactional_id or uuid.uuid4().hex
    return Producer(
        **{"bootstrap_servers": bootstrap, "transactional_id": name, "linger_ms": 0, **configs}
    )


async def write(producer: Producer, topic: str, values: list[str]) -> None:
    for number, value in enumerate(values):
        await producer.send(topic, value.encode(), partition=number % PARTITIONS)


async def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[str]:
    """All values of a topic, in order of value, up to its present ends at this isolation level."""
    async with Consumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        values: list[str] = []
        while any([await consumer.position(each) < end for each, end in ends.items()]):
            for records in (await consumer.poll(200)).values():
                values += [record.value.decode() for record in records]
        return sorted(values)


async def until_all_is_stable(bootstrap: str, topic: str) -> None:
    """Wait until nothing is open in a topic."""
    places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    both = [
        Consumer(bootstrap_servers=bootstrap, isolation_level=level)
        for level in ("read_committed", "read_uncommitted")
    ]
    async with both[0], both[1], asyncio.timeout(DEADLINE_S):
        while await both[0].end_offsets(places) != await both[1].end_offsets(places):
            pass
