"""Requests to start, change or cancel reassignments: refusals, and the list of moves (KIP-455).

Owns which requests are accepted. What a step changes: see ``moves``.

| request | a move is running | result |
|---|---|---|
| other replicas than R | no | it starts |
| the same targets | yes | success: nothing changes |
| other targets | yes | it changes: targets that joined stay in R until the completion |
| R itself | no | success; replicas that a cancelled move left are accepted as they are |
| R itself | yes | it ends where it stands |
| none (null) | yes | it is cancelled |
| none (null) | no | NO_REASSIGNMENT_IN_PROGRESS |

A broker may be dead: the move waits for it. It must be known: registered, or in an assignment. One
that ``cordoned.log.dirs`` closes gets no partition that it does not host (KIP-1066).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.cordons import closed_brokers, why_cordoned
from tidelog.controller.decisions.decision import Decision, RequestRefusal
from tidelog.controller.decisions.moves import Placement, cancelled, started, why_damaged, written
from tidelog.controller.decisions.new_partitions import bad_assignment
from tidelog.controller.decisions.shown_topics import shown_topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work


@dataclass(frozen=True, slots=True)
class Asked:
    """One partition of a request; ``targets`` None cancels its move."""

    where: TopicPartition
    targets: tuple[int, ...] | None


Answered = tuple[TopicPartition, RequestRefusal | None]


@dataclass(frozen=True, slots=True)
class Listed:
    """One move as API 46 shows it: T and then the rest of R; T without O; R and O without T."""

    where: TopicPartition
    replicas: list[int]
    adding: list[int]
    removing: list[int]


def reassign(
    cluster: ClusterState,
    asked: Sequence[Asked],
    repeated: Collection[TopicPartition] = (),
    all_brokers: Callable[[], set[int]] | None = None,
) -> Decision[list[Answered]]:
    """Decide AlterPartitionReassignments for some partitions, each by itself, in one multi-write.

    ``repeated`` has the partitions that the request names more than once; ``all_brokers`` returns
    all ``known_brokers``, by default those of now: many slices of one request share the walk.
    """
    answers: list[Answered] = []
    after: dict[TopicPartition, Placement] = {}
    all_brokers = all_brokers or cache(lambda: known_brokers(cluster))
    closed = closed_brokers(cluster)
    for one in asked:
        refusal = _why_not(cluster, one, all_brokers, closed)
        if refusal is None and one.where in repeated:
            sentence = f"{one.where} is named more than once."
            refusal = RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
        answers.append((one.where, refusal))
        if refusal is None:
            now = Placement.of(cluster, one.where)
            after[one.where] = (
                cancelled(now) if one.targets is None else started(now, list(one.targets))
            )
    return Decision(answers, tuple(written(cluster, after)))


def cost_of_moves(cluster: ClusterState, asked: Sequence[Asked]) -> int:
    """Return the cost of requests for one topic in writes: its assignment may be long."""
    node = cluster.topics.get(asked[0].where.topic)
    return 4 * len(asked) + (0 if node is None else len(node.partitions) // 10)


def repeated_places(asked: Iterable[Asked]) -> frozenset[TopicPartition]:
    """Return the partitions that a request names more than once."""
    times = Counter(one.where for one in asked)
    return frozenset(tp for tp, count in times.items() if count > 1)


def known_brokers(cluster: ClusterState) -> set[int]:
    """Return the brokers that are registered or in any assignment. O(partitions)."""
    brokers = set(cluster.brokers)
    for node in cluster.topics.values():
        brokers.update(*node.partitions.values())
    brokers.update(*cluster.moves.values())
    for history in cluster.topic_histories.values():
        brokers.update(*history.original_replicas.values())
    return brokers


def moves_of(
    cluster: ClusterState, topic: str | None = None, indexes: Collection[int] | None = None
) -> list[TopicPartition]:
    """Return the running moves, sorted: all, those of a topic, or of some partitions of it."""
    return sorted(
        tp
        for tp in cluster.moves
        if (topic is None or tp.topic == topic)
        and (indexes is None or tp.partition in indexes)
        and is_moving(cluster, tp)
    )


def moves_by_topic(cluster: ClusterState) -> Work[dict[str, list[TopicPartition]]]:
    """Return the running moves by topic, sorted, in steps: there may be as many as partitions."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in list(cluster.moves):
        yield None
        if is_moving(cluster, tp):
            by_topic.setdefault(tp.topic, []).append(tp)
    for places in by_topic.values():
        yield None
        places.sort()
    return {topic: by_topic[topic] for topic in sorted(by_topic)}


