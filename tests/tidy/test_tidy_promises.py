"""Promises and reviewed faults: each names tests that exist, or says "not yet".

Reads `docs/promises.md` (a section for each promise, with its three parts) and the rows of the
outside review, `docs/internals/review.md`. What is cited by number: see `test_tidy_citations.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.rules import PROMISES, defines, promises

REVIEW = ROOT / "docs" / "internals" / "review.md"
PROMISED = 34
STATES = ("open", "mended", "no fault")


PARTS = ("For you", "Not promised", "Tests")


def rows(page: Path) -> list[list[str]]:
    """The cells of each numbered row of a page's tables."""
    found = []
    for line in page.read_text().splitlines():
        cells = [each.strip() for each in line.strip().strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"[A-Z]?\d+", cells[0]):
            found.append(cells)
    return found


def missing(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    found = []
    for word in re.findall(r"`([^`\n]+)`", text):
        if not word.startswith("tests/"):
            continue
        file, _, test = word.partition("::")
        if not (ROOT / file).exists() or (test and not defines(ROOT / file, test)):
            found.append(word)
    return found


@pytest.mark.parametrize("page", [PROMISES, REVIEW], ids=["promises", "review"])
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


def bare(tests: str) -> bool:
    """Whether a promise has neither tests nor says "not yet".

    "… seeds" are those tests that the page's head names, a link to the review is to its tests.
    """
    return not re.search(r"`tests/|\b(cluster|broker|log|three) seeds\b|not yet|review", tests)


def test_every_promise_has_tests_or_says_not_yet() -> None:
    found = promises(PROMISES.read_text())
    assert [each.number for each in found] == list(range(1, PROMISED + 1))
    assert [each.number for each in found if bare(each.parts["Tests"])] == []


def test_every_promise_says_what_it_means_what_is_not_promised_and_how_it_is_tested() -> None:
    for each in promises(PROMISES.read_text()):
        assert tuple(each.parts) == PARTS, f"promise {each.number}"
        assert all(each.parts.values()), f"promise {each.number}"


def test_the_runs_that_promises_name_by_a_word_are_named_in_full() -> None:
    """ "cluster seeds" and the like are no paths: the page's head says which tests they are."""
    head = PROMISES.read_text().partition("\n## Data")[0].replace("\n", " ")
    for word in ("cluster seeds", "broker seeds", "log seeds"):
        named = head.partition(f'"{word}"')[2].partition("`")[2].partition("`")[0]
        assert named.startswith("tests/") and "::" in named, word
        assert missing(f"`{named}`") == []


@pytest.mark.parametrize(
    ("tests", "is_bare", "gone"),
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
def test_a_promise_that_nothing_claims_is_found(tests: str, is_bare: bool, gone: int) -> None:
    page = f"## Data\n\n### 1. A promise\n\n**Tests:**\n\n{tests}\n\n## End\n\n`tests/tidy`\n"
    assert bare(promises(page)[0].parts["Tests"]) is is_bare
    assert len(missing(tests)) == gone


def test_every_mended_fault_names_its_tests() -> None:
    for number, _, state, tests in rows(REVIEW):
        assert state.startswith(STATES), f"{number}: {state!r} is none of {STATES}"
        assert "`tests/" in tests or not state.startswith("mended"), number
