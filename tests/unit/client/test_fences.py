"""What makes a leader's fences complete, and the counts that they say."""

from __future__ import annotations

import pytest

from tidelog.client.fences import DescribedFence, counts_of, is_complete
from tidelog.partitioning.gates import Fence


def fence(epoch: int, count: int, *, seal: bool = False) -> DescribedFence:
    return DescribedFence(Fence(epoch, 10 * epoch, 10 * epoch), count, seal)


@pytest.mark.parametrize(
    ("fences", "complete"),
    [
        ((), False),
        ((fence(1, 4),), False),
        ((fence(1, 4), fence(2, 2)), True),
        ((fence(3, 8),), True),
        # A retired partition has no fence of a later epoch.
        ((fence(1, 2, seal=True),), True),
    ],
)
def test_a_leader_that_lacks_its_newest_fence_is_asked_again(
    fences: tuple[DescribedFence, ...], complete: bool
) -> None:
    assert is_complete(fences, 2) is complete


def test_counts_of_all_resize_epochs() -> None:
    assert counts_of([(fence(1, 4), fence(2, 3)), (fence(1, 4),)]) == {1: 4, 2: 3}
