"""A real group: consumers on machines of their own, which join, read, commit, die and come back.

Owns the members' processes and the books of the responses they got. The members are the product's
own (``GroupReader``); what they ask the coordinator is noted where it leaves them, and each commit
carries a mark into the log, so that it is known again there. What is judged is
``tests.simulation.group_checkers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

from tests.simulation.cluster.clients import ANSWER_MS, Outside
from tests.simulation.cluster.nodes import PORT
from tests.simulation.group_history import GroupCommit, GroupHistory, Jump, Look, Share
from tests.simulation.history import History, Outcome
from tests.simulation.kernel import Process
from tidelog.client.cluster import COORDINATOR_PURPOSE, Cluster, ClusterSettings
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError, ConnectionLost
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.consumer_protocol import decode_assignment
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.offsets import EARLIEST
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff

OFFSETS_TOPIC = "__consumer_offsets"
SESSION_MS = 4_000
REBALANCE_MS = 5_000
HEARTBEAT_MS = 1_000
POLL_MS = 700

GROUP_CONFIGS = {
    "group.min.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "500",
}
"""Configurations of brokers, so that rebalances fit into a run of a minute."""

NOT_COMMITTED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Errors of a commit that are given before anything is appended. NOT_COORDINATOR is also the
response when leadership goes while the commit waits."""


