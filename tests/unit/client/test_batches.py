"""What a reader sees of a fetch's bytes."""

from __future__ import annotations

import pytest

from tidelog.client.fetching.batches import Fetched, no_batch, whole_batches
from tidelog.client.retries import is_worth_retrying
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import (
    CONTROL_BIT,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
    assign,
    seal_batch,
)
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import (
    ABORT,
    COMMIT,
    ChangeKind,
    Fence,
    change_batch,
    control_key,
)
from tidelog.records.record import CorruptRecords, encode_record

WHERE = TopicPartition("t", 0)


def data(offset: int, count: int, producer_id: int = -1) -> bytes:
    """A batch of ``count`` records; of a transaction when a producer is named."""
    records = [NewRecord(1000 + i, b"k", b"v%d" % (offset + i)) for i in range(count)]
    producer = Producer(producer_id, 0, 0) if producer_id >= 0 else Producer()
    batch = build_batch(records, base_offset=offset, producer=producer)
    if producer_id < 0:
        return batch
    from tidelog.records.batch import HEADER_SIZE, read_header

    header = read_header(batch)
    return seal_batch(
        header._replace(attributes=header.attributes | TRANSACTIONAL_BIT), batch[HEADER_SIZE:]
    )


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    record = encode_record(0, 0, control_key(kind), b"\0\0\0\0\0\0")
    bits = CONTROL_BIT | TRANSACTIONAL_BIT
    header = BatchHeader(offset, 0, 0, 2, 0, bits, 0, 1000, 1000, producer_id, 0, -1, 1)
    return seal_batch(header, record)


def fetched(
    records: bytes, offset: int = 0, aborted: list[tuple[int, int]] | None = None
) -> Fetched:
    view, next_offset, _ = whole_batches(memoryview(records), offset)
    return Fetched(WHERE, offset, next_offset, view, 100, 90, 0, aborted)


def offsets(found: Fetched) -> list[int]:
    return [row.offset for row in found.rows()]


def test_a_batch_cut_at_the_end_is_left_for_the_next_fetch() -> None:
    whole = data(0, 3) + data(3, 2)
    for cut in (1, 11, 60, 61, len(data(5, 4)) - 1):
        found = fetched(whole + data(5, 4)[:cut])
        assert found.next_offset == 5
        assert offsets(found) == [0, 1, 2, 3, 4]


def test_the_epoch_is_that_of_the_last_whole_batch() -> None:
    batches = [bytearray(data(offset, 2)) for offset in (0, 2, 4)]
    for number, batch in enumerate(batches):
        assign(batch, 2 * number, 5 + number)
    records = memoryview(b"".join(batches))
    assert whole_batches(records, 0)[1:] == (6, 7)
    assert whole_batches(records[:-1], 0)[1:] == (4, 6)
    assert whole_batches(records[:10], 0)[1:] == (0, -1)


def test_records_before_the_position_are_skipped() -> None:
    assert offsets(fetched(data(0, 3) + data(3, 3), offset=2)) == [2, 3, 4, 5]


def test_control_batches_are_no_records_but_move_the_position() -> None:
    fence = bytearray(change_batch(Fence(ChangeKind.FENCE, 1, 4), leader_epoch=0, timestamp_ms=5))
    fence[0:8] = (3).to_bytes(8, "big")
    found = fetched(data(0, 3) + bytes(fence))
    assert offsets(found) == [0, 1, 2]
    assert found.next_offset == 4


def test_aborted_transactions_are_hidden_until_their_marker() -> None:
    records = b"".join(
        [
            data(0, 2, producer_id=7),
            data(2, 1, producer_id=8),
            data(3, 1),
            data(4, 1, producer_id=7),
            marker(5, 7, ABORT),
            data(6, 1, producer_id=7),
            marker(7, 8, COMMIT),
            marker(8, 7, COMMIT),
        ]
    )
    assert offsets(fetched(records, aborted=[(7, 0)])) == [2, 3, 6]
    assert offsets(fetched(records, aborted=[])) == [0, 1, 2, 3, 4, 6]
    assert offsets(fetched(records)) == [0, 1, 2, 3, 4, 6]


def test_two_aborts_of_one_producer() -> None:
    records = b"".join(
        [
            data(0, 1, producer_id=7),
            marker(1, 7, ABORT),
            data(2, 1, producer_id=7),
            marker(3, 7, COMMIT),
            data(4, 1, producer_id=7),
            marker(5, 7, ABORT),
        ]
    )
    assert offsets(fetched(records, aborted=[(7, 4), (7, 0)])) == [2]


def test_the_readable_end_follows_the_isolation() -> None:
    assert fetched(data(0, 1)).end_offset == 100
    assert fetched(data(0, 1), aborted=[]).end_offset == 90


def test_a_wrong_crc_is_named() -> None:
    broken = bytearray(data(0, 3))
    broken[-1] ^= 1
    with pytest.raises(CorruptRecords, match="offset 0"):
        list(fetched(bytes(broken)).rows())


@pytest.mark.parametrize("magic", [0, 1])
def test_records_of_former_formats_are_named_and_not_asked_for_again(magic: int) -> None:
    """P18: a broker keeps them as they are, so another answer has the same bytes."""
    former = bytearray(data(7, 1))
    former[MAGIC_POSITION] = magic
    assert whole_batches(memoryview(former), 7) == (b"", 7, -1)
    error = no_batch(TopicPartition("t", 0), 7, memoryview(former))
    assert f"t-0 holds records of magic {magic} at offset 7" in str(error)
    assert not is_worth_retrying(error)
    broken = no_batch(TopicPartition("t", 0), 7, memoryview(bytes(data(7, 1))[:30]))
    assert is_worth_retrying(broken)
