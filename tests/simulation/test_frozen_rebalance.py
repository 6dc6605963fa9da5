"""A group rebalances while a broker is frozen: how long its partitions elsewhere are not read.

In virtual time, with default settings of the clients but for the heartbeats: a member learns of the
rebalance with its next one.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.kernel.world import VirtualClock
from tidelog.aio import Consumer
from tidelog.client.admin.topics import TopicSpec, create_topics
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

    def __init__(self, run: ScriptedRun) -> None:
        self.run = run
        self.arrived_s: list[float] = []
        self.values: list[int] = []
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
                await sender.send("s", b"%d" % number, partition=0)
                number += 1
                await asyncio.sleep(PACE_S)

    async def read(self, group: str) -> None:
        async with Consumer(
            "s",
            "r",
            cluster=self.client(),
            now=now_s,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
        ) as consumer:
            while not self.ends:
                for records in (await consumer.poll(timeout_ms=50)).values():
                    self.arrived_s += [now_s()] * len(records)
                    self.values += [int(record.value) for record in records]

    def longest_gap_s(self, since_s: float) -> float:
        times = [since_s, *(at for at in self.arrived_s if at > since_s), now_s()]
        return max(after - before for before, after in pairwise(times))


async def group_elsewhere(run: ScriptedRun) -> str:
    """Return a group whose coordinator has no replica on the broker that is frozen."""
    await run.admin.create(OFFSETS_TOPIC, 8, 2, {})
    offsets = await run.outside.topic(OFFSETS_TOPIC)
    places = {x.partition_index for x in offsets.partitions if FROZEN not in x.replica_nodes}
    return next(name for name in map(str, range(99)) if partition_for(name, 8) in places)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_member_joins_while_the_leader_of_another_partition_is_frozen(seed: int) -> None:
    """The group's leader counts partitions while all members wait for it; brokers hold metadata
    back that would name a leader which is lost (decision 0013)."""
    gaps: list[float] = []

    async def script(run: ScriptedRun) -> None:
        reading = Reading(run)
        async with reading.client() as cluster:
            assert not any(
                (
                    await create_topics(
                        cluster,
                        [
                            TopicSpec("s", assignment=HOMES),
                            TopicSpec("r", assignment={0: [FROZEN]}),
                        ],
                    )
                ).values()
            )
        group = await group_elsewhere(run)
        tasks = [asyncio.create_task(reading.write()), asyncio.create_task(reading.read(group))]
        await run.until(lambda: len(reading.values) > 20, "records are read")
        run.faults.unquiet_until = now_s() + 60
        process = run.cluster.broker(FROZEN).process
        assert process is not None
        process.pause()
        await asyncio.sleep(NOTICED_S)
        since_s = now_s()
        tasks.append(asyncio.create_task(reading.read(group)))
        await asyncio.sleep(3)
        gaps.append(reading.longest_gap_s(since_s))
        process.resume()
        reading.ends = True
        await asyncio.gather(*tasks)
        assert sorted(set(reading.values)) == list(range(max(reading.values) + 1))

    configs = {"min.insync.replicas": "2"}
    result = ScriptedRun(seed, script, "replicated", configs, brokers=4).run()
    assert not result.violations, result.report()
    print(f"longest gap: {gaps[0]:.2f} s")
    assert gaps[0] < OTHERS_S
