"""The cluster as the controller knows it: plain data, a function of the nodes in the store.

Owns the state and how a committed write changes it; no rule is here. A start loads every node and
applies it as if it had just been written, so state in memory and nodes in the store cannot part.
What is not in the store (sessions, inventories) stands in ``Cluster`` too, marked as such.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from tidelog.controller.decisions.ephemeral import counts_as_none
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import (
    BrokerNode,
    ClusterId,
    ConfigNode,
    Counter,
    DeletionMark,
    DeletionNode,
    PartitionNode,
    PartitionState,
    ProducerIdBlock,
    Record,
    TopicMemory,
    TopicNode,
    WentBack,
)
from tidelog.metadata.store import Node
from tidelog.model.configs.resolve import BrokerLayers, ResolvedTopic, TopicResolver
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import LATEST, Level
from tidelog.model.topics import TopicPartition, metric_name

NO_LEADER = -1
NO_ID = UUID(int=0)

KEPT_CONFIGURATIONS = 256
"""How many different configurations of topics are kept resolved: one takes some 20 us."""


KEPT_NAMES = 1_000
"""Names of reported topic ids that are kept beyond what the topics need."""


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
    """What to make durable, in one multi-write, and what to answer once it is.

    One that ``splits`` may take several where a store takes no more at once: its writes are in an
    order in which a controller that dies after any of them leaves the next one able to finish.
    """

    answer: A
    writes: tuple[Write, ...] = ()
    splits: bool = False


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


class _Resolved(NamedTuple):
    # What was resolved above these defaults of all brokers.
    defaults: dict[str, str] | None
    resolver: TopicResolver
    found: dict[tuple[tuple[str, str], ...], ResolvedTopic]


@dataclass
class Cluster:
    """All that decisions read. Only ``apply`` and the session rules change it.

    ``marked`` are the topics of the queue in ``/admin/delete_topics``; ``former_lives`` are the
    ``deletions`` by name.

    The last fourteen are not in the store: ``configs_changed_at``, the revision of the last change
    of a configuration; the ``level`` of this controller; ``confirmed``, the
    (broker, partition) of marked topics whose replicas are gone; ``suspected`` and
    ``shutting_down`` brokers; ``presumed`` ones, which registered with an earlier controller only;
    ``kept_configs``, what brokers that had seen so much keep of the configurations of topics that
    the store does not know; ``undeletable``, why a topic's nodes cannot go;
    ``broken`` replicas, which a broker reported as damaged; what each broker said of its logs when
    it registered (``inventories``; ``nameless`` are the replicas that know no topic id, by name;
    ``held`` has the name of each topic id that was reported); ``seen``, the highest (controller
    epoch, store revision) that each broker reported; ``loaded_revision``, that of the store before
    this controller wrote to it.

    ``went_back`` says why the store must be an older copy of itself, until that was accepted.
    ``ephemeral`` are the nodes, with their versions, that stand at a place of ours and go with a
    session: they count as none, and are replaced where one of ours is written (decision 0044).
    """

    layers: BrokerLayers = field(default_factory=BrokerLayers)
    versions: dict[str, int] = field(default_factory=dict)
    ephemeral: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, BrokerNode] = field(default_factory=dict)
    topics: dict[str, TopicNode] = field(default_factory=dict)
    memories: dict[str, TopicMemory] = field(default_factory=dict)
    lives: dict[TopicPartition, PartitionNode] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    deletions: dict[UUID, DeletionNode] = field(default_factory=dict)
    former_lives: dict[str, dict[UUID, DeletionNode]] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    damaged: dict[str, Damaged] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    producer_ids: ProducerIdBlock | None = None
    cluster_id: str | None = None
    names: dict[UUID, str] = field(default_factory=dict)
    names_in_metrics: dict[str, str] = field(default_factory=dict)
    went_back: str | None = None

    level: Level = LATEST
    confirmed: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    configs_changed_at: int = field(default=0, compare=False)
    suspected: set[int] = field(default_factory=set)
    shutting_down: set[int] = field(default_factory=set)
    presumed: set[int] = field(default_factory=set)
    kept_configs: dict[UUID, tuple[tuple[int, int], dict[str, str]]] = field(
        default_factory=dict, compare=False
    )
    undeletable: dict[str, str] = field(default_factory=dict, compare=False)
    broken: set[tuple[int, TopicPartition]] = field(default_factory=set)
    inventories: dict[int, dict[tuple[UUID, int], LogEnd]] = field(default_factory=dict)
    nameless: dict[int, dict[TopicPartition, LogEnd]] = field(default_factory=dict)
    held: dict[UUID, str] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    loaded_revision: int = 0

    # What was resolved above these defaults: most topics share few configurations.
    _resolved: _Resolved | None = field(default=None, init=False, repr=False, compare=False)

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

    @property
    def electable(self) -> set[int]:
        """The brokers that may be elected: fit, and registered with this controller."""
        return self.fit - self.presumed

    def draft(self) -> Cluster:
        """Return a copy to change beside this one, until ``adopt`` takes it over. O(nodes).

        What is not in the store is shared: registrations and heartbeats go on meanwhile.
        """
        made = copy.copy(self)
        for name in _DRAFTED:
            setattr(made, name, copy.copy(getattr(self, name)))
        made.former_lives = {name: dict(lives) for name, lives in self.former_lives.items()}
        return made

    def adopt(self, draft: Cluster) -> None:
        """Take over what a draft has of the nodes: all of it is durable."""
        for name in _DRAFTED:
            setattr(self, name, getattr(draft, name))

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

    def forget(self, broker: int) -> None:
        """Forget what is known of a dead broker beside the store."""
        for kept in (self.suspected, self.presumed, self.shutting_down):
            kept.discard(broker)
        self.inventories.pop(broker, None)
        self.nameless.pop(broker, None)
        self.broken = {(x, where) for x, where in self.broken if x != broker}

    def take_configs(self, seen: tuple[int, int], kept: Mapping[UUID, dict[str, str]]) -> None:
        """Remember what a broker keeps of the configurations of topics that the store lacks.

        Of several brokers the one counts that has seen the newest controller epoch and revision.
        """
        for topic_id, configs in kept.items():
            known = self.kept_configs.get(topic_id)
            if topic_id not in self.names and (known is None or known[0] <= seen):
                self.kept_configs[topic_id] = seen, configs

    def take_held(self, held: Mapping[UUID, str]) -> None:
        """Remember the names of topic ids that a broker reported; forget those nobody has now."""
        self.held.update(held)
        self.kept_configs = {x: y for x, y in self.kept_configs.items() if x not in self.names}
        if len(self.held) > 2 * len(self.topics) + KEPT_NAMES:
            there = {topic_id for found in self.inventories.values() for topic_id, _ in found}
            self.held = {
                topic_id: name for topic_id, name in self.held.items() if topic_id in there
            }

    def log_end(self, broker: int, where: TopicPartition) -> LogEnd | None:
        """Return where a broker's replica of a partition ended when it registered.

        A replica without a topic id counts where such a replica adopts the topic's (KIP-516).
        """
        topic_id = self.topic_id(where.topic)
        found = self.inventories.get(broker, {}).get((topic_id, where.partition))
        if found is None and self.takes_nameless(where.topic):
            found = self.nameless.get(broker, {}).get(where)
        return found

    def takes_nameless(self, name: str) -> bool:
        """Return whether a replica without a topic id can be one of this topic."""
        memory = self.memories.get(name)
        return memory is None or memory.migrated or not self.level.topic_ids

    def all_partitions(self) -> Iterable[TopicPartition]:
        """Yield every partition that is assigned, by the names of topics."""
        for name in sorted(self.topics):
            for index in self.topics[name].partitions:
                yield TopicPartition(name, index)

    def partitions_of(self, broker: int) -> Iterable[TopicPartition]:
        """Yield every partition that is assigned to a broker. Walks over all partitions."""
        for name, node in self.topics.items():
            for index, replicas in node.partitions.items():
                if broker in replicas:
                    yield TopicPartition(name, index)

    def resolve(self, name: str, configs: Mapping[str, str] | None = None) -> ResolvedTopic:
        """Resolve a topic's configuration, with ``configs`` instead of the stored ones if given."""
        own = self.topic_configs.get(name, {}) if configs is None else configs
        defaults = self.broker_configs.get(layout.ALL_BROKERS)
        # Nodes are replaced, never changed: the same dict has the same content.
        kept = self._resolved
        if kept is None or kept.defaults is not defaults:
            layers = BrokerLayers(self.layers.static, {}, defaults or {})
            # Replaced as a whole: a scrape in another thread keeps what it found with its defaults.
            self._resolved = kept = _Resolved(defaults, TopicResolver(layers), {})
        elif len(kept.found) >= KEPT_CONFIGURATIONS:
            self._resolved = kept = kept._replace(found={})
        key = tuple(sorted(own.items()))
        found = kept.found.get(key)
        if found is None:
            found = kept.found[key] = kept.resolver.resolve(own)
        return found

    def min_insync(self, name: str, replicas: int) -> int:
        """Return the topic's ``min.insync.replicas``, capped at its number of replicas."""
        return min(self.resolve(name).configs.min_insync_replicas, replicas)


