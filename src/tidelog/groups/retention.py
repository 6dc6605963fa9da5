"""How offsets and groups end: retention, deleted topics, DeleteGroups.

Owns these rules. An offset expires ``offsets.retention.minutes`` after

- its commit, for a group without members of its own (``assign``, tools), and for a topic that a
  Stable group of consumers does not read any more;
- its commit or the moment the group became empty, whichever is later, for a group that is Empty;
- never while the group rebalances, while members read the topic, or when the subscriptions cannot
  be read; nor with a commit in flight.

A time that the client named itself (OffsetCommit v2-4) takes the place of the retention.
Source: KIP-211. Kafka counts an Empty group from that moment alone, so that a position which a
tool sets in a group that has long been empty is removed at the next look; here it lives on.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.groups import first_sights, limits
from tidelog.groups.decision import Answer, Outcome, RemoveGroup
from tidelog.groups.events import DeleteGroup, RemoveFormerLives, RemoveTopics, StatusResult
from tidelog.groups.group import Group, GroupState
from tidelog.groups.records import (
    NO_EXPIRY,
    NO_LIFE,
    CommittedOffset,
    FirstSightRecord,
    GroupRecord,
    OffsetRecord,
    Record,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


def expire(group: Group, now_ms: int, out: Outcome) -> None:
    """Remove what has expired, up to a limit; an Empty group that keeps nothing goes too."""
    if group.state is GroupState.DEAD:
        return
    gone: list[TopicPartition] = []
    for topic, partitions in group.offsets.items():
        if len(gone) >= limits.MAX_EXPIRED_AT_ONCE:
            break
        if not _may_expire(group, topic):
            continue
        gone.extend(
            at
            for partition, offset in partitions.items()
            if _expired(group, offset, group.wall_ms(now_ms))
            and (at := TopicPartition(topic, partition)) not in group.in_flight
        )
    gone = gone[: limits.MAX_EXPIRED_AT_ONCE]
    # Also those that are left of a write that was cut short: they keep a group that is nothing.
    seen = [topic for topic in first_sights.topics_seen(group) if _may_expire(group, topic)]
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
        _remove(group, _tombstones(group, gone), (), out)
    elif records:
        out.write(*records)


def _may_expire(group: Group, topic: str) -> bool:
    if group.state is GroupState.EMPTY:
        return True
    return (
        group.state is GroupState.STABLE
        and group.subscribed is not None
        and topic not in group.subscribed
    )


def _expired(group: Group, offset: CommittedOffset, wall_ms: int) -> bool:
    if offset.expires_ms != NO_EXPIRY:
        return wall_ms >= offset.expires_ms
    since_ms = offset.committed_ms
    if group.state is GroupState.EMPTY and group.protocol_type is not None:
        since_ms = max(since_ms, group.since_ms)
    return wall_ms - since_ms >= group.rules.settings.offsets_retention_ms


def remove_topics(group: Group, event: RemoveTopics, out: Outcome) -> None:
    """Topics were deleted: remove their offsets, and what is known of their first sight.

    The look at all groups takes its time: a name may live again, and a position in its new life
    may have been committed, before this group has its turn. That one stays.
    """
    if group.state is GroupState.DEAD:
        return
    topics = event.topics
    lives = {topic: event.life_of(topic) for topic in topics & group.offsets.keys()}
    # What is in flight is removed too: its record comes first in the log.
    found = {
        at
        for at, life in group.lives_in_flight.items()
        if at.topic in topics and (life == NO_LIFE or life != event.life_of(at.topic))
    }
    found.update(
        at
        for topic, present in lives.items()
        for partition, offset in group.offsets[topic].items()
        if (at := TopicPartition(topic, partition)) not in group.in_flight
        and (offset.topic_id == NO_LIFE or offset.topic_id != present)
    )
    records = _tombstones(group, sorted(found))
    # One of the life that is known now stays, as its offsets do.
    records += [
        FirstSightRecord(group.group_id, topic, None)
        for topic in sorted(topics & first_sights.topics_seen(group))
        if (sight := first_sights.latest(group, topic)) is not None
        and sight.topic_id != event.life_of(topic)
    ]
    if records:
        out.write(*records)


def remove_former_lives(group: Group, event: RemoveFormerLives, out: Outcome) -> None:
    """The log has been read by one who may have heard of deletions that its writer had not heard
    of: remove the offsets of lives that are over. What has no first sight may be of any life."""
    if group.state is GroupState.DEAD:
        return
    records: list[Record] = []
    for topic in sorted(first_sights.topics_seen(group)):
        if first_sights.is_former(first_sights.latest(group, topic), event.life_of(topic)):
            records += first_sights.all_offsets_gone(group, topic)
            records.append(FirstSightRecord(group.group_id, topic, None))
    if records:
        out.note("offsets of former topics removed", count=len(records))
        out.write(*records)


def delete_group(group: Group, event: DeleteGroup, out: Outcome) -> None:
    """Decide a DeleteGroups for this group: only one without members can go."""
    if group.state is GroupState.DEAD:
        out.answer(event.ticket, StatusResult(ErrorCode.GROUP_ID_NOT_FOUND))
    elif group.state is not GroupState.EMPTY:
        out.answer(event.ticket, StatusResult(ErrorCode.NON_EMPTY_GROUP))
    else:
        kept = {
            TopicPartition(topic, partition)
            for topic, partitions in group.offsets.items()
            for partition in partitions
        }
        records = _tombstones(group, sorted(kept | group.in_flight.keys()))
        answer = Answer(event.ticket, StatusResult(ErrorCode.NONE))
        _remove(group, records, (answer,), out)


def _tombstones(group: Group, partitions: Iterable[TopicPartition]) -> list[Record]:
    return [OffsetRecord(group.group_id, at.topic, at.partition, None) for at in partitions]


def _remove(group: Group, offsets: list[Record], answers: tuple[Answer, ...], out: Outcome) -> None:
    # Dead from now on, so that nobody joins or commits behind the tombstone. Last in the batch:
    # a removal that is cut short by a crash leaves the group with fewer offsets, not the offsets
    # without their group.
    group.state = GroupState.DEAD
    group.pending_joins.clear()
    group.deadlines.clear()
    sights = [
        FirstSightRecord(group.group_id, topic, None)
        for topic in sorted(first_sights.topics_seen(group))
    ]
    tombstone = GroupRecord(group.group_id, None)
    out.note("the group is removed", offsets=len(offsets))
    out.write(*offsets, *sights, tombstone, answers=answers, purpose=RemoveGroup())


def removal_failed(group: Group) -> None:
    """The removal was not stored: the group is what it was, Empty."""
    if group.state is GroupState.DEAD:
        group.state = GroupState.EMPTY
