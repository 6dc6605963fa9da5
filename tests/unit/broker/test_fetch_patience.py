"""When a follower's request is given up for a partition that was added: the pure rule (B4)."""

from __future__ import annotations

import pytest

from tidelog.broker.following.fetch_patience import INTERRUPT_MS, SHORT_FOR_MS, FetchPatience

LONG_MS = 500
QUIET_MS = 10_000
"""A time at which no partition was added lately."""


def quiet(trip_ms: int | None = None) -> FetchPatience:
    """One that has added a partition long ago, with a long request under way since ``QUIET_MS``.

    ``trip_ms``: how long the answer took that was not held back.
    """
    patience = FetchPatience()
    patience.added(0)
    if trip_ms is not None:
        patience.sent(INTERRUPT_MS, 0)
        patience.answered(INTERRUPT_MS + trip_ms)
        patience.ended()
    assert patience.wait_ms(LONG_MS, QUIET_MS) == LONG_MS
    patience.sent(LONG_MS, QUIET_MS)
    return patience


@pytest.mark.parametrize(
    ("trip_ms", "age_ms", "left_ms"),
    [
        (None, 0, 10),
        (None, 4, 6),
        (None, 10, 0),
        (None, 400, 0),
        (0, 9, 1),
        (0, 10, 0),
        (2, 10, 0),
        (50, 10, 90),
        (50, 99, 1),
        (50, 100, 0),
    ],
)
def test_a_request_that_idles_is_given_up(trip_ms: int | None, age_ms: int, left_ms: int) -> None:
    patience = quiet(trip_ms)
    patience.added(QUIET_MS + age_ms)
    assert patience.give_up_in_ms(QUIET_MS + age_ms, is_arriving=False) == left_ms
    assert patience.give_up_in_ms(QUIET_MS + age_ms, is_arriving=True) is None


def test_one_between_two_answers() -> None:
    patience = quiet()
    now_ms = QUIET_MS + 100
    patience.added(now_ms)
    assert patience.give_up_in_ms(now_ms, is_arriving=False) == 0
    patience.gave_up()
    assert patience.give_up_in_ms(now_ms, is_arriving=False) is None, "it is given up already"
    patience.ended()
    assert patience.give_up_in_ms(now_ms, is_arriving=False) is None, "there is none"
    # However long it takes to connect again: what comes next is short, and stays.
    now_ms += 2 * SHORT_FOR_MS
    assert patience.wait_ms(LONG_MS, now_ms) == INTERRUPT_MS
    patience.sent(INTERRUPT_MS, now_ms)
    for age_ms in range(0, 2_000, 50):
        patience.added(now_ms + age_ms)
        assert patience.give_up_in_ms(now_ms + age_ms, is_arriving=False) is None
    now_ms += 2_000
    patience.answered(now_ms)
    patience.ended()
    assert patience.wait_ms(LONG_MS, now_ms + SHORT_FOR_MS) == LONG_MS
    # 1,990 ms of these were the way.
    patience.sent(LONG_MS, now_ms + SHORT_FOR_MS)
    assert patience.give_up_in_ms(now_ms + SHORT_FOR_MS, is_arriving=False) == 2 * 1_990


def test_requests_are_short_while_partitions_are_added() -> None:
    patience = FetchPatience()
    assert patience.wait_ms(LONG_MS, 0) == LONG_MS
    for now_ms in range(0, 3_000, 100):
        patience.added(now_ms)
        assert patience.wait_ms(LONG_MS, now_ms) == INTERRUPT_MS
        assert patience.wait_ms(3, now_ms) == 3
        patience.sent(INTERRUPT_MS, now_ms)
        assert patience.give_up_in_ms(now_ms + 90, is_arriving=False) is None
        patience.answered(now_ms + 95)
        patience.ended()
    assert patience.wait_ms(LONG_MS, 2_900 + SHORT_FOR_MS - 1) == INTERRUPT_MS
    assert patience.wait_ms(LONG_MS, 2_900 + SHORT_FOR_MS) == LONG_MS


def test_how_long_an_answer_takes_is_not_what_the_leader_waited() -> None:
    patience = quiet(trip_ms=4)
    # Records came after 300 ms: the round trip was shorter, and stays as measured.
    patience.answered(QUIET_MS + 300)
    patience.ended()
    patience.sent(LONG_MS, 20_000)
    assert patience.give_up_in_ms(20_000, is_arriving=False) == INTERRUPT_MS
    # The whole wait, and the way.
    patience.answered(20_000 + LONG_MS + 40)
    patience.ended()
    patience.sent(LONG_MS, 30_000)
    assert patience.give_up_in_ms(30_000, is_arriving=False) == 80
    # An answer at once is on a shorter way.
    patience.answered(30_000 + 20)
    patience.ended()
    patience.sent(LONG_MS, 40_000)
    assert patience.give_up_in_ms(40_000, is_arriving=False) == 40
