"""What a long run of resizes remembers, and the table that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation import soak_resizes
from tests.simulation.soak_resizes import BEGIN, END, Ran

GOOD = Ran("resizes", 1, "abc", 8.0, {"growths": 3, "elastic acked": 1_200, "struck cut": 2}, [])
BAD = Ran("resizes", 2, "abc", 8.0, {"growths": 1}, ["unhandled: x", "order_of_keys: C9 k1: lost"])
MENDED = Ran("resizes", 2, "def", 8.0, {"growths": 2}, [])


def test_the_verdict_has_a_row_for_each_commit_and_each_seed_once() -> None:
    lines = soak_resizes.verdict([GOOD, BAD, MENDED]).splitlines()
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines if "|" in line}
    head = [name.strip() for name in rows[""]]

    def row(name: str) -> dict[str, str]:
        return dict(zip(head, map(str.strip, rows[name]), strict=True))

    at_first = row("`resizes` at abc")
    assert (at_first["histories"], at_first["growths"], at_first["with findings"]) == (
        "2",
        "4",
        "1",
    )
    assert at_first["acknowledged records"] == "1,200"
    assert at_first["cuts"] == "2"
    every = row("all, each seed once")
    assert (every["histories"], every["growths"], every["with findings"]) == ("2", "5", "0")
    assert "Findings in the newest run of each seed: none." in lines
    assert lines[-1] == "- `resizes` seed 2 at abc: C9; good at def"


def test_a_seed_with_findings_stays_open() -> None:
    said = soak_resizes.verdict([GOOD, BAD])
    assert "C9: 1, the run failed: 1" in said
    assert said.endswith("at abc: C9; **open**\n")


def test_the_page_keeps_what_is_around_the_table(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "ran.jsonl"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    file.write_text(json.dumps(GOOD._asdict()) + "\n")
    soak_resizes.write_page(file, page)
    first = page.read_text()
    soak_resizes.write_page(file, page)
    assert page.read_text() == first
    assert first.startswith("before\n") and first.endswith("after\n")
    assert "old" not in first and "`resizes` at abc" in first


@pytest.mark.parametrize(
    ("ran", "commit", "is_open"),
    [(None, "abc", True), (GOOD, "def", False), (BAD, "abc", False), (BAD, "def", True)],
)
def test_which_seeds_run(ran: Ran | None, commit: str, is_open: bool) -> None:
    assert soak_resizes._is_open(ran, commit) is is_open
