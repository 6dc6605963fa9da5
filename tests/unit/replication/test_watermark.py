"""The high watermark."""

from __future__ import annotations

import pytest

from tidelog.replication.watermark import high_watermark, required_in_sync


@pytest.mark.parametrize(
    ("current", "isr", "ends", "committed", "required", "expected"),
    [
        (0, [1], {1: 10}, 1, 1, 10),
        (0, [1, 2], {1: 10, 2: 7}, 2, 1, 7),
        (0, [1, 2], {1: 10}, 2, 1, 0),
        (5, [1, 2], {1: 10, 2: 3}, 2, 1, 5),
        (5, [1], {1: 10}, 1, 2, 5),
        (5, [1, 2, 3], {1: 10, 2: 9, 3: 8}, 2, 2, 8),
    ],
)
def test_high_watermark(
    current: int, isr: list[int], ends: dict[int, int], committed: int, required: int, expected: int
) -> None:
    assert high_watermark(current, isr, ends, committed, required) == expected


def test_min_insync_is_capped_at_the_replication_factor() -> None:
    assert required_in_sync(2, 1) == 1
    assert required_in_sync(2, 3) == 2
