"""The word list (`tests/support/words.py`) holds in all folders that are under the rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import words

ROOT = Path(__file__).resolve().parents[2]

UNDER_THE_RULE = (
    "README.md",
    "src/tidelog/partitioning",
    "src/pyspark_tidelog",
)
"""Folders and pages that keep the rule; each further one joins when its last word is replaced."""


def test_no_text_under_the_rule_has_a_word_of_the_list() -> None:
    found = []
    for name in UNDER_THE_RULE:
        root = ROOT / name
        files = [root] if root.is_file() else sorted([*root.rglob("*.py"), *root.rglob("*.md")])
        assert files, f"{name} is not there"
        found += [
            f"{path.relative_to(ROOT)}:{hit.line}: {hit.word!r}: write {hit.instead}"
            for path in files
            for hit in words.hits_in(path)
        ]
    assert not found, "\n".join(found)


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
