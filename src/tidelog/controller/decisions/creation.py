"""Creating topics and adding partitions: what is asked is checked, placed and written.

Owns the checks in Kafka's order and with its error codes, and the nodes of new partitions. Every
new partition takes the next number of ``/partition_epoch`` and the topic remembers how many
partitions it was created with (KIP-253); every topic gets an id (KIP-516).
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import (
    NO_ID,
    Cluster,
    Decision,
    Put,
    Refusal,
    Remove,
    Write,
)
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.levels import why_name_is_taken
from tidelog.controller.decisions.placement import place_on
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    Counter,
    PartitionNode,
    PartitionState,
    TopicMemory,
    TopicNode,
)
from tidelog.model.configs.resolve import ConfigEntry, check_topic_configs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import METADATA_TOPIC, OFFSETS_TOPIC, metric_name, why_invalid

USE_DEFAULT = -1
"""A count or factor of CreateTopics v4+ that the broker's configuration fills in."""

MAX_PARTITIONS = 50_000
"""The most partitions that one topic may have and one request may create: a limit so that a request
cannot fill the store; far above what a topic needs."""

MOST_AT_ONCE = 10_000
"""The most partitions that one topic gets at once, as in Kafka (KRaft): it is one decision, each of
whose turns takes some 5 us for each."""

MAX_REPLICATION_FACTOR = 32767


