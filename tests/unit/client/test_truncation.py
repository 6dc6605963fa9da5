"""When a reader must check a new leader, and which answer says that its log was cut (KIP-320)."""

from __future__ import annotations

import pytest

from tidelog.client.fetching.truncation import must_ask, was_cut
from tidelog.client.offsets import EpochEnd


@pytest.mark.parametrize(
    ("epoch", "leader_epoch", "asked_in", "expected"),
    [
        (-1, 5, -1, False),  # Nothing is known of what was read.
        (5, 5, -1, False),  # The leader itself wrote it.
        (4, 5, -1, True),
        (4, 5, 4, True),
        (4, 5, 5, False),
        (0, 1, -1, True),
        (4, -1, -1, False),  # Brokers that name no epochs.
    ],
)
def test_when_the_leader_must_be_asked_for_the_end_of_an_epoch(
    epoch: int, leader_epoch: int, asked_in: int, expected: bool
) -> None:
    assert must_ask(epoch, leader_epoch, asked_in) is expected


@pytest.mark.parametrize(
    ("offset", "end", "expected"),
    [
        (5, EpochEnd(3, 5), False),
        (5, EpochEnd(3, 9), False),
        (5, EpochEnd(3, 4), True),
        (5, EpochEnd(2, 0), True),
        (0, EpochEnd(2, 0), False),
        (5, EpochEnd(-1, -1), False),
    ],
)
def test_what_counts_as_cut(offset: int, end: EpochEnd, expected: bool) -> None:
    assert was_cut(offset, end) is expected
