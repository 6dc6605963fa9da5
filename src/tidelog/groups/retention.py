"""Removal of offsets and groups: retention, deleted topics, DeleteGroups.

Owns these rules. An offset expires ``offsets.retention.minutes`` after

- its commit, for a group without members of its own (``assign``, tools), and for a topic that a
  Stable group of consumers no longer reads;
- its commit or the moment the group became empty, whichever is later, for a group that is Empty;
- never while the group rebalances, while members read the topic, or when the subscriptions cannot
  be read; nor with a commit in flight.

A time that the client set itself (OffsetCommit v2-4) replaces the retention.
Source: KIP-211. Kafka counts an Empty group from that moment alone, so that a position which a
tool sets in a group that has long been empty is removed at the next check; here it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.groups import first_sights, limits, removals
from tidelog.groups.decision import DecisionBuilder
from tidelog.groups.events import (
    DeleteGroup,
    Expire,
    RemoveFormerTopicIds,
    RemoveTopics,
    StatusResult,
)
from tidelog.groups.group import Group, GroupState
from tidelog.groups.records import (
    NO_EXPIRY,
    NO_TOPIC_ID,
    CommittedOffset,
    FirstSightRecord,
    GroupRecord,
    OffsetRecord,
    Record,
)
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


def check(group: Group, now_ms: int) -> Iterator[TopicPartition | str | None]:
    """Yield what may have expired: positions, and topics with a first sight only; None for every
    other one that is checked. O(positions and topics). One with an offset that does not count yet
    has not expired: many such must not take the room of the others for as long as a transaction is
    open.

    The group may change between two of them: ``expire`` checks them again.
    """
    wall_ms = group.wall_ms(now_ms)
    for topic in list(group.offsets):
        if not _may_expire(group, topic):
            yield None
            continue
        for partition, offset in list(group.offsets.get(topic, {}).items()):
            tp = TopicPartition(topic, partition)
            is_gone = _expired(group, offset, wall_ms) and tp not in group.in_flight
            yield tp if is_gone else None
    # Left over from a write that was cut short: they keep an empty group.
    for topic in list(first_sights.topics_seen(group)):
        is_left = (
            topic not in group.offsets
            and _may_expire(group, topic)
            and not group.flying.has_topic(topic)
            and first_sights.latest(group, topic) is not None
        )
        yield topic if is_left else None


def found_by(checked: Iterable[TopicPartition | str | None]) -> Expire:
    """Return the results, up to a limit of each kind."""
    positions: list[TopicPartition] = []
    topics: list[str] = []
    for expired in checked:
        if isinstance(expired, TopicPartition):
            positions.append(expired)
        elif expired is not None:
            topics.append(expired)
        if max(len(positions), len(topics)) >= limits.MAX_EXPIRED_AT_ONCE:
            break
    return Expire(tuple(positions), tuple(topics))


def expire(group: Group, event: Expire, now_ms: int, out: DecisionBuilder) -> None:
    """Remove what has expired, of the given results or up to a limit; an Empty group without
    offsets is removed too."""
    if group.state is GroupState.DEAD:
        return
    if event.positions is None:
        event = found_by(check(group, now_ms))
    wall_ms = group.wall_ms(now_ms)
    gone = [
        tp
        for tp in event.positions or ()
        if (offset := group.offsets.get(tp.topic, {}).get(tp.partition)) is not None
        # A newer commit of it is on its way to the log.
        and tp not in group.in_flight
        and _may_expire(group, tp.topic)
        and _expired(group, offset, wall_ms)
    ]
    topics = {*event.topics, *(tp.topic for tp in gone)}
    seen = [topic for topic in topics if _may_expire(group, topic)]
    records = [
        *_tombstones(group, gone),
        *first_sights.without_offsets(group, seen, set(gone))[: limits.MAX_EXPIRED_AT_ONCE],
    ]
    if gone:
        out.note("offsets expired", count=len(gone))
    unused = (
        group.state is GroupState.EMPTY
        and not group.pending_joins
        and not group.in_flight
        and group.offset_count == len(gone)
    )
    if unused and (records or group.recorded):
        _remove(group, gone, (), out)
    elif records:
        removals.begin(group, iter(records), out, whole=False)


def _may_expire(group: Group, topic: str) -> bool:
    if group.state is GroupState.EMPTY:
        return True
    return (
        group.state is GroupState.STABLE
        and group.subscribed is not None
        and topic not in group.subscribed
    )


def expiry_of(group: Group, topic: str, offset: CommittedOffset) -> int:
    """Return when a committed offset expires if nothing happens until then (time of day in ms);
    ``NO_EXPIRY`` while the members of the group keep it."""
    return _expires_ms(group, offset) if _may_expire(group, topic) else NO_EXPIRY


def _expires_ms(group: Group, offset: CommittedOffset) -> int:
    if offset.expires_ms != NO_EXPIRY:
        return offset.expires_ms
    since_ms = offset.committed_ms
    if group.state is GroupState.EMPTY and group.protocol_type is not None:
        since_ms = max(since_ms, group.since_ms)
    return since_ms + group.rules.settings.offsets_retention_ms


def _expired(group: Group, offset: CommittedOffset, wall_ms: int) -> bool:
    return wall_ms >= _expires_ms(group, offset)


def remove_topics(group: Group, event: RemoveTopics, out: DecisionBuilder) -> None:
    """Topics were deleted: remove their offsets and their first sights.

    The pass over all groups takes time: a topic of the same name may exist again, and a position in
    it may be committed, before the turn of this group. That position stays.
    """
    if group.state is GroupState.DEAD:
        return
    removals.begin(group, _of_topics(group, event), out, whole=False)
    # Members that read on see the present topic of that name now.
    first_sights.note_join(group, event.topics & (group.subscribed or frozenset()))


def _of_topics(group: Group, event: RemoveTopics) -> Iterator[Record]:
    topics = event.topics
    # Positions in flight are removed too: their records come first in the log.
    flying = []
    for topic in sorted(topics):
        present = event.topic_id_of(topic)
        for partition in group.flying.partitions_of(topic):
            tp = TopicPartition(topic, partition)
            last = group.in_flight[tp][-1]
            if last == NO_TOPIC_ID or last != present:
                flying.append(tp)
    yield from _tombstones(group, flying)
    for topic in sorted(topics & group.offsets.keys()):
        present = event.topic_id_of(topic)
        for partition, offset in list(group.offsets.get(topic, {}).items()):
            tp = TopicPartition(topic, partition)
            is_former = offset.topic_id == NO_TOPIC_ID or offset.topic_id != present
            if is_former and tp not in group.in_flight:
                yield OffsetRecord(group.group_id, topic, partition, None)
    # That of the present topic id stays, as its offsets do.
    for topic in sorted(topics & first_sights.topics_seen(group)):
        sight = first_sights.latest(group, topic)
        if sight is not None and sight.topic_id != event.topic_id_of(topic):
            yield FirstSightRecord(group.group_id, topic, None)


def remove_former_topic_ids(
    group: Group, event: RemoveFormerTopicIds, out: DecisionBuilder
) -> None:
    """The log has been read by a coordinator that may know of deletions its writer did not know:
    remove the offsets of former topic ids. Offsets without a first sight may have any."""
    if group.state is GroupState.DEAD:
        return
    topics = [
        topic
        for topic in sorted(first_sights.topics_seen(group))
        if first_sights.is_former(first_sights.latest(group, topic), event.topic_id_of(topic))
    ]
    if topics:
        out.note("offsets of former topics removed", topics=len(topics))
        gone = first_sights.former_topics_gone(group, topics)
        removals.begin(group, gone, out, whole=False)


def delete_group(group: Group, event: DeleteGroup, out: DecisionBuilder) -> None:
    """Decide a DeleteGroups for this group: only one without members can go."""
    if group.removal is not None and group.removal.is_refused:
        removals.again(group, out, event.pending_response)
    elif group.state is GroupState.DEAD:
        out.answer(event.pending_response, StatusResult(ErrorCode.GROUP_ID_NOT_FOUND))
    elif group.state is not GroupState.EMPTY:
        out.answer(event.pending_response, StatusResult(ErrorCode.NON_EMPTY_GROUP))
    else:
        answer = Answer(event.pending_response, StatusResult(ErrorCode.NONE))
        _remove(group, removals.all_positions(group), (answer,), out)


def _tombstones(group: Group, partitions: Iterable[TopicPartition]) -> Iterator[Record]:
    return (OffsetRecord(group.group_id, tp.topic, tp.partition, None) for tp in partitions)


def _remove(
    group: Group, gone: Iterable[TopicPartition], answers: tuple[Answer, ...], out: DecisionBuilder
) -> None:
    # Dead from now on, so that no member joins or commits after the tombstone.
    group.state = GroupState.DEAD
    group.pending_joins.clear()
    group.deadlines.clear()
    out.note("the group is removed", offsets=group.offset_count)
    removals.begin(group, _of_group(group, gone), out, answers, whole=True)


def _of_group(group: Group, gone: Iterable[TopicPartition]) -> Iterator[Record]:
    # The group's own comes last: a removal that is cut short by a crash leaves the group with
    # fewer offsets, not the offsets without their group.
    yield from _tombstones(group, gone)
    for topic in sorted(first_sights.topics_seen(group)):
        yield FirstSightRecord(group.group_id, topic, None)
    yield GroupRecord(group.group_id, None)
