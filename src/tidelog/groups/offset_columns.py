"""Offsets of one topic as columns: a commit of many partitions has no object for each of them.

Owns the columns of a request, the record of a write that stands for many records of the log, and
the bytes of these. Not the layout of one record: see `records`; not the rules: see `offsets`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from uuid import UUID

import msgspec

from tidelog.groups import records
from tidelog.groups.records import (
    NO_EXPIRY,
    OFFSET_VALUE_VERSION,
    CommittedOffset,
    OffsetRecord,
    Record,
)
from tidelog.model.topics import TopicPartition
from tidelog.records.record import encode_record, write_varint


class OffsetColumns(msgspec.Struct, frozen=True, gc=False):
    """Offsets that a request names, of one topic and in its order. The columns have one length."""

    topic: str
    topic_id: UUID
    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadata: Sequence[str] | None = None
    """None: all of them are empty."""

    def __len__(self) -> int:
        return len(self.partitions)

    def only(self, rows: Sequence[int]) -> OffsetColumns:
        """Return the offsets in these rows of the columns."""
        return OffsetColumns(
            self.topic,
            self.topic_id,
            [self.partitions[row] for row in rows],
            [self.offsets[row] for row in rows],
            [self.leader_epochs[row] for row in rows],
            None if self.metadata is None else [self.metadata[row] for row in rows],
        )


class OffsetRecords(msgspec.Struct, frozen=True, gc=False):
    """A record of a write that stands for one record of the log for each of its offsets."""

    group_id: str
    columns: OffsetColumns
    committed_ms: int
    expires_ms: int = NO_EXPIRY

    def values(self, topic_id: UUID) -> Iterator[CommittedOffset]:
        """Yield the positions under this topic id."""
        columns, metadata = self.columns, self.columns.metadata
        return map(
            CommittedOffset,
            columns.offsets,
            columns.leader_epochs,
            repeat("") if metadata is None else metadata,
            repeat(self.committed_ms),
            repeat(self.expires_ms),
            repeat(topic_id),
        )

    def one_by_one(self) -> Iterator[OffsetRecord]:
        """Yield its records."""
        columns = self.columns
        for partition, value in zip(columns.partitions, self.values(columns.topic_id), strict=True):
            yield OffsetRecord(self.group_id, columns.topic, partition, value)

    def add_to(self, parts: list[bytes], first: int) -> None:
        """Add its records as those of a batch, the first with this offset delta. They have the
        time of the batch."""
        columns, last = self.columns, first + len(self.columns)
        if columns.metadata is not None or self.expires_ms != NO_EXPIRY or last > len(_DELTAS):
            for delta, record in enumerate(self.one_by_one(), first):
                parts.append(encode_record(delta, 0, *records.encode(record)))
            return
        key = records.offset_key(self.group_id, columns.topic)
        key = write_varint(len(key) + _PARTITION_BYTES) + key
        committed_ms, end = self.committed_ms, 0
        for shown in (_DELTAS[first : min(last, _ONE_BYTE)], _DELTAS[max(first, _ONE_BYTE) : last]):
            # All of them are as long as the first one.
            begin, end = end, end + len(shown)
            width = len(shown[0]) if shown else 0
            size = _ATTRIBUTES_AND_TIME_BYTES + width + len(key) + _REST_BYTES
            head = write_varint(size) + bytes(_ATTRIBUTES_AND_TIME_BYTES)
            for delta_bytes, partition, offset, epoch in zip(
                shown,
                columns.partitions[begin:end],
                columns.offsets[begin:end],
                columns.leader_epochs[begin:end],
                strict=True,
            ):
                value = OFFSET_VALUE_VERSION, offset, epoch, 0, committed_ms
                parts += (head, delta_bytes, key, _rest(partition, _VALUE_SIZE, *value, 0))


def columns_of(
    positions: Iterable[tuple[TopicPartition, CommittedOffset]],
) -> tuple[OffsetColumns, ...]:
    """Return positions as columns, in their order: one for each run of a topic."""
    runs: list[OffsetColumns] = []
    topic: tuple[str, UUID] | None = None
    partitions: list[int] = []
    offsets: list[int] = []
    epochs: list[int] = []
    metadata: list[str] = []

    def close() -> None:
        if topic is not None:
            texts = metadata if any(metadata) else None
            runs.append(OffsetColumns(*topic, partitions, offsets, epochs, texts))

    for tp, value in positions:
        if topic is None or topic[0] != tp.topic or topic[1] is not value.topic_id:
            close()
            topic = tp.topic, value.topic_id
            partitions, offsets, epochs, metadata = [], [], [], []
        partitions.append(tp.partition)
        offsets.append(value.offset)
        epochs.append(value.leader_epoch)
        metadata.append(value.metadata)
    close()
    return tuple(runs)


def one_by_one(written: Iterable[Record | OffsetRecords]) -> Iterator[Record]:
    """Yield the records of a write, those in columns one by one."""
    for record in written:
        if isinstance(record, OffsetRecords):
            yield from record.one_by_one()
        else:
            yield record


def payload_of(written: Iterable[Record | OffsetRecords]) -> tuple[bytes, int]:
    """Return the records of a write as those of one batch, all with its time, and their number."""
    parts: list[bytes] = []
    count = 0
    for record in written:
        if isinstance(record, OffsetRecords):
            record.add_to(parts, count)
            count += len(record.columns)
        else:
            parts.append(encode_record(count, 0, *records.encode(record)))
            count += 1
    return b"".join(parts), count


_PARTITION_BYTES = 4
_ATTRIBUTES_AND_TIME_BYTES = 2
_VALUE_BYTES = 24
_VALUE_SIZE = 2 * _VALUE_BYTES
"""As a varint: one byte."""
_REST = struct.Struct(">iBhqihqB")
"""The end of a record: partition, size of the value, the value (version, offset, leader epoch, size
of no metadata, time of the commit), and that there are no headers."""
_REST_BYTES, _rest = _REST.size, _REST.pack

_ONE_BYTE = 64
"""Deltas below this one take a byte, those below 8,192 two."""
_DELTAS = tuple(write_varint(delta) for delta in range(1_024))
