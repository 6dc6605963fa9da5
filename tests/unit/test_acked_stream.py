"""The judge of the kill tests, shown a good history and every kind of bad one."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
from tests.support.acked_stream import violations

GOOD = {(0, 0): "w:0", (0, 1): "w:1", (0, 2): "w:2"}


def judge(
    found: dict[tuple[int, int], str],
    *,
    acked: dict[int, tuple[int, int]] | None = None,
    seen: dict[str, int] | None = None,
    commits: list[int] | None = None,
    idempotent: bool = True,
) -> list[str]:
    writer = SimpleNamespace(name="w", idempotent=idempotent, acked=acked or {0: (0, 0), 1: (0, 1)})
    reader = SimpleNamespace(
        seen=Counter(seen or dict.fromkeys(GOOD.values(), 1)),
        commits=defaultdict(list, {0: commits or [1, 2, 3]}),
    )
    return violations([writer], found, reader)


def test_a_good_history_passes() -> None:
    assert judge(GOOD) == []
    assert judge({**GOOD, (1, 0): "w:2"}, idempotent=False) == []


@pytest.mark.parametrize(
    ("history", "word"),
    [
        ({"found": {(0, 0): "w:0"}}, "lost"),
        ({"found": {**GOOD, (0, 1): "w:7"}}, "lost"),
        ({"found": {**GOOD, (1, 0): "w:2"}}, "2 times"),
        ({"found": {(0, 0): "w:1", (0, 1): "w:0"}, "acked": {0: (0, 1)}}, "order"),
        ({"found": GOOD, "seen": {"w:0": 1}}, "never read"),
        ({"found": GOOD, "commits": [2, 1]}, "fell from 2 to 1"),
    ],
)
def test_bad_histories_are_named(history: dict[str, object], word: str) -> None:
    wrong = judge(**history)
    assert any(word in line for line in wrong), wrong
