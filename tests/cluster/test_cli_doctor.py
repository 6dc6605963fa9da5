"""The doctor's page, its comparison of replicas and elections on request, on three real brokers.

One cluster for all tests; each leaves all brokers running and in sync.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tidelog import __version__
from tidelog.model.levels import LATEST
from tidelog.records.batch import HEADER_SIZE, read_header, seal_batch, walk

pytestmark = [
    pytest.mark.long(50),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

RECORDS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    folder = tmp_path_factory.mktemp("doctor")
    with TidelogCluster(folder, config={"broker.session.timeout.ms": 3000}) as started:
        started.create_topic("t", 2, min_insync_replicas=2)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": started.bootstrap, "batch.num.messages": 20, "acks": "all"}
        )
        for number in range(RECORDS):
            producer.produce("t", b"value %d" % number, partition=number % 2)
        assert producer.flush(DEADLINE_S) == 0
        yield started


def asked(cluster: TidelogCluster, *words: str) -> tuple[int, Any]:
    """Exit status and JSON of a command."""
    command, *rest = words
    done = run_tidelog(command, *rest, "--bootstrap-server", cluster.bootstrap, "--json")
    assert done.stdout, done
    return done.returncode, json.loads(done.stdout)


def kinds(cluster: TidelogCluster, level: str = "bad") -> set[str]:
    _, page = asked(cluster, "doctor")
    return {each["kind"] for each in page["findings"] if each["level"] == level}


def test_a_healthy_cluster_has_a_page_and_status_0(cluster: TidelogCluster) -> None:
    done = run_tidelog("doctor", "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == 0, done
    assert "BAD" not in done.stdout
    assert "2 partitions of 1 topic: all lead, all in sync" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[2:5]]
    shown = ["-", "alive", __version__, LATEST.name]
    assert [(row[0], row[2:6]) for row in rows] == [(n, shown) for n in "123"]
    for node in cluster.brokers.values():
        done = run_tidelog("doctor", "--bootstrap-server", node.bootstrap, "--json")
        page = json.loads(done.stdout)
        assert page["condition"]["counts"]["brokers"] == 3, "any broker tells"
        assert page["condition"]["version"] == __version__
        assert len(page["topics"]["t"]) == 22


def test_a_dead_broker_and_the_partitions_it_led(cluster: TidelogCluster) -> None:
    victim = cluster.brokers[3]
    victim.kill()
    wait_until(lambda: "brokers_dead" in kinds(cluster), DEADLINE_S, "it is found dead", 0.1)
    status, page = asked(cluster, "doctor")
    assert status == 1 and not page["healthy"]
    found = {each["kind"]: each for each in page["findings"]}
    assert "broker 3" in found["brokers_dead"]["what"]
    assert found["brokers_dead"]["brokers"] == [3]
    assert found["under_replicated"]["partitions"] == ["t-0", "t-1"]
    assert "2 partitions under-replicated" in found["under_replicated"]["what"]
    assert "Start broker 3" in found["under_replicated"]["advice"]
    (row,) = (each for each in page["brokers"] if each["broker"] == 3)
    assert (row["condition"], row["address"]) == ("dead", None)
    for flag, expected in (
        ("--under-replicated-partitions", [0, 1]),
        ("--at-min-isr-partitions", [0, 1]),
        ("--under-min-isr-partitions", []),
        ("--unavailable-partitions", []),
    ):
        _, shown = asked(cluster, "topics", "--describe", flag)
        assert [p["partition"] for topic in shown for p in topic["partitions"]] == expected, flag
    below_the_minimum(cluster)
    victim.start()
    cluster.until_in_sync("t", 3)
    assert asked(cluster, "doctor")[0] == 0


def below_the_minimum(cluster: TidelogCluster) -> None:
    """Require all three replicas while one is down: the refused writes and the doctor's report."""
    at = ("--bootstrap-server", cluster.bootstrap)
    change = ("configs", "--alter", "--topic", "t", *at)
    assert run_tidelog(*change, "--add-config", "min.insync.replicas=3").returncode == 0
    assert {"below_min_insync", "brokers_dead"} <= kinds(cluster)
    for patience_ms in (1000, 4000, 16_000, 64_000):
        impatient = ("--producer-property", f"delivery.timeout.ms={patience_ms}")
        done = run_tidelog("produce", *at, "--topic", "t", *impatient, stdin="refused\n")
        assert done.returncode == 1
        # A busy machine may take longer than that to ask the leader for the first time.
        if "NOT_ENOUGH_REPLICAS" in done.stderr:
            break
    for words in (f"not delivered within {patience_ms} ms", "NOT_ENOUGH_", "start the missing"):
        assert words in done.stderr, done
    assert run_tidelog(*change, "--add-config", "min.insync.replicas=2").returncode == 0


