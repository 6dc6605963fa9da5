"""The cluster state as the controller knows it: plain data, and the questions that it answers.

Owns the fields. Most are a function of the nodes in the store, and ``nodes`` changes them: an
activation loads every node and applies it as if it had just been written, so memory and store
cannot differ. The others are soft state, which the store does not have: see ``soft_state``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tidelog.controller.decisions.plan import WrittenPlan
from tidelog.controller.decisions.reported_command import KeptByBrokers
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import (
    BrokerNode,
    DeletionNode,
    EndedData,
    PartitionNode,
    PartitionState,
    ProducerIdBlock,
    TopicHistory,
    TopicNode,
    UncertainReplicas,
)
from tidelog.metadata.soundness import HIGHEST_EPOCH
from tidelog.model.configs.resolve import BrokerLayers, ResolvedTopic, TopicResolver
from tidelog.model.levels import LATEST, Level
from tidelog.model.topics import TopicPartition, hosts_of
from tidelog.records.control_records import ChangeKind

NO_LEADER = -1
NO_ID = UUID(int=0)

KEPT_CONFIGURATIONS = 256
"""The number of different topic configurations that stay resolved: one takes some 20 us."""


class InventoryFence(NamedTuple):
    """One fence or seal of a replica's log."""

    resize_epoch: int
    undeleted_count: int
    kind: ChangeKind


class LogEnd(NamedTuple):
    """Where a replica's log ended when its broker registered; its birth and fences (KIP-253).

    ``leader_epoch`` is the newest that began in the log, ``record_epoch`` that of its last record:
    -1 if it has none, or an older version reported it.
    """

    partition_epoch: int
    leader_epoch: int
    end_offset: int
    birth_epoch: int = 0
    birth_offset: int = 0
    fences: tuple[InventoryFence, ...] = ()
    record_epoch: int = -1


class FenceReport(NamedTuple):
    """The fence or seal of a partition is below the high watermark: so its leader reported."""

    partition_epoch: int
    leader_epoch: int
    resize_epoch: int


class StorePast(NamedTuple):
    """What a store says of its own past: ``founded_as`` is the id under which brokers on empty
    disks know a cluster whose store was lost, ``ended`` has the topics that ended since the store
    was accepted as a restored one, ``uncertain`` the replicas that came back uncertain while the
    states of their partitions could not be read."""

    founded_as: str = ""
    ended: EndedData = EndedData()
    uncertain: UncertainReplicas = UncertainReplicas()


class LoadedStore(NamedTuple):
    """The revision and the newest partition epoch of a store when a controller loaded it; no
    partition counts as newer while that is not known. ``rewritten`` are the partitions whose nodes
    other programs have written since: they are not born here, whatever their epochs. ``by_hand``
    are those whose states they have written: a later one on a broker proves no older store."""

    revision: int = 0
    partition_epoch: int = HIGHEST_EPOCH
    rewritten: frozenset[TopicPartition] = frozenset()
    by_hand: frozenset[TopicPartition] = frozenset()


class BrokerShortages(NamedTuple):
    """What a broker reports of its log directories without room: why each refuses writes, and in
    which of them its replicas are."""

    reasons: Mapping[str, str]
    replicas: Mapping[TopicPartition, str]


class HoldingGroup(NamedTuple):
    """A group that has not committed past the data of a retired partition.

    ``committed`` is -1 without an offset of it; ``expires_ms`` is when all its offsets of the topic
    have expired (time of day), -1 while it has members.
    """

    group: str
    committed: int
    expires_ms: int


class Retained(NamedTuple):
    """What a retired partition holds, as its leader and the coordinators said at the last check.

    ``records`` at most, and the groups that hold it up, some of ``group_count``: -1 if not all
    groups could be asked. ``is_read``: another group has committed past its data. ``until_ms``: the
    time of day until when it stays in any case, because a producer may ask for a batch; 0: none.
    """

    records: int
    groups: tuple[HoldingGroup, ...] = ()
    group_count: int = 0
    is_read: bool = False
    until_ms: int = 0


class ByteRate(NamedTuple):
    """What one broker reported of a partition that it led, and when: by the monotonic clock, and in
    which resize epoch of the topic."""

    broker: int
    bytes_per_second: int
    at_ms: int
    resize_epoch: int


class _Resolved(NamedTuple):
    # Configurations that were resolved over these defaults of all brokers.
    defaults: dict[str, str] | None
    resolver: TopicResolver
    found: dict[tuple[tuple[str, str], ...], ResolvedTopic]