class Group:
    """What all members of the group share: its name, its topics, its books."""

    def __init__(
        self, outside: Outside, history: History, name: str, topics: Sequence[str], count: int
    ) -> None:
        self.name = name
        self.topics = topics
        self.outside = outside
        self.history = history
        self.book = GroupHistory()
        self.marks = 0
        self.last_seen = ""
        """What was found when it was looked whether the group has settled."""
        self.members = [Member(self, f"m{number + 1}") for number in range(count)]

    @property
    def reader(self) -> str:
        """What the names of the members' reads begin with."""
        return f"{self.name}/"

    def start(self) -> None:
        for member in self.members:
            member.start()

    def heal(self) -> None:
        """All members are there and run."""
        for member in self.members:
            member.heal()

    def check(self) -> None:
        """Raise what a member failed with: only the cluster may fail, and they go on after that."""
        for member in self.members:
            if member.task is not None and member.task.done() and not member.task.cancelled():
                member.task.result()

    # --- from outside ---------------------------------------------------------------------------

    async def committed(self) -> dict[str, int]:
        """Return the committed positions as the coordinator has them. Raises ClientError."""
        request = messages.OffsetFetchRequest
        asked = request.OffsetFetchRequestGroup(group_id=self.name, topics=None)
        answer = (await self._ask(request(groups=[asked]))).groups[0]
        if answer.error_code:
            raise ConnectionLost(ErrorCode(answer.error_code).name)
        return {
            f"{topic.name}-{part.partition_index}": part.committed_offset
            for topic in answer.topics
            for part in topic.partitions
        }

    async def state(self) -> tuple[str, int]:
        """Return the group's state and how many members it has. Raises ClientError."""
        answer = await self._ask(messages.DescribeGroupsRequest(groups=[self.name]))
        found = answer.groups[0]
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return found.group_state, 0
        if found.error_code:
            raise ConnectionLost(ErrorCode(found.error_code).name)
        return found.group_state, len(found.members)

    async def repeat(self, former: GroupCommit) -> None:
        """Send a commit again, with the generation and member that it had."""
        request = messages.OffsetCommitRequest
        topics = [
            request.OffsetCommitRequestTopic(
                name=partition.rpartition("-")[0],
                partitions=[
                    request.OffsetCommitRequestPartition(
                        partition_index=int(partition.rpartition("-")[2]),
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                ],
            )
            for partition, offset in former.positions.items()
        ]
        late = request(
            group_id=self.name,
            generation_id_or_member_epoch=former.generation,
            member_id=former.member,
            topics=topics,
        )
        commit = self.commits(late)
        # Without an answer it may have been done or not: the log tells.
        with contextlib.suppress(ClientError, OSError):
            self.committed_by(commit, await self._ask(late))

    def commits(self, request: Any) -> GroupCommit:
        """Mark a commit that is about to be sent, and note it."""
        self.marks += 1
        positions = {}
        for topic in request.topics:
            for part in topic.partitions:
                part.committed_metadata = str(self.marks)
                positions[f"{topic.name}-{part.partition_index}"] = part.committed_offset
        commit = GroupCommit(
            str(self.marks),
            request.generation_id_or_member_epoch,
            request.member_id,
            positions,
            self.history.tick(),
            Outcome.UNDETERMINED,
        )
        self.book.commits.append(commit)
        return commit

    def committed_by(self, commit: GroupCommit, answer: Any) -> None:
        """Note how a commit ended."""
        codes = {part.error_code for topic in answer.topics for part in topic.partitions}
        if codes == {0}:
            commit.outcome = Outcome.ACKED
        elif codes <= NOT_COMMITTED:
            commit.outcome = Outcome.REFUSED
        commit.done_at = self.history.tick()

    async def _ask(self, request: object) -> Any:
        connection = await self.outside.coordinator(self.name)
        try:
            return await connection.send(request, timeout_ms=ANSWER_MS)
        finally:
            connection.close()

    async def settled(self, ends: dict[str, int]) -> None:
        """Wait until the group is stable, with all its members, and has committed these ends."""
        while True:
            self.check()
            try:
                state, committed = await self.state(), await self.committed()
                self.last_seen = f"{state} at {committed}"
                if state == ("Stable", len(self.members)) and committed == ends:
                    return
            except (ClientError, OSError):
                pass  # the coordinator may still load: again, in a moment
            await asyncio.sleep(0.3)


class Member:
    """One consumer on a machine of its own."""

    def __init__(self, group: Group, host: str) -> None:
        self.group = group
        self.host = host
        self.machine = group.outside.cluster.world.machine(host)
        self.process: Process | None = None
        self.task: asyncio.Task[Any] | None = None
        self.leaves = False
        """Set to let it leave the group properly, for a while."""
        self.joins = 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        self.process = self.machine.process("Consumer")
        self.task = self.process.run(self._live(self.process))

    def kill(self) -> None:
        """kill -9: the coordinator sees it by its session only."""
        if self.process is not None:
            self.process.kill()
        self.task = None

    def heal(self) -> None:
        self.leaves = False
        if self.process is not None:
            self.process.resume()
        if not self.alive:
            self.start()

    async def _live(self, process: Process) -> None:
        rng = process.seams.random
        settings = ClusterSettings(
            client_id=self.host,
            request_timeout_ms=ANSWER_MS,
            connect_timeout_ms=2_000,
            default_api_timeout_ms=8_000,
            backoff=Backoff(random=rng),
        )
        brokers = [f"{node.host}:{PORT}" for node in self.group.outside.cluster.brokers]
        while True:
            rng.shuffle(brokers)
            cluster = NotingCluster(self.group, ",".join(brokers), settings)
            try:
                async with cluster:
                    await self._consume(cluster, rng)
            except (ClientError, OSError):
                pass  # a fault is under way
            # Between two memberships, or before the next attempt.
            await asyncio.sleep(rng.uniform(0.1, 3))

    async def _consume(self, cluster: NotingCluster, rng: random.Random) -> None:
        """Be a member until a fault makes it leave."""
        group = self.group
        reader = GroupReader(
            cluster,
            group.name,
            group.topics,
            reset=OffsetReset.EARLIEST,
            auto_commit_ms=rng.choice((0, 500, 2_000)),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_check_ms=10_000,
        )
        self.joins += 1
        async with reader:
            while not self.leaves:
                for fetched in await reader.poll(POLL_MS):
                    self._deliver(cluster, fetched)
                # What a callback takes.
                await asyncio.sleep(rng.choice((0.0, 0.02, 0.3)))
            await reader.controls.commit()
        self.leaves = False

    def _deliver(self, cluster: NotingCluster, fetched: Fetched) -> None:
        name = _name(fetched.partition)
        cluster.goes_on(name, fetched.offset, fetched.next_offset)
        for record in fetched.rows():
            assert record.value is not None
            self.group.history.read(
                name, record.offset, bytes(record.value), self.group.reader + self.host
            )


class NotingCluster(Cluster):
    """The product's view of a cluster; notes what a member asks its coordinator."""

    def __init__(self, group: Group, bootstrap: str, settings: ClusterSettings) -> None:
        super().__init__(bootstrap, settings)
        self._group = group
        self._share: Share | None = None
        self._next: dict[str, int] = {}

    def goes_on(self, partition: str, offset: int, next_offset: int) -> None:
        """Note where the member reads, and when that is not where it stood."""
        self._jumps(partition, offset)
        self._next[partition] = next_offset

    def _jumps(self, partition: str, offset: int) -> None:
        expected = self._next.get(partition, offset)
        if expected != offset and self._share is not None:
            jump = Jump(
                self._share.generation,
                self._share.member,
                partition,
                expected,
                offset,
                self._group.history.tick(),
            )
            self._group.book.jumps.append(jump)

    async def connection(self, node_id: int, purpose: str = "") -> ClientConnection:
        found = await super().connection(node_id, purpose)
        return cast(ClientConnection, _NotingConnection(found, self._looked_up, self._told_of_cuts))

    def _looked_up(self, request: messages.ListOffsetsRequest, answer: Any) -> None:
        """A member that has a position and asks for the start has lost it.

        It commits the start, maybe before there is anything to read: then nothing else tells.
        """
        asked = {
            f"{topic.name}-{part.partition_index}"
            for topic in request.topics
            for part in topic.partitions
            if part.timestamp == EARLIEST
        }
        for topic in answer.topics:
            for part in topic.partitions:
                name = f"{topic.name}-{part.partition_index}"
                if name in asked and not part.error_code:
                    self._jumps(name, part.offset)

    def _told_of_cuts(self, answer: Any) -> None:
        """A member that learns that its position was cut off goes on where the log was cut."""
        for topic in answer.topics:
            for part in topic.partitions:
                name = f"{topic.topic}-{part.partition}"
                if not part.error_code and 0 <= part.end_offset < self._next.get(name, -1):
                    self.goes_on(name, part.end_offset, part.end_offset)

    async def send_to_coordinator(
        self,
        group: str,
        request: Any,
        *,
        purpose: str = COORDINATOR_PURPOSE,
        **options: Any,
    ) -> Any:
        broker = f"b{await self.coordinator(group)}"
        commit = None
        if isinstance(request, messages.OffsetCommitRequest):
            commit = self._group.commits(request)
        answer = await super().send_to_coordinator(group, request, purpose=purpose, **options)
        if commit is not None:
            self._group.committed_by(commit, answer)
        elif isinstance(request, messages.SyncGroupRequest) and not answer.error_code:
            self._shared(request, answer, broker)
        elif isinstance(request, messages.OffsetFetchRequest):
            self._looked(answer, broker)
        return answer

    def _shared(self, request: Any, answer: Any, broker: str) -> None:
        partitions = tuple(map(_name, decode_assignment(bytes(answer.assignment))))
        self._share = Share(
            request.generation_id, request.member_id, partitions, broker, self._group.history.tick()
        )
        self._next.clear()
        self._group.book.shares.append(self._share)

    def _looked(self, answer: Any, broker: str) -> None:
        found = answer.groups[0]
        parts = [(topic.name, part) for topic in found.topics for part in topic.partitions]
        if found.error_code or any(part.error_code for _, part in parts) or self._share is None:
            return
        told = {
            f"{topic}-{part.partition_index}": (part.committed_offset, part.metadata or "")
            for topic, part in parts
        }
        share, at = self._share, self._group.history.tick()
        self._group.book.looks.append(Look(share.generation, share.member, broker, told, at))
        self._next = {name: offset for name, (offset, _) in told.items() if offset >= 0}


class _NotingConnection:
    """A connection that notes the responses to a member's look-ups of offsets and of the ends of
    epochs."""

    def __init__(
        self,
        inner: ClientConnection,
        answered: Callable[[messages.ListOffsetsRequest, Any], None],
        told: Callable[[Any], None],
    ) -> None:
        self._inner = inner
        self._answered = answered
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await self._inner.send(request, *args, **kwargs)
        if isinstance(request, messages.ListOffsetsRequest):
            self._answered(request, answer)
        elif isinstance(request, messages.OffsetForLeaderEpochRequest):
            self._told(answer)
        return answer


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
