"""The pages for users can be read: short sentences, short cells, an index that has each page."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from tests.support.repository import ROOT

OPERATING = sorted((ROOT / "docs" / "operating").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "docs" / "README.md", *OPERATING]

MEDIAN_WORDS = 18
"""The median sentence of a page has fewer words."""

LONGEST_SENTENCE = 40
"""No sentence has more words. Names in backticks do not count: a list of settings is no clause."""

LONGEST_CELL = 300
"""No cell of a table has more characters."""

WORDS_FOR_USERS = 40_000
"""All pages for users together; the generated page of configurations counts, too."""

BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
PARAGRAPH = re.compile(r"\n\s*\n|(?:\A|\n)\s*(?:[-*]|\d+\.) ")
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"(])")


def sentences(text: str) -> list[str]:
    """The sentences of a page outside of blocks, tables and headings, without links' targets."""
    text = LINK.sub(r"\1", BLOCK.sub("\n\n", text))
    lines = ["" if line.startswith(("|", "#")) else line for line in text.splitlines()]
    found = [
        sentence
        for paragraph in PARAGRAPH.split("\n".join(lines))
        for sentence in SENTENCE.split(" ".join(paragraph.split()))
    ]
    return [each for each in found if length(each) > 2]


def length(sentence: str) -> int:
    return len(re.sub(r"`[^`]*`,?", "", sentence).split())


def cells(text: str) -> list[str]:
    """The cells of a page's tables."""
    rows = [line for line in BLOCK.sub("", text).splitlines() if line.startswith("|")]
    return [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_easy_to_read(page: Path) -> None:
    text = page.read_text()
    found = sentences(text)
    assert [each for each in found if length(each) > LONGEST_SENTENCE] == []
    assert [cell for cell in cells(text) if len(cell) > LONGEST_CELL] == []
    if found:
        assert statistics.median(map(length, found)) < MEDIAN_WORDS


def test_the_pages_for_users_stay_few_words() -> None:
    assert sum(len(page.read_text().split()) for page in PAGES) < WORDS_FOR_USERS


def test_the_index_has_each_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page.name for page in OPERATING if f"(operating/{page.name})" not in index]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "lengths", "widths"),
    (
        ("One is here. Two are there.\n", [3, 3], []),
        ("# A heading of five words\n\n| a | long cell |\n|---|---|\n", [], [1, 9, 3, 3]),
        ("```\nnot this one here\n```\nIt has `a`, `b` and `c`.\n", [4], []),
        ("- one two three\n- one two three four\n", [3, 4], []),
    ),
)
def test_what_counts(text: str, lengths: list[int], widths: list[int]) -> None:
    assert [length(each) for each in sentences(text)] == lengths
    assert [len(cell) for cell in cells(text)] == widths
