"""Moves of topics that change meanwhile, or stand on an unclean election (KIP-455).

`min.insync.replicas` goes up and down during a move; the replication factor goes from 1 to 3 and
back under a writer; a partition has no leader; an election lost records. One cluster for all tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import NewPartitions

from tests.support.acked_stream import read_all
from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.reassigning import (
    Load,
    alter,
    configure_topic,
    create_on,
    fill,
    folders_of,
    slowed,
    targets,
    until_exact,
)
from tests.support.server import run_tidelog
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

MINIMUM = "min.insync.replicas"
KEPT, LOST = 20, 10
"""Records that both replicas have, and that one alone acknowledged before it died."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    config = {
        "broker.session.timeout.ms": 3000,
        "stale.partition.delete.delay.ms": 500,
        "log.segment.delete.delay.ms": 500,
    }
    with TidelogCluster(tmp_path_factory.mktemp("moves"), 4, config) as started:
        yield started


def test_the_minimum_of_the_isr_changes_during_a_move(cluster: TidelogCluster) -> None:
    """More than there are replicas asks for all of them, and never for a target."""
    topic = "minimum"
    create_on(cluster, topic, {0: [1, 2, 3]}, {MINIMUM: "2"})
    fill(cluster, topic)
    with Load(cluster, topic) as load:
        with slowed(cluster):
            alter(cluster, topic, {0: [4, 1, 2]})
            for minimum in ("3", "4", "1", "2"):
                configure_topic(cluster, topic, MINIMUM, minimum)
                load.until_more(50)
            assert targets(cluster, topic) == {0: [4, 1, 2, 3]}
            # Growth waits for the move.
            with pytest.raises(confluent_kafka.KafkaException) as refused:
                client = admin(cluster.bootstrap)
                client.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_S)
            assert refused.value.args[0].code() == 60  # REASSIGNMENT_IN_PROGRESS
        configure_topic(cluster, topic, MINIMUM, "3")
        until_exact(cluster, topic, {0: [4, 1, 2]})
        load.until_more(50)


def test_the_replication_factor_goes_from_1_to_3_and_back_under_a_writer(
    cluster: TidelogCluster,
) -> None:
    topic = "factor"
    create_on(cluster, topic, {0: [1]}, {MINIMUM: "2"})
    fill(cluster, topic)
    with Load(cluster, topic) as load:
        load.until_more(50)
        for replicas in ([1, 2, 3], [4], [4, 3, 2], [2]):
            alter(cluster, topic, {0: replicas})
            load.until_more(50)
            until_exact(cluster, topic, {0: replicas})
            load.until_more(50)


def test_a_partition_without_a_leader_moves_when_it_has_one(cluster: TidelogCluster) -> None:
    topic = "leaderless"
    create_on(cluster, topic, {0: [4]})
    with Load(cluster, topic) as load:
        load.until_more(50)
        cluster.brokers[4].kill()
        client = admin(cluster.brokers[1].bootstrap)
        # No leader alone says too little: broker 1 names none for a second, since it lost its
        # connection to broker 4, and then broker 4 again until its session ends (decision 0009).
        has_ended = lambda: 4 not in client.list_topics(timeout=DEADLINE_S).brokers  # noqa: E731
        wait_until(has_ended, DEADLINE_S, "the session of broker 4 ends", 0.1)
        leaderless = lambda: cluster.partitions(topic, ask=1)[0].leader == -1  # noqa: E731
        assert leaderless()
        alter(cluster, topic, {0: [2, 3]})
        # More targets than brokers, and one twice.
        for bad in ([1, 2, 3, 4, 5], [1, 1]):
            with pytest.raises(AssertionError, match="InvalidReplicationAssignment"):
                alter(cluster, topic, {0: bad})
        assert targets(cluster, topic) == {0: [2, 3, 4]}
        assert leaderless()
        cluster.brokers[4].start()
        until_exact(cluster, topic, {0: [2, 3]})
        load.until_more(50)


def produce(cluster: TidelogCluster, topic: str, name: str, count: int) -> None:
    """Write records, each acknowledged by all that are in sync."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    failed: list[str] = []
    for number in range(count):
        producer.produce(
            topic,
            f"{name}:{number}",
            partition=0,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert not failed, failed


def unclean(cluster: TidelogCluster, topic: str) -> list[dict[str, Any]]:
    at = ("--bootstrap-server", cluster.bootstrap, "--json")
    done = run_tidelog("doctor", "unclean", "--topic", topic, *at)
    return list(json.loads(done.stdout))


def test_a_partition_with_an_unclean_debt_moves(cluster: TidelogCluster) -> None:
    """Its loss stays on record, and the replica that had the records does not bring them back."""
    topic = "debt"
    create_on(cluster, topic, {0: [1, 2]}, {MINIMUM: "1", "unclean.leader.election.enable": "true"})
    produce(cluster, topic, "kept", KEPT)
    cluster.brokers[2].kill()
    alone = lambda: list(cluster.partitions(topic, 1)[0].isrs) == [1]  # noqa: E731
    wait_until(alone, DEADLINE_S, "broker 1 alone is in sync", 0.05)
    produce(cluster, topic, "lost", LOST)
    cluster.brokers[1].kill()
    cluster.brokers[2].start()
    # The move begins while there is no leader, before the election that is unclean.
    alter(cluster, topic, {0: [3, 4]})
    until_exact_but(cluster, topic, [3, 4], dead=1)
    (election,) = unclean(cluster, topic)
    assert election["leader"] == 2 and election["log_end_offset"] == KEPT
    assert election["handled"] and not election["flagged"]
    # Broker 1 is no replica any more: nothing is awaited from it.
    assert election["missing_replicas"] == []
    produce(cluster, topic, "new", KEPT)
    cluster.brokers[1].start()
    until_exact(cluster, topic, {0: [3, 4]})
    found = [value for _, value in sorted(read_all(cluster.bootstrap, topic, 1).items())]
    assert found == [f"{name}:{n}" for name in ("kept", "new") for n in range(KEPT)]


def until_exact_but(cluster: TidelogCluster, topic: str, replicas: list[int], *, dead: int) -> None:
    """Wait until the move is done, whatever a dead broker still has on its disk."""

    def moved() -> bool:
        (part,) = cluster.partitions(topic, replicas[0]).values()
        left = {node_id for node_id, names in folders_of(cluster, topic).items() if names}
        return sorted(part.replicas) == sorted(part.isrs) == replicas and left == {*replicas, dead}

    wait_until(
        moved,
        DEADLINE_S,
        lambda: (
            f"{topic} is on {replicas}: {cluster.partitions(topic)} {folders_of(cluster, topic)}"
        ),
        0.1,
    )