@dataclass(frozen=True, slots=True)
class NewTopic:
    """One topic of a CreateTopics request; ``assignment`` maps partitions to brokers."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignment: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Created:
    """The answer for one topic."""

    name: str
    refusal: Refusal | None = None
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
    """What the topics of earlier slices of one request have taken, and which of its names repeat.

    ``repeated`` and ``answered`` are names: one that repeats is answered once.
    """

    repeated: Collection[str] = ()
    answered: set[str] = field(default_factory=set)
    created: int = 0
    """Partitions."""
    names: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(asked: Sequence[NewTopic]) -> Earlier:
        """Return it for a whole request, of which nothing was decided yet."""
        return Earlier(_repeated([topic.name for topic in asked]))

    def take(self, answers: Sequence[Created]) -> None:
        """Note what a slice has come to, once that is durable."""
        for answer in answers:
            self.answered.add(answer.name)
            if answer.refusal is None:
                self.created += answer.partitions
                self.names[metric_name(answer.name)] = answer.name


@dataclass
class _Batch:
    # What earlier topics of the same slice have taken already.
    partition_epoch: int
    earlier: Earlier
    created: int
    names: dict[str, str] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)

    def named(self, form: str) -> str | None:
        return self.names.get(form) or self.earlier.names.get(form)


def create_topics(
    cluster: Cluster,
    asked: Sequence[NewTopic],
    defaults: Defaults,
    entropy: Entropy,
    validate_only: bool = False,
    earlier: Earlier | None = None,
) -> Decision[list[Created]]:
    """Decide CreateTopics, or a slice of it: each topic is created or refused by itself, all in one
    write. ``earlier`` is of the slices before it, and is not changed here."""
    start = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    if earlier is None:
        earlier = Earlier.of(asked)
    batch = _Batch(start, earlier, earlier.created)
    answers: list[Created] = []
    answered = set(earlier.answered) if earlier.repeated else set()
    for topic in asked:
        if topic.name in earlier.repeated:
            if topic.name not in answered:
                answered.add(topic.name)
                sentence = f"The topic {topic.name} is named more than once."
                answers.append(Created(topic.name, Refusal(ErrorCode.INVALID_REQUEST, sentence)))
            continue
        answers.append(_create(cluster, topic, defaults, entropy, batch))
    if validate_only:
        return Decision([replace(answer, topic_id=NO_ID) for answer in answers])
    if batch.partition_epoch != start:
        # First: no epoch is given twice, and what a topic lacks is made by ``completion``.
        batch.writes.insert(0, Put(layout.PARTITION_EPOCH, Counter(batch.partition_epoch)))
    return Decision(answers, tuple(batch.writes), splits=True)


def _repeated(names: Sequence[str]) -> frozenset[str]:
    """Return the names that occur more than once."""
    return frozenset(name for name, count in Tally(names).items() if count > 1)


def cost_of_topic(topic: NewTopic, defaults: Defaults) -> int:
    """Return what the creation of a topic costs, in writes; its configuration is resolved, too."""
    count = defaults.partitions if topic.partitions == USE_DEFAULT else topic.partitions
    count = len(topic.assignment) or min(max(0, count), MAX_PARTITIONS)
    return 3 + 2 * count + 5 * bool(topic.configs) + len(topic.configs)


def cost_of_growth(cluster: Cluster, growth: Growth) -> int:
    """Return what the growth of a topic costs, in writes."""
    node = cluster.topics.get(growth.name)
    now = growth.count if node is None else len(node.partitions)
    return 2 + 2 * min(max(0, growth.count - now), MAX_PARTITIONS)


def _create(
    cluster: Cluster, topic: NewTopic, defaults: Defaults, entropy: Entropy, batch: _Batch
) -> Created:
    refusal = _why_not_name(cluster, topic.name, batch)
    if refusal is None:
        refusal = _why_not_configs(topic)
    if refusal is not None:
        return Created(topic.name, refusal)
    replicas = _replicas(cluster, topic, defaults, entropy)
    if isinstance(replicas, Refusal):
        return Created(topic.name, replicas)
    if batch.created + len(replicas) > MAX_PARTITIONS:
        sentence = f"One request may create {MAX_PARTITIONS} partitions."
        return Created(topic.name, Refusal(ErrorCode.INVALID_PARTITIONS, sentence))
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
    # Below level 1.4 its replicas are not told the id: they take it later, as of a migrated topic.
    memory = TopicMemory(text, count, migrated=not cluster.level.topic_ids)
    writes = batch.writes
    # Before the topic: cut behind it, a compacted topic would live on with the defaults. What a
    # creation that was cut in between left is none of this topic's.
    own = layout.topic_configs(topic.name)
    if configs:
        writes.append(Put(own, ConfigNode(configs)))
    elif own in cluster.versions:
        writes.append(Remove(own))
    writes.append(Put(layout.topic(topic.name), node))
    writes.append(Put(layout.memory(topic.name), memory))
    epoch = batch.partition_epoch
    batch.writes += new_partitions(cluster, topic.name, assignment, epoch)
    batch.partition_epoch += count
    batch.names[metric_name(topic.name)] = topic.name
    entries = cluster.resolve(topic.name, configs).entries
    return Created(topic.name, None, topic_id, count, len(replicas[0]), entries)


def new_partitions(
    cluster: Cluster, name: str, assignment: dict[int, list[int]], partition_epoch: int
) -> list[Write]:
    """Return the nodes of new partitions; the first one's epoch is ``partition_epoch`` + 1.

    Their leader epochs begin above those of the name's former lives that are not gone everywhere.
    A broker that has not registered with this controller yet leads none and is in no ISR; where
    there is only such a one, the partition gets its nodes when it has (``completion``).
    """
    writes: list[Write] = []
    electable = cluster.electable
    former = cluster.former_lives.get(name, {}).values()
    for index, replicas in assignment.items():
        partition_epoch += 1
        isr = [broker for broker in replicas if broker in electable]
        if not isr and cluster.presumed.intersection(replicas):
            continue
        isr = isr or list(replicas[:1])
        # Who is below level 1.4 fetches without a topic id, and may still have a former life: only
        # the leader epoch tells that it is none of this one's followers.
        leader_epoch = 1 + max((life.leader_epochs.get(index, -1) for life in former), default=-1)
        state = PartitionState(isr[0], leader_epoch, cluster.controller_epoch, isr)
        writes.append(Put(layout.partition(name, index), PartitionNode(partition_epoch)))
        writes.append(Put(layout.state(name, index), state))
    return writes


def _why_not_name(cluster: Cluster, name: str, batch: _Batch) -> Refusal | None:
    clause = why_invalid(name)
    if clause is not None:
        sentence = f"{name[:300]!r} is no name for a topic: {clause}."
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, sentence)
    if name == METADATA_TOPIC:
        sentence = f"The name {name} is kept for controllers: no topic may have it."
        return Refusal(ErrorCode.INVALID_REQUEST, sentence)
    taken = why_name_is_taken(cluster, name)
    if taken is not None:
        return taken
    if name in cluster.topics or layout.topic(name) in cluster.damaged:
        # In Kafka's words: people and scripts look for them.
        return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    form = metric_name(name)
    other = batch.named(form) or cluster.names_in_metrics.get(form)
    if other is not None:
        sentence = (
            f"The topic {name} collides with {other}: in the names of metrics '.' and '_' are one."
        )
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, sentence)
    return None


def _why_not_configs(topic: NewTopic) -> Refusal | None:
    names = [name for name, _ in topic.configs]
    if len(set(names)) != len(names):
        sentence = f"A configuration of the topic {topic.name} is given twice."
        return Refusal(ErrorCode.INVALID_CONFIG, sentence)
    refused = check_topic_configs(dict(topic.configs))
    return None if refused is None else Refusal(ErrorCode.INVALID_CONFIG, refused.sentence)


def _replicas(
    cluster: Cluster, topic: NewTopic, defaults: Defaults, entropy: Entropy
) -> list[list[int]] | Refusal:
    if topic.assignment:
        if topic.partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
            sentence = "With a replica assignment, partitions and replication factor must be -1."
            return Refusal(ErrorCode.INVALID_REQUEST, sentence)
        return _assigned(cluster, topic.assignment)
    count = defaults.partitions if topic.partitions == USE_DEFAULT else topic.partitions
    factor = topic.replication_factor
    factor = defaults.replication_factor if factor == USE_DEFAULT else factor
    refusal = _why_not_numbers(cluster, count, factor) or _why_too_many(count)
    if refusal is not None:
        return refusal
    racks = {broker: node.rack for broker, node in cluster.brokers.items()}
    start = entropy.below(max(1, len(racks) ** 2))
    return place_on(racks, cluster.fit, count, factor, start)


def _why_not_numbers(cluster: Cluster, count: int, factor: int) -> Refusal | None:
    if not 1 <= count <= MAX_PARTITIONS:
        sentence = f"The number of partitions must be from 1 to {MAX_PARTITIONS}."
        return Refusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if not 1 <= factor <= MAX_REPLICATION_FACTOR:
        sentence = "The replication factor must be larger than 0."
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, sentence)
    there = len(cluster.brokers)
    if factor > there:
        sentence = f"A replication factor of {factor} needs as many brokers; {there} are there."
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, sentence)
    return None


def _why_too_many(new: int) -> Refusal | None:
    if new <= MOST_AT_ONCE:
        return None
    sentence = (
        f"Excessively large number of partitions per request: a topic gets at most {MOST_AT_ONCE} "
        "at once. Add more of them later (CreatePartitions)."
    )
    return Refusal(ErrorCode.INVALID_PARTITIONS, sentence)


def _assigned(
    cluster: Cluster, assignment: Sequence[tuple[int, tuple[int, ...]]]
) -> list[list[int]] | Refusal:
    by_index = dict(assignment)
    if len(by_index) != len(assignment):
        return _bad_assignment("a partition is assigned twice")
    if sorted(by_index) != list(range(len(by_index))):
        return _bad_assignment("the partitions must be numbered from 0 on, without a gap")
    replicas = [list(by_index[index]) for index in range(len(by_index))]
    refusal = _why_not_assigned(cluster, replicas, len(replicas[0]))
    return replicas if refusal is None else refusal


def _why_not_assigned(
    cluster: Cluster, replicas: Sequence[Sequence[int]], factor: int
) -> Refusal | None:
    for brokers in replicas:
        if not brokers:
            return _bad_assignment("a partition has no replicas")
        if len(set(brokers)) != len(brokers):
            return _bad_assignment(f"a broker is named twice in {list(brokers)}")
        unknown = [broker for broker in brokers if broker not in cluster.brokers]
        if unknown:
            return _bad_assignment(f"there is no live broker {unknown[0]}")
        if len(brokers) != factor:
            return _bad_assignment("all partitions must have the same number of replicas")
    return None


def _bad_assignment(clause: str) -> Refusal:
    sentence = f"The replica assignment cannot be used: {clause}."
    return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, sentence)


@dataclass(frozen=True, slots=True)
class Growth:
    """One topic of a CreatePartitions request; ``assignments`` are of the new partitions."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


