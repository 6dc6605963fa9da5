"""What a broker knows of the cluster: topics, partitions and live brokers, as UpdateMetadata says.

Owns the cache and its look-ups; who may update it is ``control``'s. The first UpdateMetadata of a
control channel is complete and replaces everything, later ones change what they name; a partition
with leader -2 is gone (Kafka's sign of deletion). No look-up costs more than what it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.protocol.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.protocol import messages

LEADER_DURING_DELETE = -2
"""Leader of a partition that is being deleted, in UpdateMetadata."""

NO_LEADER = -1

MAX_ABSENT = 100_000
"""Most topics that are remembered after a complete update did not name them."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as clients are told of it."""

    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    partition_epoch: int = -1
    birth_epoch: int = 0
    birth_offset: int = 0
    retirement_epoch: int = -1


@dataclass(slots=True)
class TopicMetadata:
    """One topic and its partitions by number."""

    name: str
    topic_id: UUID
    initial_partition_count: int = -1
    undeleted_partition_count: int = -1
    resize_epoch: int = 0
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """One live broker and where it listens: listener name -> (host, port)."""

    node_id: int
    endpoints: dict[str, tuple[str, int]]
    rack: str | None


class MetadataCache:
    """Topics and brokers, and the right to wait for a change."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicMetadata] = {}
        self.names: dict[UUID, str] = {}
        self.brokers: dict[int, BrokerMetadata] = {}
        self.controller_id = -1
        self.max_partition_epoch = -1
        self.when_gone: list[Callable[[str], None]] = []
        """Called with each topic that was deleted, also when its name lives again. One that a
        complete update only does not name is not known to be deleted."""
        self._absent: dict[str, UUID] = {}
        self._changed: dict[asyncio.Future[None], None] = {}

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic by name."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicMetadata | None:
        """Return a topic by id."""
        name = self.names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def id_of(self, name: str) -> UUID:
        """Return the id of a topic, ``NO_UUID`` when it is unknown or has none."""
        found = self.topics.get(name)
        return NO_UUID if found is None else found.topic_id

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return one partition, or None when the topic or the partition is unknown."""
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)

    def visible_controller(self, answering: int) -> int:
        """Return the broker that clients see as controller: a live one, or -1 before any is known.

        The active controller if it is a broker too, else the ``answering`` broker: each forwards
        what only the controller can do, and this one surely lives. Another could have died within
        the last seconds, and librdkafka does not ask again whom to go to.
        """
        if self.controller_id in self.brokers:
            return self.controller_id
        return answering if answering in self.brokers else min(self.brokers, default=-1)

    def addresses(self, listener_name: str) -> list[tuple[int, str, int, str | None]]:
        """Return (node id, host, port, rack) of the live brokers as a listener's clients see them.

        A broker without that listener is left out.
        """
        found = []
        for node_id, broker in sorted(self.brokers.items()):
            endpoint = broker.endpoints.get(listener_name)
            if endpoint is not None:
                found.append((node_id, *endpoint, broker.rack))
        return found

    def without_listener(self, listener_name: str) -> frozenset[int]:
        """Return the live brokers that a listener's clients have no address of. O(brokers)."""
        return frozenset(
            node_id
            for node_id, broker in self.brokers.items()
            if listener_name not in broker.endpoints
        )

    def apply(self, request: messages.UpdateMetadataRequest, *, complete: bool) -> None:
        """Take over an UpdateMetadata request of any version."""
        named = [each.topic_name for each in request.ungrouped_partition_states]
        named += [each.topic_name for each in request.topic_states]
        before = self._ids([*self.topics, *named] if complete else named)
        deleted: set[str] = set()
        if complete:
            self.topics, self.names = {}, {}
        self.controller_id = request.controller_id
        self.max_partition_epoch = max(self.max_partition_epoch, request.max_partition_epoch)
        if request.live_brokers:
            self.brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        for ungrouped in request.ungrouped_partition_states:
            topic = self._topic(ungrouped.topic_name, NO_UUID)
            self._put(topic, [ungrouped], deleted)
        for state in request.topic_states:
            topic = self._topic(state.topic_name, state.topic_id)
            if state.undeleted_partition_count >= 0:
                topic.initial_partition_count = state.initial_partition_count
                topic.undeleted_partition_count = state.undeleted_partition_count
                topic.resize_epoch = state.resize_epoch
            self._put(topic, state.partition_states, deleted)
        self.wake()
        for name, topic_id in before.items():
            now = self.topics.get(name)
            if now is None and name not in deleted:
                self._remember(name, topic_id)
            elif now is None or _differ(topic_id, now.topic_id):
                for told in self.when_gone:
                    told(name)

    def _ids(self, names: Iterable[str]) -> dict[str, UUID]:
        """Return the ids by which topics were last known, taking them from the absent."""
        found: dict[str, UUID] = {}
        for name in names:
            topic = self.topics.get(name)
            if topic is not None:
                found[name] = topic.topic_id
            elif name in self._absent:
                found[name] = self._absent.pop(name)
        return found

    def _remember(self, name: str, topic_id: UUID) -> None:
        # Absence is no proof of deletion (promise 20). Another id under the name would be one.
        self._absent[name] = topic_id
        if len(self._absent) > MAX_ABSENT:
            del self._absent[next(iter(self._absent))]

    def _topic(self, name: str, topic_id: UUID) -> TopicMetadata:
        topic = self.topics.get(name)
        if topic is None or (topic_id not in (NO_UUID, topic.topic_id)):
            if topic is not None:
                self.names.pop(topic.topic_id, None)
            topic = self.topics[name] = TopicMetadata(name, topic_id)
        if topic.topic_id != NO_UUID:
            self.names[topic.topic_id] = name
        return topic

    def _put(
        self,
        topic: TopicMetadata,
        states: Iterable[messages.UpdateMetadataRequest.UpdateMetadataPartitionState],
        deleted: set[str],
    ) -> None:
        for state in states:
            if state.leader == LEADER_DURING_DELETE:
                deleted.add(topic.name)
                topic.partitions.pop(state.partition_index, None)
                continue
            topic.partitions[state.partition_index] = PartitionInfo(
                partition=state.partition_index,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=tuple(state.isr),
                replicas=tuple(state.replicas),
                offline_replicas=tuple(state.offline_replicas),
                partition_epoch=state.partition_epoch,
                birth_epoch=state.birth_epoch,
                birth_offset=state.birth_offset,
                retirement_epoch=state.retirement_epoch,
            )
        if not topic.partitions:
            self.topics.pop(topic.name, None)
            self.names.pop(topic.topic_id, None)

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change; cancel it when it is not awaited."""
        future = asyncio.get_running_loop().create_future()
        self._changed[future] = None
        future.add_done_callback(lambda done: self._changed.pop(done, None))
        return future

    def wake(self) -> None:
        """Let all look again who wait for a change: what is answered of a leader has changed."""
        waiting, self._changed = self._changed, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _differ(one: UUID, other: UUID) -> bool:
    """Return whether two ids are those of two topics; below level 1.4 none is told."""
    return NO_UUID not in (one, other) and one != other


def _broker(broker: messages.UpdateMetadataRequest.UpdateMetadataBroker) -> BrokerMetadata:
    endpoints = {end.listener: (end.host, end.port) for end in broker.endpoints}
    if not endpoints:
        endpoints = {"": (broker.v0_host, broker.v0_port)}
    return BrokerMetadata(broker.id, endpoints, broker.rack)
