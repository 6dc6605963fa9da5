"""The table of mutants is whole: `make mutants` runs by hand, and must not be found broken then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.run import MUTANTS, PAGE, why_not_there
from tests.support.repository import ROOT


def test_every_mutant_has_a_name_of_its_own_and_tests_that_exist() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    for mutant in MUTANTS:
        assert mutant.old != mutant.new, mutant.name
        for test in mutant.tests.split():
            assert (ROOT / test.partition("::")[0]).exists(), f"{mutant.name}: {test}"


def test_every_mutants_text_stands_where_it_says() -> None:
    gone = {mutant.name: why for mutant in MUTANTS if (why := why_not_there(ROOT, mutant))}
    assert not gone, "make mutants would end before it has begun"


def test_the_page_has_what_became_of_every_mutant() -> None:
    rows = {
        line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if "|" in line
    }
    for mutant in MUTANTS:
        row = rows.get(mutant.name, "")
        assert "`tests/" in row, f"run make mutants for {mutant.name!r}"
        assert f"`{mutant.file.removeprefix('src/tidelog/')}`" in row, mutant.name


@pytest.mark.parametrize(
    ("file", "old", "why"),
    [
        ("a.py", "rule", ""),
        ("a.py", "a", "2 times"),
        ("a.py", "gone", "0 times"),
        ("b.py", "rule", "not there any more"),
    ],
)
def test_a_mutant_whose_text_is_gone_is_said(tmp_path: Path, file: str, old: str, why: str) -> None:
    (tmp_path / "a.py").write_text("a rule and nothing else")
    said = why_not_there(tmp_path, Mutant("m", file, old, "", "tests/tidy"))
    assert (why in said) and bool(said) is bool(why)
