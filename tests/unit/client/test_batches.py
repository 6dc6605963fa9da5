"""What a reader sees of a fetch's bytes."""

from __future__ import annotations

import pytest

from tidelog.client.fetching.batches import Fetched, no_batch, split_at, whole_batches, whole_frames
from tidelog.client.fetching.consumer_record import decoded
from tidelog.client.retries import is_worth_retrying
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
    assign,
    read_header,
    seal_batch,
)
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import (
    ABORT,
    COMMIT,
    ChangeKind,
    FenceRecord,
    change_batch,
    control_key,
)
from tidelog.records.reader import FastReader
from tidelog.records.record import CorruptRecords, encode_record

WHERE = TopicPartition("t", 0)


def data(offset: int, count: int, producer_id: int = -1) -> bytes:
    """A batch of ``count`` records; of a transaction when a producer is named."""
    records = [NewRecord(1000 + i, b"k", b"v%d" % (offset + i)) for i in range(count)]
    producer = Producer(producer_id, 0, 0) if producer_id >= 0 else Producer()
    batch = build_batch(records, base_offset=offset, producer=producer)
    if producer_id < 0:
        return batch
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
    fence = bytearray(
        change_batch(FenceRecord(ChangeKind.FENCE, 1, 4), leader_epoch=0, timestamp_ms=5)
    )
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


def split(
    records: bytes, end: int, aborted: list[tuple[int, int]]
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Split at a gate: the offsets on both sides, and the transactions aborted after it."""
    before, after = split_at(fetched(records, aborted=aborted), end)
    assert before is not None and after is not None and after.aborted is not None
    return offsets(before), offsets(after), after.aborted


def test_a_transaction_that_was_aborted_before_a_gate_hides_nothing_after_it() -> None:
    records = b"".join(
        [
            data(0, 1, producer_id=7),
            marker(1, 7, ABORT),
            data(2, 1),
            data(3, 1, producer_id=7),
            marker(4, 7, COMMIT),
        ]
    )
    assert split(records, 2, [(7, 0)]) == ([], [2, 3], [])


def test_the_open_end_of_an_aborted_transaction_is_hidden_after_a_gate() -> None:
    records = b"".join(
        [
            data(0, 1, producer_id=7),
            marker(1, 7, ABORT),
            data(2, 1, producer_id=8),
            data(3, 1, producer_id=7),
            # Of other transactions: neither ends that of 7.
            marker(4, 8, COMMIT),
            data(5, 1),
            data(6, 1, producer_id=7),
            marker(7, 7, ABORT),
        ]
    )
    # In any order; two of one producer, the first of which ends before the gate.
    for aborted in ([(7, 3), (7, 0)], [(7, 0), (7, 3)]):
        assert split(records, 5, aborted) == ([2], [5], [(7, 3)])


def test_an_abort_ends_no_transaction_that_begins_after_it() -> None:
    """A transaction without records in these bytes: its marker is not that of the next one."""
    records = b"".join(
        [
            marker(0, 7, ABORT),
            data(1, 1),
            data(2, 1, producer_id=7),
            marker(3, 7, ABORT),
        ]
    )
    assert split(records, 2, [(7, 2)]) == ([1], [], [(7, 2)])


def test_the_abort_of_another_producer_ends_no_transaction() -> None:
    records = b"".join(
        [
            data(0, 1, producer_id=7),
            data(1, 1, producer_id=8),
            marker(2, 8, ABORT),
            data(3, 1),
            data(4, 1, producer_id=7),
            marker(5, 7, ABORT),
        ]
    )
    assert split(records, 3, [(7, 0), (8, 1)]) == ([], [3], [(7, 0)])


def test_the_part_after_a_gate_begins_where_the_reader_is() -> None:
    whole = fetched(data(0, 2) + data(2, 4), offset=4)
    _, after = split_at(whole, 2)
    assert after is not None and after.offset == 4 and offsets(after) == [4, 5]
    assert split_at(whole, 6) == (whole, None)


def test_the_position_does_not_go_back_to_the_end_of_an_older_batch() -> None:
    """After a compaction the last batch that a leader returns may end before the position."""
    assert whole_batches(memoryview(data(0, 2)), 5)[1] == 5


def test_records_of_a_log_with_append_times_have_that_of_their_batch() -> None:
    batch = data(0, 2)
    header = read_header(batch)
    header = header._replace(
        attributes=header.attributes | LOG_APPEND_TIME_BIT, max_timestamp=5_000
    )
    found = fetched(seal_batch(header, batch[HEADER_SIZE:]))
    assert [row.timestamp for row in found.rows()] == [5_000, 5_000]
    assert [row.timestamp for row in fetched(batch).rows()] == [1_000, 1_001]
    records = [record for batch in decoded(found, FastReader()) for record in batch]
    assert [(each.timestamp, each.timestamp_type) for each in records] == [(5_000, 1)] * 2
    records = [record for batch in decoded(fetched(batch), FastReader()) for record in batch]
    assert [(each.timestamp, each.timestamp_type) for each in records] == [(1_000, 0), (1_001, 0)]


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
    # A raw reader takes them as they are, and reads on after them.
    mixed = memoryview(bytes(data(5, 2)) + bytes(former) + bytes(data(8, 2)))
    assert whole_batches(mixed, 5)[1] == 7
    assert whole_frames(mixed, 5) == (mixed, 10, read_header(data(8, 2)).leader_epoch)
    assert whole_frames(mixed[:-1], 5)[1] == 8 and whole_frames(mixed[:9], 5) == (b"", 5, -1)
