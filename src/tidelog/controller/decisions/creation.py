"""CreateTopics: each topic is checked, placed and written.

Owns the checks in Kafka's order and with its error codes, and the nodes of a new topic. Every new
partition takes the next number of ``/partition_epoch`` and the topic keeps the number of partitions
that it was created with (KIP-253); every topic gets an id (KIP-516). The nodes of the partitions:
see ``new_partitions``; more partitions later: see ``growth``.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, ClusterState
from tidelog.controller.decisions.cordons import open_racks
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.late_replicas import late_names
from tidelog.controller.decisions.levels import why_name_is_taken
from tidelog.controller.decisions.new_partitions import (
    MAX_PARTITIONS,
    bad_assignment,
    new_partitions,
    why_not_assigned,
    why_not_numbers,
    why_too_many,
)
from tidelog.controller.decisions.uncertain_replicas import written_once
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    Counter,
    TopicHistory,
    TopicNode,
)
from tidelog.model.configs.resolve import ConfigEntry, check_topic_configs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import METADATA_TOPIC, TRANSACTIONS_TOPIC, metric_name, why_invalid
from tidelog.model.ways_out import RESTORED
from tidelog.planning.placement import place_on

USE_DEFAULT = -1
"""A count or factor of CreateTopics v4+ that the broker's configuration fills in."""


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    """One topic of a CreateTopics request; ``assignment`` maps partitions to brokers."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignment: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Created:
    """The result for one topic."""

    name: str
    refusal: RequestRefusal | None = None
    topic_id: UUID = NO_ID
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """``num.partitions`` and ``default.replication.factor``."""

    partitions: int
    replication_factor: int


@dataclass
class Earlier:
    """The names and partitions of earlier slices of one request, and the names that it repeats.

    ``repeated`` and ``answered`` are names: a repeated one gets one result.
    """

    repeated: Collection[str] = ()
    answered: set[str] = field(default_factory=set)
    created: int = 0
    """Partitions."""
    names: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(asked: Sequence[TopicToCreate]) -> Earlier:
        """Return it for a whole request before its first slice."""
        return Earlier(_repeated([topic.name for topic in asked]))

    def take(self, answers: Sequence[Created]) -> None:
        """Note the results of a slice once they are durable."""
        for answer in answers:
            self.answered.add(answer.name)
            if answer.refusal is None:
                self.created += answer.partitions
                self.names[metric_name(answer.name)] = answer.name


@dataclass
class _Batch:
    # The names and partitions of earlier topics of the same slice.
    partition_epoch: int
    earlier: Earlier
    created: int
    for_process: bool
    late: Collection[str]
    """The names of topics that late replicas hold."""
    names: dict[str, str] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)

    def named(self, form: str) -> str | None:
        return self.names.get(form) or self.earlier.names.get(form)


def create_topics(
    cluster: ClusterState,
    asked: Sequence[TopicToCreate],
    defaults: Defaults,
    entropy: Entropy,
    validate_only: bool = False,
    earlier: Earlier | None = None,
    *,
    for_process: bool = False,
) -> Decision[list[Created]]:
    """Decide CreateTopics, or a slice of it: each topic is created or refused by itself, all in one
    write. ``earlier`` has the slices before this one and stays unchanged. ``for_process``: a broker
    asks on its own account, not for a client."""
    start = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    if earlier is None:
        earlier = Earlier.of(asked)
    batch = _Batch(start, earlier, earlier.created, for_process, late_names(cluster))
    answers: list[Created] = []
    answered = set(earlier.answered) if earlier.repeated else set()
    for topic in asked:
        if topic.name in earlier.repeated:
            if topic.name not in answered:
                answered.add(topic.name)
                sentence = f"The topic {topic.name} is named more than once."
                answers.append(
                    Created(topic.name, RequestRefusal(ErrorCode.INVALID_REQUEST, sentence))
                )
            continue
        answers.append(_create(cluster, topic, defaults, entropy, batch))
    if validate_only:
        return Decision([replace(answer, topic_id=NO_ID) for answer in answers])
    if batch.partition_epoch != start:
        # First: no two partitions get the same epoch, even if ``completion`` has to finish this.
        batch.writes.insert(0, Put(layout.PARTITION_EPOCH, Counter(batch.partition_epoch)))
    return Decision(answers, tuple(written_once(cluster, batch.writes)), splits=True)


def _repeated(names: Sequence[str]) -> frozenset[str]:
    """Return the names that occur more than once."""
    return frozenset(name for name, count in Tally(names).items() if count > 1)


def cost_of_topic(topic: TopicToCreate, defaults: Defaults) -> int:
    """Return the cost of a topic's creation in writes, with that of resolving its configuration."""
    count = defaults.partitions if topic.partitions == USE_DEFAULT else topic.partitions
    count = len(topic.assignment) or min(max(0, count), MAX_PARTITIONS)
    return 3 + 2 * count + 5 * bool(topic.configs) + len(topic.configs)


