"""What a control batch says: fences and seals with their offsets, and nothing of other batches."""

from __future__ import annotations

from tidelog.records.batch import CONTROL_BIT, BatchHeader, read_header, seal_batch
from tidelog.records.control_records import (
    COMMIT,
    PARTITION_CHANGE,
    AncestorTombstone,
    ChangeKind,
    FenceRecord,
    change_batch,
    changes_in,
    control_key,
)
from tidelog.records.record import encode_record

FENCE = FenceRecord(ChangeKind.FENCE, 3, 16)


def changes(batch: bytes) -> list[tuple[int, FenceRecord]]:
    return changes_in(read_header(batch), batch)


def control(*records: bytes, attributes: int = CONTROL_BIT) -> bytes:
    last = len(records) - 1
    header = BatchHeader(100, 0, 7, 2, 0, attributes, last, 0, 0, -1, -1, -1, last + 1)
    return seal_batch(header, b"".join(records))


def test_a_fence_and_a_seal_are_found_with_their_offset() -> None:
    seal = FenceRecord(ChangeKind.SEAL, 4, 8)
    assert changes(change_batch(FENCE, leader_epoch=1, timestamp_ms=5)) == [(0, FENCE)]
    assert changes(change_batch(seal, leader_epoch=1, timestamp_ms=5)) == [(0, seal)]


def test_markers_and_tombstones_are_no_fences() -> None:
    tombstone = AncestorTombstone(b"key")
    assert changes(change_batch(tombstone, leader_epoch=1, timestamp_ms=5)) == []
    assert changes(control(encode_record(0, 0, control_key(COMMIT), b"\0" * 6))) == []


def test_what_does_not_decode_is_no_fence() -> None:
    key = control_key(PARTITION_CHANGE)
    assert changes(control(encode_record(0, 0, key, b"\0\0\0"))) == []
    assert changes(control(encode_record(0, 0, key, b"\0\0\7\0\0\0\1\0\0\0\1"))) == []
    assert changes(control(encode_record(0, 0, b"", None))) == []
    assert changes(control(b"\7nonsense", attributes=CONTROL_BIT | 1)) == []


def test_a_batch_of_data_is_not_decoded() -> None:
    batch = bytearray(change_batch(FENCE, leader_epoch=1, timestamp_ms=5))
    header = read_header(batch)
    assert changes_in(header._replace(attributes=0), batch) == []
