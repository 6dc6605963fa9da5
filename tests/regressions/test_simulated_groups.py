"""The known traps of a group's members: stories on the simulated cluster.

Each was a defect that the whole-cluster scenario found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.simulation.cluster.clients import target
from tests.simulation.cluster.members import OFFSETS_TOPIC, NotingCluster
from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.kernel import Process
from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.group_reader import GroupReader
from tidelog.model.topics import TopicPartition
from tidelog.runtime.backoff import Backoff


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL"):
        yield


async def reach(run: ScriptedRun, state: str, members: int, committed: int | None = None) -> None:
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


def read_by(run: ScriptedRun, host: str, broker: int, commit_ms: int, got: list[int]) -> Process:
    """Start a member of the run's group that knows this broker at first."""
    process = run.world.machine(host).process("Consumer")

    async def read() -> None:
        settings = ClusterSettings(
            request_timeout_ms=3_000, backoff=Backoff(random=process.seams.random)
        )
        async with NotingCluster(run.group, f"b{broker}:{PORT}", settings) as cluster:
            reader = GroupReader(
                cluster, run.group.name, ["t"],
                reset=OffsetReset.EARLIEST, auto_commit_ms=commit_ms,
                session_timeout_ms=3_000, rebalance_timeout_ms=3_000, heartbeat_interval_ms=500,
            )  # fmt: skip
            while True:
                for fetched in await reader.poll(100):
                    cluster.goes_on(str(fetched.partition), fetched.offset, fetched.next_offset)
                    got.extend(record.offset for record in fetched.rows())

    process.run(read())
    return process


async def a_late_commit(run: ScriptedRun) -> None:
    """Paused for longer than its session, while others went on and left: it sets nothing back."""
    group = run.group
    group.topics = ("t",)
    got: list[int] = []
    await run.write(5)
    process = read_by(run, "late", 1, 600_000, got)
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


async def out_of_reach(run: ScriptedRun) -> None:
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


async def a_lost_position(run: ScriptedRun) -> None:
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
    run.verdict.group(run.group, {})


async def led_in_an_earlier_epoch(run: ScriptedRun) -> None:
    """A member learns of the cluster from a leader that was deposed, cut off and does not know it.

    Seed 5122: that one's log ends before the committed position, which was out of range there, and
    the group read everything again. The epoch that is committed with it says which log lags.
    """
    group, got = run.group, list[int]()
    group.topics = ("t",)
    await run.write(1)
    early = read_by(run, "early", 1, 100, got)
    await reach(run, "Stable", 1, 1)
    early.kill()
    await reach(run, "Empty", 0, 1)
    offsets = run.states.place(OFFSETS_TOPIC, 0)
    assert offsets is not None
    deposed = run.now.leader
    if run.states.places[offsets].state.leader == deposed:
        # Its coordinator must not be cut off as well.
        run.cluster.broker(deposed).kill()
        await run.until(lambda: run.now.leader not in (-1, deposed), "another leader")
        run.cluster.broker(deposed).start()
        await run.until_isr(1, 2, 3)
        while run.now.leader != deposed:
            await run.admin.elect("t", 0, unclean=False)
        assert run.states.places[offsets].state.leader != deposed
    former = run.now.leader_epoch
    run.faults.unquiet_until = float("inf")
    for node in run.cluster.nodes:
        if node is not run.cluster.broker(deposed):
            run.world.network.cut(node.host, f"b{deposed}")
    await run.until(lambda: run.now.leader not in (-1, deposed), "deposed")
    leader = run.now.leader
    await run.write(4)
    middle = read_by(run, "middle", leader, 100, got)
    await reach(run, "Stable", 1, 5)
    middle.kill()
    await reach(run, "Empty", 0, 5)
    assert run.hosted(deposed).is_leader
    assert run.hosted(deposed).leader_epoch == former
    read_by(run, "last", deposed, 100, got)
    await run.write(1)
    await reach(run, "Stable", 1, 6)
    assert run.hosted(deposed).is_leader
    assert got == list(range(6))
    assert group.book.jumps == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "script", [a_late_commit, out_of_reach, a_lost_position, led_in_an_earlier_epoch]
)
def test_a_member_story(script, seed: int) -> None:
    result = ScriptedRun(seed, script, "replicated", {"min.insync.replicas": "2"}).run()
    assert not result.violations, result.report()