@dataclass
class ClusterState:
    """Everything that decisions read. Only ``nodes`` and ``soft_state`` change it.

    ``marked`` are the topics of the queue in ``/admin/delete_topics``; ``deletions_by_name`` is
    ``deletions`` by topic name.

    The last twenty-one are not in the store: ``configs_changed_at``, the revision of the last
    change of a configuration; the ``level`` of this controller; ``confirmed``, the
    (broker, partition) of marked topics whose replicas are deleted; ``suspected`` and
    ``shutting_down`` brokers; ``presumed`` ones, which registered with an earlier controller only;
    what brokers alone have ``kept`` for an acceptance; ``undeletable``, why a topic's nodes cannot
    be removed;
    ``broken`` replicas, which a broker reported as damaged; ``diskless`` brokers, all of whose log
    directories have failed; the ``shortages`` of brokers with log directories without room; the
    logs that each broker reported at its registration (``inventories``; ``nameless`` are the
    replicas without a topic id, by name; ``held`` has the name of each reported topic id);
    ``seen``, the highest (controller epoch, store revision) that each broker reported;
    ``loaded``, what the store had before this controller wrote to it.

    ``fences`` has the reports of fences and seals of the topics that are being resized, and
    ``unaware`` when each broker last saw a writer without a partition count, by topic;
    ``unaware_said`` the broker epoch and the time of each one's last report of that;
    ``unaware_clients`` the client ids that each broker has seen of such writers;
    ``misplaced`` how many records of such writers each has found in a wrong partition;
    ``byte_rates`` the rates of the partitions of topics that are resized by their load.

    ``retained`` has what the retired partitions of a topic hold, and why, since the last check.

    ``resizing`` are the topics with the plan of a resize.
    ``went_back`` says why the store must be an older copy of itself, until that was accepted;
    ``past`` is what the store says of its own past, of a loss and since an acceptance.
    ``moves`` has the targets of every partition that is being reassigned, and ``arrived`` those of
    them whose ISR has all targets. ``plan`` is that of ``/admin/reassign_partitions``.
    ``ephemeral`` are the nodes, with their versions, at a path of a persistent node: they count as
    absent, and a write of tidelog's node replaces them (decision 0044).
    """

    layers: BrokerLayers = field(default_factory=BrokerLayers)
    versions: dict[str, int] = field(default_factory=dict)
    ephemeral: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, BrokerNode] = field(default_factory=dict)
    topics: dict[str, TopicNode] = field(default_factory=dict)
    topic_histories: dict[str, TopicHistory] = field(default_factory=dict)
    partition_nodes: dict[TopicPartition, PartitionNode] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    moves: dict[TopicPartition, list[int]] = field(default_factory=dict)
    arrived: set[TopicPartition] = field(default_factory=set)
    plan: WrittenPlan = field(default_factory=WrittenPlan)
    deletions: dict[UUID, DeletionNode] = field(default_factory=dict)
    deletions_by_name: dict[str, dict[UUID, DeletionNode]] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    damaged: dict[str, Damaged] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    producer_ids: ProducerIdBlock | None = None
    cluster_id: str | None = None
    names: dict[UUID, str] = field(default_factory=dict)
    names_in_metrics: dict[str, str] = field(default_factory=dict)
    resizing: set[str] = field(default_factory=set)
    went_back: str | None = None
    past: StorePast = field(default_factory=StorePast)

    level: Level = LATEST
    confirmed: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    configs_changed_at: int = field(default=0, compare=False)
    suspected: set[int] = field(default_factory=set)
    shutting_down: set[int] = field(default_factory=set)
    presumed: set[int] = field(default_factory=set)
    kept: KeptByBrokers = field(default_factory=KeptByBrokers, compare=False)
    undeletable: dict[str, str] = field(default_factory=dict, compare=False)
    broken: set[tuple[int, TopicPartition]] = field(default_factory=set)
    diskless: set[int] = field(default_factory=set)
    shortages: dict[int, BrokerShortages] = field(default_factory=dict, compare=False)
    inventories: dict[int, dict[tuple[UUID, int], LogEnd]] = field(default_factory=dict)
    nameless: dict[int, dict[TopicPartition, LogEnd]] = field(default_factory=dict)
    held: dict[UUID, str] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    loaded: LoadedStore = field(default_factory=LoadedStore)
    fences: dict[str, dict[int, FenceReport]] = field(default_factory=dict, compare=False)
    unaware: dict[UUID, dict[int, int]] = field(default_factory=dict, compare=False)
    unaware_said: dict[UUID, dict[int, tuple[int, int]]] = field(
        default_factory=dict, compare=False
    )
    unaware_clients: dict[UUID, dict[int, tuple[str, ...]]] = field(
        default_factory=dict, compare=False
    )
    misplaced: dict[UUID, dict[int, int]] = field(default_factory=dict, compare=False)
    byte_rates: dict[UUID, dict[int, ByteRate]] = field(default_factory=dict, compare=False)
    retained: dict[UUID, dict[int, Retained]] = field(default_factory=dict, compare=False)

    # Resolved configurations: most topics share a few.
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

    @property
    def hosting(self) -> set[int]:
        """The brokers that new replicas go to, if there are enough: fit, with a log directory that
        has room."""
        return self.fit - self.diskless - self.roomless

    @property
    def roomless(self) -> set[int]:
        """The brokers of which no log directory has room, as far as these are known."""
        return {
            broker
            for broker, short in self.shortages.items()
            if (node := self.brokers.get(broker)) is not None
            and node.log_dirs
            and short.reasons.keys() >= set(node.log_dirs)
        }

    def first_isr(self, replicas: Iterable[int], electable: Set[int]) -> list[int]:
        """Return those of a new partition's replicas that are in its first ISR.

        One on a broker without a log directory holds nothing: it is left out where another one is
        ``electable``.
        """
        able = [broker for broker in replicas if broker in electable]
        return [broker for broker in able if broker not in self.diskless] or able

    def draft(self) -> ClusterState:
        """Return a copy to change beside this one, until ``adopt`` takes it over. O(nodes).

        Both share the soft state: registrations and heartbeats go on meanwhile.
        """
        made = copy.copy(self)
        for name in _DRAFTED:
            setattr(made, name, copy.copy(getattr(self, name)))
        made.plan = self.plan.copy()
        made.deletions_by_name = {
            name: dict(deletions) for name, deletions in self.deletions_by_name.items()
        }
        return made

    def adopt(self, draft: ClusterState) -> None:
        """Take over the nodes of a draft, which are all durable."""
        for name in _DRAFTED:
            setattr(self, name, getattr(draft, name))

    def topic_id(self, name: str) -> UUID:
        """Return a topic's id; all zero when it has none."""
        node = self.topics.get(name)
        text = None if node is None else node.topic_id
        return (layout.parse_id(text) if text is not None else None) or NO_ID

    def isr_version(self, tp: TopicPartition) -> int:
        """Return the version of a partition's state node; -1 when it has none."""
        return self.versions.get(layout.state(*tp), -1)

    @property
    def unreadable_topics(self) -> list[str]:
        """The topics whose nodes are damaged, sorted: no request can say what they have, and none
        may mean by its silence that they have nothing (docs/decisions/0111). Also those without an
        id whose histories are damaged: only these have it."""
        if not self.damaged:
            return []
        names = set()
        for path in self.damaged:
            above, _, name = path.rpartition("/")
            if above == layout.TOPICS or (
                above == layout.TOPIC_HISTORIES
                and self.level.topic_ids
                and name in self.topics
                and self.topic_id(name) == NO_ID
            ):
                names.add(name)
        return sorted(names)

    def replicas(self, tp: TopicPartition) -> list[int]:
        """Return a partition's assignment; empty while its topic's node cannot be read."""
        node = self.topics.get(tp.topic)
        return [] if node is None else node.partitions.get(tp.partition, [])

    def hosts(self, tp: TopicPartition) -> Sequence[int]:
        """Return the brokers that host a partition: its replicas and the targets of its move.

        While its state node is damaged its targets are unknown: every broker counts that reported
        a replica of it, also a damaged one, or that the state from before the damage names, which
        may be newer than the reports: missing metadata deletes nothing (promise 20).
        """
        replicas = self.replicas(tp)
        damaged = self.damaged.get(layout.state(*tp)) if self.damaged else None
        if damaged is not None:
            former = damaged.former
            named = named_in(former) if isinstance(former, PartitionState) else set()
            here = {*self.inventories, *self.nameless}
            others = {x for x in here if x in named or self.log_end(x, tp)}
            return hosts_of(replicas, sorted(others | {x for x, y in self.broken if y == tp}))
        targets = self.moves.get(tp)
        return replicas if targets is None else hosts_of(replicas, targets)

    def original(self, tp: TopicPartition) -> list[int]:
        """Return the replicas before the first change of a move, otherwise the replicas.

        Under-replication is counted by them, never by a set that grows (KIP-455).
        """
        history = self.topic_histories.get(tp.topic)
        noted = None if history is None else history.original_replicas.get(tp.partition)
        return self.replicas(tp) if noted is None else noted

    def log_end(self, broker: int, tp: TopicPartition) -> LogEnd | None:
        """Return where a broker's replica of a partition ended when it registered.

        A replica without a topic id counts where such a replica adopts the topic's (KIP-516), one
        of another incarnation of the partition never (KIP-253).
        """
        end = self.any_log_end(broker, tp)
        node = self.partition_nodes.get(tp) if self.level.resizes else None
        if end is not None and node is not None:
            is_nameless = end.partition_epoch < 0
            if end.partition_epoch != node.partition_epoch and not (
                is_nameless and node.birth_epoch == 0
            ):
                return None
        return end

    def any_log_end(
        self, broker: int, tp: TopicPartition, topic_id: UUID | None = None
    ) -> LogEnd | None:
        """Return the same of a replica of whichever incarnation of the partition; ``topic_id`` is
        that of a topic whose node lacks it."""
        topic_id = self.topic_id(tp.topic) if topic_id is None else topic_id
        end = self.inventories.get(broker, {}).get((topic_id, tp.partition))
        if end is None and self.takes_nameless(tp.topic):
            end = self.nameless.get(broker, {}).get(tp)
        return end

    def takes_nameless(self, name: str) -> bool:
        """Return whether a replica without a topic id can be one of this topic."""
        history = self.topic_histories.get(name)
        return history is None or history.migrated or not self.level.topic_ids

    def all_partitions(self) -> Iterable[TopicPartition]:
        """Yield every partition that is assigned, by the names of topics."""
        for name in sorted(self.topics):
            for index in self.topics[name].partitions:
                yield TopicPartition(name, index)

    def partitions_of(self, broker: int) -> Iterable[TopicPartition]:
        """Yield every partition that a broker hosts. Walks over all partitions."""
        others = self._hosted_otherwise(broker)
        for name, node in self.topics.items():
            for index, replicas in node.partitions.items():
                if broker in replicas or (others and TopicPartition(name, index) in others):
                    yield TopicPartition(name, index)

    def _hosted_otherwise(self, broker: int) -> set[TopicPartition]:
        """Return the partitions that may be hosted by a broker without being assigned to it."""
        hosted = {tp for tp, targets in self.moves.items() if broker in targets}
        for path in self.damaged:
            place = layout.partition_of(path)
            if place is not None and broker in self.hosts(TopicPartition(*place)):
                hosted.add(TopicPartition(*place))
        return hosted

    def resolve(self, name: str, configs: Mapping[str, str] | None = None) -> ResolvedTopic:
        """Resolve a topic's configuration, with ``configs`` instead of the stored ones if given."""
        own = self.topic_configs.get(name, {}) if configs is None else configs
        defaults = self.broker_configs.get(layout.ALL_BROKERS)
        # Nodes are replaced, never changed: the same dict has the same content.
        kept = self._resolved
        if kept is None or kept.defaults is not defaults:
            layers = BrokerLayers(self.layers.static, {}, defaults or {})
            # Replaced as a whole: a scrape in another thread may still use the former one.
            self._resolved = kept = _Resolved(defaults, TopicResolver(layers), {})
        elif len(kept.found) >= KEPT_CONFIGURATIONS:
            self._resolved = kept = kept._replace(found={})
        key = tuple(sorted(own.items()))
        resolved = kept.found.get(key)
        if resolved is None:
            resolved = kept.found[key] = kept.resolver.resolve(own)
        return resolved

    def min_insync(self, name: str, replicas: int) -> int:
        """Return the topic's ``min.insync.replicas``, capped at its number of replicas."""
        return min(self.resolve(name).configs.min_insync_replicas, replicas)


def named_in(state: PartitionState) -> set[int]:
    """Return the brokers that a state names: its members, and the targets of its move."""
    targets = state.target_replicas or ()
    return {*state.isr, *state.eligible_replicas, *state.unclean_members, *targets}


_DRAFTED = (
    "versions",
    "ephemeral",
    "brokers",
    "topics",
    "topic_histories",
    "partition_nodes",
    "states",
    "moves",
    "arrived",
    "plan",
    "deletions",
    "deletions_by_name",
    "marked",
    "topic_configs",
    "broker_configs",
    "damaged",
    "counters",
    "producer_ids",
    "cluster_id",
    "names",
    "names_in_metrics",
    "resizing",
    "went_back",
    "past",
    "confirmed",
    "configs_changed_at",
    "loaded",
)
"""Fields that change with the nodes."""
