"""A real topic that grows by itself under load and shrinks after it (KIP-253, autoscaling)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tidelog.client.cluster import Cluster as Client
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.client.producing.sender import RecordSender
from tidelog.model.topics import TopicPartition
from tidelog.testing import Cluster

pytestmark = [
    pytest.mark.long(90),
    pytest.mark.skipif(TARGET != "tidelog", reason="tidelog's own processes"),
]

TOPIC = "flights"
INITIAL, BUSY = 2, 8
TARGET_RATE = 50_000
LOAD = 300_000
"""Bytes a second of all partitions: 37,500 for each of eight, between 0.4 of the target and it."""

VALUE_BYTES = 1_000
TURN_S = 0.1
CONFIG = {
    "partitions.auto": "true",
    "partitions.auto.target.bytes.per.second": str(TARGET_RATE),
    "partitions.auto.max": "32",
    "partitions.auto.grow.cooldown.ms": "1000",
    "partitions.auto.shrink.cooldown.ms": "4000",
    "retired.purge": "drained",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    # The records of retired partitions are counted: they stay as long as a server keeps them.
    config = {"logging.format": "json", "retired.purge.delay.ms": "120000"}
    with Cluster(2, config=config, parent_folder=tmp_path) as started:
        started.create_topic(TOPIC, INITIAL, config=CONFIG)
        yield started


async def count_of(client: Client) -> int:
    """How many partitions take records, as clients see it."""
    client.forget()
    return int((await client.topics([TOPIC]))[TOPIC].undeleted_partition_count)


async def let_time_pass() -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=TURN_S)


async def write_until(client: Client, sender: RecordSender, count: int) -> int:
    """Write at the load's pace until the topic has so many partitions; return the records.

    What a busy machine was late with comes after it: the rate is that of ten seconds.
    """
    outcomes: list[asyncio.Future[Any]] = []
    begun = time.monotonic()
    while await count_of(client) != count:
        passed_s = time.monotonic() - begun
        assert passed_s < DEADLINE_S, f"not {count} partitions under load"
        for number in range(len(outcomes), int(LOAD * passed_s / VALUE_BYTES)):
            key = b"key-%d" % (number % 500)
            outcomes.append(await sender.send(TOPIC, bytes(VALUE_BYTES), key))
        await let_time_pass()
    await asyncio.gather(*outcomes)
    return len(outcomes)


async def wait_for(client: Client, count: int) -> None:
    end = time.monotonic() + DEADLINE_S
    while await count_of(client) != count:
        assert time.monotonic() < end, f"not {count} partitions after the load"
        await let_time_pass()


def decisions(log: Path) -> list[tuple[int, int]]:
    """The resizes that the controller logged."""
    lines = [json.loads(x) for x in log.read_text().splitlines() if x.startswith("{")]
    found = [x for x in lines if x.get("observation") and x["decided"] != x["count"]]
    return [(x["count"], x["decided"]) for x in found]


async def grow_and_shrink(cluster: Cluster) -> int:
    async with Client(cluster.bootstrap_servers) as client:
        async with RecordSender(client) as sender:
            written = await write_until(client, sender, BUSY)
        await wait_for(client, INITIAL)
        places = [TopicPartition(TOPIC, index) for index in range(BUSY)]
        starts = await list_offsets(client, dict.fromkeys(places, EARLIEST))
        ends = await list_offsets(client, dict.fromkeys(places, LATEST))
        held = sum(ends[place].offset - starts[place].offset for place in places)
        # A fence for each resize in each partition that stays or is born, a seal where it retires.
        assert held >= written
        return written


def test_it_grows_under_load_and_shrinks_after_it(cluster: Cluster, tmp_path: Path) -> None:
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    assert asyncio.run(grow_and_shrink(cluster)) > 0
    log = cluster.folder / "node-1.log"
    assert decisions(log) == [(2, 4), (4, 8), (8, 4), (4, 2)]

    def shown() -> tuple[int, int, str]:
        said = run_tidelog("autoscale", "--dry-run", "--topic", TOPIC, "--json", *server).stdout
        row = json.loads(said or "{}")
        return row.get("count"), row.get("decided"), row.get("cause")

    # The first rates after a resize come after some seconds.
    wait_until(lambda: shown() == (2, 2, "at the minimum"), DEADLINE_S, lambda: str(shown()))
    table = run_tidelog("autoscale", "--dry-run", *server)
    assert "its smallest count is 2" in table.stdout, table
    # The log is a recording: over it the rule decides what it decided.
    again = run_tidelog("autoscale", "--dry-run", "--replay", str(log), "--json")
    steps = [(x["count"], x["decided"]) for x in map(json.loads, again.stdout.splitlines())]
    assert [x for x in steps if x[0] != x[1]] == decisions(log)


def test_what_it_cannot_do_is_refused_or_said(cluster: Cluster) -> None:
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    cluster.create_topic("plain")
    alter = ("configs", *server, "--alter", "--topic", "plain", "--add-config")
    refused = run_tidelog(*alter, "partitions.auto=true")
    assert refused.returncode == 1
    assert "partitions.auto needs retired.purge to be set for the topic" in refused.stderr
    assert run_tidelog(*alter, "partitions.auto=true,retired.purge=retention").returncode == 0
    taken = run_tidelog(
        "configs", *server, "--alter", "--topic", "plain", "--delete-config", "retired.purge"
    )
    assert taken.returncode == 1 and "partitions.auto needs retired.purge" in taken.stderr
    for words, status, said in (
        ((), 2, "--dry-run prints what it would do now"),
        (("--dry-run", "--topic", "other"), 1, "topic other is not resized by its load"),
        (("--dry-run", "--partitions", "4"), 2, "go with --replay"),
    ):
        done = run_tidelog("autoscale", *server, *words)
        assert (done.returncode, said in done.stderr) == (status, True), done
