"""One partition that is read: what it returns, when it is fetched, what an error leads to."""

from __future__ import annotations

import logging

import pytest

from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.client.fetching.assigned import FetchedPartition
from tidelog.client.fetching.batches import Fetched, split_at
from tidelog.client.offsets import EpochEnd
from tidelog.model.errors import ErrorCode
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


def reading(*pieces: Fetched, gate: int | None) -> FetchedPartition:
    state = FetchedPartition(WHERE, pieces[0].offset, pieces[-1].next_offset, gate=gate)
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


def test_a_position_has_the_epoch_of_the_batch_before_it() -> None:
    state = reading(fetched(batch(0, 3), batch(3), offset=0, end=4), gate=4)
    assert state.take() is not None
    assert (state.position, state.epoch) == (4, 3)


def test_a_piece_that_ends_at_the_gate_is_returned_as_it_is() -> None:
    piece = fetched(batch(0, 3), offset=0, end=3)
    assert reading(piece, gate=3).take() is piece


def test_a_paused_partition_returns_nothing() -> None:
    state = reading(fetched(batch(0), offset=0, end=1), gate=None)
    state.paused = True
    assert not state.is_ready()


def test_when_a_partition_is_fetched() -> None:
    def wants(**other: object) -> bool:
        state = FetchedPartition(WHERE, 0, 5)
        for name, value in other.items():
            setattr(state, name, value)
        return state.wants_more(100)

    assert wants() and wants(stop=6) and wants(buffered_bytes=99)
    assert not wants(busy=True)
    assert not wants(paused=True)
    assert not wants(problem=ClientError("for good"))
    assert not wants(stop=5)
    assert not wants(buffered_bytes=100)


def test_a_leader_of_an_older_epoch_is_taken_after_so_long() -> None:
    state = FetchedPartition(WHERE, 5, 5, epoch=3, fetch_epoch=4)
    assert state.least_epoch(1_000.0, 500) == 4
    state.lagging_since = 1_000.0
    assert state.least_epoch(1_000.5, 500) == 4
    assert state.least_epoch(1_000.6, 500) == -1


PASSING = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-0")
UNKNOWN = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-0")
FINAL = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0")


def test_a_failure_that_may_pass_lets_the_leader_be_looked_for() -> None:
    for error in (PASSING, UNKNOWN, ConnectionLost("gone")):
        state = FetchedPartition(WHERE, 0, 0, leader=2, waits_for="truncation 2")
        assert not state.fails_for_good(error, 10.0, 500)
        assert (state.leader, state.waits_for, state.problem) == (-1, "", None)
        assert state.failing_since == 10.0


def test_a_final_failure_stops_the_partition() -> None:
    state = FetchedPartition(WHERE, 0, 0)
    assert state.fails_for_good(FINAL, 10.0, 500) and state.problem is FINAL


def test_a_partition_that_stays_unknown_is_an_error_in_the_end() -> None:
    state = FetchedPartition(WHERE, 0, 0)
    assert not state.fails_for_good(UNKNOWN, 10.0, 500)
    assert not state.fails_for_good(UNKNOWN, 10.5, 500)
    assert state.fails_for_good(UNKNOWN, 10.6, 500) and state.problem is UNKNOWN


def test_a_failure_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    state = FetchedPartition(WHERE, 0, 0)
    with caplog.at_level(logging.WARNING):
        for now in (10.0, 10.5, 11.0, 11.5):
            assert not state.fails_for_good(PASSING, now, 500)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "t-0: nothing could be read for 1000 ms: t-0: NOT_LEADER_OR_FOLLOWER"


@pytest.mark.parametrize(
    ("end", "dropped", "position", "fetch"),
    [
        # Handed out up to 3 (epoch 1); fetched up to 6 (epoch 2) and 9 (epoch 3).
        (EpochEnd(3, 9), 0, (3, 1), (9, 3)),
        (EpochEnd(3, 8), 20, (3, 1), (6, 2)),
        (EpochEnd(2, 6), 20, (3, 1), (6, 2)),
        (EpochEnd(2, 5), 30, (3, 1), (3, 1)),
        (EpochEnd(0, 3), 30, (3, 1), (3, 1)),
        (EpochEnd(0, 2), 30, (2, 0), (2, 0)),
    ],
)
def test_what_is_left_where_the_log_was_cut(
    end: EpochEnd, dropped: int, position: tuple[int, int], fetch: tuple[int, int]
) -> None:
    state = FetchedPartition(WHERE, 3, 9, epoch=1, fetch_epoch=3)
    for offset, next_offset, epoch, size in ((3, 6, 2, 10), (6, 9, 3, 20)):
        records = memoryview(bytes(size))
        piece = Fetched(WHERE, offset, next_offset, records, 99, 99, 0, None, epoch)
        state.buffered.append(piece)
        state.buffered_bytes += size
    assert state.cut_back(end) == dropped
    assert state.buffered_bytes == 30 - dropped
    assert (state.position, state.epoch) == position
    assert (state.fetch_offset, state.fetch_epoch) == fetch
