"""``docs/kips.md`` names functions and classes that are in the files beside them.

That the files are there is ``test_tidy_code``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.tidy.test_tidy_code import ROOT, text_of, tracked

PAGE = ROOT / "docs" / "kips.md"
FILES = [path for path in tracked("src", "tests") if path.suffix in (".py", ".txt")]
QUOTED = re.compile(r"`([^`]+)`")
CUT = "…"
"""Ends a test's name that is not written out."""


class Cell(NamedTuple):
    """What a row says of "where" or "test": the words in quotes."""

    line: int
    column: str
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
                yield Cell(number, column, QUOTED.findall(text))


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
