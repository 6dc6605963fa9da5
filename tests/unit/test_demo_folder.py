"""The demo's folder: nothing deletes what it did not make."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from examples.flights import demo

from tests.support.repository import ROOT

REMOVES_TREES = {
    "examples/flights/demo.py": "a folder with its own mark, see below",
    "src/tidelog/runtime/disk.py": "replicas that the storage pages name",
    "src/tidelog/testing/host.py": "a folder that it made by mkdtemp",
}


def test_the_folder_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    demo.prepare(out)
    (out / "lake").mkdir()
    demo.prepare(out)
    assert [each.name for each in out.iterdir()] == [demo.MADE_BY_US]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    demo.prepare(tmp_path)
    assert (tmp_path / demo.MADE_BY_US).is_file()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_the_demo_did_not_make_stays(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "home"
    kept = out if kind == "file" else out / "thesis.txt"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("ten years of work")
    assert demo.main(["--out", str(out)]) == 2
    assert kept.read_text() == "ten years of work"
    assert f"{out} exists and the demo did not make it" in capsys.readouterr().err


def test_no_other_module_removes_trees() -> None:
    """The kind: each place that removes a whole tree is known, with its reason."""
    found = set()
    for folder in ("src", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            if any(ast.unparse(call.func).endswith("rmtree") for call in calls):
                found.add(str(path.relative_to(ROOT)))
    assert found == set(REMOVES_TREES)
