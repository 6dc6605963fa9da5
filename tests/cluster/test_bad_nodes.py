"""Nodes that must not join are refused with a line, and the rightful ones go on.

One broker and one controller as real processes; every test leaves both running.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.server import TidelogNode, run_tidelog
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

SESSION_MS = 2000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    folder = tmp_path_factory.mktemp("nodes")
    with TidelogCluster(folder, 1, {"broker.session.timeout.ms": SESSION_MS}) as started:
        started.create_topic("t", 1, 1)
        yield started


def like(cluster: TidelogCluster, folder: Path, **config: object) -> TidelogNode:
    """A node with the first broker's configuration, but its own folder and port."""
    node = TidelogNode(folder)
    first = cluster.brokers[1].config
    own = ("listeners", "advertised.listeners", "log.dirs", "metrics_port")
    node.configure({name: value for name, value in first.items() if name not in own})
    node.configure(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{node.port}",
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )
    return node


def serves(cluster: TidelogCluster, value: str) -> None:
    """The first broker takes a record and gives it back."""
    clients.write_confluent(cluster.bootstrap, "t", [Record(None, value)], "none")


def condition(cluster: TidelogCluster) -> dict[str, object]:
    """What the controller says of broker 1."""
    asked = run_tidelog("doctor", "--json", "--bootstrap-server", cluster.bootstrap)
    found: dict[str, object] = json.loads(asked.stdout)["condition"]["brokers"]["1"]
    return found


def test_a_node_id_that_is_taken_is_refused_until_the_first_is_dead(
    cluster: TidelogCluster, tmp_path: Path
) -> None:
    first, second = cluster.brokers[1], like(cluster, tmp_path)
    before = condition(cluster)
    refused = "refused the registration of broker 1: DUPLICATE_BROKER_REGISTRATION"
    try:
        second.launch()
        wait_until(
            lambda: refused in second.program.output(), DEADLINE_S, lambda: second.said(refused)
        )
        serves(cluster, "the first one serves on")
        assert condition(cluster) == before
        first.kill()
        second.until_ready()
        assert "registered with" in second.program.output()
        second.kill()
    finally:
        second.__exit__()
    # It is refused in its turn until the session of the second one has timed out.
    first.start()
    serves(cluster, "and again")


def test_a_directory_of_another_cluster_is_refused(cluster: TidelogCluster, tmp_path: Path) -> None:
    other = like(cluster, tmp_path, node_id=2)
    data = other.log_folder()
    data.mkdir(parents=True)
    meta = (cluster.brokers[1].log_folder() / "meta.properties").read_text()
    lines = [line for line in meta.splitlines() if not line.startswith(("cluster.id", "node.id"))]
    text = "\n".join([*lines, "cluster.id=AAAAAAAAAAAAAAAAAAAAAA", "node.id=2", ""])
    (data / "meta.properties").write_text(text)
    done = subprocess.run(other.command(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "cluster" in done.stderr.splitlines()[-1]
    serves(cluster, "the cluster serves on")


def test_a_second_controller_on_the_sqlite_file_is_refused(
    cluster: TidelogCluster, tmp_path: Path
) -> None:
    store = cluster.controller.config["metadata.store"]
    second = type(cluster.controller)(tmp_path, {"metadata.store": store})
    done = subprocess.run(second.command(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: Another controller has ") and "stop the other one" in line
    serves(cluster, "the first controller goes on")


def test_a_stopped_broker_dies_and_registers_again_when_it_wakes(cluster: TidelogCluster) -> None:
    first = cluster.brokers[1]
    epoch = int(str(condition(cluster)["epoch"]))
    first.program.send(SIGSTOP)
    said = "broker 1 is dead"
    before = cluster.controller.program.output().count(said)
    wait_until(
        lambda: cluster.controller.program.output().count(said) > before,
        DEADLINE_S,
        lambda: cluster.said(said),
    )
    first.program.send(SIGCONT)
    wait_until(lambda: int(str(condition(cluster)["epoch"])) > epoch, DEADLINE_S, "a new life", 0.5)
    serves(cluster, "as before")


def test_a_broker_bounced_faster_than_its_session_is_a_new_life(cluster: TidelogCluster) -> None:
    first = cluster.brokers[1]
    epoch = int(str(condition(cluster)["epoch"]))
    first.kill()
    first.start()
    assert int(str(condition(cluster)["epoch"])) > epoch
    serves(cluster, "led in a new epoch")
