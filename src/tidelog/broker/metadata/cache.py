"""The metadata cache: topics, partitions and live brokers, as UpdateMetadata states them.

Owns the cache and its lookups. Not which connection may update it: see
``control_plane.control_channel``. The first UpdateMetadata of a control channel is complete and
replaces everything; later ones change the partitions that they name. A partition with leader -2 is
deleted, as in Kafka. A lookup costs O(its result).

What is shown of a topic id never steps back (promise 13), whatever comes: a state of an older
resize epoch changes only the leaders of the partitions shown, and a partition that was removed
returns with a newer partition epoch only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tidelog.broker.metadata.encoded_topics import EncodedTopics
from tidelog.broker.metadata.topic_names import TopicNames
from tidelog.protocol.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.protocol import messages

LEADER_DURING_DELETE = -2
"""Leader of a partition that is being deleted, in UpdateMetadata."""

NO_LEADER = -1

MAX_ABSENT = 100_000
"""Most topics whose ids are kept after a complete update that did not name them."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition, with the fields of Metadata responses."""

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
    isr_version: int = -1
    """The version of the partition's state: a newer one has a larger number."""

    @property
    def is_replaceable(self) -> bool:
        """Whether the ISR has a member that can lead in the place of the leader."""
        return any(member != self.leader for member in self.isr)


class Lineage(NamedTuple):
    """The blocking parent of a partition and its survivor, each with its leader epoch before the
    resize (KIP-253); -1 where there is none."""

    parent: int
    leader_epoch_after_creation: int
    survivor: int
    leader_epoch_before_deletion: int


@dataclass(slots=True)
class TopicMetadata:
    """One topic and its partitions by number."""

    name: str
    topic_id: UUID
    initial_partition_count: int = -1
    undeleted_partition_count: int = -1
    resize_epoch: int = 0
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)
    removed: dict[int, int] = field(default_factory=dict)
    """The partition epochs of removed partitions: a late state must not show one again."""
    lineage: dict[int, Lineage] = field(default_factory=dict)
    """Of the partitions that have a parent or a survivor."""
    change: int = 0
    """The number of its last change: a later change of any topic has a larger one."""
    _leaders: frozenset[int] | None = None
    _replaceable: frozenset[int] | None = None

    @property
    def leaders(self) -> frozenset[int]:
        """The leaders of its partitions. O(partitions) after a change, otherwise O(1)."""
        if self._leaders is None:
            self._leaders = frozenset(part.leader for part in self.partitions.values())
        return self._leaders

    @property
    def replaceable_leaders(self) -> frozenset[int]:
        """The leaders of partitions that another member of the ISR can lead. As ``leaders``."""
        if self._replaceable is None:
            partitions = self.partitions.values()
            self._replaceable = frozenset(x.leader for x in partitions if x.is_replaceable)
        return self._replaceable

    def changed(self, change: int) -> None:
        """Note that something of it has changed."""
        self.change = change
        self._leaders = self._replaceable = None


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """One live broker and its endpoints: listener name -> (host, port)."""

    node_id: int
    endpoints: dict[str, tuple[str, int]]
    rack: str | None


