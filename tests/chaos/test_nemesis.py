"""Real processes, sockets and disks under random faults: no acknowledged record is lost.

All kinds of faults at once; in `make chaos` also with two controllers on ZooKeeper. `fault_run.py`
owns the run. `test_nemesis_parts.py` has the runs with faults of processes and links alone: another
file, so that both can run at the same time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fault_run import LONG, run_faults
from tests.chaos.schedule import DISKS, EVERYTHING
from tests.support.target import TARGET
from tests.support.zookeeper import ZooKeeper, needed

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(50),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]


def test_harmed_at_random(tmp_path: Path) -> None:
    run_faults(tmp_path, "everything", EVERYTHING + DISKS)


@pytest.mark.java
@pytest.mark.skipif(not LONG, reason="for `make chaos`")
def test_two_controllers_harmed_at_random(tmp_path: Path) -> None:
    needed()
    with ZooKeeper(tmp_path) as zookeeper:
        run_faults(tmp_path, "two controllers", EVERYTHING, zookeeper)
