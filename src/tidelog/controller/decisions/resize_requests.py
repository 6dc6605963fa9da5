"""Requests for another partition count at level 1.5: the refusals, and the plan of a resize.

Owns which requests begin a resize, with Kafka's error codes where Kafka has one. What the plan does
then: see ``resizing``. Below level 1.5: see ``growth``. Pure (KIP-253).

| request | refused with |
|---|---|
| a topic that is not there, or is being deleted | UNKNOWN_TOPIC_OR_PARTITION |
| ``__consumer_offsets``, ``__transaction_state`` | INVALID_PARTITIONS |
| the same count, below the first count, above the limit | INVALID_PARTITIONS |
| more partitions while retired ones are listed | INVALID_PARTITIONS |
| a reassignment of the topic, or a resize to another count, runs | |
| | REASSIGNMENT_IN_PROGRESS |
| a partition could commit no fence now (``obstacles``): no live leader; an ISR below its | |
| minimum; a log directory without room, also of a new partition | LEADER_NOT_AVAILABLE; |
| | NOT_ENOUGH_REPLICAS; KAFKA_STORAGE_ERROR |
| fewer partitions of a compacted topic, or with writers without a count; ``force`` passes | |
| | POLICY_VIOLATION |
| an assignment of a shrink, or one that cannot be used | INVALID_REPLICA_ASSIGNMENT |

An external write of a topic's node is the same request (``external_changes``), and so is the switch
of ``enable.ordered.delivery`` to true, with the same count (``configuration``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import msgspec

from tidelog.controller.decisions.autoscaling import cooling
from tidelog.controller.decisions.autoscaling_settings import settings_of
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, RequestRefusal, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.growth import (
    Grown,
    Growth,
    repeated_growths,
    replicas_of_new,
)
from tidelog.controller.decisions.losses import in_bytes
from tidelog.controller.decisions.new_partitions import (
    MAX_PARTITIONS,
    MOST_AT_ONCE,
    bad_assignment,
    why_too_many,
)
from tidelog.controller.decisions.obstacles import Obstacle, obstacle_of, why_not_placed
from tidelog.controller.decisions.reassignments import why_resize_waits
from tidelog.controller.decisions.retirees import keeps_for_good, said_listed, why_listed
from tidelog.controller.decisions.unaware_writers import last_seen, unaware_writers
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ResizeKind,
    ResizePlan,
    ResizeStep,
    TopicHistory,
    TopicNode,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition

MOST_CLIENTS = 10
"""Client ids of writers without a partition count that an answer names."""

UNAWARE_MS = 3_600_000
"""A shrink waits for so long after the last write without a partition count."""

MOST_BYTES = 900_000
"""The most bytes of the topic's node and its own record in one commit: ZooKeeper takes 1 MiB."""

MOST_RECORD_BYTES = 500_000
"""The most bytes of the topic's own record with a leader epoch of each partition: the commits of
the steps have some 500 nodes of partitions beside it."""

EPOCH_BYTES = 7

FORMER_BYTES = 60
"""The most bytes of what the topic's own record keeps of one removed partition: its index, two
offsets of 13 digits, and three epochs."""


def resize_topics(
    cluster: ClusterState,
    asked: Sequence[Growth],
    entropy: Entropy,
    now_ms: int,
    validate_only: bool = False,
    repeated: Collection[str] | None = None,
) -> Decision[list[Grown]]:
    """Decide CreatePartitions at level 1.5: each accepted topic gets the plan of a resize, unless
    a plan to the same count is under way.

    ``asked`` may be a slice of a request; ``repeated`` has the names that repeat in the whole.
    ``now_ms`` is the time of day.
    """
    answers: list[Grown] = []
    writes: list[Write] = []
    repeated = repeated_growths(asked) if repeated is None else repeated
    for growth in asked:
        joins = _joins(cluster, growth)
        made = [] if joins else begun(cluster, growth, entropy, now_ms)
        if growth.name in repeated:
            sentence = f"The topic {growth.name} is named more than once."
            made = RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
        if isinstance(made, RequestRefusal):
            answers.append((growth.name, made))
        else:
            answers.append((growth.name, None))
            writes += made
    # Each topic is complete by itself: its two writes follow each other, and ``parts`` cuts by
    # size. A request of one large topic is one commit.
    return Decision(answers, () if validate_only else tuple(writes))


