"""Writes of one group that are in the log and not committed yet: what they leave in its state.

Owns the steps when a write goes to the log and when it is known to be committed or refused. Not
what follows from a commit: see `replay`.
"""

from __future__ import annotations

from tidelog.groups.decision import Write
from tidelog.groups.group import Group
from tidelog.groups.offset_columns import OffsetRecords
from tidelog.groups.records import NO_TOPIC_ID, FirstSightRecord, OffsetRecord


def wrote(group: Group, write: Write) -> None:
    """A write was decided: it is the newest."""
    group.open_writes += 1
    for record in write.records:
        if isinstance(record, OffsetRecords):
            columns = record.columns
            group.flying.add(columns.topic, columns.partitions, columns.topic_id)
        elif isinstance(record, OffsetRecord):
            value = record.value
            topic_id = NO_TOPIC_ID if value is None else value.topic_id
            group.flying.add(record.topic, (record.partition,), topic_id)
        elif isinstance(record, FirstSightRecord):
            group.sights_in_flight.setdefault(record.topic, []).append(record.value)
    if write.transaction is not None:
        group.flying.wrote(write.transaction.records)


def landed(group: Group, write: Write, *, oldest: bool) -> None:
    """A write is no longer in flight: the ``oldest``, which was committed, or the newest, which
    was refused."""
    group.open_writes -= 1
    for record in write.records:
        if isinstance(record, OffsetRecords):
            group.flying.end(record.columns.topic, oldest=oldest)
        elif isinstance(record, OffsetRecord):
            group.flying.end(record.topic, oldest=oldest)
        elif isinstance(record, FirstSightRecord):
            flying = group.sights_in_flight[record.topic]
            flying.pop(0 if oldest else -1)
            if not flying:
                del group.sights_in_flight[record.topic]
    if write.transaction is not None:
        group.flying.landed(write.transaction.records, oldest=oldest)
