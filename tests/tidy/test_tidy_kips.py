"""The page of KIP rules: the functions it names exist, and each rule has a test or says "not yet".

Owns what `docs/kips.md` says in its columns "where" and "test". That the files exist: see
`test_tidy_code.py`; that each KIP which code cites has a row: see `test_tidy_citations.py`.
"""

from __future__ import annotations

import re

import pytest

from tests.support.rules import CUT, FILES, KIPS, QUOTED, defines, files_named, rules

RULES = list(rules(KIPS.read_text(encoding="utf-8")))


def test_the_page_has_rows() -> None:
    assert sum(1 for rule in RULES if any(map(files_named, QUOTED.findall(rule.where)))) > 80
    assert all(re.search(r"\d", rule.kips) for rule in RULES)


def has_test(where: str, test: str) -> bool:
    """Whether a rule names a test, or the work that will bring the rule."""
    return bool(QUOTED.search(test) or re.match("comes with ", test)) or (
        where.startswith("still to come") and test != ""
    )


def test_every_rule_has_a_test_or_names_what_brings_it() -> None:
    assert [rule.line for rule in RULES if not has_test(rule.where, rule.test)] == []


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
    for rule in RULES:
        for cell, is_test in ((rule.where, False), (rule.test, True)):
            words = QUOTED.findall(cell)
            near = [path for word in words for path in files_named(word)]
            if is_test or not near:
                near = FILES
            missing += [
                f"line {rule.line}: {word}"
                for word in words
                if re.fullmatch(rf"\w+{CUT}?", word)
                and not any(defines(path, word) for path in near)
            ]
    assert missing == []