Grown = tuple[str, Refusal | None]


def create_partitions(
    cluster: Cluster,
    asked: Sequence[Growth],
    entropy: Entropy,
    validate_only: bool = False,
    repeated: Collection[str] | None = None,
) -> Decision[list[Grown]]:
    """Decide CreatePartitions as Kafka does: only growing, until level 1.5.

    ``asked`` may be a slice of a request; ``repeated`` has the names that repeat in the whole.
    """
    start = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    epoch = start
    writes: list[Write] = []
    answers: list[Grown] = []
    repeated = repeated_growths(asked) if repeated is None else repeated
    for growth in asked:
        refusal = _why_not_grown(cluster, growth)
        if growth.name in repeated:
            sentence = f"The topic {growth.name} is named more than once."
            refusal = Refusal(ErrorCode.INVALID_REQUEST, sentence)
        replicas: list[list[int]] | Refusal = []
        if refusal is None:
            replicas = _grown_replicas(cluster, growth, entropy.below)
            refusal = replicas if isinstance(replicas, Refusal) else None
        answers.append((growth.name, refusal))
        if refusal is None and not isinstance(replicas, Refusal):
            writes += _grow(cluster, growth, replicas, epoch)
            epoch += len(replicas)
    if validate_only:
        return Decision(answers)
    if epoch != start:
        writes.insert(0, Put(layout.PARTITION_EPOCH, Counter(epoch)))
    return Decision(answers, tuple(writes), splits=True)


