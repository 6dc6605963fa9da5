"""CreatePartitions below level 1.5: a topic gets more partitions, as in Kafka.

Owns the checks in Kafka's order and with its error codes, and the changed nodes of the topic. The
nodes of the new partitions: see ``new_partitions``. From level 1.5 the count changes by a resize:
see ``resize_requests``.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.cordons import open_racks
from tidelog.controller.decisions.decision import Decision, Put, RequestRefusal, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.new_partitions import (
    MAX_PARTITIONS,
    bad_assignment,
    new_partitions,
    why_not_assigned,
    why_not_numbers,
    why_too_many,
)
from tidelog.controller.decisions.reassignments import why_resize_waits
from tidelog.controller.decisions.uncertain_replicas import written_once
from tidelog.metadata import layout
from tidelog.metadata.records import Counter
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.planning.placement import place_on


@dataclass(frozen=True, slots=True)
class Growth:
    """One topic of a CreatePartitions request; ``assignments`` are of the new partitions.

    ``force``: a shrink goes on although writers without a partition count may be there.
    """

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None
    force: bool = False


Grown = tuple[str, RequestRefusal | None]


def cost_of_growth(cluster: ClusterState, growth: Growth) -> int:
    """Return the cost of a topic's growth in writes."""
    node = cluster.topics.get(growth.name)
    now = growth.count if node is None else len(node.partitions)
    return 2 + 2 * min(max(0, growth.count - now), MAX_PARTITIONS)


def create_partitions(
    cluster: ClusterState,
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
            refusal = RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
        replicas: list[list[int]] | RequestRefusal = []
        if refusal is None:
            replicas = replicas_of_new(cluster, growth, entropy.below)
            refusal = replicas if isinstance(replicas, RequestRefusal) else None
        answers.append((growth.name, refusal))
        if refusal is None and not isinstance(replicas, RequestRefusal):
            writes += _grow(cluster, growth, replicas, epoch)
            epoch += len(replicas)
    if validate_only:
        return Decision(answers)
    if epoch != start:
        writes.insert(0, Put(layout.PARTITION_EPOCH, Counter(epoch)))
    return Decision(answers, tuple(written_once(cluster, writes)), splits=True)


def repeated_growths(asked: Sequence[Growth]) -> frozenset[str]:
    """Return the names that a request grows more than once."""
    times = Tally(growth.name for growth in asked)
    return frozenset(name for name, count in times.items() if count > 1)


def _why_not_grown(cluster: ClusterState, growth: Growth) -> RequestRefusal | None:
    node = cluster.topics.get(growth.name)
    if node is None or growth.name in cluster.marked:
        sentence = f"There is no topic {growth.name}."
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
    if growth.name in INTERNAL_TOPICS:
        sentence = (
            f"{growth.name} keeps its partition count: groups and transactions are placed by it."
        )
        return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)
    now = len(node.partitions)
    if growth.count == now:
        sentence = f"The topic {growth.name} has {now} partitions already."
        return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if growth.count < now:
        sentence = (
            f"The topic {growth.name} has {now} partitions, more than {growth.count}: to remove "
            "partitions needs inter.broker.protocol.version=1.5 on all brokers and controllers."
        )
        return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if growth.count > MAX_PARTITIONS:
        sentence = f"The number of partitions must be at most {MAX_PARTITIONS}."
        return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)
    return why_resize_waits(cluster, growth.name) or why_too_many(growth.count - now)


def replicas_of_new(
    cluster: ClusterState, growth: Growth, below: Callable[[int], int]
) -> list[list[int]] | RequestRefusal:
    """Return the replicas of the new partitions: as the request names them, otherwise placed."""
    node = cluster.topics[growth.name]
    now = len(node.partitions)
    factor = len(node.partitions[min(node.partitions)])
    if growth.assignments is not None:
        if len(growth.assignments) != growth.count - now:
            clause = f"it has {len(growth.assignments)} entries, but {growth.count - now} are new"
            return bad_assignment(clause)
        refusal = why_not_assigned(cluster, growth.assignments, factor)
        return refusal if refusal is not None else [list(x) for x in growth.assignments]
    refusal = why_not_numbers(cluster, growth.count, factor)
    if refusal is not None:
        return refusal
    racks = open_racks(cluster)
    start = below(max(1, len(racks) ** 2))
    return place_on(racks, cluster.hosting, growth.count - now, factor, start, now)


def _grow(
    cluster: ClusterState, growth: Growth, replicas: Sequence[list[int]], partition_epoch: int
) -> list[Write]:
    node = cluster.topics[growth.name]
    now = len(node.partitions)
    new = {now + offset: brokers for offset, brokers in enumerate(replicas)}
    # Kafka's growth keeps no order of keys: the topic counts as created with the new number, so
    # that hash mod count and linear hashing agree.
    changed = msgspec.structs.replace(
        node,
        partitions={**node.partitions, **new},
        initial_partition_count=growth.count,
        undeleted_partition_count=growth.count,
    )
    writes: list[Write] = [Put(layout.topic(growth.name), changed)]
    history = cluster.topic_histories.get(growth.name)
    if history is not None:
        grown = msgspec.structs.replace(history, initial_partition_count=growth.count)
        writes.append(Put(layout.topic_history(growth.name), grown))
    return writes + new_partitions(cluster, growth.name, new, partition_epoch)
