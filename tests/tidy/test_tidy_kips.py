"""The page of KIP rules: the functions it names exist, and each rule has a test or says "not yet".

Owns what `docs/kips.md` says in its columns "where" and "test". That the files exist: see
`test_tidy_code.py`; that each KIP which code cites has a row: see `test_tidy_citations.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tidy.test_tidy_code import ROOT, text_of, tracked

PAGE = ROOT / "docs" / "kips.md"
FILES = [path for path in tracked("src", "tests") if path.suffix in (".py", ".txt")]
QUOTED = re.compile(r"`([^`]+)`")
CUT = "…"
"""Ends a test's name that is not written out."""


class Cell(NamedTuple):
    """What a row says of "where" or "test": its text, and the words in quotes."""

    line: int
    column: str
    text: str
    words: list[str]


def cells() -> Iterator[Cell]:
    columns: list[str] = []
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if not line.startswith("|"):
            columns = []
            continue
        found = [each.strip() for each in line.strip("|").split("|")]
        columns = columns or found
        for column, text in zip(columns, found, strict=True):
            if column in ("where", "test"):
                yield Cell(number, column, text, QUOTED.findall(text))


def files(word: str) -> list[Path]:
    """The files that a word may mean: the end of a path, a folder, or a pattern; none if none."""
    if word.startswith("/") or not ("/" in word or word.endswith((".py", ".txt"))):
        return []
    ending = f"*/{word}*" if word.endswith("/") else f"*/{word}"
    return [path for path in FILES if fnmatch(str(path), ending)]


def defines(path: Path, name: str) -> bool:
    text = text_of(path)
    if name.removesuffix(CUT) not in text:
        return False
    word = re.escape(name.removesuffix(CUT)) + ("" if name.endswith(CUT) else r"\b")
    pattern = rf"^\s*(?:async def|def|class) {word}|^\s*{word}(?:: .*)? = "
    return re.search(pattern, text, re.MULTILINE) is not None


def test_the_page_has_rows() -> None:
    assert sum(1 for cell in cells() if any(map(files, cell.words))) > 100


def has_test(where: str, test: str) -> bool:
    """Whether a rule names a test, or the work that will bring the rule."""
    return bool(QUOTED.search(test) or re.match("comes with ", test)) or (
        where.startswith("still to come") and test != ""
    )


def test_every_rule_has_a_test_or_names_what_brings_it() -> None:
    row = {each.line: each for each in cells() if each.column == "where"}
    columns = {"where", "test"}
    bare = [
        each.line
        for each in cells()
        if each.column == "test"
        and each.text not in columns | {"---"}
        and not has_test(row[each.line].text, each.text)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("where", "test", "expected"),
    [
        ("`a.py`", "`tests/a.py`", True),
        ("`a.py`", "comes with transactions", True),
        ("still to come", "reassignments", True),
        ("still to come", "", False),
        ("`a.py`", "soon", False),
    ],
)
def test_a_rule_without_a_test_is_found(where: str, test: str, expected: bool) -> None:
    assert has_test(where, test) is expected


def test_every_function_that_the_page_names_is_in_the_file_beside_it() -> None:
    missing = []
    for cell in cells():
        near = [path for word in cell.words for path in files(word)]
        if cell.column == "test" or not near:
            near = FILES
        missing += [
            f"line {cell.line}: {word}"
            for word in cell.words
            if re.fullmatch(rf"\w+{CUT}?", word) and not any(defines(p, word) for p in near)
        ]
    assert missing == []