def _joins(cluster: ClusterState, growth: Growth) -> bool:
    """Return whether a resize that does what is asked is under way.

    A client that sends a request again, because the connection or the controller went with the
    response, gets the result of the resize that its first request began.
    """
    history = cluster.topic_histories.get(growth.name)
    plan = None if history is None else history.resize
    if plan is None or plan.kind is ResizeKind.UNDO or growth.name in cluster.marked:
        return False
    return plan.to_count == growth.count and growth.assignments is None


def begun(
    cluster: ClusterState, growth: Growth, entropy: Entropy, now_ms: int
) -> list[Write] | RequestRefusal:
    """Return the write that begins a resize, or why it is refused."""
    name, count = growth.name, growth.count
    refusal = _why_not_topic(cluster, name) or _why_not_count(cluster, growth)
    refusal = refusal or why_resize_waits(cluster, name) or _why_not_able(cluster, name)
    if refusal is not None:
        return refusal
    node, history = cluster.topics[name], cluster.topic_histories[name]
    now = count_of(node)
    partitions = node.partitions
    if count > now:
        new = replicas_of_new(cluster, growth, entropy.below)
        if isinstance(new, RequestRefusal):
            return new
        refusal = _why_not_born(cluster, name, now, new)
        if refusal is not None:
            return refusal
        partitions = {**partitions, **dict(enumerate(new, now))}
        plan = ResizePlan(ResizeKind.GROW, now, count, history.resize_epoch + 1, ResizeStep.FENCE)
    else:
        if growth.assignments is not None:
            return bad_assignment("a shrink has no new partitions; leave it out")
        refusal = None if growth.force else _why_not_unforced(cluster, name, now_ms)
        if refusal is not None:
            return refusal
        plan = ResizePlan(ResizeKind.SHRINK, now, count, history.resize_epoch + 1, ResizeStep.SEAL)
    changed = msgspec.structs.replace(node, partitions=partitions, undeleted_partition_count=count)
    # What brokers have reported so far outlives this controller from the first resize on.
    seen_ms = max(history.unaware_ms, last_seen(cluster, cluster.topic_id(name)))
    planned = msgspec.structs.replace(_planned(history, plan), unaware_ms=max(0, seen_ms))
    # Handled elections make room: the audit log has their losses.
    ends = max(0, count - history.initial_partition_count - len(history.former))
    planned = in_bytes(planned, _most_record(now, count) - FORMER_BYTES * ends)
    if (settings := settings_of(cluster, name)) is not None:
        cools = cooling(settings, now_ms)
        planned = msgspec.structs.replace(
            planned, grow_after_ms=cools.grow_after_ms, shrink_after_ms=cools.shrink_after_ms
        )
    refusal = _why_not_size(name, node, changed, planned)
    if refusal is not None:
        return refusal
    return [Put(layout.topic(name), changed), Put(layout.topic_history(name), planned)]


def begun_again(cluster: ClusterState, name: str) -> list[Write] | RequestRefusal:
    """Return the write that begins a resize epoch with the same count, or why it is refused."""
    refusal = _why_not_topic(cluster, name) or why_resize_waits(cluster, name)
    refusal = refusal or _why_not_able(cluster, name)
    if refusal is not None:
        return refusal
    history, now = cluster.topic_histories[name], count_of(cluster.topics[name])
    plan = ResizePlan(ResizeKind.SAME, now, now, history.resize_epoch + 1, ResizeStep.FENCE)
    return [Put(layout.topic_history(name), _planned(history, plan))]


def count_of(node: TopicNode) -> int:
    """Return how many partitions of a topic take records."""
    count = node.undeleted_partition_count
    return len(node.partitions) if count is None else count


def _planned(history: TopicHistory, plan: ResizePlan) -> TopicHistory:
    changed: TopicHistory = msgspec.structs.replace(
        history, resize=plan, resize_epoch=plan.resize_epoch
    )
    return changed


def _why_not_topic(cluster: ClusterState, name: str) -> RequestRefusal | None:
    node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
    if node is None or name in cluster.marked:
        sentence = f"There is no topic {name}."
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
    if name in INTERNAL_TOPICS:
        sentence = (
            f"{name} keeps its partition count: groups and transactions are placed by it. Set the "
            "count before the topic is created."
        )
        return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if history is None or layout.topic_history(name) in cluster.damaged:
        sentence = f"The topic {name} is not complete yet: send the request again."
        return RequestRefusal(ErrorCode.LEADER_NOT_AVAILABLE, sentence)
    if history.resize is not None:
        plan = history.resize
        sentence = (
            f"A resize of the topic {name} from {plan.from_count} to {plan.to_count} partitions is "
            "under way: send the request again when it is done."
        )
        return RequestRefusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, sentence)
    return None


