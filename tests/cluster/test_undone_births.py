"""A growth whose new partition has a leader that stands still, on real processes: it is undone, and
nothing of it stays in the way (decision 0075).
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import NewTopic

from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing is a resize of tidelog's"),
]

TOPIC = "t"
STANDS = 3
RECORDS = 50


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {
        "auto.create.topics.enable": "false",
        "resize.timeout.ms": "5000",
        # The one that stands still stays a broker that can lead.
        "broker.session.timeout.ms": "60000",
        "broker.silence.suspect.ms": "59000",
        "offsets.topic.num.partitions": "1",
    }
    with TidelogCluster(tmp_path, config=config) as started:
        yield started


def served_by_others(cluster: TidelogCluster) -> str:
    return ",".join(node.bootstrap for x, node in cluster.brokers.items() if x != STANDS)


def write(cluster: TidelogCluster, first: int) -> None:
    """Write records with keys; all are acknowledged."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": served_by_others(cluster), "acks": "all"}
    )
    errors: list[object] = []
    for number in range(first, first + RECORDS):
        producer.produce(
            TOPIC,
            b"%d" % number,
            key=b"%d" % number,
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(DEADLINE_S) == 0
    assert errors == [None] * RECORDS


def read(cluster: TidelogCluster, count: int) -> set[int]:
    """Read until there are so many different records."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": served_by_others(cluster),
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])
    found: set[int] = set()

    def has_all() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.add(int(message.value() or b"0"))
        return len(found) >= count

    try:
        wait_until(has_all, DEADLINE_S, lambda: f"{len(found)} of {count}", pause_s=0)
    finally:
        consumer.close()
    return found


def described(cluster: TidelogCluster) -> Any:
    asked = ("topics", "--describe", "--topic", TOPIC, "--json")
    done = run_tidelog(*asked, "--bootstrap-server", served_by_others(cluster))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


async def waits_for(cluster: TidelogCluster, broker: int, said: list[Any]) -> Any:
    """Ask until a resize waits for a broker, and return its row; ``said`` has no answer by then."""
    asked = messages.DescribeConditionRequest(subjects=["resizes"])
    end = time.monotonic() + DEADLINE_S
    async with Cluster(served_by_others(cluster)) as client:
        while True:
            answer = await client.send(1, asked)
            rows = json.loads(answer.condition)["resizes"]
            if rows and rows[0]["waits_for_brokers"] == [broker]:
                return rows[0]
            assert time.monotonic() < end and not said, (rows, said)


async def grow(cluster: TidelogCluster) -> tuple[ErrorCode, str]:
    """Grow to three partitions, the new one on the broker that stands still."""
    request = messages.CreatePartitionsRequest
    assigned = [request.CreatePartitionsAssignment(broker_ids=[STANDS])]
    wanted = request.CreatePartitionsTopic(TOPIC, 3, assigned)
    asked = request(topics=[wanted], timeout_ms=int(DEADLINE_S * 1000))
    async with Cluster(served_by_others(cluster)) as client:
        # Not to the broker that clients see as the controller: it may be the one.
        answer = await client.send(1, asked, timeout_ms=int(DEADLINE_S * 1000))
        (result,) = answer.results
        return ErrorCode(result.error_code), result.error_message or ""


def test_a_growth_is_undone_when_a_new_leader_stands_still(cluster: TidelogCluster) -> None:
    new = NewTopic(TOPIC, 2, replica_assignment=[[1], [2]])
    client = admin(cluster.bootstrap)
    client.create_topics([new])[TOPIC].result(DEADLINE_S)
    cluster.until_in_sync(TOPIC, 1)
    write(cluster, 0)
    pid = cluster.brokers[STANDS].running_pid
    assert pid is not None
    answers: list[tuple[ErrorCode, str]] = []
    os.kill(pid, SIGSTOP)
    try:
        growth = threading.Thread(target=lambda: answers.append(asyncio.run(grow(cluster))))
        growth.start()
        waits = asyncio.run(waits_for(cluster, STANDS, answers))
        # It closes nothing before the brokers of its new partitions have responded (0108).
        assert (waits["step"], waits["waits_for_partitions"]) == ("fence", [2])
        growth.join(DEADLINE_S)
        assert answers[0][0] is ErrorCode.NOT_ENOUGH_REPLICAS
        assert f"was undone, because broker {STANDS} did not" in answers[0][1]
    finally:
        os.kill(pid, SIGCONT)
    shown = described(cluster)
    counts = "undeleted_partition_count", "partition_count", "resize_epoch", "resize"
    assert [shown[count] for count in counts] == [2, 2, 2, None]
    write(cluster, RECORDS)
    # The broker learns of the child and of its end; nothing of it is left, not even on its disk.
    folder = cluster.brokers[STANDS].log_folder()
    wait_until(
        lambda: not list(folder.glob(f"{TOPIC}-2*")),
        DEADLINE_S,
        lambda: f"{list(folder.iterdir())}",
    )
    assert asyncio.run(grow(cluster)) == (ErrorCode.NONE, "")
    (child,) = described(cluster)["partitions"][2:]
    assert (child["birth_epoch"], child["birth_offset"], child["leader"]) == (3, 0, STANDS)
    write(cluster, 2 * RECORDS)
    assert read(cluster, 3 * RECORDS) == set(range(3 * RECORDS))
    page = run_tidelog("doctor", "--bootstrap-server", cluster.bootstrap, "--json")
    kinds = {finding["kind"] for finding in json.loads(page.stdout)["findings"]}
    assert not kinds & {"strays", "stops_owed", "resizes_running"}, page.stdout
