"""The known traps of a group's members: stories on the simulated cluster.

Each was a defect that the whole-cluster scenario found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.simulation.cluster.clients import target
from tests.simulation.cluster.members import NotingCluster
from tests.simulation.cluster.nodes import PORT
from tests.simulation.test_simulation_cluster_traps import Told

from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.fetcher import OffsetReset
from tidelog.client.group_reader import GroupReader
from tidelog.client.retries import Backoff
from tidelog.model.topics import TopicPartition


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL"):
        yield


async def reach(run: Told, state: str, members: int, committed: int | None = None) -> None:
    """Wait until the group is so, and has committed so much of the run's partition."""
    async with asyncio.timeout(40):
        while True:
            try:
                known = await run.group.committed()
                if await run.group.state() == (state, members) and committed in (
                    None,
                    known.get(str(run.place)),
                ):
                    return
            except (ClientError, OSError):
                pass  # the coordinator's partition is being made
            await asyncio.sleep(0.1)


async def a_late_commit(run: Told) -> None:
    """Paused for longer than its session, while others went on and left: it sets nothing back."""
    group = run.group
    group.topics = ("t",)
    process = run.world.machine("late").process("Consumer")
    got: list[int] = []

    async def read_late() -> None:
        settings = ClusterSettings(
            request_timeout_ms=3_000, backoff=Backoff(random=process.seams.random)
        )
        async with NotingCluster(group, f"b1:{PORT}", settings) as cluster:
            reader = GroupReader(
                cluster, group.name, ["t"],
                reset=OffsetReset.EARLIEST, auto_commit_ms=600_000,
                session_timeout_ms=3_000, rebalance_timeout_ms=3_000, heartbeat_interval_ms=500,
            )  # fmt: skip
            while True:
                for fetched in await reader.poll(100):
                    got.extend(record.offset for record in fetched.rows())

    await run.write(5)
    process.run(read_late())
    await run.until(lambda: len(got) == 5, "the first five are read")
    process.pause()
    await reach(run, "Empty", 0)
    other = group.members[0]
    other.start()
    await run.write(5)
    await reach(run, "Stable", 1, 10)
    other.kill()
    await reach(run, "Empty", 0, 10)
    process.resume()
    await reach(run, "Stable", 1)
    await asyncio.sleep(2)
    assert (await group.committed())["t-0"] == 10


async def out_of_reach(run: Told) -> None:
    """Cut off from all brokers for longer than a session: it comes back, idle or not."""
    run.group.topics = ("t",)
    member = run.group.members[0]
    member.start()
    await run.write(3)
    await reach(run, "Stable", 1, 3)
    run.world.network.reset_connections(member.host)
    for broker in run.cluster.brokers:
        run.world.network.cut(member.host, broker.host)
    await reach(run, "Empty", 0, 3)
    await asyncio.sleep(20)
    run.world.network.heal()
    await reach(run, "Stable", 1, 3)


async def a_lost_position(run: Told) -> None:
    """All of a partition goes in an unclean election: a member commits its start, empty as it is.

    Seed 58: nothing was read yet, and the checker took the commit for one that went back.
    """
    run.place = TopicPartition("pair", 0)
    await run.admin.create("pair", 1, 2, {"min.insync.replicas": "1"})
    run.target = target(run.outside, "pair", 0)
    await run.until(lambda: run.states.place("pair", 0) is not None, "pair")
    await run.until(lambda: len(run.now.isr) == 2, "both in sync")
    run.group.topics = ("pair",)
    run.group.members[0].start()
    await reach(run, "Stable", 1)
    leader = run.now.leader
    (empty,) = set(run.now.isr) - {leader}
    run.cluster.broker(empty).kill()
    await run.until(lambda: run.now.isr == [leader], "alone")
    await run.write(5)
    await reach(run, "Stable", 1, 5)
    run.cluster.broker(leader).kill()
    run.cluster.broker(empty).start()
    await run.until(lambda: run.now.leader < 0, "its death")
    run.states.unclean_asked = True
    while run.now.leader < 0:
        await run.admin.elect("pair", 0, unclean=True)
    await reach(run, "Stable", 1, 0)
    run.group.members[0].kill()
    await reach(run, "Empty", 0, 0)
    run.group.members[1].start()
    await run.write(3)
    await reach(run, "Stable", 1, 3)
    assert [(jump.source, jump.target) for jump in run.group.book.jumps] == [(5, 0)]
    run.judge.group(run.group)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tell", [a_late_commit, out_of_reach, a_lost_position])
def test_a_member_story(tell, seed: int) -> None:
    result = Told(seed, tell, "replicated", {"min.insync.replicas": "2"}).run()
    assert not result.violations, result.report()