def _why_not_count(cluster: ClusterState, growth: Growth) -> RequestRefusal | None:
    name, count = growth.name, growth.count
    node, history = cluster.topics[name], cluster.topic_histories[name]
    now, listed, first = count_of(node), len(node.partitions), history.initial_partition_count
    sentence = None
    if count == now:
        sentence = f"The topic {name} has {now} partitions already."
    elif count < first:
        sentence = (
            f"The topic {name} was created with {first} partitions and cannot have {count}: the "
            f"smallest count is {first}. For fewer, create another topic and copy the records."
        )
    elif count > MAX_PARTITIONS:
        sentence = (
            f"The number of partitions must be at most {MAX_PARTITIONS}; the largest count of the "
            f"topic {name} is now {_largest(cluster, name)}."
        )
    elif count > now and listed > now:
        sentence = (
            f"The topic {name} cannot grow while {said_listed(cluster, name)}. "
            f"{why_listed(cluster, name)}"
        )
    refusal = why_too_many(count - now) if count > now else None
    if sentence is None and refusal is not None:
        sentence = (
            f"{refusal.sentence} The largest count of the topic {name} is now "
            f"{_largest(cluster, name)}."
        )
    return None if sentence is None else RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)


def _largest(cluster: ClusterState, name: str) -> int:
    """Return the largest count that a topic can have after one growth, for its number alone."""
    history, now = cluster.topic_histories[name], count_of(cluster.topics[name])
    # A plan and its times are some 200 bytes of the record.
    planned = _planned(history, ResizePlan(ResizeKind.GROW, now, now, 1, ResizeStep.FENCE))
    most = _most_removable(planned, len(layout.encode(planned)))
    return min(now + MOST_AT_ONCE, MAX_PARTITIONS, most)


def _why_not_able(cluster: ClusterState, name: str) -> RequestRefusal | None:
    """Return why a resize could not finish now: each partition must be able to commit a fence."""
    for index in range(count_of(cluster.topics[name])):
        obstacle = obstacle_of(cluster, TopicPartition(name, index))
        if obstacle is not None:
            return _cannot_finish(obstacle)
    return None


def _why_not_born(
    cluster: ClusterState, name: str, first: int, new: Sequence[Sequence[int]]
) -> RequestRefusal | None:
    """Return why the new partitions of a growth could not begin, or None."""
    if not cluster.roomless:
        return None
    for index, replicas in enumerate(new, first):
        obstacle = why_not_placed(cluster, TopicPartition(name, index), replicas)
        if obstacle is not None:
            return _cannot_finish(obstacle)
    return None


LOST_BY_FORCE = (
    "Force (tidelog topics --alter --force) loses records: what such writers send to retired "
    "partitions is refused for good, and their producers give it up; an idempotent one of "
    "librdkafka may store others twice"
)


def _cannot_finish(obstacle: Obstacle) -> RequestRefusal:
    sentence = f"{obstacle.what}, so a resize could not finish: {obstacle.remedy}."
    return RequestRefusal(obstacle.error, sentence)


def _why_not_unforced(cluster: ClusterState, name: str, now_ms: int) -> RequestRefusal | None:
    """Return why a topic does not shrink without ``force``, or None."""
    if keeps_for_good(cluster, name):
        sentence = (
            f"The topic {name} does not shrink: it is compacted, so its retired partitions keep "
            "the newest values of their keys for good, and while they are listed the topic never "
            "grows again: force (tidelog topics --alter --force) gives that up for good, and no "
            "record. Or copy the records to a new topic with fewer partitions."
        )
        return RequestRefusal(ErrorCode.POLICY_VIOLATION, sentence)
    return why_not_aware(cluster, name, now_ms)


