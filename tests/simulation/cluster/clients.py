"""Clients of the simulated cluster: finding leaders, an administrator, a committing group.

Owns what a client of many brokers does beyond ``tests.simulation.clients``: it asks any broker for
the metadata, goes to the leader named there, and keeps what each life of a broker said, for the
checker of metadata that never steps back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.simulation.clients import Target
from tests.simulation.cluster.journal import StateWatch
from tests.simulation.cluster.nodes import PORT, BrokerNode, Cluster
from tests.simulation.secret import secret_outside
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ClientError, ConnectionLost
from tidelog.metadata import layout
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime.cluster_secret import ClusterSecret

TEMPORARY = "temporary"
"""The name that comes and goes; every other topic has one life."""

CONNECT_MS = 2_000
ANSWER_MS = 5_000
LATEST_OFFSET = -1

Said = tuple[str, str, int]
"""(life of a broker, topic id, partition)."""


@dataclass
class MetadataBook:
    """The leader epochs that each life of a broker named to clients, and its steps back."""

    raised: dict[Said, list[tuple[float, int]]] = field(default_factory=dict)
    """When a response first had an epoch higher than all before, and that epoch."""
    steps_back: list[str] = field(default_factory=list)

    def note(
        self, life: str, answer: Any, asked_at: float, now: float, id_of: Callable[[Any], str]
    ) -> None:
        """Take up a response; it is bound by what was received before its request was sent.

        ``id_of(topic)`` is the id of a topic in it, "" if that cannot be known: below level 1.4
        responses name none, and a name that comes and goes begins again without one. That weaker
        promise is of docs/design/levels.md (topic ids come with 1.4).
        """
        for topic in answer.topics:
            topic_id = id_of(topic)
            for part in topic.partitions if topic_id else ():
                place = (life, topic_id, part.partition_index)
                raised = self.raised.setdefault(place, [])
                before = max((epoch for at, epoch in raised if at <= asked_at), default=-1)
                if part.leader_epoch < before:
                    self.steps_back.append(
                        f"{life} named leader epoch {part.leader_epoch} of "
                        f"{topic.name}-{part.partition_index} after {before}"
                    )
                if not raised or part.leader_epoch > raised[-1][1]:
                    raised.append((now, part.leader_epoch))


class Outside:
    """What all clients of one run share: the way into the cluster."""

    def __init__(self, cluster: Cluster, rng: random.Random, states: StateWatch) -> None:
        self.cluster = cluster
        self.rng = rng
        self.states = states
        self.metadata = MetadataBook()
        self.secret = secret_outside(cluster.world)
        self.epochs: dict[str, int] = {}
        """Highest leader epoch in a response, by a partition's name and its topic's incarnation."""

    async def any_broker(self, secret: ClusterSecret | None = None) -> ClientConnection:
        """Connect to some broker. Raises ClientError."""
        node = self.rng.choice(self.cluster.brokers)
        return await connect(node.host, PORT, connect_timeout_ms=CONNECT_MS, secret=secret)

    async def ask_anyone(self, request: object, timeout_ms: int = ANSWER_MS) -> Any:
        """Send one request to some broker; an operator proves the secret. Raises ClientError,
        OSError."""
        is_operators = isinstance(request, messages.RestoredStoreRequest)
        connection = await self.any_broker(self.secret if is_operators else None)
        try:
            return await connection.send(request, timeout_ms=timeout_ms)
        finally:
            connection.close()

    async def topic(self, name: str) -> Any:
        """Return a topic's metadata as some broker knows it. Raises ConnectionLost."""
        return await self.topic_of(self.rng.choice(self.cluster.brokers), name)

    async def topic_of(self, node: BrokerNode, name: str) -> Any:
        """Return a topic's metadata as this broker knows it. Raises ConnectionLost."""
        life, now = node.life, self.cluster.world.loop.time
        asked_at = now()
        connection = await connect(node.host, PORT, connect_timeout_ms=CONNECT_MS)
        try:
            answer = await connection.send(_asking_for(name), timeout_ms=ANSWER_MS)
        finally:
            connection.close()
        if life == node.life:
            self.metadata.note(life, answer, asked_at, now(), self._id_of)
        topic = answer.topics[0]
        if topic.error_code:
            raise ConnectionLost(f"{name}: {ErrorCode(topic.error_code).name}")
        return topic

    def _id_of(self, topic: Any) -> str:
        if topic.topic_id != NO_UUID:
            return layout.id_text(topic.topic_id)
        return "" if topic.name == TEMPORARY else self.states.id_of(topic.name)

    async def coordinator(self, group: str) -> ClientConnection:
        """Connect to a group's coordinator, as some broker names it. Raises ClientError."""
        request = messages.FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
        answer = await self.ask_anyone(request)
        found = answer.coordinators[0]
        if found.error_code:
            raise ConnectionLost(ErrorCode(found.error_code).name)
        return await connect(found.host, found.port, connect_timeout_ms=CONNECT_MS)

    async def is_led(self, topic: str, partition: int, leader: int) -> bool:
        """Whether a broker answers as the leader of a partition, its new epoch committed or not."""
        request = messages.ListOffsetsRequest
        part = request.ListOffsetsPartition(partition_index=partition, timestamp=LATEST_OFFSET)
        asked = request.ListOffsetsTopic(name=topic, partitions=[part])
        try:
            host = self.cluster.broker(leader).host
            connection = await connect(host, PORT, connect_timeout_ms=CONNECT_MS)
            try:
                answer = await connection.send(
                    request(replica_id=-1, topics=[asked]), timeout_ms=ANSWER_MS
                )
            finally:
                connection.close()
        except (ClientError, OSError):
            return False
        fine = (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE)
        return answer.topics[0].partitions[0].error_code in fine

    async def until(self, request: object, is_fine: Callable[[Any], bool]) -> Any:
        """Ask brokers until an answer is fine."""
        while True:
            try:
                answer = await self.ask_anyone(request, 20_000)
                if is_fine(answer):
                    return answer
            except (ClientError, OSError):
                pass  # a fault is under way: again, in a moment
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))


