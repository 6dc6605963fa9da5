"""Tables for the ISR as a leader sees it, and for where a follower cuts."""

from __future__ import annotations

import pytest

from tidelog.replication.isr import Follower, lagging, maximal, may_join
from tidelog.replication.truncation import Cut, where_to_cut


def test_a_follower_is_caught_up_when_it_held_all_that_there_was() -> None:
    follower = Follower()
    follower.fetched(0, leader_end=10, broker_epoch=1, now_ms=100)
    assert follower.caught_up_ms == 0
    follower.fetched(10, leader_end=20, broker_epoch=1, now_ms=200)
    assert follower.caught_up_ms == 100, "it now holds what there was at the fetch before"
    follower.fetched(20, leader_end=20, broker_epoch=1, now_ms=300)
    assert follower.caught_up_ms == 300


def test_another_life_of_a_follower_is_not_caught_up_by_the_former_one() -> None:
    follower = Follower()
    follower.fetched(0, leader_end=10, broker_epoch=1, now_ms=100)
    follower.fetched(10, leader_end=20, broker_epoch=2, now_ms=200)
    assert (follower.caught_up_ms, follower.broker_epoch) == (0, 2)


@pytest.mark.parametrize(
    ("end_offset", "caught_up_ms", "dropped"),
    [(5, 0, True), (5, 70, True), (5, 71, False), (10, 0, False), (-1, 0, True)],
)
def test_members_leave_when_they_lag_for_too_long(
    end_offset: int, caught_up_ms: int, dropped: bool
) -> None:
    followers = {2: Follower(end_offset=end_offset, caught_up_ms=caught_up_ms)}
    gone = lagging([1, 2], (1, 2), 1, followers, leader_end=10, now_ms=101, lag_max_ms=30)
    assert gone == ({2} if dropped else set())


def test_a_member_that_never_fetched_is_dropped_and_the_leader_never() -> None:
    assert lagging([1, 2], (1, 2), 1, {}, leader_end=0, now_ms=1000, lag_max_ms=30) == {2}


@pytest.mark.parametrize(
    ("end", "watermark", "epoch_start", "joins"),
    [(10, 10, 5, True), (9, 10, 5, False), (10, 8, 11, False), (-1, 0, 0, False), (0, 0, 0, True)],
)
def test_whether_a_follower_may_join(
    end: int, watermark: int, epoch_start: int, joins: bool
) -> None:
    assert may_join(Follower(end_offset=end), watermark, epoch_start) is joins


def test_the_watermark_counts_the_larger_isr() -> None:
    assert maximal((1, 2), None) == {1, 2}
    assert maximal((1, 2), (1, 2, 3)) == {1, 2, 3}
    assert maximal((1, 2), (1,)) == {1, 2}


def own_log(*epochs: tuple[int, int], end: int) -> object:
    """Epochs as (epoch, first offset); answers as PartitionLog.end_offset_for_epoch does."""

    def end_of(epoch: int) -> tuple[int, int]:
        below = [e for e, _ in epochs if e <= epoch]
        if not below:
            return -1, -1
        ends = {e: nxt for (e, _), (_, nxt) in zip(epochs, [*epochs[1:], (0, end)], strict=True)}
        return below[-1], ends[below[-1]]

    return end_of


@pytest.mark.parametrize(
    ("answer", "epochs", "end", "start", "watermark", "expected"),
    [
        # The leader has less of the same epoch: cut to its end.
        ((3, 8), ((3, 0),), 10, 0, 5, Cut(8, False)),
        # The leader's epoch is unknown here: cut to the end of the next lower one.
        ((2, 9), ((1, 0), (3, 6)), 10, 0, 5, Cut(6, False)),
        # Committed records go: noted as data loss.
        ((3, 4), ((3, 0),), 10, 0, 7, Cut(4, True)),
        # Nothing in common any more: restart where the leader's part ends, so that no offset is
        # missing between there and the own start.
        ((0, 3), ((2, 5),), 10, 5, 5, Cut(3, False)),
        ((0, 3), ((2, 5),), 10, 5, 8, Cut(3, True)),
        ((0, 9), ((2, 5),), 10, 5, 5, Cut(5, False)),
        # The same epoch, and the leader has less of it than was deleted here by retention.
        ((2, 3), ((2, 0),), 10, 5, 5, Cut(3, False)),
        ((-1, -1), ((2, 0),), 10, 0, 6, Cut(6, False)),
        # Two leader changes without a write in between.
        ((5, 10), ((3, 0), (5, 10)), 10, 0, 10, Cut(10, False)),
    ],
)
def test_where_a_follower_cuts(
    answer: tuple[int, int],
    epochs: tuple[tuple[int, int], ...],
    end: int,
    start: int,
    watermark: int,
    expected: Cut,
) -> None:
    end_of = own_log(*epochs, end=end)
    assert where_to_cut(*answer, end_of, end, start, watermark) == expected  # type: ignore[arg-type]


def test_a_member_that_hosts_the_partition_no_longer_leaves_at_once() -> None:
    followers = {each: Follower(end_offset=10, caught_up_ms=100) for each in (2, 3)}
    gone = lagging([1, 2, 3], (1, 3), 1, followers, leader_end=10, now_ms=100, lag_max_ms=30)
    assert gone == {2}
    assert lagging([1, 3], (3,), 1, followers, leader_end=10, now_ms=100, lag_max_ms=30) == set()
