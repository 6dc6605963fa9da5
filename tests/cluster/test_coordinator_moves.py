"""The leader of a ``__consumer_offsets`` partition is moved: exactly one coordinator at any time.

A group's offset is committed to all three brokers at once, over and over, while its coordinator is
stopped (SIGSTOP), replaced, continued and killed, and while its partition is reassigned. Whoever
takes a commit is the coordinator:

- no coordinator that serves later lacks an acknowledged commit (a fetched position never steps
  back). A coordinator that was stopped while it was replaced may return its older positions until
  it learns of the replacement, as leaders serve on without a controller; it takes no commit, and
  after that it returns no older position;
- one round of commits is taken by two only when the coordinator moved within it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster import TidelogCluster
from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP
from tests.support.target import TARGET
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

GROUP, TOPIC, OFFSETS = "moved", "t", "__consumer_offsets"
ANSWER_S = 0.5
ROUNDS = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    config = {"broker.session.timeout.ms": 3000, "offsets.topic.num.partitions": 1}
    with TidelogCluster(tmp_path_factory.mktemp("moves"), config=config) as started:
        started.create_topic(TOPIC)
        yield started


def commit(number: int) -> Any:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(0, number)
    topic = request.OffsetCommitRequestTopic(TOPIC, partitions=[part])
    return request(GROUP, -1, "", topics=[topic])


def fetch() -> Any:
    request = messages.OffsetFetchRequest
    return request(GROUP, [request.OffsetFetchRequestTopic(TOPIC, [0])])


class Brokers:
    """Sends the same to all brokers; a broker that does not respond in time gets it again later."""

    def __init__(self, cluster: TidelogCluster) -> None:
        self._ports = {node_id: node.port for node_id, node in cluster.brokers.items()}
        self._peers: dict[int, Peer] = {}

    async def _ask(self, node_id: int, request: Any, version: int) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                peer = self._peers.get(node_id)
                if peer is None:
                    peer = self._peers[node_id] = await Peer.connect(self._ports[node_id])
                return await peer.ask(request, version)
        except (OSError, TimeoutError):
            gone = self._peers.pop(node_id, None)
            if gone is not None:
                gone.writer.close()
            return None

    async def all(self, request: Any, version: int) -> dict[int, Any]:
        """The answers by broker; those that gave none are left out."""
        answers = await asyncio.gather(*(self._ask(n, request, version) for n in self._ports))
        return {n: a for n, a in zip(self._ports, answers, strict=True) if a is not None}

    def close(self) -> None:
        for peer in self._peers.values():
            peer.writer.close()


class History:
    """The acknowledged commits and the brokers that took them, compared with what is read."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._number = 0
        self.acked = -1
        self.taken_by: list[int] = []
        self.unknowing: set[int] = set()
        """Brokers that were stopped and have not learned yet that they were replaced."""

    async def step(self) -> list[int]:
        """One round: read, commit, read; the brokers that took the commit."""
        await self._read()
        self._number += 1
        answers = await self._brokers.all(commit(self._number), 8)
        takers = [n for n, a in answers.items() if not a.topics[0].partitions[0].error_code]
        assert not self.unknowing & set(takers), "a deposed coordinator took a commit"
        if takers:
            self.acked = self._number
            self.taken_by.append(takers[-1])
        await self._read()
        return takers

    async def _read(self) -> None:
        known = self.acked
        for node_id, answer in (await self._brokers.all(fetch(), 5)).items():
            if answer.error_code != ErrorCode.NONE:
                self.unknowing.discard(node_id)
            elif node_id not in self.unknowing:
                found = answer.topics[0].partitions[0].committed_offset
                assert found >= known, f"broker {node_id} says {found}, {known} was acknowledged"

    async def until_taken(self, by_other_than: int | None = None) -> int:
        """Go on until a commit is taken (by another broker); return the broker that took it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                takers = await self.step()
                if takers and takers[-1] != by_other_than:
                    return takers[-1]


def test_exactly_one_coordinator_at_any_time(cluster: TidelogCluster) -> None:
    async def main() -> None:
        brokers = Brokers(cluster)
        history = History(brokers)
        request = messages.FindCoordinatorRequest(GROUP, 0)
        await brokers.all(request, 2)
        first = await history.until_taken()
        twice = 0
        for _ in range(ROUNDS):
            twice += len(await history.step()) > 1
        assert twice == 0, "nothing has moved"
        # Stopped, replaced, and back: it does not know that it was deposed.
        cluster.brokers[first].program.send(SIGSTOP)
        second = await history.until_taken(first)
        for _ in range(3):
            await history.step()
        history.unknowing.add(first)
        cluster.brokers[first].program.send(SIGCONT)
        async with asyncio.timeout(DEADLINE_S):
            while history.unknowing:
                twice += len(await history.step()) > 1
        for _ in range(ROUNDS):
            twice += len(await history.step()) > 1
        # Killed, replaced, and back in another life.
        cluster.brokers[second].kill()
        third = await history.until_taken(second)
        cluster.brokers[second].start()
        for _ in range(ROUNDS):
            twice += len(await history.step()) > 1
        assert third != second
        assert twice <= 2, "two coordinators at once"
        brokers.close()

    asyncio.run(main())
    cluster.until_in_sync(OFFSETS, 3)


def reassign(replicas: list[int]) -> Any:
    request = messages.AlterPartitionReassignmentsRequest
    part = request.ReassignablePartition(0, replicas)
    return request(topics=[request.ReassignableTopic(OFFSETS, [part])])


def test_exactly_one_coordinator_while_its_partition_is_reassigned(cluster: TidelogCluster) -> None:
    """Away from its leader, to brokers that have no copy of it, and back to all; no commit is lost,
    and a round is taken by two only when the coordinator moved within it."""

    async def main() -> None:
        brokers = Brokers(cluster)
        history = History(brokers)
        await brokers.all(messages.FindCoordinatorRequest(GROUP, 0), 2)
        leader = await history.until_taken()
        others = [node_id for node_id in cluster.brokers if node_id != leader]
        moves = ([others[0]], [leader, others[1]], others, [leader, *others])
        twice = changes = 0
        for replicas in moves:
            # Asked by each broker: for what runs already, all but the first change nothing.
            answers = (await brokers.all(reassign(replicas), 0)).values()
            assert [each.responses[0].partitions[0].error_code for each in answers] == [0] * 3
            async with asyncio.timeout(DEADLINE_S):
                while not is_placed(cluster, replicas):
                    twice += len(await history.step()) > 1
            if leader not in replicas:
                leader = await history.until_taken(leader)
                changes += 1
            for _ in range(ROUNDS // 2):
                twice += len(await history.step()) > 1
            leader = history.taken_by[-1]
            assert leader in replicas
        assert changes >= 2
        assert twice <= len(moves), "two coordinators at once"
        brokers.close()

    asyncio.run(main())
    cluster.until_in_sync(OFFSETS, 3)


def is_placed(cluster: TidelogCluster, replicas: list[int]) -> bool:
    (found,) = cluster.partitions(OFFSETS).values()
    return set(found.replicas) == set(found.isrs) == set(replicas)
