"""How long a poll of a reader still waits."""

from __future__ import annotations

import pytest

from tidelog.client.groups.group_reader import whole_ms


@pytest.mark.parametrize(
    ("left_s", "expected"), [(-1.0, 0), (0.0, 0), (0.0001, 1), (0.001, 1), (0.0015, 2), (2.0, 2000)]
)
def test_a_poll_with_time_left_waits(left_s: float, expected: int) -> None:
    assert whole_ms(left_s) == expected


def test_a_deadline_in_a_millisecond_is_not_now() -> None:
    now = 1007.0966211666321
    assert int((now + 0.001 - now) * 1000) == 0
    assert whole_ms(now + 0.001 - now) == 1
