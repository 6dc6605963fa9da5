"""`tidelog topics --rebalance` and `--decommission` on four real brokers in two racks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog, tidelog_command
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long(100),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

RECORDS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    with TidelogCluster(tmp_path_factory.mktemp("balance"), brokers=4) as started:
        yield started


def topics(cluster: TidelogCluster, *words: str, status: int = 0) -> tuple[str, str]:
    done = run_tidelog("topics", *words, "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == status, done
    return done.stdout, done.stderr


def partitions(cluster: TidelogCluster) -> list[dict[str, Any]]:
    (shown,) = json.loads(topics(cluster, "--describe", "--topic", "t", "--json")[0])
    found: list[dict[str, Any]] = shown["partitions"]
    return found


def test_a_cluster_is_evened_out_and_a_broker_emptied(cluster: TidelogCluster) -> None:
    # Four partitions on two of four brokers, all led by one.
    topics(cluster, "--create", "--topic", "t", "--replica-assignment", ",".join(["1:2"] * 4))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce("t", b"v" * 1000, partition=number % 4)
    assert producer.flush(DEADLINE_S) == 0

    proposed = json.loads(topics(cluster, "--rebalance", "--json")[0])
    assert proposed["moved"] == 0 and proposed["copied_replicas"] == 4
    assert {row["after"]["replicas"] for row in proposed["brokers"]} == {2}
    assert {row["after"]["leaders"] for row in proposed["brokers"]} == {1}
    shown = topics(cluster, "--rebalance")[0]
    assert "Nothing was changed: add --execute to carry this out." in shown
    assert {tuple(item["replicas"]) for item in partitions(cluster)} == {(1, 2)}

    said = topics(cluster, "--rebalance", "--execute")[0]
    moved = len(proposed["plan"]["partitions"])
    assert said.splitlines()[-1] == f"Moved {moved} partitions."
    assert "as the --reassignment-json-file option during rollback" in said
    found = partitions(cluster)
    assert [item["replicas"] for item in found if item["replicas"] != [1, 2]] == [
        row["replicas"] for row in proposed["plan"]["partitions"]
    ]
    assert sorted(item["leader"] for item in found) == [1, 2, 3, 4], "preferred leaders lead"
    assert topics(cluster, "--rebalance", "--execute")[0] == (
        "The cluster is balanced: nothing to move.\n"
    )

    empties = ("--decommission", "3", "--exclude-brokers", "4")
    assert "Nothing was changed" in topics(cluster, *empties)[0]
    said = topics(cluster, *empties, "--execute")[0]
    assert said.splitlines()[-1] == "Broker 3 has no replica: it may be switched off."
    assert all(3 not in item["replicas"] + item["isr"] for item in partitions(cluster))
    again = topics(cluster, *empties, "--execute")[0]
    assert again.splitlines()[-1] == "Broker 3 has no replica: it may be switched off."
    stays_empty_until_it_is_opened(cluster)
    # Replication factor 2 and one broker left: it is not closed for that.
    refused = ("--decommission", "2", "--exclude-brokers", "3,4", "--execute")
    _, error = topics(cluster, *refused, status=1)
    assert "broker 2 cannot be emptied" in error and "brokers that may: 1" in error
    assert closed(cluster) == []
    _, error = topics(cluster, "--decommission", "9", status=1)
    assert "there is no broker 9" in error

    waits_for_a_dead_broker(cluster)


def closed(cluster: TidelogCluster) -> list[int]:
    """Return the brokers that the doctor reports as closed to new replicas."""
    done = run_tidelog("doctor", "--json", "--bootstrap-server", cluster.bootstrap)
    found = json.loads(done.stdout)["findings"]
    return [each for x in found if x["kind"] == "brokers_cordoned" for each in x["brokers"]]


def stays_empty_until_it_is_opened(cluster: TidelogCluster) -> None:
    """Broker 3 is closed: creation, growth, rebalance and plans give it nothing (KIP-1066)."""
    assert closed(cluster) == [3]
    # The cordon is in the store.
    cluster.controller.kill()
    cluster.controller.start()
    wait_until(lambda: closed(cluster) == [3], DEADLINE_S, "the controller is back", 0.2)
    topics(cluster, "--create", "--topic", "new", "--partitions", "8", "--replication-factor", "3")
    topics(cluster, "--alter", "--topic", "new", "--partitions", "12")
    (shown,) = json.loads(topics(cluster, "--describe", "--topic", "new", "--json")[0])
    assert len(shown["partitions"]) == 12
    assert all(set(item["replicas"]) == {1, 2, 4} for item in shown["partitions"])
    _, error = topics(
        cluster, "--create", "--topic", "wide", "--partitions", "1", "--replication-factor", "4",
        status=1,
    )  # fmt: skip
    assert "cordoned.log.dirs closes 3" in error and "INVALID_REPLICATION_FACTOR" in error
    _, error = topics(cluster, "--create", "--topic", "wide", "--replica-assignment", "3", status=1)
    assert "broker 3 gets no new replicas" in error
    proposed, notes = topics(cluster, "--rebalance", "--json")
    assert "brokers that get nothing, as cordoned.log.dirs closes them: 3" in notes
    rows = json.loads(proposed)["plan"]["partitions"]
    assert all(3 not in row["replicas"] for row in rows)
    plan = cluster.controller.folder / "closed.json"
    row = {"topic": "t", "partition": 0, "replicas": [3, 1]}
    plan.write_text(json.dumps({"partitions": [row]}))
    move = ("reassign-partitions", "--execute", "--reassignment-json-file", str(plan))
    done = run_tidelog(*move, "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == 1 and "gives t-0 to broker 3, which gets no new" in done.stderr
    topics(cluster, "--delete", "--topic", "new")

    said = topics(cluster, "--decommission", "3", "--undo")[0]
    assert said == "Broker 3 is open to new replicas.\n"
    assert closed(cluster) == []


def test_a_rebalance_whose_tool_dies_ends_as_one_that_lives(cluster: TidelogCluster) -> None:
    """The moves that run go on by themselves, and the plan of another run is the rest."""
    at = ("--bootstrap-server", cluster.bootstrap)
    if cluster.brokers[4].program.exit_status() is not None:
        cluster.brokers[4].start()
    topics(cluster, "--decommission", "4", "--undo")
    topics(cluster, "--create", "--topic", "u", "--replica-assignment", ",".join(["1:2"] * 4))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS * 4):
        producer.produce("u", b"v" * 1000, partition=number % 4)
    assert producer.flush(DEADLINE_S) == 0
    proposed = json.loads(topics(cluster, "--rebalance", "--json")[0])
    slow = ("configs", "--alter", "--broker-defaults", *at)
    assert run_tidelog(*slow, "--add-config", "reassignment.throttled.rate=50000").returncode == 0

    command = tidelog_command("topics", "--rebalance", "--execute", *at)
    tool = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: moving(cluster) > 0, DEADLINE_S, "partitions move", 0.2)
    tool.kill()
    tool.wait(DEADLINE_S)
    assert moving(cluster) > 0, "they move without the tool"
    # Broker 1 still leads what moves: a plan to empty it must not call it empty.
    shown = topics(cluster, "--decommission", "1", "--json")[0]
    assert json.loads(shown)["empty"] is False
    assert run_tidelog(*slow, "--delete-config", "reassignment.throttled.rate").returncode == 0
    wait_until(lambda: moving(cluster) == 0, DEADLINE_S, "the moves are done", 0.2)

    topics(cluster, "--rebalance", "--execute")
    rest = json.loads(topics(cluster, "--rebalance", "--json")[0])
    assert rest["plan"]["partitions"] == [], "balanced"
    assert [row["before"]["replicas"] for row in rest["brokers"]] == [
        row["after"]["replicas"] for row in proposed["brokers"]
    ]
    assert [row["before"]["leaders"] for row in rest["brokers"]] == [
        row["after"]["leaders"] for row in proposed["brokers"]
    ]


def moving(cluster: TidelogCluster) -> int:
    done = run_tidelog("reassign-partitions", "--list", "--bootstrap-server", cluster.bootstrap)
    return len(json.loads(done.stdout).get("partitions", []))


def waits_for_a_dead_broker(cluster: TidelogCluster) -> None:
    """A description shows the targets, the replicas before, and how far the copy is."""
    assert all(item["target_replicas"] is None for item in partitions(cluster))
    target = next(item for item in partitions(cluster) if 4 not in item["replicas"])
    where, before = target["partition"], target["replicas"]
    cluster.brokers[4].kill()
    plan = cluster.controller.folder / "plan.json"
    replicas = [4, before[0]]
    row = {"topic": "t", "partition": where, "replicas": replicas}
    plan.write_text(json.dumps({"partitions": [row]}))
    move = ("reassign-partitions", "--reassignment-json-file", str(plan))
    at = ("--bootstrap-server", cluster.bootstrap)
    assert run_tidelog(*move, "--execute", *at).returncode == 0
    shown = partitions(cluster)[where]
    assert shown["target_replicas"] == replicas
    assert shown["original_replicas"] == before
    assert shown["copied_share"] == 0.0
    table = topics(cluster, "--describe", "--topic", "t")[0].splitlines()
    assert table[1].split()[-3:] == ["TargetReplicas", "OriginalReplicas", "Copied"]
    assert table[2 + where].split()[-3:] == [
        "4," + str(before[0]),
        ",".join(map(str, before)),
        "0%",
    ]
    cluster.brokers[4].start()
    wait_until(
        lambda: partitions(cluster)[where]["replicas"] == replicas, DEADLINE_S, "it moved", 0.2
    )
    assert partitions(cluster)[where]["target_replicas"] is None
    # A broker that never returns is emptied, too: the other replicas are in sync.
    cluster.brokers[4].kill()
    # Its partitions could not finish a move to anywhere: a rebalance leaves them, and ends.
    kept = "with a replica on a dead broker stay as they are"
    wait_until(
        lambda: kept in topics(cluster, "--rebalance")[1], DEADLINE_S, "broker 4 is dead", 0.2
    )
    _, notes = topics(cluster, "--rebalance", "--execute")
    assert kept in notes and f"t-{where}" in notes
    assert moving(cluster) == 0
    said = topics(cluster, "--decommission", "4", "--execute")[0]
    assert said.splitlines()[-1] == "Broker 4 has no replica: it may be switched off."
    assert all(4 not in item["replicas"] + item["isr"] for item in partitions(cluster))
    assert all(len(item["isr"]) == 2 for item in partitions(cluster))