@dataclass(frozen=True)
class ClusterTarget(Target):
    """A partition wherever it is led. ``life`` and ``topic_id`` tell lives of a name apart.

    As stock clients do, it believes no metadata with an older leader epoch than it has seen: a
    deposed leader may not know it yet. Below level 1.4 metadata says no id: then the store is asked
    whether this leader was elected in this life.
    """

    outside: Outside = field(kw_only=True)
    life: str = ""
    topic_id: UUID | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}{self.life}-{self.partition}"

    async def connect(self) -> ClientConnection:
        topic = await self.outside.topic(self.topic)
        found = [p for p in topic.partitions if p.partition_index == self.partition]
        if not found or found[0].leader_id < 0:
            raise ConnectionLost(f"{self.name} has no leader")
        epoch = found[0].leader_epoch
        if epoch < self.outside.epochs.get(self.name, -1) or not self._is_this_life(topic):
            raise ConnectionLost(f"this is what {self.name} was")
        self.outside.epochs[self.name] = epoch
        node = self.outside.cluster.broker(found[0].leader_id)
        connection = await connect(node.host, PORT, connect_timeout_ms=CONNECT_MS)
        if self.topic_id is not None:
            await self._check_life(connection)
        return connection

    async def _check_life(self, connection: ClientConnection) -> None:
        """Requests go by name: the leader itself must know this incarnation of the topic."""
        try:
            answer = await connection.send(_asking_for(self.topic), timeout_ms=ANSWER_MS)
            if not self._is_this_life(answer.topics[0]):
                raise ConnectionLost(f"the leader of {self.name} knows another life of it")
        except BaseException:
            connection.close()
            raise

    def _is_this_life(self, topic: Any) -> bool:
        if self.topic_id is None or topic.topic_id != NO_UUID:
            return self.topic_id in (None, topic.topic_id)
        life = layout.id_text(self.topic_id)
        return any(
            self.outside.states.has_led(
                life, self.topic, self.partition, x.leader_id, x.leader_epoch
            )
            for x in topic.partitions
            if x.partition_index == self.partition
        )


def _asking_for(topic: str) -> messages.MetadataRequest:
    asked = messages.MetadataRequest.MetadataRequestTopic(name=topic)
    return messages.MetadataRequest(topics=[asked], allow_auto_topic_creation=False)


def target(
    outside: Outside, topic: str, partition: int, life: str = "", topic_id: UUID | None = None
) -> ClusterTarget:
    """Return a partition of the cluster."""
    return ClusterTarget("", PORT, topic, partition, outside=outside, life=life, topic_id=topic_id)


