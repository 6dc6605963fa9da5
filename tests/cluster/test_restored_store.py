"""A SQLite store restored from yesterday's backup, with real processes ("Known traps").

Nothing is deleted and no broker is commanded until an operator accepts it; then everything that the
replicas hold is served again, but for what the operator named to be given up.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.resizes import resize
from tests.support.server import run_tidelog
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long(40),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {"broker.session.timeout.ms": 3000, "stale.partition.delete.delay.ms": 600_000}
    with TidelogCluster(tmp_path, brokers=2, config=config) as started:
        yield started


def write(cluster: TidelogCluster, topic: str, first: int, count: int) -> list[str]:
    """Write numbered records, acknowledged by all; return their values."""
    values = [f"{topic}-{number}" for number in range(first, first + count)]
    records = [Record(None, value) for value in values]
    clients.write_confluent(cluster.bootstrap, topic, records, "none")
    return values


def write_to_all(
    cluster: TidelogCluster, topic: str, partitions: int, first: int, count: int
) -> list[str]:
    """Write numbered records to all partitions in turn; return their values."""
    values = [f"{topic}-{number}" for number in range(first, first + count)]
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % partitions,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0 and not failures, failures
    return values


def read_all(cluster: TidelogCluster, topic: str, partitions: int, count: int) -> list[str]:
    """The values of so many records, and of what follows them, of all partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)]
    consumer.assign(places)
    found: list[str] = []
    ended: set[int | None] = set()

    def has_everything() -> bool:
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found.append(str((message.value() or b"").decode()))
            else:
                ended.add(message.partition())
        return len(found) >= count and len(ended) == partitions

    wait_until(has_everything, DEADLINE_S, f"all records of {topic}")
    consumer.close()
    return sorted(found)


def read(cluster: TidelogCluster, topic: str, count: int) -> list[str]:
    """The values of so many records."""
    found = clients.read_confluent(cluster.bootstrap, topic, count)
    return sorted(str(record.value) for record in found)


def logs(cluster: TidelogCluster, broker: int, topic: str) -> list[Path]:
    """A broker's directories of a topic, renamed ones left out."""
    return list(cluster.brokers[broker].log_folder().glob(f"{topic}-?"))


