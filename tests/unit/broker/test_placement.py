"""Which log directory takes a new replica: the table of ``broker.placement``."""

from __future__ import annotations

import pytest

from tidelog.broker.partitions.placement import Room, choices

PLENTY = 1000


@pytest.mark.parametrize(
    ("rooms", "order"),
    [
        ([Room(2, 900, PLENTY), Room(1, 500, PLENTY)], [1, 0]),
        ([Room(1, 500, PLENTY), Room(1, 900, PLENTY)], [0, 1]),
        # Full ones come last, the roomiest of them first.
        ([Room(0, 29, PLENTY), Room(9, 30, PLENTY)], [1, 0]),
        ([Room(0, 0, PLENTY), Room(5, 10, PLENTY), Room(9, 900, PLENTY)], [2, 1, 0]),
        # One that refused, though it says that it has room.
        ([Room(0, 900, PLENTY, 900), Room(9, 500, PLENTY)], [1, 0]),
        ([Room(0, 900, PLENTY, 900), Room(9, 0, PLENTY)], [1, 0]),
        # It has more room since, or another refused, too.
        ([Room(0, 901, PLENTY, 900), Room(9, 500, PLENTY)], [0, 1]),
        ([Room(0, 500, PLENTY, 500), Room(9, 700, PLENTY, 800)], [1, 0]),
        ([], []),
    ],
)
def test_where_a_new_replica_goes(rooms: list[Room], order: list[int]) -> None:
    assert choices(rooms) == order
