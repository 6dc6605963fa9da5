"""The tests' watchdog: what other programs cost is taken off a stall, the loop's own is not."""

from __future__ import annotations

import pytest

from tests.support import own_stalls
from tests.support.own_stalls import OwnStalls, Waits


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How long others waited since the beat before, and what the loop's thread has computed."""
    told = {"waited_s": 0.0, "worked_s": 0.0}
    monkeypatch.setattr(Waits, "since_before_s", lambda _: told["waited_s"])
    monkeypatch.setattr(own_stalls.time, "thread_time", lambda: told["worked_s"])
    return told


@pytest.mark.parametrize(
    ("waited_s", "worked_s", "left_s"),
    [(0.0, 0.0, 0.2), (0.15, 0.01, 0.05), (0.3, 0.01, 0.01), (0.3, 0.12, 0.12), (0.3, 0.5, 0.2)],
)
def test_what_is_left_of_a_stall(
    given: dict[str, float], waited_s: float, worked_s: float, left_s: float
) -> None:
    stalls = OwnStalls()
    stalls.add(0.0)
    given.update(waited_s=waited_s, worked_s=worked_s)
    stalls.add(0.2)
    assert stalls.longest_s == pytest.approx(left_s)
