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


def bare(cells: list[str]) -> bool:
    """Whether a promise has neither tests nor says "not yet".

    "… seeds" are those tests that the page's head names, a link to the review is to its tests.
    """
    return not re.search(r"`tests/|\b(cluster|broker|log|three) seeds\b|not yet|review", cells[-1])


def test_every_promise_has_tests_or_says_not_yet() -> None:
    assert [int(cells[0]) for cells in rows(PROMISES)] == list(range(1, PROMISED + 1))
    assert [cells[0] for cells in rows(PROMISES) if bare(cells)] == []


def test_the_runs_that_promises_name_by_a_word_are_named_in_full() -> None:
    """ "cluster seeds" and the like are no paths: the page's head says which tests they are."""
    head = PROMISES.read_text().partition("\n## ")[0].replace("\n", " ")
    for word in ("cluster seeds", "broker seeds", "log seeds"):
        named = head.partition(f'"{word}"')[2].partition("`")[2].partition("`")[0]
        assert named.startswith("tests/") and "::" in named, word
        assert missing(f"`{named}`") == []


@pytest.mark.parametrize(
    ("cell", "is_bare", "gone"),
    [
        ("", True, 0),
        ("soon", True, 0),
        ("it is planted in many seeds of grass", True, 0),
        ("not yet (KIP-253)", False, 0),
        ("cluster seeds", False, 0),
        ("`tests/tidy/test_tidy_promises.py::test_that_is_not_there`", False, 1),
        ("`tests/tidy/no_such_file.py`", False, 1),
        ("`tests/tidy/test_tidy_promises.py::test_every_mended_fault_names_its_tests`", False, 0),
    ],
)
def test_a_promise_that_nothing_claims_is_found(cell: str, is_bare: bool, gone: int) -> None:
    assert bare(["1", "A promise.", cell]) is is_bare
    assert len(missing(cell)) == gone


def test_every_mended_fault_names_its_tests() -> None:
    for number, _, state, tests in rows(REVIEW):
        assert state.startswith(STATES), f"{number}: {state!r} is none of {STATES}"
        assert "`tests/" in tests or not state.startswith("mended"), number
