"""The page that maps promises and KIP rules to tests: `rules-and-tests.md` of `make docs`.

Owns the reading of `docs/promises.md` and `docs/kips.md` (sections, rows, names of tests) and the
generated page. Not what the two pages must say: see
`tests/tidy/test_tidy_promises.py` and `test_tidy_kips.py`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.support.maps import FOLDER
from tests.support.repository import ROOT, text_of, tracked

PROMISES = ROOT / "docs" / "promises.md"
KIPS = ROOT / "docs" / "kips.md"
PAGE = FOLDER / "rules-and-tests.md"
QUOTED = re.compile(r"`([^`\n]+)`")
CUT = "…"
"""Ends a test's name that is not written out."""

FILES = [path for path in tracked("src", "tests") if path.suffix in (".py", ".txt")]
TESTS = [path for path in FILES if path.is_relative_to(ROOT / "tests")]

HEAD = """# Rules and their tests

Written by `make docs`. The first table maps each promise of
[promises](../promises.md) to the tests that its section names. The second table maps each rule of
[KIPs](../kips.md) to the tests of its row. The last one lists the test files with what they check;
it includes the promises and KIPs that a file cites in its own text.
"""


class Promise(NamedTuple):
    """A section of the page of promises."""

    number: int
    title: str
    parts: dict[str, str]
    """What it means "For you", what is "Not promised", and the "Tests", each as its text."""


class Rule(NamedTuple):
    """A row of the page of KIPs."""

    line: int
    kips: str
    rule: str
    where: str
    test: str


def promises(page: str) -> list[Promise]:
    """Return the sections of a page whose headings begin with a number."""
    found = []
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        if numbered := re.fullmatch(r"(\d+)\. (.+)", heading):
            pieces = re.split(r"^\*\*([\w ]+):\*\*", text, flags=re.MULTILINE)[1:]
            parts = dict(zip(pieces[::2], map(str.strip, pieces[1::2]), strict=True))
            found.append(Promise(int(numbered[1]), numbered[2], parts))
    return found


def rules(page: str) -> Iterator[Rule]:
    """Yield the rows of a page's tables that have the columns "rule", "where" and "test"."""
    heading = ""
    columns: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("## "):
            heading = line[3:]
        if not line.startswith("|"):
            columns = []
            continue
        cells = [each.strip() for each in line.strip("|").split("|")]
        if not columns:
            columns = cells
        elif not set(line) <= set("|-"):
            row = dict(zip(columns, cells, strict=True))
            kips = row.get("KIP") or " ".join(re.findall(r"KIP-(\d+)", heading))
            yield Rule(number, kips, row["rule"], row["where"], row["test"])


def seeds(page: str) -> dict[str, str]:
    """Return the names that promises use for simulations ("cluster seeds") -> the test."""
    head = page.partition("\n## Data")[0].replace("\n", " ")
    return dict(re.findall(r'"(\w+ seeds)"[^`]*`([^`]+)`', head))


def files_named(word: str) -> list[Path]:
    """Return the files that a word may mean: the end of a path, a folder, or a pattern."""
    if word.startswith("/") or not ("/" in word or word.endswith((".py", ".txt"))):
        return []
    ending = f"*/{word}*" if word.endswith("/") else f"*/{word}"
    return [path for path in FILES if fnmatch(str(path), ending)]


def defines(path: Path, name: str) -> bool:
    """Return whether a file defines a function, a class or a value of that name."""
    text = text_of(path)
    if name.removesuffix(CUT) not in text:
        return False
    word = re.escape(name.removesuffix(CUT)) + ("" if name.endswith(CUT) else r"\b")
    pattern = rf"^\s*(?:async def|def|class) {word}|^\s*{word}(?:: .*)? = "
    return re.search(pattern, text, re.MULTILINE) is not None


def tests_of_promise(promise: Promise, runs: dict[str, str]) -> list[str]:
    """Return the tests that a promise names, simulations written out."""
    text = promise.parts["Tests"]
    named = [
        test for name, test in runs.items() if name in text or re.search(r"\bthree seeds\b", text)
    ]
    return named + [word for word in QUOTED.findall(text) if word.startswith("tests/")]


def tests_of_rule(rule: Rule) -> list[Path]:
    """Return the files of tests that a row names, by a path's end or by a test's name."""
    found: list[Path] = []
    for word in QUOTED.findall(rule.test):
        named = [path for path in files_named(word) if path in TESTS]
        if not named and re.fullmatch(rf"test_\w+{CUT}?", word):
            named = [path for path in TESTS if path.suffix == ".py" and defines(path, word)]
        found += [path for path in named if path not in found]
    return found


def cited_numbers(text: str) -> tuple[set[int], set[int]]:
    """Return the promises and the KIPs that a text names."""
    promised: set[int] = set()
    for listed in re.findall(r"\b[Pp]romises? (\d+(?:(?:, | and | to |-)\d+)*)", text):
        for first, last in re.findall(r"(\d+)(?:(?: to |-)(\d+))?", listed):
            promised |= set(range(int(first), int(last or first) + 1))
    return promised, {int(number) for number in re.findall(r"\bKIP[- ](\d+)", text)}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _list(words: Iterable[str], otherwise: str) -> str:
    return ", ".join(f"`{word}`" for word in words) or otherwise


def page() -> str:
    """Return the text of the generated page."""
    text = PROMISES.read_text(encoding="utf-8")
    runs = seeds(text)
    of_promises: dict[str, set[int]] = defaultdict(set)
    of_kips: dict[str, set[int]] = defaultdict(set)
    lines = [HEAD, "## Promises", "", "| promise | tests |", "|---|---|"]
    for promise in promises(text):
        tests = tests_of_promise(promise, runs)
        for test in tests:
            of_promises[test.partition("::")[0]].add(promise.number)
        missing = re.findall(r"not yet \([^)]*\)", promise.parts["Tests"])
        cells = [_list(tests, "")] if tests else []
        cells += [each if not tests else f"in part {each}" for each in missing]
        lines.append(f"| {promise.number}. {promise.title} | {'; '.join(cells)} |")
    lines += ["", "## KIP rules", "", "| KIP | rule | tests |", "|---|---|---|"]
    for rule in rules(KIPS.read_text(encoding="utf-8")):
        found = [_name(path) for path in tests_of_rule(rule)]
        for name in found:
            of_kips[name] |= {int(number) for number in re.findall(r"\d+", rule.kips)}
        text = re.sub(r"\]\((?!http)", "](../", rule.rule)
        lines.append(f"| {rule.kips} | {text} | {_list(found, f'not yet: {rule.test}')} |")
    for path in TESTS:
        if path.name.startswith("test_") and path.parent.name not in ("tidy", "mutants"):
            promised, kips = cited_numbers(text_of(path))
            of_promises[_name(path)] |= promised
            of_kips[_name(path)] |= kips
    lines += ["", "## Test files", "", "| file | promises | KIPs |", "|---|---|---|"]
    for name in sorted({*of_promises, *of_kips}):
        if of_promises[name] or of_kips[name]:
            cells = [", ".join(map(str, sorted(of[name]))) for of in (of_promises, of_kips)]
            lines.append(f"| `{name}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page."""
    FOLDER.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