class MetadataCache:
    """Topics and brokers; callers can wait for a change."""

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self.topics: dict[str, TopicMetadata] = {}
        self.names = TopicNames()
        self.encoded = EncodedTopics()
        self.brokers: dict[int, BrokerMetadata] = {}
        self.controller_id = -1
        self.max_partition_epoch = -1
        self.when_gone: Callable[[str], None] = lambda _: None
        """Called with each deleted topic, also if a new topic has its name. A topic that is only
        missing in a complete update does not count as deleted."""
        self.when_resized: Callable[[str], None] = lambda _: None
        """Called with each topic that is shown with a newer resize epoch."""
        self.when_brokers_changed: list[Callable[[], None]] = []
        """Called after the live brokers, or what is known of one, have changed."""
        self.unreadable: frozenset[str] = frozenset()
        """Topics that the controller cannot read: what is known of them here stays, and one of
        which nothing is known may exist (docs/decisions/0111)."""
        self._absent: dict[str, UUID] = {}
        self._changed: dict[asyncio.Future[None], None] = {}
        self._changes = 0

    def begin_again(self, cluster_id: str) -> None:
        """Forget the brokers, of a cluster that was founded by mistake and has no topics: requests
        wait for the first metadata of this one."""
        assert not self.topics, sorted(self.topics)
        self.cluster_id = cluster_id
        self.brokers = {}
        self.controller_id = -1

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic by name."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicMetadata | None:
        """Return a topic by id."""
        return self.topics.get(self.names.get(topic_id))

    def id_of(self, name: str) -> UUID:
        """Return the id of a topic, ``NO_UUID`` when it is unknown or has none."""
        topic = self.topics.get(name)
        return NO_UUID if topic is None else topic.topic_id

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return one partition, or None when the topic or the partition is unknown."""
        of_topic = self.topics.get(topic)
        return None if of_topic is None else of_topic.partitions.get(partition)

    def visible_controller(self, answering: int) -> int:
        """Return the broker that clients see as controller: a live one, or -1 before any is known.

        That is the active controller if it is a broker too, otherwise the ``answering`` broker:
        each broker forwards requests for the controller, and this one is certainly alive. Another
        one could have died seconds ago, and librdkafka does not look up the controller again.
        """
        if self.controller_id in self.brokers:
            return self.controller_id
        return answering if answering in self.brokers else min(self.brokers, default=-1)

    def addresses(self, listener_name: str) -> list[tuple[int, str, int, str | None]]:
        """Return (node id, host, port, rack) of the live brokers that have this listener.

        Sorted by node id.
        """
        addresses = []
        for node_id, broker in sorted(self.brokers.items()):
            endpoint = broker.endpoints.get(listener_name)
            if endpoint is not None:
                addresses.append((node_id, *endpoint, broker.rack))
        return addresses

    def without_listener(self, listener_name: str) -> frozenset[int]:
        """Return the live brokers without this listener. O(brokers)."""
        return frozenset(
            node_id
            for node_id, broker in self.brokers.items()
            if listener_name not in broker.endpoints
        )

    def apply(self, request: messages.UpdateMetadataRequest, *, complete: bool) -> None:
        """Apply an UpdateMetadata request of any version."""
        named = [part.topic_name for part in request.ungrouped_partition_states]
        named += [topic_state.topic_name for topic_state in request.topic_states]
        before = self._ids([*self.topics, *named] if complete else named)
        deleted: set[str] = set()
        resized: list[str] = []
        shown = self.topics
        if complete:
            self._begin_complete(request.unreadable_topics)
        self.unreadable = frozenset(request.unreadable_topics)
        self.controller_id = request.controller_id
        self.max_partition_epoch = max(self.max_partition_epoch, request.max_partition_epoch)
        former_brokers = self.brokers
        if request.live_brokers:
            self.brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        for ungrouped in request.ungrouped_partition_states:
            topic = self._topic(ungrouped.topic_name, NO_UUID)
            self._put(topic, [ungrouped], deleted)
        for state in request.topic_states:
            former = shown.get(state.topic_name)
            topic = self._topic(state.topic_name, state.topic_id)
            if former is not None and former.topic_id != topic.topic_id:
                former = None
            if _resize(topic, former, state):
                resized.append(topic.name)
            self._put(topic, _never_back(topic, state), deleted)
        self.wake()
        if self.brokers != former_brokers:
            for follow in self.when_brokers_changed:
                follow()
        for name in resized:
            self.when_resized(name)
        for name, topic_id in before.items():
            now = self.topics.get(name)
            if now is None and name not in deleted:
                self._remember(name, topic_id)
            elif now is None or _differ(topic_id, now.topic_id):
                self.when_gone(name)

    def _begin_complete(self, kept: Iterable[str]) -> None:
        """Forget all topics except these, of which the request says nothing."""
        shown, self.topics, self.names = self.topics, {}, TopicNames()
        self.encoded.clear()
        for topic in (shown[name] for name in kept if name in shown):
            self.topics[topic.name] = topic
            if topic.topic_id != NO_UUID:
                self.names.put(topic.name, topic.topic_id)

    def _ids(self, names: Iterable[str]) -> dict[str, UUID]:
        """Return the last known ids of topics; removes them from the absent ones."""
        ids: dict[str, UUID] = {}
        for name in names:
            topic = self.topics.get(name)
            if topic is not None:
                ids[name] = topic.topic_id
            elif name in self._absent:
                ids[name] = self._absent.pop(name)
        return ids

    def _remember(self, name: str, topic_id: UUID) -> None:
        # Absence is no proof of deletion (promise 20). Another id for the name is one.
        self._absent[name] = topic_id
        if len(self._absent) > MAX_ABSENT:
            del self._absent[next(iter(self._absent))]

    def _topic(self, name: str, topic_id: UUID) -> TopicMetadata:
        topic = self.topics.get(name)
        if topic is None or (topic_id not in (NO_UUID, topic.topic_id)):
            if topic is not None:
                self.names.drop(topic.topic_id)
            topic = self.topics[name] = TopicMetadata(name, topic_id)
        if topic.topic_id != NO_UUID:
            self.names.put(name, topic.topic_id)
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
                topic.lineage.pop(state.partition_index, None)
                gone = topic.partitions.pop(state.partition_index, None)
                epoch = max(state.partition_epoch, -1 if gone is None else gone.partition_epoch)
                if epoch >= 0:
                    topic.removed[state.partition_index] = epoch
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
                isr_version=state.isr_version,
            )
            if state.parent >= 0 or state.survivor >= 0:
                topic.lineage[state.partition_index] = Lineage(
                    state.parent,
                    state.leader_epoch_after_creation,
                    state.survivor,
                    state.leader_epoch_before_deletion,
                )
            elif topic.lineage:
                topic.lineage.pop(state.partition_index, None)
        self._changes += 1
        topic.changed(self._changes)
        if not topic.partitions:
            self.topics.pop(topic.name, None)
            self.encoded.forget(topic.name)
            self.names.drop(topic.topic_id)

    def changed(self) -> asyncio.Future[None]:
        """Return a future of the next change; callers that do not await it cancel it."""
        future = asyncio.get_running_loop().create_future()
        self._changed[future] = None
        future.add_done_callback(lambda done: self._changed.pop(done, None))
        return future

    def wake(self) -> None:
        """Complete the futures of ``changed``, also when only a leader's reachability changed."""
        waiting, self._changed = self._changed, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _resize(
    topic: TopicMetadata,
    former: TopicMetadata | None,
    state: messages.UpdateMetadataRequest.UpdateMetadataTopicState,
) -> bool:
    """Set the counts of a topic that was shown as ``former``; return whether they are newer."""
    if state.undeleted_partition_count < 0:
        return False  # below level 1.5
    least = -1 if former is None or former.undeleted_partition_count < 0 else former.resize_epoch
    if former is not None:
        topic.removed = former.removed
    if state.resize_epoch < least:
        assert former is not None
        topic.initial_partition_count = former.initial_partition_count
        topic.undeleted_partition_count = former.undeleted_partition_count
        topic.resize_epoch = least
        topic.partitions = former.partitions
        topic.lineage = former.lineage
        return False
    topic.initial_partition_count = state.initial_partition_count
    topic.undeleted_partition_count = state.undeleted_partition_count
    topic.resize_epoch = state.resize_epoch
    return state.resize_epoch > least


