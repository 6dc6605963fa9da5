"""Each module says what it owns in its first line; `make docs` lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import maps


@pytest.mark.parametrize("page", maps.LISTED)
def test_every_module_has_a_first_line(page: str) -> None:
    modules = [
        module
        for root in maps.roots(page)
        for folder in maps.folders_of(root)
        for module in maps.modules_of(folder)
    ]
    assert modules
    assert [module for module in modules if not maps.first_line(module)] == []
    text = maps.written(page)
    assert [module for module in modules if f"| `{module.name}` |" not in text] == []


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
