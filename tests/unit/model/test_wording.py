"""Words that many sentences share: names, counts, moments."""

from __future__ import annotations

import pytest

from tidelog.model.wording import NAMES_SHOWN, counted, moment_text, named


@pytest.mark.parametrize(
    ("names", "count", "text"),
    [
        ([], None, ""),
        (["a"], None, "a"),
        ([1, 2], None, "1, 2"),
        (range(NAMES_SHOWN), None, "0, 1, 2, 3, 4"),
        (range(NAMES_SHOWN + 2), None, "0, 1, 2, 3, 4 and 2 more"),
        (range(NAMES_SHOWN), NAMES_SHOWN + 1, "0, 1, 2, 3, 4 and 1 more"),
    ],
)
def test_the_first_names_stand_for_all(names: range, count: int | None, text: str) -> None:
    assert named(names, count) == text


def test_clauses_have_their_own_sign_between_them() -> None:
    assert named(["a, b", "c"], between="; ") == "a, b; c"


def test_counts_and_moments() -> None:
    assert [counted(count, "topic") for count in (0, 1, 2)] == ["0 topics", "1 topic", "2 topics"]
    assert moment_text(1_700_000_000_999) == "2023-11-14T22:13:20Z"
