"""The demo as `make demo` runs it, but for the tidelog that it finds: that of the wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import BIN, ROOT, environment, lend, run

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long(35)]

FLIGHTS = 20_000
DEMO_S = 300


def test_the_demo_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Three brokers, one of them killed, the flights archived while their topic grows and shrinks;
    answers, and the audit."""
    run(BIN / "uv", "venv", "-q", "--python", sys.executable, tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(BIN / "uv", "pip", "install", "-q", "--no-deps", "--python", python, wheel)
    lend(python)
    out = tmp_path / "out"
    done = subprocess.run(
        [python, "-m", "examples.flights.demo", "--flights", str(FLIGHTS), "--out", out],
        capture_output=True, text=True, timeout=DEMO_S, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    steps = (
        "starting 3 brokers: tidelog up --brokers 3 --restart", "kill -9: broker ", " instead, ",
        "4 to 8 partitions: 4-7 take keys of 0-3", "8 to 16 partitions: 8-15 take keys of 0-7",
        "16 to 5 partitions: 5-15 retire, their keys go back to 0-4",
        f"published {FLIGHTS:,} flights to 4, 8, 16 and 5 partitions", "longest time without one",
        f"archived {FLIGHTS:,} records once each", "every replica is in sync again", "done",
        "Busiest aircraft", "Longest idle aircraft", "Worst delays by carrier",
    )  # fmt: skip
    assert [step for step in steps if step not in done.stdout] == [], done.stdout
    assert re.search(r"^RIGHT: ", done.stdout, re.MULTILINE), done.stdout
    report = json.loads((out / "report.json").read_text())
    assert report["right"] and report["records"] == FLIGHTS
    page = (out / "report.html").read_text()
    assert "Busiest aircraft" in page
    assert page.count('<svg class="wide"') == page.count('<svg class="narrow"') == 4
    assert re.search(r">broker \d killed<", page) and "4 to 8<" in page
    # Each partition that the topic has ever had is in the lake, and its records carry their epoch.
    assert [int(each["partition"]) for each in report["partitions"]] == list(range(16))
    lanes = [line for line in done.stdout.splitlines() if " of " in line and "░" in line]
    assert len(lanes) == 11, "the partitions that have retired, with their parents"