def is_moving(cluster: ClusterState, tp: TopicPartition) -> bool:
    """Whether the move of a partition runs: the deletion of its topic ends it."""
    return tp in cluster.moves and tp.topic in cluster.topics and tp.topic not in cluster.marked


def listed(cluster: ClusterState, tp: TopicPartition) -> Listed:
    """Return a running move as it is listed."""
    targets, replicas = cluster.moves[tp], cluster.replicas(tp)
    before = cluster.original(tp)
    return Listed(
        tp,
        [*targets, *(x for x in replicas if x not in targets)],
        [x for x in targets if x not in before],
        [x for x in dict.fromkeys((*replicas, *before)) if x not in targets],
    )


def why_resize_waits(cluster: ClusterState, topic: str) -> RequestRefusal | None:
    """Return why a topic cannot get another partition count now, or None: its partitions move."""
    moving = moves_of(cluster, topic)
    if not moving:
        return None
    sentence = (
        f"{len(moving)} partitions of the topic {topic} are being reassigned: change its count "
        "when they are done, or cancel their moves."
    )
    return RequestRefusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, sentence)


def _why_not(
    cluster: ClusterState, one: Asked, all_brokers: Callable[[], set[int]], closed: set[int]
) -> RequestRefusal | None:
    tp = one.where
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if tp.topic in cluster.marked:
        return RequestRefusal(unknown, f"The topic {tp.topic} is being deleted.")
    node = cluster.topics.get(tp.topic)
    damaged = why_damaged(cluster, tp)
    is_unborn = node is not None and not shown_topic(
        node, cluster.topic_histories.get(tp.topic)
    ).shows(tp.partition)
    if node is not None and (is_unborn or tp.partition not in node.partitions):
        # No client sees a partition before its growth is published.
        return RequestRefusal(unknown, f"There is no partition {tp}.")
    if node is None and (damaged is None or tp.topic not in cluster.topic_histories):
        return RequestRefusal(unknown, f"There is no topic {tp.topic}.")
    if damaged is not None:
        return RequestRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, damaged)
    if one.targets is None:
        if tp in cluster.moves:
            return None
        sentence = f"{tp} is not being reassigned."
        return RequestRefusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence)
    if cluster.topic_histories[tp.topic].resize is not None:
        sentence = f"The topic {tp.topic} gets another partition count now: move it afterwards."
        return RequestRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, sentence)
    refusal = _why_not_targets(cluster, one.targets, all_brokers)
    if refusal is None and not closed.isdisjoint(one.targets):
        # A broker that hosts the partition already stays: its targets may take another order.
        new = closed.intersection(one.targets).difference(cluster.hosts(tp))
        refusal = bad_assignment(why_cordoned(min(new))) if new else None
    return refusal


def _why_not_targets(
    cluster: ClusterState, targets: Sequence[int], all_brokers: Callable[[], set[int]]
) -> RequestRefusal | None:
    if not targets:
        return bad_assignment("it is empty; null cancels a reassignment")
    if min(targets) < 0:
        return bad_assignment(f"{next(x for x in targets if x < 0)} is no broker id")
    if len(targets) > len(cluster.brokers) and len(targets) > len(all_brokers()):
        return bad_assignment(
            f"it names {len(targets)} brokers, and there are {len(all_brokers())}"
        )
    named: set[int] = set()
    for broker in targets:
        if broker in named:
            return bad_assignment(f"broker {broker} is named twice")
        named.add(broker)
    for broker in targets:
        # The set of all brokers costs a walk over the partitions: only for one that is away.
        if broker not in cluster.brokers and broker not in all_brokers():
            return bad_assignment(f"there is no broker {broker}, alive or in any assignment")
    return None
