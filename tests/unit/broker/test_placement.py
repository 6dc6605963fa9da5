"""Which log directory takes a new replica: the table of ``broker.placement``."""

from __future__ import annotations

import pytest

from tidelog.broker.partitions.placement import DirectorySpace, choices

PLENTY = 1000
CORDONED = DirectorySpace(0, 900, PLENTY, is_cordoned=True)


@pytest.mark.parametrize(
    ("rooms", "order"),
    [
        # The most free bytes, whatever the number of replicas; of equal ones the fewest replicas.
        ([DirectorySpace(1, 500, PLENTY), DirectorySpace(2, 900, PLENTY)], [1, 0]),
        ([DirectorySpace(2, 900, PLENTY), DirectorySpace(1, 900, PLENTY)], [1, 0]),
        ([DirectorySpace(1, 500, PLENTY), DirectorySpace(1, 900, PLENTY)], [1, 0]),
        # A difference of less than a hundredth of the largest disk is none.
        ([DirectorySpace(2, 909, PLENTY), DirectorySpace(1, 900, PLENTY)], [1, 0]),
        ([DirectorySpace(2, 910, PLENTY), DirectorySpace(1, 900, PLENTY)], [0, 1]),
        ([DirectorySpace(2, 95, 100), DirectorySpace(1, 90, PLENTY)], [1, 0]),
        # Full ones come last, the roomiest of them first.
        ([DirectorySpace(0, 29, PLENTY), DirectorySpace(9, 30, PLENTY)], [1, 0]),
        (
            [
                DirectorySpace(0, 0, PLENTY),
                DirectorySpace(5, 10, PLENTY),
                DirectorySpace(9, 900, PLENTY),
            ],
            [2, 1, 0],
        ),
        # One that refused, though it says that it has room.
        ([DirectorySpace(0, 900, PLENTY, 900), DirectorySpace(9, 500, PLENTY)], [1, 0]),
        ([DirectorySpace(0, 900, PLENTY, 900), DirectorySpace(9, 0, PLENTY)], [1, 0]),
        # It has more room since, or another refused, too.
        ([DirectorySpace(0, 901, PLENTY, 900), DirectorySpace(9, 500, PLENTY)], [0, 1]),
        ([DirectorySpace(0, 500, PLENTY, 500), DirectorySpace(9, 700, PLENTY, 800)], [1, 0]),
        # A cordoned one gets nothing while another one can be tried, even if that is full.
        ([CORDONED, DirectorySpace(9, 500, PLENTY)], [1]),
        ([CORDONED, DirectorySpace(0, 500, PLENTY, 500)], [1]),
        ([CORDONED, DirectorySpace(9, 950, PLENTY, is_cordoned=True)], [1, 0]),
        ([], []),
    ],
)
def test_where_a_new_replica_goes(rooms: list[DirectorySpace], order: list[int]) -> None:
    assert choices(rooms) == order
