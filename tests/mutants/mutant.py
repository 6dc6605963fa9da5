"""A mutant: one rule of the product that is broken, and the tests that must find it.

Owns how a mutant names its place: a function, and the statement in it (or a part of one). The
statement is compared by its words and signs, so neither its layout nor its lines matter; a function
that moved to another file of the product is found by its name. Not the run: see `run`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """A small replacement in one function."""

    name: str
    """What goes wrong, in a few words; a number of the review in front of those that it named."""
    where: str
    """A file from the root of the checkout, and "::" with the name of the function in it. A file
    alone where the rule stands in no function."""
    old: str
    """The statement, or statements; they stand there exactly once."""
    new: str
    tests: str
    """Those of its package, as pytest takes them, parted by blanks."""

    @property
    def file(self) -> str:
        """The file that it names."""
        return self.where.partition("::")[0]

    @property
    def function(self) -> str:
        """The function that it names, "" for the whole file."""
        return self.where.partition("::")[2]


class Place(NamedTuple):
    """Where a mutant's statement stands now."""

    path: Path
    start: int
    end: int


def place(root: Path, mutant: Mutant) -> Place | str:
    """Return where a mutant's statement is below ``root``, or why it is not there."""
    found = [(path, span) for path, span in _spans(root, mutant)]
    if len(found) != 1:
        return f"{mutant.where} stands {len(found)} times"
    path, (first, last) = found[0]
    text = path.read_text()
    matches = list(_pattern(mutant.old).finditer(text, first, last))
    if len(matches) != 1:
        return f"its statement stands {len(matches)} times in {mutant.where}"
    return Place(path, matches[0].start(), matches[0].end())


def broken(root: Path, mutant: Mutant) -> tuple[Path, str] | str:
    """Return the file and its text with the rule broken, or why it cannot be."""
    at = place(root, mutant)
    if isinstance(at, str):
        return at
    text = at.path.read_text()
    start, end = at.start, at.end
    begin = text.rfind("\n", 0, start) + 1
    new = mutant.new
    is_whole = not mutant.old[:1].strip() and not text[begin:start].strip()
    if is_whole:
        old_indent = len(mutant.old) - len(mutant.old.lstrip(" "))
        new = _shifted(new, start - begin - old_indent)
        start = begin
    if mutant.old.endswith("\n") and text[end : end + 1] == "\n":
        end += 1
    return at.path, text[:start] + new + text[end:]


def _spans(root: Path, mutant: Mutant) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield the files and the parts of them that a mutant may mean."""
    path = root / mutant.file
    if not mutant.function:
        if path.is_file():
            yield path, (0, len(path.read_text()))
        return
    there = list(_functions(path, mutant.function)) if path.is_file() else []
    if there:
        yield from ((path, span) for span in there)
        return
    for other in sorted((root / "src").rglob("*.py")):
        yield from ((other, span) for span in _functions(other, mutant.function))


def _functions(path: Path, name: str) -> Iterator[tuple[int, int]]:
    text = path.read_text()
    if name.rpartition(".")[2] not in text:
        return
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def walk(node: ast.AST, outer: str) -> Iterator[tuple[int, int]]:
        for child in ast.iter_child_nodes(node):
            inner = outer
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{outer}.{child.name}" if outer else child.name
                if inner == name:
                    first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                    yield starts[first - 1], starts[child.end_lineno or first]
            yield from walk(child, inner)

    yield from walk(ast.parse(text), "")


def _pattern(old: str) -> re.Pattern[str]:
    """Return what finds a statement in any layout: words need a blank between them, signs none."""
    parts: list[str] = []
    before = ""
    for token in re.findall(r"\w+|[^\w\s]", old):
        between = r"\s+" if before[-1:].isidentifier() and token[0].isidentifier() else r"\s*"
        if token in ")]}" and before != ",":
            between = r"\s*,?\s*"
        parts.append((between if before else "") + re.escape(token))
        before = token
    head = r"(?<!\w)" if old.strip()[:1].isidentifier() else ""
    return re.compile(head + "".join(parts))


def _shifted(text: str, by: int) -> str:
    lines = text.splitlines(keepends=True)
    if by >= 0:
        return "".join(" " * by + line if line.strip() else line for line in lines)
    return "".join(line[-by:] if not line[:-by].strip() else line for line in lines)
