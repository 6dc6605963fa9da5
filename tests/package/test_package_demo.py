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
    """Three brokers, one of them killed, the flights archived meanwhile, answers, and the audit."""
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
        f"archived {FLIGHTS:,} records once each", "every replica is in sync again", "done",
        "Busiest aircraft", "Longest idle aircraft", "Worst delays by carrier",
    )  # fmt: skip
    assert [step for step in steps if step not in done.stdout] == [], done.stdout
    assert re.search(r"^RIGHT: ", done.stdout, re.MULTILINE), done.stdout
    report = json.loads((out / "report.json").read_text())
    assert report["right"] and report["records"] == FLIGHTS
    page = (out / "report.html").read_text()
    assert "Busiest aircraft" in page and page.count("<svg") == 3