_DRAFTED = (
    "versions",
    "ephemeral",
    "brokers",
    "topics",
    "memories",
    "lives",
    "states",
    "deletions",
    "former_lives",
    "marked",
    "topic_configs",
    "broker_configs",
    "damaged",
    "counters",
    "producer_ids",
    "cluster_id",
    "names",
    "names_in_metrics",
    "went_back",
    "confirmed",
    "configs_changed_at",
)
"""What changes with nodes."""


def load(cluster: Cluster, nodes: Mapping[str, Node]) -> None:
    """Apply every node of the store, parents first."""
    for path in sorted(nodes):
        take(cluster, path, nodes[path])
    known = indexes_with_state(cluster)
    for name in cluster.memories.keys() - cluster.topics.keys():
        check_topic(cluster, name, known)
    lacking = [x for x in cluster.states if not cluster.replicas(x) and x.topic in cluster.topics]
    for name in {where.topic for where in lacking}:
        check_topic(cluster, name, known)


def take(cluster: Cluster, path: str, node: Node | None) -> None:
    """Take up a node as it stands in the store, whoever wrote it; None when it is not there."""
    cluster.damaged.pop(path, None)
    cluster.ephemeral.pop(path, None)
    if node is None or counts_as_none(path, node):
        cluster.versions.pop(path, None)
        _remove(cluster, path)
        if node is not None:
            cluster.ephemeral[path] = node.version
        return
    cluster.versions[path] = node.version
    record = layout.decode(path, node.data)
    if isinstance(record, Damaged):
        _remove(cluster, path)
        cluster.damaged[path] = record
    elif record is not None:
        _put(cluster, path, record)