class Administrator:
    """Requests of administrators, which it can repeat until there is a response."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside

    async def create(
        self, name: str, partitions: int, replicas: int, configs: dict[str, str], former: str = ""
    ) -> None:
        """Create a topic again, once its incarnation with the id ``former`` is gone.

        Below level 1.4 the name is taken for as long as a replica of that life may be left.
        """
        listed = [
            messages.CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
            for key, value in configs.items()
        ]
        topic = messages.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replicas, configs=listed
        )
        request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)

        def is_fine(answer: Any) -> bool:
            exists = answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
            is_new = self.outside.states.id_of(name) not in ("", former)
            return answer.topics[0].error_code == ErrorCode.NONE or (exists and is_new)

        await self.outside.until(request, is_fine)

    async def id_of(self, name: str, former: Collection[UUID]) -> UUID:
        """Return the id of a topic that exists, as soon as a broker knows a life after all others.

        A broker that is cut off may show any of these. One that knows no ids cannot tell: then it
        is the store's.
        """
        while True:
            with contextlib.suppress(ClientError, OSError):
                found: UUID = (await self.outside.topic(name)).topic_id
                if found == NO_UUID:
                    found = layout.parse_id(self.outside.states.id_of(name)) or NO_UUID
                if found != NO_UUID and found not in former:
                    return found
            await asyncio.sleep(0.1)

    async def delete(self, topic_id: UUID) -> None:
        """Delete one life of a topic: a late repetition cannot hit the next one."""
        topic = messages.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
        request = messages.DeleteTopicsRequest(topics=[topic], timeout_ms=10_000)
        fine = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)
        await self.outside.until(request, lambda answer: answer.responses[0].error_code in fine)

    async def configure(self, topic: str, name: str, value: str) -> None:
        """Set one configuration of a topic, once; an error is passed over."""
        alterable = messages.IncrementalAlterConfigsRequest.AlterableConfig(
            name=name, config_operation=0, value=value
        )
        resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[alterable]
        )
        await self._once(messages.IncrementalAlterConfigsRequest(resources=[resource]))

    async def elect(self, topic: str, partition: int, *, unclean: bool) -> None:
        """Ask for an election, once; an error is passed over."""
        place = messages.ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
        await self._once(
            messages.ElectLeadersRequest(
                election_type=int(unclean), topic_partitions=[place], timeout_ms=5_000
            )
        )

    async def _once(self, request: object) -> None:
        # Without an answer it may have been done or not: both are fine.
        with contextlib.suppress(ClientError, OSError):
            await self.outside.ask_anyone(request)

    async def delete_records(self, where: ClusterTarget, offset: int) -> None:
        """Ask the leader to delete what is below an offset, once."""
        part = messages.DeleteRecordsRequest.DeleteRecordsPartition(
            partition_index=where.partition, offset=offset
        )
        topic = messages.DeleteRecordsRequest.DeleteRecordsTopic(
            name=where.topic, partitions=[part]
        )
        try:
            connection = await where.connect()
            try:
                await connection.send(
                    messages.DeleteRecordsRequest(topics=[topic], timeout_ms=5_000),
                    timeout_ms=ANSWER_MS,
                )
            finally:
                connection.close()
        except (ClientError, OSError):
            pass  # it may have been done or not: both are fine


class GroupBook:
    """A group that commits ever higher offsets: what was answered must stay.

    A lone committer without membership (generation -1). A commit without an answer may be made at
    any later time, so what is found must be the newest answered one or one of those.
    """

    def __init__(self, outside: Outside, name: str, topic: str, rng: random.Random) -> None:
        self.name = name
        self.topic = topic
        self.acked = -1
        self.sent = -1
        self.undetermined: set[int] = set()
        self.former: set[int] = {-1}
        """What was committed once."""
        self.lost: list[str] = []
        self.commits = 0
        self._acked_on: ClientConnection | None = None
        """Where the newest commit was answered."""
        self._outside = outside
        self._rng = rng

    async def run(self) -> None:
        """Commit and look, for ever."""
        while True:
            try:
                await self._session()
            except (ClientError, OSError):
                await asyncio.sleep(self._rng.uniform(0.1, 0.5))

    async def _session(self) -> None:
        connection = await self._outside.coordinator(self.name)
        try:
            while True:
                await self.look(connection)
                await self._commit(connection)
                await asyncio.sleep(self._rng.uniform(0.3, 2.0))
        finally:
            connection.close()

    async def look(self, connection: ClientConnection, *, is_last: bool = False) -> None:
        """Fetch what is committed; note it when an answered commit is gone."""
        request = messages.OffsetFetchRequest
        asked = request.OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])
        group = request.OffsetFetchRequestGroup(group_id=self.name, topics=[asked])
        answer = await connection.send(request(groups=[group]), timeout_ms=ANSWER_MS)
        found = answer.groups[0]
        if found.error_code:
            raise ConnectionLost(ErrorCode(found.error_code).name)
        part = found.topics[0].partitions[0]
        if part.error_code:
            raise ConnectionLost(ErrorCode(part.error_code).name)
        # A coordinator that was deposed and does not know it yet may answer what held before; one
        # that has answered the newest commit itself may not.
        stale = set() if is_last or connection is self._acked_on else self.former
        if part.committed_offset not in {self.acked, *self.undetermined, *stale}:
            self.lost.append(
                f"{connection.peer} says {part.committed_offset}, but {self.acked} was committed"
            )

    async def _commit(self, connection: ClientConnection) -> None:
        request = messages.OffsetCommitRequest
        self.sent += 1
        sent = self.sent
        self.undetermined.add(sent)
        part = request.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=sent, committed_leader_epoch=-1,
            committed_metadata="",
        )  # fmt: skip
        topic = request.OffsetCommitRequestTopic(name=self.topic, partitions=[part])
        answer = await connection.send(
            request(
                group_id=self.name,
                generation_id_or_member_epoch=-1,
                member_id="",
                retention_time_ms=-1,
                topics=[topic],
            ),
            timeout_ms=ANSWER_MS,
        )
        error = answer.topics[0].partitions[0].error_code
        if error:
            raise ConnectionLost(ErrorCode(error).name)
        self.undetermined.discard(sent)
        self.former.add(self.acked)
        self.acked = sent
        self._acked_on = connection
        self.commits += 1

    async def last_look(self) -> None:
        """Look once more when everything has come to rest; tries again until it is answered."""
        while True:
            try:
                connection = await self._outside.coordinator(self.name)
                try:
                    await self.look(connection, is_last=True)
                    return
                finally:
                    connection.close()
            except (ClientError, OSError):
                await asyncio.sleep(0.3)
