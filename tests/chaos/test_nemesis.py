"""Real processes, real sockets, real disks: harmed at random, and nothing acknowledged is lost.

Everything at once; in `make chaos` also with two controllers on a ZooKeeper. What a run is says
`harm.py`; `test_nemesis_parts.py` has the runs of processes and links alone, in a file of their own
so that they can run beside this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.harm import LONG, harm
from tests.chaos.schedule import DISKS, EVERYTHING
from tests.support.target import TARGET
from tests.support.zookeeper import ZooKeeper, needed

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(50),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]


def test_harmed_at_random(tmp_path: Path) -> None:
    harm(tmp_path, "everything", EVERYTHING + DISKS)


@pytest.mark.java
@pytest.mark.skipif(not LONG, reason="for `make chaos`")
def test_two_controllers_harmed_at_random(tmp_path: Path) -> None:
    needed()
    with ZooKeeper(tmp_path) as zookeeper:
        harm(tmp_path, "two controllers", EVERYTHING, zookeeper)
