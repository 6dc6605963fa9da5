"""Leaders of one topic that grows and shrinks, for a sender: they answer by the table of Produce.

Owns the model: the steps of resizes, and answers that get lost. In the place of ``client.cluster``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tests.order.history import History, Resize, Stored
from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ConnectionLost, Refused
from tidelog.client.metadata import BrokerAddress, ClusterMetadata, Partition, Topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.batch import read_header
from tidelog.records.reader import read_batch
from tidelog.replication.resize_rules import Named, ToProduce, answer_to_produce
from tidelog.runtime.backoff import Backoff

NAME = "t"
INITIAL = 2
MOST = 9
BROKERS = 3
TOPIC_ID = UUID(int=1)

_ERRORS = {
    ToProduce.INCOMPLETE: ErrorCode.INVALID_REQUEST,
    ToProduce.ELSEWHERE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ToProduce.UNDETERMINED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ToProduce.OLDER: ErrorCode.INVALID_PARTITION_METADATA,
    ToProduce.SEALED: ErrorCode.POLICY_VIOLATION,
    ToProduce.OTHER_COUNT: ErrorCode.POLICY_VIOLATION,
}


@dataclass
class _Leader:
    partition_epoch: int
    undeleted_count: int
    resize_epoch: int
    birth_epoch: int = 0
    sealed: bool = False
    is_committed: bool = True
    retirement_epoch: int = -1
    log: list[int | None] = field(default_factory=list)
    first: int = 0
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    known: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def fence(self, count: int, resize_epoch: int, sealed: bool) -> int:
        self.undeleted_count, self.resize_epoch, self.sealed = count, resize_epoch, sealed
        self.is_committed = False
        self.log.append(None)
        return self.first + len(self.log) - 1

    def append(self, data: Any, named: Named) -> tuple[ErrorCode, int]:
        header = read_header(data)
        identity = (header.producer_id, header.producer_epoch)
        batch = (*identity, header.base_sequence)
        answer = answer_to_produce(
            named,
            self,
            known=batch in self.known,
            fence_unwritten=False,
            fence_committed=self.is_committed,
            refuses_unaware=False,
        )
        if answer is ToProduce.KNOWN:
            return ErrorCode.NONE, self.known[batch]
        if answer is not ToProduce.APPENDED:
            return _ERRORS[answer], -1
        if header.base_sequence != self.sequences.get(identity, 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = self.first + len(self.log)
        self.log += [int(record.value or b"") for record in read_batch(data)]
        self.known[batch] = offset
        self.sequences[identity] = header.base_sequence + header.record_count
        return ErrorCode.NONE, offset


class ResizingLeaders:
    """The topic and its resizes; ``step`` does the next step of one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.count = INITIAL
        self.resize_epoch = 0
        self._newest = INITIAL - 1
        self.leaders = {index: _Leader(index, INITIAL, 0) for index in range(INITIAL)}
        self.history = History(INITIAL)
        self.now = 0
        self.may_remove: Callable[[int], bool] = lambda _: True
        """Whether a retired partition is removed now."""
        self._steps: Iterator[None] | None = None
        self._ends: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        """How often each partition got another leader."""
        self.described = self._describe()

    def move(self) -> None:
        """Let another broker lead a partition."""
        index = self._chance.choice(list(self.leaders))
        self.moved[index] = self.moved.get(index, 0) + 1
        topic = self.described.topics[NAME]
        parts = dict(topic.partitions)
        if index in parts:
            now = parts[index]
            parts[index] = replace(
                now, leader=(now.leader + 1) % BROKERS, leader_epoch=now.leader_epoch + 1
            )
            topics = {NAME: replace(topic, partitions=parts)}
            self.described = replace(self.described, topics=topics)

    def step(self) -> None:
        """Begin a resize, or do its next step."""
        if self._steps is None:
            self._steps = self._resize()
        if next(self._steps, self) is self:
            self._steps = None

    def finish(self) -> None:
        """Do all steps of the resize that is under way."""
        for _ in self._steps or ():
            pass
        self._steps = None

    def _resize(self) -> Iterator[None]:
        retired = [index for index, one in self.leaders.items() if one.retirement_epoch >= 0]
        if retired:
            if all(map(self.may_remove, retired)):
                yield from self._remove(retired)
            return
        before = self.count
        after = self._chance.choice([n for n in range(INITIAL, MOST) if n != before])
        self.resize_epoch += 1
        cuts = {}
        # A shrink seals the retired partitions before it fences the others.
        for index in sorted(self.leaders, key=lambda each: each < after):
            cuts[index] = self.leaders[index].fence(after, self.resize_epoch, index >= after)
            yield
        if self._chance.random() < 0.2:
            self._undo(before)
            return
        for one in self._in_any_order():
            one.is_committed = True
            yield
        for index in range(before, after):
            cuts[index] = self._bear(index, after)
            yield
        for index in range(after, before):
            self.leaders[index].retirement_epoch = self.resize_epoch
        self._publish(after, cuts)

    def _in_any_order(self) -> list[_Leader]:
        return self._chance.sample(list(self.leaders.values()), len(self.leaders))

    def _bear(self, index: int, count: int) -> int:
        self._newest += 1
        epoch, first = self.resize_epoch, self._ends.get(index, 0)
        born = self.leaders[index] = _Leader(self._newest, count, epoch, epoch, first=first)
        cut = born.fence(count, epoch, False)
        born.is_committed = True
        return cut

    def _undo(self, before: int) -> None:
        undone, self.resize_epoch = self.resize_epoch, self.resize_epoch + 1
        self.history.events.append(Resize(undone, before, self.now, is_undone=True))
        for one in self.leaders.values():
            one.fence(before, self.resize_epoch, False)
            one.is_committed = True
        self.history.events.append(Resize(self.resize_epoch, before, self.now, is_undone=True))
        self.described = self._describe()

    def _publish(self, count: int, cuts: dict[int, int]) -> None:
        self.count = count
        self.history.events.append(Resize(self.resize_epoch, count, self.now, cuts))
        self.described = self._describe()

    def _remove(self, retired: list[int]) -> Iterator[None]:
        for index in sorted(retired, reverse=True):
            self._ends[index] = self.leaders[index].first + len(self.leaders[index].log)
            self._note(index)
            del self.leaders[index]
            self.described = self._describe()
            yield

    def _note(self, index: int) -> None:
        one = self.leaders[index]
        self.history.events += [
            Stored(index, one.first + place, uid)
            for place, uid in enumerate(one.log)
            if uid is not None
        ]

    def note_all(self) -> None:
        """Put what the partitions hold into the history."""
        for index in self.leaders:
            self._note(index)

    def _describe(self) -> ClusterMetadata:
        partitions = {
            index: Partition(
                index,
                (index + self.moved.get(index, 0)) % BROKERS,
                self.moved.get(index, 0),
                (index % BROKERS,),
                (index % BROKERS,),
                (),
                retirement_epoch=one.retirement_epoch,
                partition_epoch=one.partition_epoch,
                birth_epoch=one.birth_epoch,
                birth_offset=one.first,
            )
            for index, one in self.leaders.items()
        }
        topic = Topic(
            NAME,
            TOPIC_ID,
            False,
            partitions,
            initial_partition_count=INITIAL,
            undeleted_partition_count=self.count,
            resize_epoch=self.resize_epoch,
            max_partition_epoch=self._newest,
        )
        brokers = {each: BrokerAddress(each, "h", each) for each in range(BROKERS)}
        return ClusterMetadata("c", 0, brokers, {NAME: topic})


