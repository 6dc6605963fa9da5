"""Targets with bad disks: emptied in mid-copy, full, or with a log directory that fails (KIP-455).

Broker 4 has a small disk, broker 3 two log directories of which one can fail. A move waits for its
target and says so; nothing else stops, and when the disk is well again the move completes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acked_stream import read_all
from tests.support.cluster import TidelogCluster, create_replicated
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.reassigning import (
    RECORD_BYTES,
    alter,
    copied_bytes,
    create_on,
    fill,
    slowed,
    targets,
    until_exact,
)
from tests.support.server import run_tidelog
from tests.support.small_disk import SmallDisk
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

RECORDS = 6


class Disks:
    """The cluster, and what its tests do to disks."""

    def __init__(self, folder: Path, cluster: TidelogCluster) -> None:
        self.cluster = cluster
        self.small = SmallDisk(cluster.brokers[4])
        self._failing = folder / "failing"
        self.two = [cluster.brokers[3].data / name for name in ("one", "two")]
        cluster.brokers[3].configure({"log.dirs": ",".join(map(str, self.two))})
        cluster.brokers[3].run_with(
            "tests.support.failing_directory_server", {"TIDELOG_FAILING": str(self._failing)}
        )

    def fail(self, directory: Path) -> None:
        self._failing.write_text(str(directory))

    def repair(self) -> None:
        self._failing.unlink()

    def log_of(self, broker: int) -> str:
        return self.cluster.brokers[broker].log.read_text(errors="replace")

    def problems(self) -> dict[str, str]:
        """What `tidelog doctor` says, by kind: all findings of it."""
        done = run_tidelog("doctor", "--json", "--bootstrap-server", self.cluster.bootstrap)
        found: dict[str, str] = defaultdict(str)
        for each in json.loads(done.stdout)["findings"]:
            found[each["kind"]] += json.dumps(each)
        return found

    def until_said(self, kind: str, what: str) -> None:
        """Wait for a finding that names something; the machine's own disk may be nearly full."""
        wait_until(
            lambda: what in self.problems().get(kind, ""),
            DEADLINE_S,
            lambda: f"no {kind} of {what}: {self.problems()}",
            0.3,
        )


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    folder = tmp_path_factory.mktemp("moves")
    config = {
        "broker.session.timeout.ms": 3000,
        "stale.partition.delete.delay.ms": 500,
        "log.segment.delete.delay.ms": 500,
    }
    cluster = TidelogCluster(folder, 4, config)
    made = Disks(folder, cluster)
    with made.small, cluster:
        yield made


def begun(cluster: TidelogCluster, topic: str, broker: int) -> None:
    """Wait until a target has part of a slowed copy."""
    wait_until(
        lambda: 0 < copied_bytes(cluster, broker, topic) < RECORDS * RECORD_BYTES,
        DEADLINE_S,
        lambda: f"broker {broker} copies {topic}: {copied_bytes(cluster, broker, topic)}",
        0.05,
    )


def test_a_target_that_dies_in_mid_copy_returns_with_an_empty_disk(disks: Disks) -> None:
    cluster, topic = disks.cluster, "emptied"
    create_on(cluster, topic, {0: [1, 2]})
    fill(cluster, topic, RECORDS)
    with slowed(cluster):
        alter(cluster, topic, {0: [4, 1]})
        begun(cluster, topic, 4)
        cluster.brokers[4].kill()
        cluster.empty(4)
        cluster.brokers[4].start()
        assert targets(cluster, topic) == {0: [4, 1, 2]}
    until_exact(cluster, topic, {0: [4, 1]})
    cluster.brokers[1].kill()
    wait_until(lambda: cluster.leader(topic) == 4, DEADLINE_S, "the target leads alone", 0.1)
    assert len(read_all(cluster.bootstrap, topic, 1)) == RECORDS
    cluster.brokers[1].start()
    until_exact(cluster, topic, {0: [4, 1]})


def test_a_copy_into_a_full_directory_waits_and_nothing_else_stops(disks: Disks) -> None:
    """Of two partitions one is full in mid-copy; the other one cannot even be created there."""
    cluster, topic, beside = disks.cluster, "full", "beside-full"
    create_on(cluster, topic, {0: [1, 2], 1: [1, 2]})
    create_on(cluster, beside, {0: [1, 2]})
    for each, partitions in ((topic, 2), (beside, 1)):
        fill(cluster, each, RECORDS, partitions)
    with slowed(cluster):
        alter(cluster, topic, {0: [4, 1]})
        begun(cluster, topic, 4)
        disks.small.fill()
    try:
        alter(cluster, topic, {1: [2, 4]})
        wait_until(
            lambda: "the disk is full" in disks.log_of(4),
            DEADLINE_S,
            lambda: cluster.brokers[4].said("names the full disk"),
        )
        if disks.small.is_mounted:
            disks.until_said("disk_full", "broker 4")
        # Another move, of the same source, goes through, and the leader of the full copy serves.
        alter(cluster, beside, {0: [3, 1]})
        until_exact(cluster, beside, {0: [3, 1]})
        fill(cluster, topic, 1, 2)
        assert set(targets(cluster, topic)) == {0, 1}
        assert cluster.brokers[4].running_pid is not None
    finally:
        disks.small.free()
    until_exact(cluster, topic, {0: [4, 1], 1: [2, 4]})
    assert len(read_all(cluster.bootstrap, topic, 2)) == 2 * RECORDS + 2


def test_a_target_whose_directory_fails_serves_from_the_other_one(disks: Disks) -> None:
    cluster, topic, beside = disks.cluster, "failed", "beside-failed"
    create_replicated(cluster.bootstrap, beside, 4, 4, min_insync_replicas=2)
    create_on(cluster, topic, {0: [1, 2]})
    fill(cluster, topic, RECORDS)
    with slowed(cluster):
        alter(cluster, topic, {0: [3, 1]})
        begun(cluster, topic, 3)
        (bad,) = [each for each in disks.two if (each / f"{topic}-0").is_dir()]
        disks.fail(bad)
    wait_until(
        lambda: f"{bad} is out of service" in disks.log_of(3),
        DEADLINE_S,
        lambda: cluster.brokers[3].said("takes the directory out of service"),
    )
    disks.until_said("disk_failed", str(bad))
    disks.until_said("moves_wait_for_damaged", f"{topic}-0")
    assert targets(cluster, topic) == {0: [3, 1, 2]}
    (good,) = [each for each in disks.two if each != bad]
    healthy = {int(path.name.rpartition("-")[2]) for path in good.glob(f"{beside}-?")}
    assert healthy, "the other directory has replicas, too"

    def serves() -> bool:
        found = cluster.partitions(beside)
        return {at for at, part in found.items() if 3 in part.isrs} == healthy

    wait_until(serves, DEADLINE_S, lambda: f"{healthy} in sync: {cluster.partitions(beside)}", 0.1)
    fill(cluster, beside, 1, 4)
    disks.repair()
    cluster.brokers[3].kill()
    cluster.brokers[3].start()
    until_exact(cluster, topic, {0: [3, 1]})
    cluster.until_in_sync(beside, 4)
    assert len(read_all(cluster.bootstrap, topic, 1)) == RECORDS
