"""A loaded cluster of three is rolled from level 1.0 to 1.4 and one level back.

Two bounces raise it (docs/design/levels.md): the first brings new code, which does
not differ here, the second the new level; a third one lowers it by one. Controllers are raised
first and lowered last. A producer, an idempotent one and a group work on meanwhile.

Of two controllers on a ZooKeeper each stands by for the other while the roll is between them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import NewTopic

from tests.support.acked_stream import GroupReader, Writer, settled
from tests.support.clients import admin
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.own_time import WaitedAt
from tests.support.processes import DEADLINE_S
from tests.support.target import TARGET
from tests.support.zookeeper import ZooKeeper, needed

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(80),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

PARTITIONS = 3
TOPIC = "rolled"
LEVEL = "inter.broker.protocol.version"


class PunctualWriter(Writer):
    """A writer that notes when each partition's acknowledgements come."""

    def __init__(self, cluster: TidelogCluster, name: str, *, idempotent: bool) -> None:
        self.times: dict[int, list[float]] = {p: [] for p in range(PARTITIONS)}
        # A load that is there all the time, not one that keeps two cores from restarting anything.
        super().__init__(
            cluster.bootstrap, TOPIC, name, PARTITIONS, idempotent=idempotent, per_s=60
        )

    def _answered(
        self, number: int, error: confluent_kafka.KafkaError | None, message: object
    ) -> None:
        self.times[number % PARTITIONS].append(time.monotonic())
        super()._answered(number, error, message)

    def longest_silence_s(self, waited: WaitedAt) -> float:
        """The longest time without an acknowledgement of some partition, less what servers and
        client waited for a processor within it."""
        return max(
            waited.own_s(before, after)
            for times in self.times.values()
            for before, after in itertools.pairwise(times)
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    # A client that still asks after a deleted topic would create it again, as with Kafka.
    config = {LEVEL: "1.0", "auto.create.topics.enable": "false"}
    with TidelogCluster(tmp_path, config=config) as started:
        yield started


@pytest.fixture
def waited(cluster: TidelogCluster) -> Iterator[WaitedAt]:
    with WaitedAt(cluster.pids) as noted:
        yield noted


def rolled(cluster: TidelogCluster, level: str, *, controller_first: bool) -> float:
    """Restart every process with a level, one by one; the seconds that the longest took."""
    nodes = [*cluster.controllers, *cluster.brokers.values()]
    longest_s = 0.0
    for node in nodes if controller_first else nodes[::-1]:
        begun = time.monotonic()
        node.configure({LEVEL: level})
        node.restart()
        # As an operator does: the next one only when all replicas are in sync again.
        cluster.until_in_sync(TOPIC, 3)
        longest_s = max(longest_s, time.monotonic() - begun)
    return longest_s


def ids_on_disk(cluster: TidelogCluster, topic: str) -> set[str]:
    """What `partition.metadata` of a topic's replicas says; a replica without one says nothing."""
    found = set()
    for node in cluster.brokers.values():
        folders = [node.log_folder() / f"{topic}-{p}" for p in range(PARTITIONS)]
        assert all(folder.is_dir() for folder in folders), folders
        files = [folder / "partition.metadata" for folder in folders]
        found |= {file.read_text() if file.exists() else "" for file in files}
    return found


def created_and_deleted(cluster: TidelogCluster, name: str) -> None:
    """A topic is deleted, and created again under its name: at every level, also at once."""
    client = admin(cluster.bootstrap)
    cluster.create_topic(name, PARTITIONS)
    client.delete_topics([name], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
    wanted = NewTopic(name, PARTITIONS, 3)
    client.create_topics([wanted])[name].result(DEADLINE_S)
    cluster.until_in_sync(name, 3)


def test_a_loaded_cluster_goes_up_from_1_0_to_1_4_and_one_level_back(
    cluster: TidelogCluster, waited: WaitedAt
) -> None:
    cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
    writers = [
        PunctualWriter(cluster, "plain", idempotent=False),
        PunctualWriter(cluster, "once", idempotent=True),
    ]
    reader = GroupReader(cluster.bootstrap, TOPIC, "group")
    for each in (*writers, reader):
        each.start()
    created_and_deleted(cluster, "at-1.0")
    assert ids_on_disk(cluster, TOPIC) == {""}
    took_s = [rolled(cluster, "1.0", controller_first=True)]
    assert ids_on_disk(cluster, TOPIC) == {""}
    took_s.append(rolled(cluster, "1.4", controller_first=True))
    (written,) = ids_on_disk(cluster, TOPIC)
    assert written.startswith("version: 0\ntopic_id: ")
    assert len(ids_on_disk(cluster, "at-1.0")) == 1
    created_and_deleted(cluster, "at-1.4")
    took_s.append(rolled(cluster, "1.3", controller_first=False))
    assert ids_on_disk(cluster, TOPIC) == {written}
    created_and_deleted(cluster, "at-1.3")
    assert ids_on_disk(cluster, "at-1.3") == {""}
    settled(cluster.bootstrap, TOPIC, PARTITIONS, writers, reader)
    for writer in writers:
        gap_s = writer.longest_silence_s(waited)
        print(f"{writer.state()}, longest gap {gap_s:.2f} s, restarts took {took_s} s")
        assert gap_s <= max(took_s), cluster.said("refused nothing for longer than a restart")
    for node in cluster.brokers.values():
        assert node.stop() == 0, node.said("stopped cleanly")
    wrong = differing_replicas(cluster, TOPIC, PARTITIONS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.java
def test_two_controllers_on_a_zookeeper_go_up_a_level_and_back(tmp_path: Path) -> None:
    needed()
    with (
        ZooKeeper(tmp_path / "zookeeper") as server,
        TidelogCluster(
            tmp_path,
            config={LEVEL: "1.3"},
            controllers=2,
            store=f"zookeeper://{server.address}/rolled",
        ) as cluster,
        WaitedAt(cluster.pids) as waited,
    ):
        cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        writer = PunctualWriter(cluster, "once", idempotent=True)
        reader = GroupReader(cluster.bootstrap, TOPIC, "group")
        for each in (writer, reader):
            each.start()
        created_and_deleted(cluster, "at-1.3")
        took_s = [rolled(cluster, "1.4", controller_first=True)]
        (written,) = ids_on_disk(cluster, TOPIC)
        assert written.startswith("version: 0\ntopic_id: ")
        assert len(ids_on_disk(cluster, "at-1.3")) == 1
        created_and_deleted(cluster, "at-1.4")
        took_s.append(rolled(cluster, "1.3", controller_first=False))
        assert ids_on_disk(cluster, TOPIC) == {written}
        created_and_deleted(cluster, "back-at-1.3")
        assert ids_on_disk(cluster, "back-at-1.3") == {""}
        settled(cluster.bootstrap, TOPIC, PARTITIONS, [writer], reader)
        gap_s = writer.longest_silence_s(waited)
        print(f"{writer.state()}, longest gap {gap_s:.2f} s, restarts took {took_s} s")
        assert gap_s <= max(took_s), cluster.said("refused nothing for longer than a restart")