def test_a_silent_controller_is_said_within_seconds(cluster: TidelogCluster) -> None:
    cluster.controller.program.send(SIGSTOP)
    try:
        status, page = asked(cluster, "doctor")
    finally:
        cluster.controller.program.send(SIGCONT)
    assert status == 1
    assert "controller_silent" in {each["kind"] for each in page["findings"]}
    wait_until(lambda: not kinds(cluster), DEADLINE_S, "all is well again", 0.1)
    cluster.until_in_sync("t", 3)


def test_leadership_goes_back_to_the_preferred_replica(cluster: TidelogCluster) -> None:
    preferred = cluster.partitions("t")[0].replicas[0]
    cluster.brokers[preferred].restart()
    cluster.until_in_sync("t", 3)
    assert cluster.leader("t") != preferred
    elect = ("elect-leaders", "--election-type", "preferred")
    status, found = asked(cluster, *elect, "--topic", "t", "--partition", "0")
    assert (status, found["elected"]) == (0, [{"topic": "t", "partition": 0}])
    wait_until(lambda: cluster.leader("t") == preferred, DEADLINE_S, "it leads")
    status, found = asked(cluster, *elect, "--topic", "t", "--partition", "0")
    assert (status, found["not_needed"]) == (0, [{"topic": "t", "partition": 0}])
    asked(cluster, *elect, "--all-topic-partitions")
    status, found = asked(cluster, *elect, "--all-topic-partitions")
    assert (status, found["elected"]) == (0, [])
    missing = run_tidelog(
        *elect, "--topic", "no", "--partition", "0", "--bootstrap-server", cluster.bootstrap
    )
    assert missing.returncode == 1 and "no-0" in missing.stderr
    wrong = run_tidelog(*elect, "--topic", "t", "--bootstrap-server", cluster.bootstrap)
    assert wrong.returncode == 2 and "--partition" in wrong.stderr


def change_one_record(folder: Path) -> int:
    """Flip a bit of a value in a log's third batch, under a CRC that fits; its record's offset."""
    (segment,) = folder.glob("*.log")
    log = bytearray(segment.read_bytes())
    position, _ = list(walk(log))[2]
    header = read_header(log, position)
    batch = log[position : position + header.size]
    at = batch.rindex(b"value ")
    batch[at] ^= 1
    log[position : position + header.size] = seal_batch(header, batch[HEADER_SIZE:])
    segment.write_bytes(log)
    return header.last_offset


def test_the_replica_that_is_not_the_same_is_found(cluster: TidelogCluster) -> None:
    status, found = asked(cluster, "doctor", "replicas")
    assert status == 0, found
    assert [each["verdict"] for each in found] == ["same", "same"]
    assert [each["compared_to"] for each in found] == [RECORDS // 2] * 2
    assert [each["replicas"] for each in found] == [
        list(each.replicas) for _, each in sorted(cluster.partitions("t").items())
    ]
    follower = next(n for n in cluster.brokers if n != cluster.leader("t", 1))
    victim = cluster.brokers[follower]
    victim.stop()
    offset = change_one_record(victim.log_folder() / "t-1")
    victim.start()
    cluster.until_in_sync("t", 3)
    status, found = asked(cluster, "doctor", "replicas", "--topic", "t")
    assert status == 1
    assert [each["verdict"] for each in found] == ["same", "different"]
    difference = found[1]["difference"]
    assert difference["offset"] == offset
    held = difference["held"]
    assert len(held) == 3 and all("CRC right" in words for words in held.values())
    alone = [n for n, words in held.items() if list(held.values()).count(words) == 1]
    assert alone == [str(follower)]
    done = run_tidelog("doctor", "replicas", "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == 1
    assert f"t-1: the replicas differ from offset {offset} on" in done.stdout
    assert done.stdout.endswith("1 differ\n")
    # What the doctor advises: move the replica that differs away; it is fetched again.
    victim.stop()
    (victim.log_folder() / "t-1").rename(victim.folder / "moved-away")
    victim.start()
    cluster.until_in_sync("t", 3)
    status, found = asked(cluster, "doctor", "replicas", "--topic", "t")
    assert (status, [each["verdict"] for each in found]) == (0, ["same", "same"])
