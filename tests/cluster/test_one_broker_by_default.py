"""One broker whose file leaves everything to the defaults: what groups and transactions lack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.server import TidelogNode, run_tidelog
from tests.support.target import TARGET
from tidelog.cli.findings import TRANSACTIONS_REPLICAS

pytestmark = pytest.mark.skipif(TARGET != "tidelog", reason="tidelog's own command and log")


def test_groups_that_are_impossible_are_named_by_the_doctor_the_log_and_the_command(
    tmp_path: Path,
) -> None:
    """The doctor found nothing wrong, and a group waited for ever."""
    properties = tmp_path / "client.properties"
    properties.write_text("default.api.timeout.ms=1500\n")
    with TidelogNode(
        tmp_path / "node", {"offsets.topic.replication.factor": None, TRANSACTIONS_REPLICAS: None}
    ) as node:
        to_it = ("--bootstrap-server", node.bootstrap)
        describe = ("groups", *to_it, "--describe", "--group", "g")
        described = run_tidelog(*describe, "--command-config", str(properties))
        page = run_tidelog("doctor", *to_it, "--json")
        log = node.log.read_text()
    reason = "A replication factor of 3 needs as many brokers; 1 are there."
    advice = "offsets.topic.replication.factor"
    assert described.returncode == 1
    assert reason in described.stderr and advice in described.stderr
    assert page.returncode == 0, "clients that use no groups are served"
    found = json.loads(page.stdout)["findings"]
    (note,) = (one for one in found if one["kind"] == "groups_impossible")
    assert (note["level"], note["brokers"]) == ("notice", [1])
    assert f"{advice} is 3 on broker 1" in note["what"] and f"{advice}=1" in note["advice"]
    (note,) = (one for one in found if one["kind"] == "transactions_impossible")
    assert f"{TRANSACTIONS_REPLICAS} is 3 on broker 1" in note["what"]
    assert f"{TRANSACTIONS_REPLICAS}=1" in note["advice"]
    (line,) = (line for line in log.splitlines() if "__consumer_offsets" in line)
    assert reason in line and advice in line