def why_not_aware(cluster: ClusterState, name: str, now_ms: int) -> RequestRefusal | None:
    """Return why a topic cannot shrink because of writers that send no partition count, or None.

    Their hash picks retired partitions, and those records would be refused. What a leader has not
    said counts as seen.
    """
    reported, silent = unaware_writers(cluster, name)
    recent = [seen for seen in reported.values() if seen > now_ms - UNAWARE_MS]
    if not recent and not silent:
        return None
    if recent:
        minutes = max(0, now_ms - max(recent)) // 60_000
        why = (
            f"writers that send no partition count wrote to it {minutes} minutes ago"
            f"{named_clients(unaware_clients(cluster, name))}"
        )
    else:
        names = ", ".join(map(str, silent))
        sentence = (
            f"The topic {name} does not shrink yet: broker {names} has not said whether writers "
            "without a partition count are there. It says so in its next heartbeat: send the "
            f"request again; if it stays, read that broker's log. {LOST_BY_FORCE}."
        )
        return RequestRefusal(ErrorCode.POLICY_VIOLATION, sentence)
    sentence = (
        f"The topic {name} does not shrink: {why}. Move them to tidelog's producer, or stop them, "
        f"and wait for an hour. {LOST_BY_FORCE}."
    )
    return RequestRefusal(ErrorCode.POLICY_VIOLATION, sentence)


def grows_over_retired(cluster: ClusterState, asked: Growth) -> bool:
    """Return whether a request grows a topic that lists retired partitions."""
    node = cluster.topics.get(asked.name)
    return node is not None and asked.count > count_of(node) < len(node.partitions)


def silent_leaders(cluster: ClusterState, asked: Growth) -> list[int]:
    """Return the brokers that have not said whether unaware writers are there, which a shrink
    without ``force`` needs. They say it in the next heartbeat after they have registered, or have
    been sent the topic."""
    node = cluster.topics.get(asked.name)
    if node is None or asked.force or asked.count >= count_of(node):
        return []
    return unaware_writers(cluster, asked.name)[1]


def unaware_clients(cluster: ClusterState, name: str) -> list[str]:
    """Return client ids of writers to a topic that sent no partition count, at least these."""
    reported = cluster.unaware_clients.get(cluster.topic_id(name), {})
    return sorted(set(chain.from_iterable(reported.values())))[:MOST_CLIENTS]


def named_clients(client_ids: Sequence[str]) -> str:
    """Return client ids in brackets, for a sentence; empty where none is known."""
    named = [client_id or "(none)" for client_id in client_ids]
    return f" (client ids: {', '.join(named)})" if named else ""


def _most_record(now: int, count: int) -> int:
    """Return the most bytes of a topic's own record before a resize: leader epochs come to it."""
    return MOST_RECORD_BYTES - EPOCH_BYTES * min(now, count)


def _why_not_size(
    name: str, before: TopicNode, after: TopicNode, planned: TopicHistory
) -> RequestRefusal | None:
    """Return why the nodes of a resize are too large for one commit, with the largest count."""
    record = len(layout.encode(planned))
    now, count = count_of(before), count_of(after)
    if record > _most_record(now, count):
        sentence = (
            f"The topic {name} cannot be resized now: its own record in the metadata store has "
            f"{record} bytes, of {len(planned.unclean)} unclean elections that are not handled and "
            f"{len(planned.former)} removed partitions. Start the brokers of these elections "
            "(tidelog doctor), then send the request again; otherwise copy the records to another "
            "topic."
        )
        return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if count > now:
        refusal = _why_not_removable(name, after, planned, record)
        if refusal is not None:
            return refusal
    size = len(layout.encode(after))
    if size + record <= MOST_BYTES or count < now:
        return None
    per_partition = (size - len(layout.encode(before))) / (count - now)
    largest = max(now, count - int((size + record - MOST_BYTES) / per_partition) - 1)
    sentence = (
        f"The topic {name} cannot have {count} partitions: its nodes would be larger than one "
        f"write of the metadata store ({MOST_BYTES} bytes). The largest count is {largest}."
    )
    return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)


def _why_not_removable(
    name: str, after: TopicNode, planned: TopicHistory, record: int
) -> RequestRefusal | None:
    """Return why a topic would have too many partitions to shrink and to grow again, or None.

    Of each removed partition its record keeps where it ended: all of them must fit into one write.
    """
    initial, count = planned.initial_partition_count, count_of(after)
    most = _most_removable(planned, record)
    if count <= most:
        return None
    sentence = (
        f"The topic {name} cannot have {count} partitions: if these are removed some day, their "
        "ends would not fit into one write of the metadata store. It was created with "
        f"{initial}, and the largest count is {most}."
    )
    return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)


def _most_removable(planned: TopicHistory, record: int) -> int:
    """Return the largest count whose partitions can all be removed again; ``record`` is the size of
    the topic's own record."""
    initial = planned.initial_partition_count
    former = sum(initial <= index for index in planned.former)
    return initial + former + (MOST_RECORD_BYTES - record) // FORMER_BYTES