def _never_back(
    topic: TopicMetadata,
    state: messages.UpdateMetadataRequest.UpdateMetadataTopicState,
) -> Iterable[messages.UpdateMetadataRequest.UpdateMetadataPartitionState]:
    """Return the partition states of a topic state that show nothing older than is shown."""
    older = state.undeleted_partition_count >= 0 and state.resize_epoch < topic.resize_epoch
    if not (older or topic.removed):
        return state.partition_states
    partitions, removed = topic.partitions, topic.removed
    return [
        part
        for part in state.partition_states
        if not 0 <= part.partition_epoch <= removed.get(part.partition_index, -1)
        and not (
            older
            and (part.partition_index not in partitions or part.leader == LEADER_DURING_DELETE)
        )
    ]


def _differ(one: UUID, other: UUID) -> bool:
    """Return whether two ids differ; below level 1.4 topics have no ids."""
    return NO_UUID not in (one, other) and one != other


def _broker(broker: messages.UpdateMetadataRequest.UpdateMetadataBroker) -> BrokerMetadata:
    endpoints = {end.listener: (end.host, end.port) for end in broker.endpoints}
    if not endpoints:
        endpoints = {"": (broker.v0_host, broker.v0_port)}
    return BrokerMetadata(broker.id, endpoints, broker.rack)
