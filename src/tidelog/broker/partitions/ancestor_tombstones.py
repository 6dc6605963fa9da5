"""Ancestor tombstones from clients: the only control batches that a producer may write (KIP-253).

Owns which of them are taken. Not what they do: the cleaner applies them. An aware producer that
writes a tombstone to a compacted topic sends one to each ancestor of the key's partition that may
hold an older value (docs/design/elastic.md, "Compacted topics").

| a client's control batch | answer |
|---|---|
| of a producer without the partition's own count, resize epoch and partition epoch | as below |
| one plain record of type 1253 and kind 2, no producer id; the partition has children | appended |
| any other | refused by the check of all batches: INVALID_RECORD |
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tidelog.partitioning.lineage import first_child_of
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
    Buffer,
    Rejected,
    check_client_batch,
    read_header,
)
from tidelog.records.control_records import (
    PARTITION_CHANGE,
    AncestorTombstone,
    control_type,
    decode_change,
)
from tidelog.records.record import CorruptRecords, decode_records

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import TopicMetadata
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.storage.log.results import Appended

_attributes_at = struct.Struct(">h").unpack_from


def is_control(records: Buffer) -> bool:
    """Return whether a payload's first batch says that it is a control batch."""
    return len(records) > HEADER_SIZE and bool(
        _attributes_at(records, ATTRIBUTES_POSITION)[0] & CONTROL_BIT
    )


def append_tombstone(
    partition: HostedPartition, topic: TopicMetadata, records: Buffer, now_ms: int
) -> Appended | Rejected | None:
    """Append the ancestor tombstone of an aware producer; None, with nothing done, for a payload
    that is none, or to a partition that has no child in this broker's metadata."""
    batch = memoryview(records)
    header = read_header(batch)
    if header.length != len(batch) - LENGTH_OVERHEAD or header.magic != 2:
        return None
    if not has_children(partition.partition, topic) or not _has_right_form(header):
        return None
    # All rules of a client's batch hold, but for the one that refuses control batches.
    plain = header._replace(attributes=header.attributes & ~CONTROL_BIT)
    refusal = check_client_batch(plain, batch, partition.log.configs, now_ms)
    if refusal is not None:
        return refusal
    if not _is_tombstone(batch):
        return None
    return partition.append(records, now_ms, from_client=False)


def has_children(partition: int, topic: TopicMetadata) -> bool:
    """Return whether a partition is an ancestor of one that is listed."""
    initial = topic.initial_partition_count
    return initial > 0 and first_child_of(partition, initial) <= max(topic.partitions, default=-1)


def _has_right_form(header: BatchHeader) -> bool:
    return header.record_count == 1 and header.codec == 0 and header.producer_id < 0


def _is_tombstone(batch: memoryview) -> bool:
    try:
        record = decode_records(bytes(batch[HEADER_SIZE:]), 1, 0, 0)[0]
        if control_type(record.key) != PARTITION_CHANGE:
            return False
        return isinstance(decode_change(record.value), AncestorTombstone)
    except CorruptRecords:
        return False
