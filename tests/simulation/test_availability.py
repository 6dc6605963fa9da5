"""Each process frozen or killed as each operation begins: how long the others wait (virtual time).

The others are partitions without a replica on the broker that is struck, and a group with neither
coordinator nor partitions there. A write, a commit and a read of theirs waits less than a second,
whatever becomes of the operation; when the process is back, everything is in sync, and each
acknowledged record is there once. Two controllers share a store; the standby one is struck, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from tests.simulation.cluster.nodes import PORT, Node
from tests.simulation.cluster.scripted_run import ScriptedRun
from tests.simulation.cluster.writing import COUNT, Writing, now_s
from tests.simulation.kernel.world import VirtualClock
from tidelog.client.admin import configs, elections, reassignments, topics
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups.committed_offsets import Position, commit_offsets
from tidelog.client.producing.sender import RecordSender
from tidelog.groups.placement import partition_for
from tidelog.model.admin_requests import ElectionType, ResourceType
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.runtime.backoff import Backoff

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.long(60)]

STRUCK = 5
"""The broker that is struck: it leads partition 0 of both topics, and follows in partition 1."""

HOMES = {0: [STRUCK, 1, 2], 1: [1, STRUCK, 2], 2: [2, 3, 4], 3: [3, 4, 1]}
CHILDREN = [[STRUCK, 2, 1], [2, STRUCK, 3], [3, 4, 2], [4, 1, 3]]
OTHERS = [place for place in range(2 * COUNT) if place % COUNT in (2, 3)]
"""Their replicas, and those of their children, are on other brokers."""

OTHERS_S = 1.0
STRUCK_S = 7.0
"""A standby controller has taken over by then, and a frozen broker is dead."""

EXPIRED_S = 6.5
"""ZooKeeper ends the session of a frozen controller, here as late as a real one was seen to: after
a clean stop has first given up."""

RESTART_STRUCK_S = 13.0
"""Longer than a clean stop that waits for a frozen controller."""

PACE_S = 0.05
MOVED = TopicPartition("m", 0)
COMMITTED = TopicPartition("s", 2)


class Stage:
    """The topics ``s``, which is watched, and ``m``, on which operations act; clients of both."""

    def __init__(self, run: ScriptedRun) -> None:
        self.run = run
        self.clients = 0
        self.committed_s: list[float] = []
        self.read_s: dict[int, list[float]] = {place: [] for place in (2, 3)}
        self.ends = False

    def client(self) -> Cluster:
        self.clients += 1
        backoff = Backoff(random=self.run.world.random(f"client {self.clients}"))
        addresses = [f"{node.host}:{PORT}" for node in self.run.cluster.brokers]
        return Cluster(addresses, ClusterSettings(backoff=backoff))

    async def prepare(self, cluster: Cluster) -> None:
        specs = [topics.TopicSpec(name, assignment=HOMES) for name in ("s", "m")]
        assert not any((await topics.create_topics(cluster, specs)).values())
        await self.run.admin.create(OFFSETS_TOPIC, 8, 3, {})
        clock = VirtualClock(self.run.world.loop)
        async with RecordSender(cluster, clock=clock) as sender:
            for index in HOMES:
                await (await sender.send("m", b"x", partition=index))

    async def commit(self, group: str) -> None:
        """Commit again and again, and note how long each commit waited."""
        async with self.client() as cluster:
            offset = 0
            while not self.ends:
                began_s = now_s()
                self.committed_s.append(0.0)
                while True:
                    with contextlib.suppress(ClientError):
                        await commit_offsets(cluster, group, {COMMITTED: Position(offset)})
                        break
                self.committed_s[-1] = now_s() - began_s
                offset += 1
                await asyncio.sleep(PACE_S)

    async def read(self) -> None:
        """Read the others, and note when records of each arrive."""
        async with self.client() as cluster:
            fetcher = Fetcher(cluster)
            fetcher.assign({TopicPartition("s", place): 0 for place in self.read_s})
            while not self.ends:
                for piece in await fetcher.poll(50):
                    self.read_s[piece.partition.partition].append(now_s())
            await fetcher.close()

    def longest_s(self, since_s: float, writing: Writing) -> dict[str, float]:
        """Return the longest waits of the others since a time, by kind."""
        gaps = []
        for arrived_s in self.read_s.values():
            times = [since_s, *(x for x in arrived_s if x > since_s), now_s()]
            gaps += [after - before for before, after in pairwise(times)]
        _, of_writes = writing.longest(lambda place: place not in OTHERS)
        return {"writes": of_writes, "commits": max(self.committed_s), "reads": max(gaps)}


Operation = Callable[[Cluster, Stage], Awaitable[object]]


async def create(cluster: Cluster, _: Stage) -> None:
    await topics.create_topics(cluster, [topics.TopicSpec("n", 4, 3)])


async def delete(cluster: Cluster, _: Stage) -> None:
    await topics.delete_topics(cluster, ["m"])


async def grow(cluster: Cluster, _: Stage) -> None:
    await topics.create_partitions(cluster, {"s": 2 * COUNT}, assignments={"s": CHILDREN})


async def shrink(cluster: Cluster, _: Stage) -> None:
    await topics.create_partitions(cluster, {"s": COUNT}, force=True)


async def move(cluster: Cluster, _: Stage) -> None:
    """One partition to the struck broker, one from it, one elsewhere."""
    targets = {1: [1, 3, 2], 2: [2, STRUCK, 4], 3: [3, 1, 2]}
    await reassignments.alter_reassignments(
        cluster, {TopicPartition("m", index): brokers for index, brokers in targets.items()}
    )


async def cancel(cluster: Cluster, _: Stage) -> None:
    await reassignments.alter_reassignments(cluster, {MOVED: [STRUCK, 3, 4]})
    await reassignments.alter_reassignments(cluster, {MOVED: None})


async def configure(cluster: Cluster, _: Stage) -> None:
    values = {"retention.ms": "1234567"}
    await configs.alter_configs(cluster, ResourceType.TOPIC, "m", set_values=values)


async def elect(cluster: Cluster, _: Stage) -> None:
    await elections.elect_leaders(cluster, ElectionType.PREFERRED, None)


async def reset(cluster: Cluster, _: Stage) -> None:
    """Offsets of eight groups: some have the struck broker as coordinator."""
    for group in "abcdefgh":
        await commit_offsets(cluster, f"reset-{group}", {MOVED: Position(0)})


async def delete_records(cluster: Cluster, _: Stage) -> None:
    await topics.delete_records(cluster, {TopicPartition("m", index): 1 for index in HOMES})


async def restart(_: Cluster, stage: Stage) -> None:
    """A clean restart of another broker: its partitions are led elsewhere first."""
    node = stage.run.cluster.broker(4)
    await node.stop()
    node.start()


OPERATIONS: dict[str, Operation] = {
    each.__name__: each
    for each in (
        create,
        delete,
        grow,
        shrink,
        move,
        cancel,
        configure,
        elect,
        reset,
        delete_records,
        restart,
    )
}


def struck_nodes(run: ScriptedRun, victim: str) -> list[Node]:
    active = run.cluster.active
    assert active is not None
    broker = run.cluster.broker(STRUCK)
    if victim == "broker":
        return [broker]
    if victim == "controller":
        return [active]
    if victim == "standby controller":
        return [node for node in run.cluster.controllers if node is not active]
    assert victim == "machine"
    return [broker, active]


async def played(run: ScriptedRun, operation: str, victim: str, how: str) -> dict[str, float]:
    """Strike as the operation begins; return the longest waits of the others."""
    stage = Stage(run)
    async with stage.client() as cluster, stage.client() as operator:
        await stage.prepare(cluster)
        if operation == "shrink":
            await grow(cluster, stage)
        await run.until(run.faults.all_in_sync, "in sync")
        offsets = await run.outside.topic(OFFSETS_TOPIC)
        apart = {x.partition_index for x in offsets.partitions if STRUCK not in x.replica_nodes}
        group = next(name for name in map(str, range(99)) if partition_for(name, 8) in apart)
        await operator.topics(["s", "m"])
        writing = Writing(run)
        work = asyncio.create_task(writing.write())
        watch = [asyncio.create_task(stage.commit(group)), asyncio.create_task(stage.read())]
        await run.until(lambda: all(map(len, stage.read_s.values())), "something is read")
        await asyncio.sleep(1)
        since_s = now_s()
        nodes = struck_nodes(run, victim)
        run.faults.unquiet_until = now_s() + 60
        for node in nodes:
            assert node.process is not None
            if how == "frozen":
                node.process.pause()
                for session in list(getattr(node, "sessions", ())):
                    run.world.loop.call_later(EXPIRED_S, session.expire)
            else:
                node.kill()
        task = asyncio.create_task(ended(OPERATIONS[operation](operator, stage)))
        await asyncio.sleep(RESTART_STRUCK_S if operation == "restart" else STRUCK_S)
        longest = stage.longest_s(since_s, writing)
        for node in nodes:
            if how == "frozen":
                assert node.process is not None
                node.process.resume()
            else:
                node.start()
        await run.until(task.done, "the operation has ended")
        await writing.end(work)
        stage.ends = True
        await asyncio.gather(*watch)
    return longest


async def ended(work: Awaitable[object]) -> None:
    """Await an operation, which may fail: its process is struck."""
    with contextlib.suppress(ClientError):
        await work


VICTIMS = ("broker", "controller", "standby controller", "machine")
HOW = ("frozen", "killed")
ROWS = [
    (operation, victim, HOW[(row + column) % 2])
    for row, operation in enumerate(OPERATIONS)
    for column, victim in enumerate(VICTIMS)
]
"""Every other row of all 88, which take five minutes."""

RESTARTS = [("restart", victim, "frozen") for victim in ("controller", "machine")]
"""A clean stop waits until the standby controller has taken over."""


@pytest.mark.parametrize(("operation", "victim", "how"), [*dict.fromkeys([*ROWS, *RESTARTS])])
def test_others_go_on_within_a_second(operation: str, victim: str, how: str) -> None:
    longest: dict[str, float] = {}

    async def script(run: ScriptedRun) -> None:
        longest.update(await played(run, operation, victim, how))

    run = ScriptedRun(
        1, script, "replicated", {"min.insync.replicas": "1"}, brokers=5, controllers=2
    )
    result = run.run()
    assert not result.violations, result.report()
    print(f"{operation}, {victim} {how}: {longest}")
    assert max(longest.values()) < OTHERS_S, longest
