"""A group rebalances while a broker is frozen: how long its partitions elsewhere are not read.

In virtual time, with default settings of the clients but for the heartbeats: a member learns of the
rebalance with its next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.kernel.world import VirtualClock
from tidelog.aio import Consumer
from tidelog.client.admin.topics import TopicSpec, create_partitions, create_topics
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.producing.sender import RecordSender
from tidelog.groups.placement import partition_for
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.runtime.backoff import Backoff

pytestmark = pytest.mark.usefixtures("quiet")

FROZEN = 3
HOMES = {0: [2, 4, 1], 1: [FROZEN, 1, 4]}
PACE_S = 0.05
NOTICED_S = 1.1
"""By now followers of the frozen broker have noticed that it is silent, and it is not suspected."""

OTHERS_S = 1.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Reading:
    """A writer of partition 0, members of one group, and when each record of it arrived."""

    def __init__(self, run: ScriptedRun, topics: Sequence[str], written: Sequence[int]) -> None:
        self.run = run
        self.topics = topics
        self.written = written
        self.arrived_s: dict[int, list[float]] = {index: [] for index in written}
        self.values: dict[int, list[int]] = {index: [] for index in written}
        self.ends = False
        self.clients = 0

    def client(self) -> Cluster:
        self.clients += 1
        backoff = Backoff(random=self.run.world.random(f"client {self.clients}"))
        addresses = [f"{node.host}:{PORT}" for node in self.run.cluster.brokers]
        return Cluster(addresses, ClusterSettings(backoff=backoff))

    async def write(self) -> None:
        clock = VirtualClock(self.run.world.loop)
        async with self.client() as cluster, RecordSender(cluster, clock=clock) as sender:
            number = 0
            while not self.ends:
                for index in self.written:
                    await sender.send(self.topics[0], b"%d" % number, partition=index)
                number += 1
                await asyncio.sleep(PACE_S)

    async def read(self, group: str) -> None:
        async with Consumer(
            *self.topics,
            cluster=self.client(),
            now=now_s,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
        ) as consumer:
            while not self.ends:
                for place, records in (await consumer.poll(timeout_ms=50)).items():
                    if place.partition not in self.values or place.topic != self.topics[0]:
                        continue
                    self.arrived_s[place.partition] += [now_s()] * len(records)
                    self.values[place.partition] += [int(record.value) for record in records]

    @property
    def are_read(self) -> bool:
        """Whether some records of each partition that is written have arrived."""
        return all(len(values) > 20 for values in self.values.values())

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time without a record of one of the partitions."""
        gaps = []
        for arrived_s in self.arrived_s.values():
            times = [since_s, *(at for at in arrived_s if at > since_s), now_s()]
            gaps += [after - before for before, after in pairwise(times)]
        return max(gaps)

    def check_whole(self) -> None:
        for values in self.values.values():
            assert sorted(set(values)) == list(range(max(values) + 1))


async def group_elsewhere(run: ScriptedRun) -> str:
    """Return a group whose coordinator has no replica on the broker that is frozen."""
    await run.admin.create(OFFSETS_TOPIC, 8, 2, {})
    offsets = await run.outside.topic(OFFSETS_TOPIC)
    places = {x.partition_index for x in offsets.partitions if FROZEN not in x.replica_nodes}
    return next(name for name in map(str, range(99)) if partition_for(name, 8) in places)


async def joined_gap_s(run: ScriptedRun, reading: Reading) -> float:
    """The longest gap of a partition while a member joins and the broker is frozen."""
    group = await group_elsewhere(run)
    tasks = [asyncio.create_task(reading.write()), asyncio.create_task(reading.read(group))]
    await run.until(lambda: reading.are_read, "records are read")
    run.faults.unquiet_until = now_s() + 60
    process = run.cluster.broker(FROZEN).process
    assert process is not None
    process.pause()
    await asyncio.sleep(NOTICED_S)
    since_s = now_s()
    tasks.append(asyncio.create_task(reading.read(group)))
    await asyncio.sleep(3)
    gap_s = reading.longest_gap_s(since_s)
    process.resume()
    reading.ends = True
    await asyncio.gather(*tasks)
    reading.check_whole()
    return gap_s


@pytest.mark.parametrize("seed", [1, 2])
def test_a_member_joins_while_the_leader_of_another_partition_is_frozen(seed: int) -> None:
    """The group's leader counts partitions while all members wait for it; brokers hold metadata
    back that would name a leader which is lost (decision 0013)."""
    gaps: list[float] = []

    async def script(run: ScriptedRun) -> None:
        reading = Reading(run, ["s", "r"], [0])
        specs = [TopicSpec("s", assignment=HOMES), TopicSpec("r", assignment={0: [FROZEN]})]
        async with reading.client() as cluster:
            assert not any((await create_topics(cluster, specs)).values())
        gaps.append(await joined_gap_s(run, reading))

    configs = {"min.insync.replicas": "2"}
    result = ScriptedRun(seed, script, "replicated", configs, brokers=4).run()
    assert not result.violations, result.report()
    print(f"longest gap: {gaps[0]:.2f} s")
    assert gaps[0] < OTHERS_S


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_member_joins_a_grown_topic_while_the_leader_of_one_partition_is_frozen(
    seed: int,
) -> None:
    """That partition has no other replica; the other ones, children among them, are read on."""
    gaps: list[float] = []

    async def script(run: ScriptedRun) -> None:
        reading = Reading(run, ["g"], [0, 1, 3])
        async with reading.client() as cluster:
            created = await create_topics(cluster, [TopicSpec("g", assignment={0: [2], 1: [4]})])
            assert not any(created.values())
            grown = await create_partitions(cluster, {"g": 4}, assignments={"g": [[FROZEN], [1]]})
            assert not any(grown.values())
        gaps.append(await joined_gap_s(run, reading))

    result = ScriptedRun(seed, script, "replicated", {}, brokers=4).run()
    assert not result.violations, result.report()
    print(f"longest gap: {gaps[0]:.2f} s")
    assert gaps[0] < OTHERS_S
