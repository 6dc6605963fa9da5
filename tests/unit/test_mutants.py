"""Mutants: each names a place and tests, and a place is found in any layout and any file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, broken, place
from tests.mutants.run import MUTANTS, gone, main
from tests.support.repository import ROOT

SOURCE = """\
class Log:
    def cut(self, offset: int) -> None:
        if offset < self.start:
            return
        self.files.append(
            offset,
            self.path,
        )
        self.sync()


def cut(offset: int) -> None:
    sync()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "src" / "tidelog"
    folder.mkdir(parents=True)
    (folder / "log.py").write_text(SOURCE)
    return tmp_path


def mutant(where: str, old: str, new: str) -> Mutant:
    return Mutant("m", where, old, new, "tests/tidy")


def test_every_mutant_has_a_name_of_its_own_and_tests_that_exist() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    for each in MUTANTS:
        assert each.old != each.new, each.name
        for test in each.tests.split():
            assert (ROOT / test.partition("::")[0]).exists(), f"{each.name}: {test}"


def test_words_that_name_no_mutant_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """pytest without a file would run the whole suite."""
    with pytest.raises(SystemExit):
        main(["--only", "no-such-mutant"])
    assert "no mutant has any of these words" in capsys.readouterr().err


def test_nearly_all_mutants_apply() -> None:
    """`make mutants` and `make check` name those that do not; here a broken search is found."""
    assert len(gone(ROOT, MUTANTS)) < len(MUTANTS) / 10


@pytest.mark.parametrize(
    ("where", "old", "new", "mutated"),
    [
        ("src/tidelog/log.py::Log.cut", "        self.sync()\n", "", ("        self.sync()\n", "")),
        ("src/tidelog/log.py::cut", "sync()", "pass", ("    sync()", "    pass")),
        # The statement had another layout and another depth.
        (
            "src/tidelog/log.py::Log.cut",
            "    self.files.append(offset, self.path)\n",
            "    self.forget()\n    self.files.clear()\n",
            (
                "        self.files.append(\n            offset,\n            self.path,\n"
                "        )\n",
                "        self.forget()\n        self.files.clear()\n",
            ),
        ),
        ("src/tidelog/log.py::Log.cut", "offset < self.start", "False", None),
        # The function moved to this file.
        ("src/tidelog/other.py::Log.cut", "offset < self.start", "False", None),
        ("src/tidelog/log.py", "def cut(offset: int)", "def kept(offset: int)", None),
    ],
)
def test_a_statement_is_found_and_replaced(
    root: Path, where: str, old: str, new: str, mutated: tuple[str, str] | None
) -> None:
    path, text = broken(root, mutant(where, old, new))
    assert path == root / "src" / "tidelog" / "log.py"
    before, after = mutated or (old, new)
    assert text == SOURCE.replace(before, after)


@pytest.mark.parametrize(
    ("where", "old", "why"),
    [
        ("src/tidelog/log.py::Log.cut", "self.flush()", "its statement stands 0 times"),
        ("src/tidelog/log.py::Log.cut", "offset", "its statement stands 3 times"),
        # A word is no part of a longer one.
        ("src/tidelog/log.py::Log.cut", "elf.sync()", "its statement stands 0 times"),
        ("src/tidelog/log.py::Log.keep", "self.sync()", "Log.keep stands 0 times"),
        ("src/tidelog/no.py", "self.sync()", "no.py stands 0 times"),
    ],
)
def test_a_mutant_whose_statement_is_gone_is_said(
    root: Path, where: str, old: str, why: str
) -> None:
    found = place(root, mutant(where, old, ""))
    assert isinstance(found, str) and why in found
    assert broken(root, mutant(where, old, "")) == found
    assert gone(root, [mutant(where, old, "")]) == [f"m: {found}"]
