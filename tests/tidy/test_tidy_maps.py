"""The tables of modules in `docs/internals` are up to date, and list each module once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import maps

PAGES = sorted(maps.PAGES.glob("*.md"))
ROOTS = ("src/tidelog/*", "tests/simulation")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert maps.written(text) == text, f"run .venv/bin/{maps.COMMAND}"


def test_every_module_is_listed_once() -> None:
    count = Counter(module for page in PAGES for module in maps.listed(page.read_text()))
    modules = {
        module
        for root in ROOTS
        for package in maps.ROOT.glob(root)
        for folder in maps.folders_of(package)
        for module in maps.modules_of(folder)
    }
    assert sorted(modules - count.keys()) == [], "add a marker pair to a page in docs/internals"
    assert [module for module, times in count.items() if times > 1] == []


def test_every_module_has_a_first_line() -> None:
    listed = [module for page in PAGES for module in maps.listed(page.read_text())]
    assert [module for module in listed if not maps.first_line(module)] == []


@pytest.mark.parametrize(
    ("docstring", "line"),
    [
        ("One segment: a log file.\n\nMore.", "One segment: a log file"),
        (
            "A sentence that goes\nto a second line.\nAnother.",
            "A sentence that goes to a second line",
        ),
        ("``a | b``", "`a \\| b`"),
    ],
)
def test_a_first_line_ends_with_its_sentence(tmp_path: Path, docstring: str, line: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(f'"""{docstring}"""\n')
    assert maps.first_line(module) == line
