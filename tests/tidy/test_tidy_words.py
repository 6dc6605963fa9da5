"""The word list (`tests/support/words.py`) holds in all folders that are under the rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import words

ROOT = Path(__file__).resolve().parents[2]

UNDER_THE_RULE = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "docs",
    "examples",
    "src",
    "tests",
)
"""The folders and pages that keep the rule: all texts of the repository but the fixtures of old
releases."""

THE_LIST = ("tests/support/words.py", "tests/tidy/test_tidy_words.py")
"""The files that have the words themselves."""


def test_no_text_under_the_rule_has_a_word_of_the_list() -> None:
    found = []
    for name in UNDER_THE_RULE:
        root = ROOT / name
        files = [root] if root.is_file() else sorted([*root.rglob("*.py"), *root.rglob("*.md")])
        assert files, f"{name} is not there"
        found += [
            f"{path.relative_to(ROOT)}:{hit.line}: {hit.word!r}: write {hit.instead}"
            for path in files
            if str(path.relative_to(ROOT)) not in THE_LIST
            for hit in words.hits_in(path)
        ]
    assert not found, "\n".join(found)


LOOK = re.compile(
    r"[A-Za-z]*(?<![A-Za-z])_*looks?_(?!up)\w*|\w*_looks?(?!_?up)\b|\w*LOOK(?!_?UP)\w*"
    r"|\b[Ll]ook(?:s|ed|ing)? (?:at|into)\b|\ba look at\b"
)
"""To look at, or into, something: a check, or an inspection (the glossary of ARCHITECTURE)."""


def test_the_product_checks_and_inspects_and_has_no_third_word() -> None:
    files = sorted((ROOT / "src/tidelog").rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LOOK.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("self._look_at_error(x)", True),
        ("FIRST_LOOK_S = 1", True),
        ("# It looks into a batch.", True),
        ("self.next_look = 1", True),
        ("time_lookup.look_up(LOOKUP_S)", False),
        ("# A silence looks like slowness, and is looked for.", False),
    ],
)
def test_the_third_word_is_found(line: str, is_found: bool) -> None:
    assert bool(LOOK.search(line)) is is_found


@pytest.mark.parametrize(
    ("text", "word"),
    (
        ("# It is made anew.", "anew"),
        ('"""Wait; else it fails."""', "; else"),
        ('X = f"{a} lags behind"', "behind"),
        ("def test_nobody_waits(): ...", "nobody"),
    ),
)
def test_a_word_is_found_in_code(text: str, word: str) -> None:
    assert [hit.word for hit in words.hits_in_python(text + "\n")] == [word]


def test_code_is_no_text() -> None:
    assert words.hits_in_python("x = 1 if told else behind\n") == []
    assert words.hits_in_markdown("`anew`\n```\nno more\n```\n") == []
    assert [hit.line for hit in words.hits_in_markdown("one\ntwo is told\n")] == [2]


def table_of_words(heading: str) -> dict[str, list[str]]:
    """What a table of CONTRIBUTING says to write instead -> the words that it names."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition(heading)[2]
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", page.partition("\n\n")[0], re.MULTILINE)
    return {instead: re.findall(r"`([^`]+)`", shown) for shown, instead in rows}


@pytest.mark.parametrize(
    ("heading", "listed"),
    (
        ("| do not write | write instead |\n", words.EVERYWHERE),
        ("the list is longer:\n\n", words.IN_CODE),
    ),
)
def test_contributing_has_the_list(heading: str, listed: dict[str, str]) -> None:
    """Each row of the list is a row of CONTRIBUTING, and each word there is one of the list."""
    tables = table_of_words(heading)
    assert list(tables) == list(listed.values())
    for pattern, instead in listed.items():
        assert tables[instead], instead
        for word in tables[instead]:
            assert re.search(pattern, word), f"{word!r} is not found by {pattern!r}"
