"""Commands that wait for a process or for a group say so, on one real broker and a controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import TidelogCluster
from tests.support.processes import SIGCONT, SIGSTOP
from tests.support.server import run_tidelog
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long(20),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

LONG_JOIN_MS = 20_000


def test_what_a_producer_without_an_id_and_a_group_that_joins_wait_for(tmp_path: Path) -> None:
    config = {"group.initial.rebalance.delay.ms": LONG_JOIN_MS}
    with TidelogCluster(tmp_path, brokers=1, config=config) as cluster:
        cluster.create_topic("t", 1, replication=1)
        to_topic = ("--bootstrap-server", cluster.bootstrap, "--topic", "t")
        cluster.controller.program.send(SIGSTOP)
        try:
            limit = ("--producer-property", "delivery.timeout.ms=4000")
            waited = run_tidelog("produce", *to_topic, *limit, stdin="a")
        finally:
            cluster.controller.program.send(SIGCONT)
        assert waited.returncode == 1
        first, *others = waited.stderr.splitlines()
        assert first.startswith(
            "waiting for a producer id, which a broker gets from the controller"
        )
        assert "at most 4 s" in first
        assert len(others) == 1, waited
        assert run_tidelog("produce", *to_topic, stdin="a").returncode == 0
        group = ("--group", "g", "--from-beginning", "--timeout-ms", "500")
        said = run_tidelog("consume", *to_topic, *group)
        assert (said.returncode, said.stdout) == (0, "")
        assert "no partition was assigned within --timeout-ms 500" in said.stderr
