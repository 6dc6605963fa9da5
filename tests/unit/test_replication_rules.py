"""The high watermark and how a broker's last life ended."""

from __future__ import annotations

import pytest

from tidelog.replication.former_life import LastLife, judge
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


@pytest.mark.parametrize(
    ("marker", "recorded", "present", "synced", "expected"),
    [
        (True, "a", "b", False, LastLife.CLEAN),
        (False, None, "b", False, LastLife.CLEAN),
        (False, "a", "a", False, LastLife.CRASHED),
        (False, "a", "b", False, LastLife.UNCLEAN),
        (False, "a", "b", True, LastLife.CRASHED),
        (False, "", "", False, LastLife.UNCLEAN),
    ],
)
def test_last_life(
    marker: bool, recorded: str | None, present: str, synced: bool, expected: LastLife
) -> None:
    found = judge(clean_marker=marker, recorded_boot=recorded, present_boot=present, synced=synced)
    assert found is expected
