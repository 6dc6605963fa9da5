"""``docs/promises.md`` has every promise with a test that exists, or says "not yet".

The rows of the outside review (``docs/internals/review.md``) are held to the same rule.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.tidy.test_tidy_code import ROOT
from tests.tidy.test_tidy_kips import defines

PROMISES = ROOT / "docs" / "promises.md"
REVIEW = ROOT / "docs" / "internals" / "review.md"
PROMISED = 32
STATES = ("open", "mended", "no fault")


def rows(page: Path) -> list[list[str]]:
    """The cells of each numbered row of a page's tables."""
    found = []
    for line in page.read_text().splitlines():
        cells = [each.strip() for each in line.strip().strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"[A-Z]?\d+", cells[0]):
            found.append(cells)
    return found


def missing(cell: str) -> list[str]:
    """The tests that a cell names and that do not exist."""
    found = []
    for word in re.findall(r"`([^`]+)`", cell):
        if not word.startswith("tests/"):
            continue
        file, _, test = word.partition("::")
        if not (ROOT / file).exists() or (test and not defines(ROOT / file, test)):
            found.append(word)
    return found


@pytest.mark.parametrize("page", [PROMISES, REVIEW], ids=["promises", "review"])
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    assert [word for cells in rows(page) for word in missing(cells[-1])] == []


def test_every_promise_has_tests_or_says_not_yet() -> None:
    assert [int(cells[0]) for cells in rows(PROMISES)] == list(range(1, PROMISED + 1))
    bare = [c[0] for c in rows(PROMISES) if not re.search(r"`tests/|seeds|not yet|review", c[-1])]
    assert bare == []


def test_every_mended_fault_names_its_tests() -> None:
    for number, _, state, tests in rows(REVIEW):
        assert state.startswith(STATES), f"{number}: {state!r} is none of {STATES}"
        assert "`tests/" in tests or not state.startswith("mended"), number
