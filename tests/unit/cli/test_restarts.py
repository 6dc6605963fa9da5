"""``tidelog up --restart``: which failed starts end the cluster, and which do not."""

from __future__ import annotations

from tidelog.cli.restarts import LONGEST_PAUSE_S, SAME_IN_A_ROW, Restarts


def test_a_child_that_is_killed_again_and_again_is_started_again_and_again() -> None:
    restarts = Restarts()
    for _ in range(100):
        restarts.failed(None)
        assert not restarts.is_hopeless
        assert restarts.pause_s <= LONGEST_PAUSE_S


def test_the_same_reason_several_times_in_a_row_is_hopeless() -> None:
    restarts = Restarts()
    for number in range(SAME_IN_A_ROW):
        assert not restarts.is_hopeless, number
        restarts.failed("port 9092 is in use")
    assert restarts.is_hopeless


def test_a_kill_another_reason_or_a_success_begins_the_row_again() -> None:
    for between in (
        lambda restarts: restarts.failed(None),
        lambda restarts: restarts.failed("the disk is full"),
        lambda restarts: restarts.succeeded(),
    ):
        restarts = Restarts()
        for _ in range(SAME_IN_A_ROW - 1):
            restarts.failed("port 9092 is in use")
        between(restarts)
        restarts.failed("port 9092 is in use")
        assert not restarts.is_hopeless


def test_the_pauses_double_up_to_their_limit_and_begin_again_after_a_success() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_s]
    for _ in range(7):
        restarts.failed("it is so")
        pauses.append(restarts.pause_s)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    restarts.succeeded()
    assert restarts.pause_s == 1
