"""Control records: transaction markers (types 0 and 1) and our own fences and seals (type 1253).

Owns the bytes of their keys and values and the batches that carry them. Decides nothing about
when one is written. Source: KIP-98, section "Control Messages" (markers); KIP-253 and
docs/design/wire.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from tidelog.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    seal_batch,
)
from tidelog.records.reader import read_batch
from tidelog.records.record import CorruptRecords, encode_record

ABORT = 0
COMMIT = 1
PARTITION_CHANGE = 1253
"""Control type of fences, seals and ancestor tombstones (KIP-253)."""

_KEY = struct.Struct(">hh")
_KIND = struct.Struct(">hb")
_COUNTS = struct.Struct(">ii")
_MARKER = struct.Struct(">hi")


class ChangeKind(IntEnum):
    """What a record of type 1253 says."""

    FENCE = 0
    SEAL = 1
    ANCESTOR_TOMBSTONE = 2


@dataclass(frozen=True, slots=True)
class EndMarker:
    """The transaction of the batch's producer ends here: it commits or aborts."""

    committed: bool
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """A new partition count begins here (fence), or a retiring partition ends here (seal)."""

    kind: ChangeKind
    resize_epoch: int
    undeleted_count: int


@dataclass(frozen=True, slots=True)
class AncestorTombstone:
    """Older values of ``key`` in ancestor partitions are void."""

    key: bytes


def control_key(control_type: int) -> bytes:
    """Return the key of a control record: version 0 and the type, two int16."""
    return _KEY.pack(0, control_type)


def control_type(key: bytes | None) -> int:
    """Return the type in a control record's key; CorruptRecords when there is none."""
    if key is None or len(key) < _KEY.size:
        raise CorruptRecords("a control record without a type")
    version, found = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecords(f"a control record of version {version}")
    return int(found)


def encode_marker(marker: EndMarker) -> bytes:
    """Return the value of a control record of type 0 or 1: version 0, coordinator epoch int32."""
    return _MARKER.pack(0, marker.coordinator_epoch)


def decode_marker(found: int, value: bytes | None) -> EndMarker:
    """Return the marker of a control type and value; later versions may be longer.

    CorruptRecords for another type and for a value that is damaged.
    """
    if found not in (ABORT, COMMIT):
        raise CorruptRecords(f"control type {found} is no marker")
    if value is None or len(value) < _MARKER.size:
        raise CorruptRecords("a marker without a coordinator epoch")
    version, epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise CorruptRecords(f"a marker of version {version}")
    return EndMarker(found == COMMIT, epoch)


def marker_batch(
    marker: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int,
    timestamp_ms: int,
) -> bytes:
    """Return the control batch that ends a transaction; its offset is assigned at append.

    As in Kafka it has its producer's id and epoch, no sequence number, and one record.
    """
    key = control_key(COMMIT if marker.committed else ABORT)
    record = encode_record(0, 0, key, encode_marker(marker))
    attributes = CONTROL_BIT | TRANSACTIONAL_BIT
    at = timestamp_ms
    producer = (producer_id, producer_epoch, NO_SEQUENCE)
    header = BatchHeader(0, 0, leader_epoch, 2, 0, attributes, 0, at, at, *producer, 1)
    return seal_batch(header, record)


def marker_in(header: BatchHeader, batch: Buffer) -> EndMarker | None:
    """Return the marker of a batch, None for all but a transactional control batch that has one.

    What does not decode is no marker, as in `changes_in`.
    """
    kind = CONTROL_BIT | TRANSACTIONAL_BIT
    if header.attributes & (kind | CODEC_MASK) != kind:
        return None
    try:
        records = read_batch(batch)
        if not records:
            return None
        return decode_marker(control_type(records[0].key), records[0].value)
    except CorruptRecords:
        return None


def encode_change(change: FenceRecord | AncestorTombstone) -> bytes:
    """Return the value of a control record of type 1253."""
    if isinstance(change, AncestorTombstone):
        return _KIND.pack(0, ChangeKind.ANCESTOR_TOMBSTONE) + change.key
    return _KIND.pack(0, change.kind) + _COUNTS.pack(change.resize_epoch, change.undeleted_count)


def decode_change(value: bytes | None) -> FenceRecord | AncestorTombstone:
    """Return what a value of type 1253 says; later versions may be longer."""
    try:
        if value is None:
            raise CorruptRecords("a fence without a value")
        version, kind = _KIND.unpack_from(value)
        if version < 0:
            raise CorruptRecords(f"a fence of version {version}")
        if kind == ChangeKind.ANCESTOR_TOMBSTONE:
            return AncestorTombstone(bytes(value[_KIND.size :]))
        epoch, count = _COUNTS.unpack_from(value, _KIND.size)
        return FenceRecord(ChangeKind(kind), epoch, count)
    except (struct.error, ValueError) as error:
        raise CorruptRecords(f"a damaged control record of type 1253: {error}") from None


def change_batch(
    change: FenceRecord | AncestorTombstone, *, leader_epoch: int, timestamp_ms: int
) -> bytes:
    """Return a control batch with one record of type 1253; its offset is assigned at append."""
    record = encode_record(0, 0, control_key(PARTITION_CHANGE), encode_change(change))
    header = BatchHeader(
        0, 0, leader_epoch, 2, 0, CONTROL_BIT, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1
    )
    return seal_batch(header, record)


def changes_in(header: BatchHeader, batch: Buffer) -> list[tuple[int, FenceRecord]]:
    """Return (offset, change) of each fence and seal in a batch; none but a control batch has any.

    Neither do markers, ancestor tombstones, and what does not decode: no reader finds one there.
    """
    found: list[tuple[int, FenceRecord]] = []
    if header.attributes & (CONTROL_BIT | CODEC_MASK) != CONTROL_BIT:
        return found
    try:
        for record in read_batch(batch):
            if control_type(record.key) == PARTITION_CHANGE:
                change = decode_change(record.value)
                if isinstance(change, FenceRecord):
                    found.append((record.offset, change))
    except CorruptRecords:
        return []
    return found
