"""What a reader returns of a partition whose gate is shut."""

from __future__ import annotations

from tidelog.client.fetching.assigned import Assigned
from tidelog.client.fetching.batches import Fetched, split_at
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord, build_batch

WHERE = TopicPartition("t", 0)


def batch(offset: int, count: int = 1) -> bytes:
    records = [NewRecord(1, None, b"%d" % (offset + index)) for index in range(count)]
    return build_batch(records, base_offset=offset, leader_epoch=offset)


def fetched(*batches: bytes, offset: int, end: int) -> Fetched:
    return Fetched(WHERE, offset, end, memoryview(b"".join(batches)), end, end, 0, None, end - 1)


def test_batches_are_split_where_one_begins() -> None:
    whole = fetched(batch(0, 3), batch(3), batch(4, 2), offset=1, end=6)
    before, after = split_at(whole, 4)
    assert before is not None
    assert after is not None
    assert (before.offset, before.next_offset, before.leader_epoch) == (1, 4, 3)
    assert (after.offset, after.next_offset, after.leader_epoch) == (4, 6, 5)
    assert [row.offset for row in before.rows()] == [1, 2, 3]
    assert [row.offset for row in after.rows()] == [4, 5]


def test_nothing_or_all_lies_before_an_offset() -> None:
    whole = fetched(batch(4, 2), offset=2, end=6)
    assert split_at(whole, 6) == (whole, None)
    before, after = split_at(whole, 3)
    assert before is None
    assert after is not None
    assert [row.offset for row in after.rows()] == [4, 5]


def reading(*pieces: Fetched, gate: int | None) -> Assigned:
    state = Assigned(WHERE, pieces[0].offset, pieces[-1].next_offset, gate=gate)
    state.buffered.extend(pieces)
    return state


def test_a_partition_returns_what_lies_before_its_gate() -> None:
    state = reading(fetched(batch(0, 3), batch(3), offset=0, end=4), gate=3)
    assert state.is_ready()
    taken = state.take()
    assert taken is not None
    assert [row.offset for row in taken.rows()] == [0, 1, 2]
    assert state.position == 3
    assert not state.is_ready()
    state.gate = None
    assert state.is_ready()
    taken = state.take()
    assert taken is not None
    assert [row.offset for row in taken.rows()] == [3]
    assert not state.is_ready()


def test_without_batches_before_the_gate_the_position_is_at_the_gate() -> None:
    state = reading(fetched(batch(5), offset=2, end=6), gate=4)
    assert state.is_ready()
    assert state.take() is None
    assert state.position == 4
    assert not state.is_ready()
    state.gate = 5
    assert state.take() is None
    state.gate = 6
    taken = state.take()
    assert taken is not None
    assert [row.offset for row in taken.rows()] == [5]


def test_a_reader_that_began_after_the_gate_waits() -> None:
    state = reading(fetched(batch(5), offset=5, end=6), gate=4)
    assert not state.is_ready()
