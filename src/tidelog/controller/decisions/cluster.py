"""The cluster as the controller knows it: plain data, a function of the nodes in the store.

Owns the state and how a committed write changes it; no rule is here. A start loads every node and
applies it as if it had just been written, so state in memory and nodes in the store cannot part.
What is not in the store (sessions, inventories) stands in ``Cluster`` too, marked as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import (
    BrokerNode,
    ClusterId,
    ConfigNode,
    Counter,
    DeletionNode,
    PartitionNode,
    PartitionState,
    ProducerIdBlock,
    Record,
    TopicMemory,
    TopicNode,
)
from tidelog.metadata.store import Node
from tidelog.model.config_definitions import BrokerLayers, ResolvedTopic, resolve_topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, metric_name

NO_LEADER = -1
NO_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Put:
    """Create or replace one node."""

    path: str
    record: Record


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove one node; children come before their parents."""

    path: str


Write = Put | Remove

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Decision(Generic[A]):
    """What to make durable, in one multi-write, and what to answer once it is."""

    answer: A
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An expected refusal: Kafka's error code and one sentence for a person."""

    error: ErrorCode
    sentence: str


class LogEnd(NamedTuple):
    """Where a replica's log ended when its broker registered."""

    partition_epoch: int
    leader_epoch: int
    end_offset: int


@dataclass
class Cluster:
    """All that decisions read. Only ``apply`` and the session rules change it.

    The last six are not in the store: ``suspected`` and ``shutting_down`` brokers; ``presumed``
    ones, which registered with an earlier controller only; ``broken`` replicas, which a broker
    reported as damaged; what each broker said of its logs when it registered; ``went_back``, the
    sentence that says why the store must be an older copy of itself.
    """

    layers: BrokerLayers = field(default_factory=BrokerLayers)
    versions: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, BrokerNode] = field(default_factory=dict)
    topics: dict[str, TopicNode] = field(default_factory=dict)
    memories: dict[str, TopicMemory] = field(default_factory=dict)
    lives: dict[TopicPartition, PartitionNode] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    deletions: dict[UUID, DeletionNode] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    damaged: dict[str, Damaged] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    producer_ids: ProducerIdBlock | None = None
    cluster_id: str | None = None
    names: dict[UUID, str] = field(default_factory=dict)
    names_in_metrics: dict[str, str] = field(default_factory=dict)

    suspected: set[int] = field(default_factory=set)
    shutting_down: set[int] = field(default_factory=set)
    presumed: set[int] = field(default_factory=set)
    broken: set[tuple[int, TopicPartition]] = field(default_factory=set)
    inventories: dict[int, dict[tuple[UUID, int], LogEnd]] = field(default_factory=dict)
    went_back: str | None = None

    @property
    def controller_epoch(self) -> int:
        """How many times a controller became active."""
        return self.counters.get(layout.CONTROLLER_EPOCH, 0)

    @property
    def revision(self) -> int:
        """How many writes were committed."""
        return self.counters.get(layout.REVISION, 0)

    @property
    def fit(self) -> set[int]:
        """The brokers that may lead."""
        return self.brokers.keys() - self.suspected - self.shutting_down

    def topic_id(self, name: str) -> UUID:
        """Return a topic's id; all zero when it has none."""
        node = self.topics.get(name)
        text = None if node is None else node.topic_id
        return (layout.parse_id(text) if text is not None else None) or NO_ID

    def isr_version(self, where: TopicPartition) -> int:
        """Return the version of a partition's state node; -1 when it has none."""
        return self.versions.get(layout.state(*where), -1)

    def replicas(self, where: TopicPartition) -> list[int]:
        """Return a partition's assignment; nothing while its topic's node cannot be read."""
        node = self.topics.get(where.topic)
        return [] if node is None else node.partitions.get(where.partition, [])

    def partitions_of(self, broker: int) -> Iterable[TopicPartition]:
        """Yield every partition that is assigned to a broker. Walks over all partitions."""
        for name, node in self.topics.items():
            for index, replicas in node.partitions.items():
                if broker in replicas:
                    yield TopicPartition(name, index)

    def resolve(self, name: str, configs: Mapping[str, str] | None = None) -> ResolvedTopic:
        """Resolve a topic's configuration, with ``configs`` instead of the stored ones if given."""
        own = self.topic_configs.get(name, {}) if configs is None else configs
        defaults = self.broker_configs.get(layout.ALL_BROKERS, {})
        return resolve_topic(own, BrokerLayers(self.layers.static, {}, defaults))

    def min_insync(self, name: str, replicas: int) -> int:
        """Return the topic's ``min.insync.replicas``, capped at its number of replicas."""
        return min(self.resolve(name).configs.min_insync_replicas, replicas)


