"""Random faults of processes and of links: see `test_nemesis.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fault_run import run_faults
from tests.chaos.schedule import LINKS, PROCESSES, Kind
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(90),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

RUNS = {"processes": PROCESSES, "links": LINKS}


@pytest.mark.parametrize("run", RUNS)
def test_harmed_at_random(tmp_path: Path, run: str) -> None:
    kinds: tuple[Kind, ...] = RUNS[run]
    run_faults(tmp_path, run, kinds)
