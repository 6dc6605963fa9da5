"""A producer of keyed records at a pace, and how long each waited for its acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.kernel.world import VirtualClock
from tests.support.turns import key_of
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.client.producing.sender import RecordSender
from tidelog.runtime.backoff import Backoff

COUNT = 4
KEYS = [key_of(place, 2 * COUNT) for place in range(2 * COUNT)]
"""A key of each partition before and after the growth: key n has partition n % 4 before."""

PACE_S = 0.05


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Writing:
    """A producer that writes each key at a pace, and how long each record waited."""

    def __init__(self, run: ScriptedRun) -> None:
        self.run = run
        self.waits: dict[int, list[float]] = {place: [] for place in range(2 * COUNT)}
        self.since: dict[int, dict[int, float]] = {place: {} for place in range(2 * COUNT)}
        self.order: dict[int, list[int]] = {place: [] for place in range(2 * COUNT)}
        self.ends = False

    async def write(self) -> None:
        backoff = Backoff(random=self.run.world.random("writing"))
        addresses = [f"{node.host}:{PORT}" for node in self.run.cluster.brokers]
        clock = VirtualClock(self.run.world.loop)
        async with (
            Cluster(addresses, ClusterSettings(backoff=backoff)) as cluster,
            RecordSender(cluster, clock=clock) as sender,
        ):
            number = 0
            while not self.ends:
                for place, key in enumerate(KEYS):
                    self.since[place][number] = now_s()
                    sent = await sender.send("s", b"%d" % number, key)
                    sent.add_done_callback(partial(self.done, place, number))
                    number += 1
                await asyncio.sleep(PACE_S)

    def done(self, place: int, number: int, sent: asyncio.Future[RecordMetadata]) -> None:
        assert sent.exception() is None, sent.exception()
        self.waits[place].append(now_s() - self.since[place].pop(number))
        self.order[place].append(number)

    async def end(self, work: asyncio.Task[None]) -> None:
        """Write no longer, and wait until all is written and in sync."""
        self.ends = True
        await work
        for numbers in self.order.values():
            assert numbers == sorted(numbers), "a key overtook itself"
        await self.run.until(self.run.faults.all_in_sync, "in sync")

    def longest(self, is_stuck: Callable[[int], bool]) -> tuple[float, float]:
        """Return the longest wait of stuck keys and of the others, with those that still wait."""
        found = {True: 0.0, False: 0.0}
        for place, waits in self.waits.items():
            now = [now_s() - begun for begun in self.since[place].values()]
            stuck = is_stuck(place)
            found[stuck] = max(found[stuck], *waits, *now)
        return found[True], found[False]