def restored(cluster: TidelogCluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    """`tidelog doctor restored`: exit status and report ({} when it failed)."""
    found = run_tidelog(
        *("doctor", "restored", "--json", "--bootstrap-server", cluster.bootstrap),
        *("--cluster-secret-file", str(cluster.secret)),
        *arguments,
    )
    report = json.loads(found.stdout) if found.stdout.strip() else {"error": found.stderr}
    return found.returncode, report


def put_back(cluster: TidelogCluster, backup: Path, store: Path) -> None:
    """Put a backup in the store's place, or an empty store, under a dead controller; wait until the
    next one sees."""
    cluster.controller.kill()
    for ending in ("", "-wal", "-shm"):
        Path(f"{store}{ending}").unlink(missing_ok=True)
    if backup.exists():
        shutil.copy(backup, store)
    cluster.controller.start()

    def has_gone_back() -> bool:
        status, report = restored(cluster)
        return status == 1 and bool(report.get("went_back"))

    wait_until(has_gone_back, DEADLINE_S, lambda: cluster.said("the store has gone back"), 0.2)


def test_a_restored_backup_deletes_nothing_and_is_accepted(
    cluster: TidelogCluster, tmp_path: Path
) -> None:
    cluster.create_topic("kept", 2, 2)
    values = write(cluster, "kept", 0, 50)
    store = cluster.controller.folder / "metadata.db"
    backup = tmp_path / "backup.db"
    done = run_tidelog("doctor", "backup", str(backup), "--store", f"sqlite:{store}")
    assert done.returncode == 0, done.stderr
    status, report = restored(cluster)
    assert (status, report["went_back"]) == (0, None)

    cluster.create_topic("later", 1, 2)
    later = write(cluster, "later", 0, 20)
    # A new life of a leader: the leader epochs go on, and records are written in them.
    cluster.brokers[1].kill()
    cluster.brokers[1].start()
    cluster.until_in_sync("kept", 2)
    values += write(cluster, "kept", 50, 50)

    put_back(cluster, backup, store)
    # Leaders that run serve on; one that restarts waits.
    assert read(cluster, "later", 20) == sorted(later)
    cluster.brokers[2].kill()
    wait_until(
        lambda: restored(cluster)[1].get("brokers_missing") == [2], DEADLINE_S, "2 is missed", 0.2
    )
    status, report = restored(cluster, "--accept")
    assert status == 1 and "--without 2" in report["error"], report

    cluster.brokers[2].launch()
    wait_until(
        lambda: restored(cluster)[1].get("brokers_missing") == [],
        DEADLINE_S,
        lambda: cluster.said("all brokers have registered"),
        0.2,
    )
    for broker in (1, 2):
        assert logs(cluster, broker, "kept") and logs(cluster, broker, "later")
    _, report = restored(cluster)
    (unknown,) = report["unknown"]
    assert unknown["topic"] == "later"
    assert {(x["broker"], x["end_offset"]) for x in unknown["replicas"]} == {(1, 20), (2, 20)}
    status, report = restored(cluster, "--accept", "--drop-unknown", "later")
    assert (status, report.get("accepted")) == (0, True), report
    assert [given_up.split()[0] for given_up in report["given_up"]] == ["later-0"]
    cluster.brokers[2].until_ready()

    cluster.until_in_sync("kept", 2)
    assert read(cluster, "kept", 100) == sorted(values)
    values += write(cluster, "kept", 100, 20)
    assert read(cluster, "kept", 120) == sorted(values)
    status, report = restored(cluster)
    assert (status, report["went_back"]) == (0, None)
    # Its flag was shown and its handling is done or under way; an unknown replica is quarantined.
    wait_until(
        lambda: not logs(cluster, 1, "later"),
        DEADLINE_S,
        lambda: cluster.said("later is quarantined"),
    )
    strays = list(cluster.brokers[1].log_folder().glob("later-0.*-stray"))
    assert len(strays) == 1
    # A topic may take the name again, and everything goes on over a restart.
    cluster.create_topic("later", 1, 2)
    cluster.controller.restart()
    write(cluster, "later", 0, 5)
    assert len(read(cluster, "later", 5)) == 5


@pytest.mark.parametrize("is_lost", [True, False], ids=["a lost store", "a backup"])
def test_what_is_acknowledged_while_a_store_waits_is_kept(tmp_path: Path, *, is_lost: bool) -> None:
    """Broker 1 is as long as the others when it registers, and shorter when the store is accepted.

    Of equal replicas the one with the lowest id would lead.
    """
    config = {"broker.session.timeout.ms": 3000, "min.insync.replicas": 2}
    with TidelogCluster(tmp_path, brokers=3, config=config) as cluster:
        ask = ("--bootstrap-server", cluster.bootstrap)
        made = ("--create", "--topic", "kept", "--replica-assignment", "2:3:1,3:2:1")
        assert run_tidelog("topics", *ask, *made).returncode == 0
        values = write_to_all(cluster, "kept", 2, 0, 100)
        store, backup = cluster.controller.folder / "metadata.db", tmp_path / "backup.db"
        done = run_tidelog("doctor", "backup", str(backup), "--store", f"sqlite:{store}")
        assert done.returncode == 0, done.stderr
        cluster.brokers[1].kill()
        cluster.until_in_sync("kept", 2)
        values += write_to_all(cluster, "kept", 2, 100, 1)
        if is_lost:
            backup.unlink()
        put_back(cluster, backup, store)
        cluster.brokers[1].launch()
        wait_until(
            lambda: restored(cluster)[1].get("brokers_heard") == [1, 2, 3],
            DEADLINE_S,
            lambda: cluster.said("all brokers have registered"),
            0.2,
        )
        # Without a controller that commands, by the leaders and ISRs that brokers know.
        values += write_to_all(cluster, "kept", 2, 101, 100)
        status, report = restored(cluster, "--accept")
        assert (status, report.get("accepted")) == (0, True), report
        cluster.until_in_sync("kept", 3)
        values += write_to_all(cluster, "kept", 2, 201, 10)
        assert read_all(cluster, "kept", 2, len(values)) == sorted(values)


def test_what_is_younger_than_the_backup_comes_back_with_all_records(tmp_path: Path) -> None:
    """U1: partitions that were added, and a topic that was created, after the backup."""
    config = {"broker.session.timeout.ms": 3000, "stale.partition.delete.delay.ms": 1000}
    with TidelogCluster(tmp_path, brokers=3, config=config) as cluster:
        cluster.create_topic("grown", 4, 2)
        values = write_to_all(cluster, "grown", 4, 0, 100)
        store = cluster.controller.folder / "metadata.db"
        backup = tmp_path / "backup.db"
        done = run_tidelog("doctor", "backup", str(backup), "--store", f"sqlite:{store}")
        assert done.returncode == 0, done.stderr
        grow = ("--alter", "--topic", "grown", "--partitions", "8")
        grown = run_tidelog("topics", "--bootstrap-server", cluster.bootstrap, *grow)
        assert grown.returncode == 0, grown.stderr
        cluster.create_topic("later", 3, 2, **{"segment.bytes": 654_321})
        values += write_to_all(cluster, "grown", 8, 100, 1000)
        later = write_to_all(cluster, "later", 3, 0, 300)

        put_back(cluster, backup, store)
        wait_until(
            lambda: restored(cluster)[1].get("brokers_missing") == [],
            DEADLINE_S,
            lambda: cluster.said("all brokers have registered"),
            0.2,
        )
        _, report = restored(cluster)
        ends = {
            topic["topic"]: {x["partition"]: x["end_offset"] for x in topic["replicas"]}
            for topic in report["unknown"]
        }
        assert sorted(ends) == ["grown", "later"]
        assert sorted(ends["grown"]) == [4, 5, 6, 7] and sorted(ends["later"]) == [0, 1, 2]
        assert sum(ends["later"].values()) == len(later)
        assert all(ends["grown"].values()), "each of them got records"
        configs = {topic["topic"]: topic["configs"] for topic in report["unknown"]}
        assert configs == {"grown": {}, "later": {"segment.bytes": "654321"}}
        status, report = restored(cluster, "--accept")
        assert (status, report.get("accepted"), report["given_up"]) == (0, True, []), report

        cluster.until_in_sync("grown", 2)
        cluster.until_in_sync("later", 2)
        assert read_all(cluster, "grown", 8, len(values)) == sorted(values)
        assert read_all(cluster, "later", 3, len(later)) == sorted(later)
        # None of them was quarantined, and they serve on after a restart of the controller.
        for broker in (1, 2, 3):
            assert not list(cluster.brokers[broker].log_folder().glob("*-stray"))
        cluster.controller.restart()
        values += write_to_all(cluster, "grown", 8, 1100, 100)
        assert read_all(cluster, "grown", 8, len(values)) == sorted(values)


def test_what_resizes_made_after_the_backup_comes_back(tmp_path: Path) -> None:
    config = {
        "inter.broker.protocol.version": "1.5",
        "broker.session.timeout.ms": 3000,
        "stale.partition.delete.delay.ms": 600_000,
    }
    with TidelogCluster(tmp_path, brokers=2, config=config) as cluster:
        cluster.create_topic("t", 2, 2)
        values = write_to_all(cluster, "t", 2, 0, 20)
        store = cluster.controller.folder / "metadata.db"
        backup = tmp_path / "backup.db"
        done = run_tidelog("doctor", "backup", str(backup), "--store", f"sqlite:{store}")
        assert done.returncode == 0, done.stderr
        resize(cluster.bootstrap, "t", 4)
        values += write_to_all(cluster, "t", 4, 20, 40)
        resize(cluster.bootstrap, "t", 3)
        values += write_to_all(cluster, "t", 3, 60, 30)
        put_back(cluster, backup, store)
        _, report = restored(cluster)
        assert report["resized"] == [
            {
                "topic": "t",
                "count": 3,
                "resize_epoch": 2,
                "newest_resize_epoch": 2,
                "retired": [3],
                "lost": [],
            }
        ]
        status, _ = restored(cluster, "--accept")
        assert status == 0
        cluster.until_in_sync("t", 2)
        assert sorted(cluster.partitions("t")) == [0, 1, 2, 3]
        assert read_all(cluster, "t", 4, len(values)) == sorted(values)
        # The others take records, and the next resize passes.
        values += write_to_all(cluster, "t", 3, 90, 30)
        resize(cluster.bootstrap, "t", 2)
        values += write_to_all(cluster, "t", 2, 120, 20)
        assert read_all(cluster, "t", 4, len(values)) == sorted(values)
