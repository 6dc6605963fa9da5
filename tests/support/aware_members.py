"""A member of a group that is aware of resizes, in a thread of its own, which a test holds up."""

from __future__ import annotations

import asyncio
import threading

from tests.support.processes import DEADLINE_S
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.group_reader import GroupReader


class AwareMember:
    """Reads a topic as the product's consumer does, from its first records on.

    It stalls when it has received records of two partitions, one after the other, like a consumer
    whose application works on the latter: it sends heartbeats, and its positions do not move. So it
    has read one parent of two. ``go_on``: it reads all. ``freeze``: it sends nothing until the end,
    like one that crashed.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, session_ms: int = 30_000) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._topic = topic
        self._session_ms = session_ms
        self._goes_on = self._frozen = self._ended = False
        self.last_error: ClientError | None = None
        self._awake = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> AwareMember:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._awake.set()
        self._thread.join(DEADLINE_S)

    def go_on(self) -> None:
        """Read all."""
        self._goes_on = True

    def freeze(self) -> None:
        """Send nothing until the end of the test."""
        self._frozen = True

    async def _run(self) -> None:
        async with (
            Cluster(self._bootstrap) as cluster,
            GroupReader(
                cluster,
                self._group,
                [self._topic],
                reset=OffsetReset.EARLIEST,
                session_timeout_ms=self._session_ms,
                heartbeat_interval_ms=500,
            ) as reader,
        ):
            received: set[int] = set()
            while not self._ended:
                if self._frozen:
                    self._awake.wait()
                elif len(received) > 1 and not self._goes_on:
                    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.05)
                else:
                    try:
                        pieces = await reader.poll(50, max_bytes=1)
                    except ClientError as error:
                        # The next poll tries again.
                        self.last_error = error
                        continue
                    received |= {piece.partition.partition for piece in pieces}
