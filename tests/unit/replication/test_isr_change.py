"""What an answer to AlterIsr says of the change that it answers, as a table."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode as E
from tidelog.replication.command_rules import CommandRefusal
from tidelog.replication.isr_change import (
    RETRY_MAX_MS,
    RETRY_MS,
    Answered,
    IsrChange,
    Settled,
    outcome,
)

REFUSED = "the controller refuses the change"
CHANGE = IsrChange(5, 10, (1, 2, 3), (7, 8, 9))
BEFORE = (1, 2)
AFTER = (1, 2, 3)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answered(E.NONE, 1, 5, AFTER, 11), Settled(AFTER, 11)),
        (Answered(E.INVALID_UPDATE_VERSION, 1, 5, (1,), 12), Settled((1,), 12)),
        (Answered(E.NONE, 1, 5, (2, 1), 10), Settled(BEFORE, 10)),
        (
            Answered(E.INELIGIBLE_REPLICA, 1, 5, BEFORE, 10),
            CommandRefusal(E.INELIGIBLE_REPLICA, REFUSED),
        ),
        (Answered(E.INVALID_REQUEST, -1, -1, (), -1), CommandRefusal(E.INVALID_REQUEST, REFUSED)),
        # They contradict themselves, or come from a store of another time.
        (Answered(E.NONE, 1, 5, AFTER, 10), None),
        (Answered(E.NONE, 1, 5, AFTER, 9), None),
        (Answered(E.INVALID_UPDATE_VERSION, 1, 5, BEFORE, 10), None),
        (Answered(E.NONE, 1, 6, AFTER, 11), None),
        (Answered(E.NONE, 2, 5, AFTER, 11), None),
        (Answered(E.INVALID_UPDATE_VERSION, -1, 5, AFTER, 11), None),
    ],
)
def test_outcome(answer: Answered, expected: Settled | CommandRefusal | None) -> None:
    assert outcome(CHANGE, 1, BEFORE, answer) == expected


CERTAIN = {E.NONE, E.INVALID_UPDATE_VERSION, E.INELIGIBLE_REPLICA, E.INVALID_REQUEST}


@pytest.mark.parametrize("error", [error for error in E if error not in CERTAIN])
def test_every_other_error_leaves_it_open(error: E) -> None:
    for answer in (Answered(error, 1, 5, AFTER, 11), Answered(error, -1, -1, (), -1)):
        assert outcome(CHANGE, 1, BEFORE, answer) is None


def test_the_pauses_double_up_to_a_second() -> None:
    change = IsrChange(5, 10, AFTER)
    pauses = []
    for _ in range(40):
        change.left_open(1_000)
        pauses.append(change.due_ms - 1_000)
    assert pauses[:6] == [RETRY_MS, 100, 200, 400, 800, RETRY_MAX_MS]
    assert set(pauses[5:]) == {RETRY_MAX_MS}