class ResizingCluster:
    """What a sender needs of ``client.cluster.Cluster``; ``answer`` answers a request."""

    def __init__(self, leaders: ResizingLeaders, chance: random.Random) -> None:
        self.leaders = leaders
        self.settings = ClusterSettings(backoff=Backoff(1, 2, chance))
        self.view = leaders.described
        self.expired = False
        self._chance = chance
        self.waiting: dict[int, list[tuple[Any, asyncio.Future[Any]]]] = {}
        self.lives = dict.fromkeys(range(BROKERS), 0)
        self.late: list[Any] = []
        """Requests that a stopped broker has not read yet."""

    async def topics(self, *_: Any, **__: Any) -> dict[str, Topic]:
        return dict(self.view.topics)

    async def refresh(self) -> None:
        self.view = self.view.merged(self.leaders.described, whole=False)

    async def describe(self, _: Any, *, first: int) -> None:
        await self.refresh()

    def forget(self) -> None:
        """Metadata stay as they are until the next ``refresh``."""

    async def leader(self, where: TopicPartition) -> Partition:
        await self.refresh()
        found = self.view.partition(where)
        if found is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(where))
        return found

    def note_silent(self, peer: str) -> None:
        """Any broker is asked."""

    def close_connection(self, node_id: int, *_: str) -> None:
        """Break the connection; its requests are executed later, in their order."""
        self.lives[node_id] += 1
        for request, future in self.waiting.pop(node_id, []):
            self.late.append(request)
            if not future.done():
                future.set_exception(ConnectionLost("closed"))

    async def connection(self, node_id: int, _: str) -> Connection:
        return Connection(self, node_id, self.lives[node_id])

    async def retry(self, attempt: Any) -> Any:
        return await attempt()

    async def send_to_any(self, request: Any, **_: Any) -> Any:
        if isinstance(request, messages.DescribeConfigsRequest):
            # No topic is compacted.
            row = messages.DescribeConfigsResponse.DescribeConfigsResult(resource_name=NAME)
            return messages.DescribeConfigsResponse(results=[row])
        return messages.InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=0)

    async def ask_any(self, ask: Any) -> Any:
        return await ask(Connection(self, 0, 0))

    def answer(self) -> bool:
        """Answer the first request of a broker, or lose its answer; False: none waits."""
        if self.late and self._chance.random() < 0.2:
            self._execute(self.late.pop(0))
        busy = [node_id for node_id, waiting in self.waiting.items() if waiting]
        if not busy:
            return False
        node_id = self._chance.choice(busy)
        if self._chance.random() < 0.1:
            # The connection breaks: some requests were executed, in their order.
            self.lives[node_id] += 1
            lost, self.waiting[node_id] = self.waiting[node_id], []
            for request, _ in lost[: self._chance.randint(0, len(lost))]:
                self._execute(request)
            for _, future in lost:
                if not future.done():
                    future.set_exception(ConnectionLost("the connection broke"))
            return True
        request, future = self.waiting[node_id].pop(0)
        response = self._execute(request)
        if not future.done():
            future.set_result(response)
        return True

    def _execute(self, request: messages.ProduceRequest) -> messages.ProduceResponse:
        response = messages.ProduceResponse
        parts = []
        (topic,) = request.topic_data
        for part in topic.partition_data:
            named = Named(topic.undeleted_partition_count, topic.resize_epoch, part.partition_epoch)
            leader = self.leaders.leaders.get(part.index)
            code, offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            if leader is not None:
                code, offset = leader.append(part.records, named)
            parts.append(response.PartitionProduceResponse(part.index, code, offset))
        return response(responses=[response.TopicProduceResponse(NAME, partition_responses=parts)])


@dataclass
class Connection:
    """A connection to one broker, until it breaks."""

    cluster: ResizingCluster
    node_id: int
    life: int
    is_receiving: bool = False

    @property
    def closed(self) -> bool:
        return self.cluster.lives[self.node_id] != self.life

    async def send(self, request: Any, *_: Any) -> Any:
        return await self.cluster.send_to_any(request)

    def submit(self, request: Any, *_: Any, answered: bool) -> asyncio.Future[Any]:
        assert answered
        future = asyncio.get_running_loop().create_future()
        self.cluster.waiting.setdefault(self.node_id, []).append((request, future))
        return future
