"""What a control batch says: markers, fences and seals with their offsets, and nothing of other
batches."""

from __future__ import annotations

import pytest

from tidelog.records.batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_is_right,
    read_header,
    seal_batch,
)
from tidelog.records.control_records import (
    ABORT,
    COMMIT,
    PARTITION_CHANGE,
    AncestorTombstone,
    ChangeKind,
    EndMarker,
    FenceRecord,
    change_batch,
    changes_in,
    control_key,
    decode_marker,
    encode_marker,
    marker_batch,
    marker_in,
)
from tidelog.records.record import CorruptRecords, encode_record

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


# --- markers (KIP-98) ----------------------------------------------------------------------------

MARKER = EndMarker(committed=True, coordinator_epoch=0x01020304)


def marked(marker: EndMarker) -> bytes:
    return marker_batch(
        marker, producer_id=77, producer_epoch=5, leader_epoch=9, timestamp_ms=1_000
    )


def test_a_marker_is_what_the_protocol_says() -> None:
    # Base offset, length, leader epoch, magic; the CRC; transactional and control, one record,
    # times, producer id and epoch, no sequence, count; the record: length, attributes, deltas, key
    # (version 0, type 1), value (version 0, coordinator epoch), no headers.
    batch = marked(MARKER)
    assert batch[:17].hex() == "0000000000000000" + "00000042" + "00000009" + "02"
    assert batch[21:].hex() == (
        "0030" + "00000000" + "00000000000003e8" * 2 + "000000000000004d" + "0005" + "ffffffff"
        "00000001" + "20" + "00" + "00" + "00" + "08" + "00000001" + "0c" + "000001020304" + "00"
    )
    assert crc_is_right(memoryview(batch), read_header(batch).crc)


@pytest.mark.parametrize("committed", [False, True])
def test_a_marker_comes_back(committed: bool) -> None:
    marker = EndMarker(committed, 3)
    batch = marked(marker)
    assert marker_in(read_header(batch), batch) == marker
    assert changes(batch) == []


def test_other_batches_are_no_markers() -> None:
    fence = change_batch(FENCE, leader_epoch=1, timestamp_ms=5)
    assert marker_in(read_header(fence), fence) is None
    both = CONTROL_BIT | TRANSACTIONAL_BIT
    for batch in (
        control(encode_record(0, 0, control_key(PARTITION_CHANGE), b"\0" * 6), attributes=both),
        control(encode_record(0, 0, control_key(COMMIT), b"\0" * 5), attributes=both),
        control(encode_record(0, 0, control_key(COMMIT), None), attributes=both),
        control(encode_record(0, 0, control_key(COMMIT), b"\xff" * 6), attributes=both),
        control(encode_record(0, 0, None, b"\0" * 6), attributes=both),
        control(b"\7nonsense", attributes=both),
        control(attributes=both),
        control(encode_record(0, 0, control_key(COMMIT), b"\0" * 6), attributes=TRANSACTIONAL_BIT),
        control(encode_record(0, 0, control_key(COMMIT), b"\0" * 6)),
    ):
        assert marker_in(read_header(batch), batch) is None


def test_a_later_version_of_a_marker_may_be_longer() -> None:
    assert decode_marker(ABORT, b"\0\1" + b"\0\0\0\7" + b"more") == EndMarker(False, 7)
    assert encode_marker(EndMarker(False, 7)) == b"\0\0\0\0\0\7"
    with pytest.raises(CorruptRecords, match="control type 4 is no marker"):
        decode_marker(4, b"\0" * 6)
