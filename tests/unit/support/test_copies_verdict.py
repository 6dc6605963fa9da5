"""The judge of copies finds each kind of mistake, and nothing in a right run."""

from __future__ import annotations

import pytest

from tests.chaos.copies_verdict import Copied, violations

SENT = {0: b"a", 1: b"b", 2: b"a", 3: b"b"}
ACKED = {0, 2, 3}
RIGHT = [
    Copied(0, 0, b"a", 0),
    Copied(1, 0, b"b", 3),
    Copied(0, 1, b"a", 2),
    # A rebalance gives it to the reader again, and what was in doubt is there late.
    Copied(0, 1, b"a", 2),
    Copied(1, 4, b"b", 1),
]


def test_a_right_run_has_no_finding() -> None:
    assert violations(SENT, ACKED, RIGHT) == []


@pytest.mark.parametrize(
    ("copied", "finding"),
    [
        (RIGHT[:2] + RIGHT[4:], "number 2 was acknowledged and is not copied"),
        ([*RIGHT, Copied(0, 5, b"a", 2)], "number 2 is there at [(0, 1), (0, 5)]"),
        ([*RIGHT, Copied(2, 1, b"a", 2)], "number 2 is there at [(0, 1), (2, 1)]"),
        ([RIGHT[2], *RIGHT[:2], RIGHT[4]], "came after number 2"),
        ([*RIGHT, Copied(0, 7, b"a", 9)], "was never sent"),
        ([Copied(0, 0, b"b", 0), *RIGHT[1:]], "was never sent"),
    ],
)
def test_a_mistake_is_found(copied: list[Copied], finding: str) -> None:
    found = violations(SENT, ACKED, copied)
    assert len(found) == 1, found
    assert finding in found[0]
