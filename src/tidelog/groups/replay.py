"""The effect of a committed record on a group: applied after a commit, and when a log is read.

Owns the durable part of the state. A generation's record restores members only when a log is read:
a loaded group is ahead of its record, and its members are in memory already.
"""

from __future__ import annotations

from tidelog.groups.decision import DecisionBuilder
from tidelog.groups.first_sights import NO_ASSIGNMENT
from tidelog.groups.group import Group, GroupState, Member
from tidelog.groups.offset_columns import OffsetRecords
from tidelog.groups.rebalancing import prepare_rebalance
from tidelog.groups.records import (
    FirstSight,
    FirstSightRecord,
    GroupRecord,
    OffsetRecord,
    Record,
    StoredGeneration,
)


def apply(group: Group, record: Record | OffsetRecords) -> None:
    """Apply one committed record to a group."""
    if group.flying.pending is not None:
        _overtake(group, record)
    if isinstance(record, OffsetRecords):
        _put_offsets(group, record)
    elif isinstance(record, GroupRecord):
        group.recorded = record.value is not None
    elif isinstance(record, FirstSightRecord):
        if record.value is None:
            group.first_sights.pop(record.topic, None)
        else:
            _begin(group, record.topic, record.value)
    elif record.value is None:
        _remove_offset(group, record.topic, record.partition)
    else:
        partitions = group.offsets.setdefault(record.topic, {})
        if record.partition not in partitions:
            group.offset_count += 1
        value, sight = record.value, group.first_sights.get(record.topic)
        # Nearly always the same object: ids compare slowly.
        if sight is not None and value.topic_id is not sight.topic_id:
            value = value.with_topic_id(sight.topic_id)
        partitions[record.partition] = value


def pend(group: Group, producer_id: int, record: OffsetRecords | OffsetRecord) -> None:
    """Apply committed offsets of a transaction to a group: they count once it commits."""
    if isinstance(record, OffsetRecords):
        columns, sight = record.columns, group.first_sights.get(record.columns.topic)
        topic_id = columns.topic_id if sight is None else sight.topic_id
        values = record.values(topic_id)
        group.flying.pend(producer_id, columns.topic, columns.partitions, values)
        return
    value, sight = record.value, group.first_sights.get(record.topic)
    assert value is not None, "a tombstone is applied at once"
    if sight is not None and value.topic_id is not sight.topic_id:
        value = value.with_topic_id(sight.topic_id)
    group.flying.pend(producer_id, record.topic, (record.partition,), (value,))


def end_transaction(group: Group, producer_id: int, *, committed: bool) -> None:
    """Apply a committed marker to a group that has pending offsets of its producer."""
    if group.flying.pending is None:
        return
    counted = group.flying.end_transaction(producer_id, committed=committed)
    for topic, pending in counted.items():
        partitions = group.offsets.get(topic)
        if partitions is None:
            group.offsets[topic] = pending
            group.offset_count += len(pending)
            continue
        before = len(partitions)
        partitions.update(pending)
        group.offset_count += len(partitions) - before


def _overtake(group: Group, record: Record | OffsetRecords) -> None:
    """A later record of a partition in the log wins, however a transaction before it ends."""
    if isinstance(record, OffsetRecords):
        group.flying.overtake(record.columns.topic, record.columns.partitions)
    elif isinstance(record, OffsetRecord):
        group.flying.overtake(record.topic, (record.partition,))


def _put_offsets(group: Group, record: OffsetRecords) -> None:
    columns = record.columns
    partitions = group.offsets.setdefault(columns.topic, {})
    sight, before = group.first_sights.get(columns.topic), len(partitions)
    topic_id = columns.topic_id if sight is None else sight.topic_id
    partitions.update(zip(columns.partitions, record.values(topic_id), strict=True))
    group.offset_count += len(partitions) - before


def _begin(group: Group, topic: str, sight: FirstSight) -> None:
    former = group.first_sights.get(topic)
    group.first_sights[topic] = sight
    group.first_joins.pop(topic, None)
    if former is not None or sight.partitions == NO_ASSIGNMENT:
        return
    # Those of a former topic id were removed before it. An earlier first sight of this one was
    # compacted away.
    for partition, value in group.offsets.get(topic, {}).items():
        group.offsets[topic][partition] = value.with_topic_id(sight.topic_id)
    group.flying.begin_topic(topic, sight.topic_id)


def _remove_offset(group: Group, topic: str, partition: int) -> None:
    partitions = group.offsets.get(topic, {})
    if partitions.pop(partition, None) is not None:
        group.offset_count -= 1
        if not partitions:
            del group.offsets[topic]


def restore(group: Group, stored: StoredGeneration, now_ms: int, out: DecisionBuilder) -> None:
    """Put a group, whose log has been read, into the state of its last record.

    With members it is Stable and their sessions begin now, so that a change of coordinator causes
    no rebalance; more members than ``group.max.size`` allows (it was lowered) must join again.
    """
    group.recorded = True
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type or None
    group.protocol_name = stored.protocol_name
    group.since_ms = group.wall_ms(now_ms) if stored.since_ms < 0 else stored.since_ms
    for record in stored.members:
        member = Member(
            record.member_id,
            record.instance_id,
            record.client_id,
            record.client_host,
            record.rebalance_timeout_ms,
            record.session_timeout_ms,
            {stored.protocol_name or "": record.subscription},
            record.assignment,
        )
        member.restored_ms = now_ms
        group.add(member)
        group.touch(member, now_ms)
    if stored.leader in group.members:
        group.leader = stored.leader
    group.subscribed = group.find_subscribed()
    if not group.members:
        return
    group.state = GroupState.STABLE
    if len(group.members) > group.rules.settings.group_max_size:
        prepare_rebalance(group, "there are more members than allowed now", now_ms, out)