def load(cluster: Cluster, nodes: Mapping[str, Node]) -> None:
    """Apply every node of the store, parents first."""
    for path in sorted(nodes):
        node = nodes[path]
        cluster.versions[path] = node.version
        record = layout.decode(path, node.data)
        if isinstance(record, Damaged):
            cluster.damaged[path] = record
        elif record is not None:
            _put(cluster, path, record)


def apply(cluster: Cluster, writes: Iterable[Write]) -> None:
    """Take up writes that are durable."""
    for write in writes:
        cluster.damaged.pop(write.path, None)
        if isinstance(write, Remove):
            cluster.versions.pop(write.path, None)
            _remove(cluster, write.path)
        else:
            cluster.versions[write.path] = cluster.versions.get(write.path, -1) + 1
            _put(cluster, write.path, write.record)


def _put(cluster: Cluster, path: str, record: Record) -> None:
    name = path.rpartition("/")[2]
    match record:
        case PartitionState() | PartitionNode():
            _put_partition(cluster, path, record)
        case TopicNode():
            _put_topic(cluster, name, record)
        case TopicMemory():
            cluster.memories[name] = record
        case BrokerNode():
            cluster.brokers[int(name)] = record
        case DeletionNode():
            cluster.deletions[layout.parse_id(name) or NO_ID] = record
        case ConfigNode():
            kind = cluster.topic_configs
            if path.startswith(layout.BROKER_CONFIGS):
                kind = cluster.broker_configs
            kind[name] = dict(record.config)
        case Counter():
            cluster.counters[path] = record.value
        case ProducerIdBlock():
            cluster.producer_ids = record
        case ClusterId():
            cluster.cluster_id = record.id
        case _:
            # Nodes that only tools and other controllers read: nothing to remember.
            pass


def _put_partition(cluster: Cluster, path: str, record: PartitionState | PartitionNode) -> None:
    found = layout.partition_of(path)
    assert found is not None
    where = TopicPartition(*found)
    if isinstance(record, PartitionState):
        cluster.states[where] = record
    else:
        cluster.lives[where] = record


def _put_topic(cluster: Cluster, name: str, record: TopicNode) -> None:
    cluster.names.pop(cluster.topic_id(name), None)
    cluster.topics[name] = record
    cluster.names_in_metrics[metric_name(name)] = name
    topic_id = cluster.topic_id(name)
    if topic_id != NO_ID:
        cluster.names[topic_id] = name


def _remove(cluster: Cluster, path: str) -> None:
    above, _, name = path.rpartition("/")
    found = layout.partition_of(path)
    if found is not None:
        where = TopicPartition(*found)
        kind: dict[TopicPartition, object] = (
            cluster.states if path.endswith("/state") else cluster.lives  # type: ignore[assignment]
        )
        kind.pop(where, None)
    elif above == layout.TOPICS:
        cluster.names.pop(cluster.topic_id(name), None)
        cluster.topics.pop(name, None)
        cluster.names_in_metrics.pop(metric_name(name), None)
    elif above == layout.TOPIC_MEMORIES:
        cluster.memories.pop(name, None)
    elif above == layout.BROKERS:
        cluster.brokers.pop(int(name), None)
    elif above == layout.DELETIONS:
        cluster.deletions.pop(layout.parse_id(name) or NO_ID, None)
    elif above == layout.TOPIC_CONFIGS:
        cluster.topic_configs.pop(name, None)
    elif above == layout.BROKER_CONFIGS:
        cluster.broker_configs.pop(name, None)
