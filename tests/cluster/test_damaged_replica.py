"""Damage below the torn tail of a real broker's replica: it leaves the ISR and is fetched again.

Promise 26, without an operator: the broker names the replica in its heartbeats, the controller
takes it out of the ISR, and on that command the broker quarantines it and starts from empty.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.acked_stream import Writer, lost_acks, read_all
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

TOPIC = "damaged"
PARTITIONS = 2


def test_a_damaged_replica_is_fetched_again_by_itself(tmp_path: Path) -> None:
    config = {"stale.partition.delete.delay.ms": 0, "log.retention.check.interval.ms": 500}
    with TidelogCluster(tmp_path, config=config) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        writer = Writer(cluster.bootstrap, TOPIC, "writer", PARTITIONS, idempotent=True, per_s=300)
        writer.start()
        wait_until(lambda: writer.has_acked(501), DEADLINE_S, writer.state, 0.01)
        # A leader too, if it can be had: it must come back as a follower.
        leader = cluster.leader(TOPIC, 0)
        node = cluster.brokers[leader]
        node.stop()
        (segment,) = node.log_folder().glob(f"{TOPIC}-0/*.log")
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
        node.start()
        cluster.until_in_sync(TOPIC, 3)
        assert "rebuilding from its leader" in node.log.read_text(), node.said("the damage")
        writer.finish()
        assert not writer.failed, writer.state()
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        lost = lost_acks(writer, found)
        assert not lost, f"{len(lost)} acknowledged records are lost: {lost[:5]}"
        wait_until(
            lambda: not list(node.log_folder().glob("*-stray")),
            DEADLINE_S,
            "what was damaged is removed when it is not needed",
        )
        for each in cluster.brokers.values():
            each.stop()
        assert differing_replicas(cluster, TOPIC, PARTITIONS) == []