def repeated_growths(asked: Sequence[Growth]) -> frozenset[str]:
    """Return the names that a request grows more than once."""
    return _repeated([growth.name for growth in asked])


def _why_not_grown(cluster: Cluster, growth: Growth) -> Refusal | None:
    node = cluster.topics.get(growth.name)
    if node is None or growth.name in cluster.marked:
        sentence = f"There is no topic {growth.name}."
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
    if growth.name == OFFSETS_TOPIC:
        sentence = f"{OFFSETS_TOPIC} cannot grow: its groups are placed by its partition count."
        return Refusal(ErrorCode.INVALID_PARTITIONS, sentence)
    now = len(node.partitions)
    if growth.count == now:
        sentence = f"The topic {growth.name} has {now} partitions already."
        return Refusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if growth.count < now:
        sentence = (
            f"The topic {growth.name} has {now} partitions, more than {growth.count}: this version "
            "cannot remove partitions, at no inter.broker.protocol.version."
        )
        return Refusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if growth.count > MAX_PARTITIONS:
        sentence = f"The number of partitions must be at most {MAX_PARTITIONS}."
        return Refusal(ErrorCode.INVALID_PARTITIONS, sentence)
    return _why_too_many(growth.count - now)


def _grown_replicas(
    cluster: Cluster, growth: Growth, below: Callable[[int], int]
) -> list[list[int]] | Refusal:
    node = cluster.topics[growth.name]
    now = len(node.partitions)
    factor = len(node.partitions[min(node.partitions)])
    if growth.assignments is not None:
        if len(growth.assignments) != growth.count - now:
            clause = f"it has {len(growth.assignments)} entries, but {growth.count - now} are new"
            return _bad_assignment(clause)
        refusal = _why_not_assigned(cluster, growth.assignments, factor)
        return refusal if refusal is not None else [list(x) for x in growth.assignments]
    refusal = _why_not_numbers(cluster, growth.count, factor)
    if refusal is not None:
        return refusal
    racks = {broker: node.rack for broker, node in cluster.brokers.items()}
    start = below(max(1, len(racks) ** 2))
    return place_on(racks, cluster.fit, growth.count - now, factor, start, now)


def _grow(
    cluster: Cluster, growth: Growth, replicas: Sequence[list[int]], partition_epoch: int
) -> list[Write]:
    node = cluster.topics[growth.name]
    now = len(node.partitions)
    new = {now + offset: brokers for offset, brokers in enumerate(replicas)}
    # Kafka's growth keeps no order of keys, whatever the count was before: so the topic counts as
    # created with the new number, and hash mod count and linear hashing agree from then on.
    changed = msgspec.structs.replace(
        node,
        partitions={**node.partitions, **new},
        initial_partition_count=growth.count,
        undeleted_partition_count=growth.count,
    )
    writes: list[Write] = [Put(layout.topic(growth.name), changed)]
    memory = cluster.memories.get(growth.name)
    if memory is not None:
        grown = msgspec.structs.replace(memory, initial_partition_count=growth.count)
        writes.append(Put(layout.memory(growth.name), grown))
    return writes + new_partitions(cluster, growth.name, new, partition_epoch)
