"""Which marker a log takes: the table of ``transactions.markers``."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode as E
from tidelog.transactions.markers import NONE, Marker, why_refused
from tidelog.transactions.state import IdAndEpoch

FENCED, OLD = E.TRANSACTION_COORDINATOR_FENCED, E.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("producer", "coordinator", "in_log", "expected"),
    [
        ((7, 2), 5, (NONE, NONE), E.NONE),
        ((7, 2), 0, (NONE, NONE), E.NONE),
        ((7, 0), 5, (0, NONE), E.NONE),
        ((7, 2), 5, (2, 5), E.NONE),
        ((7, 3), 6, (2, 5), E.NONE),
        ((7, 2), -1, (NONE, NONE), FENCED),
        ((7, 2), -1, (2, NONE), FENCED),
        ((7, 2), 4, (2, 5), FENCED),
        ((7, 3), 4, (2, 5), FENCED),
        ((7, 1), 5, (2, 5), OLD),
        ((7, 1), 6, (2, 5), OLD),
        ((7, 1), -1, (2, 5), OLD),
        ((-1, 2), 5, (NONE, NONE), OLD),
        ((7, -1), 5, (NONE, NONE), OLD),
    ],
)
def test_a_log_takes_a_marker_of_the_epochs_that_it_has_or_of_newer_ones(
    producer: tuple[int, int], coordinator: int, in_log: tuple[int, int], expected: E
) -> None:
    for committed in (True, False):
        asked = Marker(IdAndEpoch(*producer), committed, coordinator)
        assert why_refused(asked, *in_log) is expected
