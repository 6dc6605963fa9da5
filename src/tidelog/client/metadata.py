"""A client's metadata: brokers, topics, partitions, leaders, as immutable snapshots. Pure.

Owns the parsing of Metadata responses and the rule which of two is newer. Not the request: see
``cluster``.

Merging, for one topic id: a partition keeps the newest leader epoch seen (KIP-320), and a topic
the newest resize epoch (KIP-253), so that the response of a stale broker does not take the client
back. Within one resize epoch the newer metadata have the larger ``max_partition_epoch``; where that
is the same, partitions are only ever removed, so one that was seen as removed stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from tidelog.client.errors import ConfigurationRefused
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID

NO_LEADER = -1
DEFAULT_PORT = 9092


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker for clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def peer(self) -> str:
        """The address as connections name it."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition; ``leader`` is -1 when it has none, ``leader_epoch`` -1 when unknown.

    ``partition_epoch`` is its incarnation, -1 when unknown; ``birth_epoch`` is 0 for a partition
    that its topic was created with; ``retirement_epoch`` is -1 while it takes records.
    """

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error: int = 0
    retirement_epoch: int = -1
    partition_epoch: int = -1
    birth_epoch: int = 0
    birth_offset: int = 0

    @property
    def is_retired(self) -> bool:
        """Whether it takes no records any more, and is removed when they have expired."""
        return self.retirement_epoch >= 0


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; the counts and epochs are -1 from brokers that do not know them.

    ``max_partition_epoch`` is the cluster's in the response that named this topic.
    """

    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, Partition]
    error: int = 0
    initial_partition_count: int = -1
    undeleted_partition_count: int = -1
    resize_epoch: int = -1
    max_partition_epoch: int = -1

    @property
    def is_ordered(self) -> bool:
        """Whether its keys keep their order over growth and shrinking (KIP-253).

        Brokers leave the counts out for a topic with ``enable.ordered.delivery=false``, and below
        level 1.5; a partition without an epoch was made below it.
        """
        return (
            0 < self.initial_partition_count <= self.undeleted_partition_count
            and self.undeleted_partition_count <= len(self.partitions)
            and self.resize_epoch >= 0
            and all(partition.partition_epoch >= 0 for partition in self.partitions.values())
        )

    @property
    def count(self) -> int:
        """How many partitions take records: those from 0 to this number."""
        if self.undeleted_partition_count >= 0:
            return self.undeleted_partition_count
        listed = len(self.partitions)
        last = self.partitions.get(listed - 1)
        if last is None or not last.is_retired:
            return listed
        return sum(not partition.is_retired for partition in self.partitions.values())


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """One view of the cluster. ``controller_id`` is -1 when unknown."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, BrokerAddress] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)

    def partition(self, wanted: TopicPartition) -> Partition | None:
        """Return a partition of a topic that is known without error, otherwise None."""
        topic = self.topics.get(wanted.topic)
        return None if topic is None else topic.partitions.get(wanted.partition)

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the leader epoch of each partition that is known; -1 from old brokers."""
        states = {tp: self.partition(tp) for tp in partitions}
        return {tp: state.leader_epoch for tp, state in states.items() if state is not None}

    def led_elsewhere(self, node_id: int, epochs: Mapping[TopicPartition, int]) -> str:
        """Return a line on a partition that this broker led in this epoch, and leads no longer.

        "" for none. A later epoch of the same leader counts: what it was asked in is over.
        """
        for tp, epoch in epochs.items():
            now = self.partition(tp)
            if now is None or (now.leader == node_id and now.leader_epoch <= epoch):
                continue
            silent = f"broker {node_id} did not respond, and leads {tp} no longer"
            return f"{silent}: leader {now.leader}, leader epoch {now.leader_epoch}"
        return ""

    def merged(self, newer: ClusterMetadata, *, whole: bool) -> ClusterMetadata:
        """Return this view merged with a newer response.

        ``whole``: the response covers all topics, those it lacks are gone. Grows with the topics of
        the response.
        """
        topics = {} if whole else dict(self.topics)
        for name, topic in newer.topics.items():
            former = self.topics.get(name)
            topics[name] = topic if former is None else _newer_topic(former, topic)
        return replace(newer, topics=topics)