def indexes_with_state(cluster: Cluster) -> dict[str, list[int]]:
    """Return the partitions that have a state, by topic. Walks over all states."""
    found: dict[str, list[int]] = {}
    for where in cluster.states:
        found.setdefault(where.topic, []).append(where.partition)
    return found


def check_topic(cluster: Cluster, name: str, known: Mapping[str, list[int]]) -> None:
    """Count a topic's node as damaged when other nodes say that it lacks something.

    What is missing deletes nothing (promise 20): a FULL would make it stale. ``known`` is what
    ``indexes_with_state`` says, once for many topics.
    """
    path = layout.topic(name)
    if path in cluster.damaged:
        return
    node = cluster.topics.get(name)
    if node is None:
        if name in cluster.memories:
            memory = layout.memory(name)
            lost = "only an ephemeral one is left" if path in cluster.ephemeral else "it is missing"
            why = f"{lost}, but {memory} is there: put it back, or remove that node too"
            cluster.damaged[path] = Damaged(path, why)
        return
    lacking = [index for index in known.get(name, ()) if index not in node.partitions]
    if lacking:
        _remove(cluster, path)
        why = f"it lacks the partition {min(lacking)}, whose state is there"
        cluster.damaged[path] = Damaged(path, why)


def apply(cluster: Cluster, writes: Iterable[Write]) -> None:
    """Take up writes that are durable."""
    for write in writes:
        cluster.damaged.pop(write.path, None)
        cluster.ephemeral.pop(write.path, None)
        if isinstance(write, Remove):
            cluster.versions.pop(write.path, None)
            _remove(cluster, write.path)
        else:
            cluster.versions[write.path] = cluster.versions.get(write.path, -1) + 1
            _put(cluster, write.path, write.record)
        if write.path.startswith((layout.TOPIC_CONFIGS, layout.BROKER_CONFIGS)):
            # The revision that is being written counts up last.
            cluster.configs_changed_at = cluster.revision + 1


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
            topic_id = layout.parse_id(name) or NO_ID
            cluster.deletions[topic_id] = record
            cluster.former_lives.setdefault(record.name, {})[topic_id] = record
        case DeletionMark():
            cluster.marked.add(name)
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
        case WentBack():
            cluster.went_back = record.sentence
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


def _forget_deletion(cluster: Cluster, topic_id: UUID) -> None:
    node = cluster.deletions.pop(topic_id, None)
    if node is not None:
        lives = cluster.former_lives[node.name]
        del lives[topic_id]
        if not lives:
            del cluster.former_lives[node.name]


def _remove(cluster: Cluster, path: str) -> None:
    above, _, name = path.rpartition("/")
    found = layout.partition_of(path)
    if found is not None:
        where = TopicPartition(*found)
        kind: dict[TopicPartition, object] = (
            cluster.states if path.endswith("/state") else cluster.lives  # type: ignore[assignment]
        )
        kind.pop(where, None)
    elif path == layout.WENT_BACK:
        cluster.went_back = None
    elif above == layout.TOPICS:
        cluster.names.pop(cluster.topic_id(name), None)
        cluster.topics.pop(name, None)
        cluster.names_in_metrics.pop(metric_name(name), None)
    elif above == layout.TOPIC_MEMORIES:
        cluster.memories.pop(name, None)
    elif above == layout.BROKERS:
        cluster.brokers.pop(int(name), None)
    elif above == layout.DELETIONS:
        _forget_deletion(cluster, layout.parse_id(name) or NO_ID)
    elif above == layout.DELETE_TOPICS:
        cluster.marked.discard(name)
        cluster.confirmed.pop(name, None)
    elif above == layout.TOPIC_CONFIGS:
        cluster.topic_configs.pop(name, None)
    elif above == layout.BROKER_CONFIGS:
        cluster.broker_configs.pop(name, None)