def _create(
    cluster: ClusterState, topic: TopicToCreate, defaults: Defaults, entropy: Entropy, batch: _Batch
) -> Created:
    refusal = _why_not_name(cluster, topic.name, batch)
    if refusal is None:
        refusal = _why_not_configs(topic)
    if refusal is not None:
        return Created(topic.name, refusal)
    replicas = _replicas(cluster, topic, defaults, entropy)
    if isinstance(replicas, RequestRefusal):
        return Created(topic.name, replicas)
    if batch.created + len(replicas) > MAX_PARTITIONS:
        sentence = f"One request may create {MAX_PARTITIONS} partitions."
        return Created(topic.name, RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence))
    batch.created += len(replicas)
    configs = {name: value for name, value in topic.configs if value is not None}
    topic_id = entropy.new_uuid()
    text = layout.id_text(topic_id)
    count = len(replicas)
    assignment = dict(enumerate(replicas))
    node = TopicNode(
        assignment,
        topic_id=text,
        initial_partition_count=count,
        undeleted_partition_count=count,
    )
    # Below level 1.4 replicas are not sent the id: they adopt it later, as for a migrated topic.
    history = TopicHistory(text, count, migrated=not cluster.level.topic_ids)
    writes = batch.writes
    # Before the topic: a creation that stops after it would leave a compacted topic with the
    # defaults. A node that an unfinished creation left is not this topic's.
    own = layout.topic_configs(topic.name)
    if configs:
        writes.append(Put(own, ConfigNode(configs)))
    elif own in cluster.versions:
        writes.append(Remove(own))
    writes.append(Put(layout.topic(topic.name), node))
    writes.append(Put(layout.topic_history(topic.name), history))
    epoch = batch.partition_epoch
    batch.writes += new_partitions(cluster, topic.name, assignment, epoch)
    batch.partition_epoch += count
    batch.names[metric_name(topic.name)] = topic.name
    entries = cluster.resolve(topic.name, configs).entries
    return Created(topic.name, None, topic_id, count, len(replicas[0]), entries)


def _why_not_name(cluster: ClusterState, name: str, batch: _Batch) -> RequestRefusal | None:
    clause = why_invalid(name)
    if clause is not None:
        sentence = f"{name[:300]!r} is no name for a topic: {clause}."
        return RequestRefusal(ErrorCode.INVALID_TOPIC_EXCEPTION, sentence)
    if name == METADATA_TOPIC:
        sentence = f"The name {name} is kept for controllers: no topic may have it."
        return RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
    if name == TRANSACTIONS_TOPIC and not (cluster.level.transactions and batch.for_process):
        # In another form it would lose transactions, and another count moves ids to other brokers.
        sentence = (
            f"Clients must not create the topic {name}: transaction coordinators create it for the "
            "first transactional producer, with the settings transaction.state.log.* of the brokers"
        )
        if not cluster.level.transactions:
            sentence = (
                f"The topic {name} comes with level 1.6: no cluster below it has transactions"
            )
        return RequestRefusal(ErrorCode.INVALID_REQUEST, f"{sentence}.")
    if name in batch.late:
        sentence = (
            f"Brokers hold replicas of a topic {name} that the store does not know since it was "
            f"accepted: see {RESTORED}."
        )
        return RequestRefusal(ErrorCode.POLICY_VIOLATION, sentence)
    taken = why_name_is_taken(cluster, name)
    if taken is not None:
        return taken
    if name in cluster.topics or layout.topic(name) in cluster.damaged:
        # Kafka's wording: people and scripts search for it.
        return RequestRefusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    form = metric_name(name)
    other = batch.named(form) or cluster.names_in_metrics.get(form)
    if other is not None:
        sentence = (
            f"The topic {name} collides with {other}: in the names of metrics '.' and '_' are one."
        )
        return RequestRefusal(ErrorCode.INVALID_TOPIC_EXCEPTION, sentence)
    return None


def _why_not_configs(topic: TopicToCreate) -> RequestRefusal | None:
    names = [name for name, _ in topic.configs]
    if len(set(names)) != len(names):
        sentence = f"A configuration of the topic {topic.name} is given twice."
        return RequestRefusal(ErrorCode.INVALID_CONFIG, sentence)
    refused = check_topic_configs(dict(topic.configs))
    return None if refused is None else RequestRefusal(ErrorCode.INVALID_CONFIG, refused.sentence)


def _replicas(
    cluster: ClusterState, topic: TopicToCreate, defaults: Defaults, entropy: Entropy
) -> list[list[int]] | RequestRefusal:
    if topic.assignment:
        if topic.partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
            sentence = "With a replica assignment, partitions and replication factor must be -1."
            return RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
        return _assigned(cluster, topic.assignment)
    count = defaults.partitions if topic.partitions == USE_DEFAULT else topic.partitions
    factor = topic.replication_factor
    factor = defaults.replication_factor if factor == USE_DEFAULT else factor
    refusal = why_not_numbers(cluster, count, factor) or why_too_many(count)
    if refusal is not None:
        return refusal
    racks = open_racks(cluster)
    start = entropy.below(max(1, len(racks) ** 2))
    return place_on(racks, cluster.hosting, count, factor, start)


def _assigned(
    cluster: ClusterState, assignment: Sequence[tuple[int, tuple[int, ...]]]
) -> list[list[int]] | RequestRefusal:
    by_index = dict(assignment)
    if len(by_index) != len(assignment):
        return bad_assignment("a partition is assigned twice")
    if sorted(by_index) != list(range(len(by_index))):
        return bad_assignment("the partitions must be numbered from 0 on, without a gap")
    replicas = [list(by_index[index]) for index in range(len(by_index))]
    refusal = why_not_assigned(cluster, replicas, len(replicas[0]))
    return replicas if refusal is None else refusal