def _newer_topic(former: Topic, newer: Topic) -> Topic:
    if newer.error or former.topic_id != newer.topic_id or newer.topic_id == NO_UUID:
        return newer
    if former.resize_epoch > newer.resize_epoch >= 0:
        return former
    if former.resize_epoch == newer.resize_epoch:
        if former.max_partition_epoch > newer.max_partition_epoch >= 0:
            # Stale, but the leaders of some partitions may be newer.
            return replace(former, partitions=_newest(former.partitions, newer.partitions))
        if former.max_partition_epoch == newer.max_partition_epoch >= 0:
            kept = {i: state for i, state in newer.partitions.items() if i in former.partitions}
            return replace(newer, partitions=_newest(kept, former.partitions))
    return replace(newer, partitions=_newest(newer.partitions, former.partitions))


def _newest(
    partitions: Mapping[int, Partition], others: Mapping[int, Partition]
) -> dict[int, Partition]:
    """Return these partitions, each with the newer leader epoch that one incarnation has.

    Births and retirements stay: ``others`` may be of an older resize epoch, which lacks them.
    Without its retirement a partition would keep no gate shut.
    """
    newest = dict(partitions)
    for index, partition in partitions.items():
        other = others.get(index)
        if (
            other is not None
            and other.leader_epoch > partition.leader_epoch >= 0
            and (other.partition_epoch == partition.partition_epoch or other.partition_epoch < 0)
        ):
            newest[index] = replace(
                other,
                retirement_epoch=partition.retirement_epoch,
                partition_epoch=partition.partition_epoch,
                birth_epoch=partition.birth_epoch,
                birth_offset=partition.birth_offset,
            )
    return newest


def read_answer(answer: messages.MetadataResponse) -> ClusterMetadata:
    """Return the view in a Metadata response."""
    return ClusterMetadata(
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        brokers={
            broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in answer.brokers
        },
        topics={
            topic.name or "": _read_topic(topic, answer.max_partition_epoch)
            for topic in answer.topics
        },
    )


def _read_topic(
    topic: messages.MetadataResponse.MetadataResponseTopic, max_partition_epoch: int
) -> Topic:
    return Topic(
        name=topic.name or "",
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions={
            item.partition_index: Partition(
                index=item.partition_index,
                leader=item.leader_id,
                leader_epoch=item.leader_epoch,
                replicas=tuple(item.replica_nodes),
                isr=tuple(item.isr_nodes),
                offline=tuple(item.offline_replicas),
                error=item.error_code,
                retirement_epoch=item.retirement_epoch,
                partition_epoch=item.partition_epoch,
                birth_epoch=item.birth_epoch,
                birth_offset=item.birth_offset,
            )
            for item in sorted(topic.partitions, key=lambda item: item.partition_index)
        },
        error=topic.error_code,
        initial_partition_count=topic.initial_partition_count,
        undeleted_partition_count=topic.undeleted_partition_count,
        resize_epoch=topic.resize_epoch,
        max_partition_epoch=max_partition_epoch,
    )


def parse_bootstrap(servers: str | Sequence[str]) -> list[tuple[str, int]]:
    """Parse ``host:port,host:port`` (or a list of such) into addresses.

    Takes ``[::1]:9092`` too, and any ``NAME://`` in front. A missing port is 9092.
    Raises ConfigurationRefused with the piece that is wrong.
    """
    if isinstance(servers, bytes) or not isinstance(servers, str | Iterable):
        refusal = f"bootstrap_servers must be a str or a list of str, not {servers!r}"
        raise ConfigurationRefused(refusal)
    pieces = servers.split(",") if isinstance(servers, str) else list(map(str, servers))
    addresses = []
    for piece in (piece.strip() for piece in pieces):
        if not piece:
            continue
        address = piece.partition("://")[2] or piece
        host, colon, port = address.rpartition(":")
        if not colon or (host.count(":") and not host.startswith("[")):
            host, port = address, str(DEFAULT_PORT)
        if not port.isdigit() or not 0 < int(port) < 65536 or not host.strip("[]"):
            raise ConfigurationRefused(f"{piece!r} is not an address of the form host:port")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise ConfigurationRefused("no bootstrap server was given: name at least one as host:port")
    return addresses
