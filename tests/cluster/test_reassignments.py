"""Partitions that move between real brokers while they serve, by Kafka's own tools (KIP-455).

A loaded topic moves from brokers 1, 2, 3 to 4, 5, 6 and back, while an idempotent writer, one
without ids and a group work: nothing acknowledged is lost or twice, no directory is left over, and
leaders and ISRs are exact. Processes of the source, the target and the controller are killed or
stopped meanwhile.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support.cluster import TidelogCluster
from tests.support.java import ToolResult, ToolRunner
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.reassigning import Load, until_exact
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.java,
    pytest.mark.kill,
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

PARTITIONS = 2
HERE, THERE = (1, 2, 3), (4, 5, 6)
LONG = os.environ.get("TIDELOG_CHAOS") == "long"
SOME = (("source", "kill -9"), ("target", "SIGSTOP"))
ALL = tuple(itertools.product(("source", "target", "controller"), ("kill -9", "SIGSTOP")))
STRIKES = ALL if LONG else SOME
FILLED_BYTES, RATE = 400_000, 50_000
"""A throttled move of so many bytes lasts four seconds, longer than a process is away."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    folder = tmp_path_factory.mktemp("moves")
    # Directories of removed replicas go soon, so that none that is left over can hide.
    config = {
        "broker.session.timeout.ms": 3000,
        "stale.partition.delete.delay.ms": 500,
        "log.segment.delete.delay.ms": 500,
    }
    with TidelogCluster(folder, 6, config) as started:
        yield started


def spread(replicas: tuple[int, ...]) -> dict[int, list[int]]:
    """Each partition on these brokers, the first of them, the preferred leaders, in turn."""
    return {
        index: [*replicas[index % len(replicas) :], *replicas[: index % len(replicas)]]
        for index in range(PARTITIONS)
    }


class Moves:
    """Kafka's tool of reassignments at one cluster."""

    def __init__(self, cluster: TidelogCluster, tools: ToolRunner, folder: Path) -> None:
        self._cluster, self._tools, self._folder = cluster, tools, folder

    def plan(self, topic: str, replicas: tuple[int, ...]) -> Path:
        """A plan file that puts each partition on these brokers, its leaders spread over them."""
        found = [
            {"topic": topic, "partition": index, "replicas": some}
            for index, some in spread(replicas).items()
        ]
        path = self._folder / f"{topic}-{'-'.join(map(str, replicas))}.json"
        path.write_text(json.dumps({"version": 1, "partitions": found}))
        return path

    def run(self, *args: str) -> ToolResult:
        at = ("--bootstrap-server", self._cluster.bootstrap)
        return self._tools.run("kafka-reassign-partitions", *at, *args)

    def execute(self, plan: Path, *more: str) -> ToolResult:
        return self.run("--reassignment-json-file", str(plan), "--execute", *more).check()

    def throttle(self, rate: int | None) -> None:
        """Let targets copy at this rate, or as fast as they can."""
        name = "reassignment.throttled.rate"
        change = ("--delete-config", name) if rate is None else ("--add-config", f"{name}={rate}")
        at = ("--bootstrap-server", self._cluster.bootstrap)
        whole = ("--entity-type", "brokers", "--entity-default", "--alter", *change)
        self._tools.run("kafka-configs", *at, *whole).check()

    def is_done(self, plan: Path) -> bool:
        said = self.run("--reassignment-json-file", str(plan), "--verify").out
        return len(re.findall(r"is completed", said)) == PARTITIONS

    def until_done(self, plan: Path) -> None:
        wait_until(lambda: self.is_done(plan), DEADLINE_S, f"{plan.name} is done", 0.2)


def test_a_loaded_topic_moves_and_comes_back(
    cluster: TidelogCluster, tools: ToolRunner, tmp_path: Path
) -> None:
    topic, moves = "round-trip", Moves(cluster, tools, tmp_path)
    there, back = moves.plan(topic, THERE), moves.plan(topic, HERE)
    cluster.create_topic(topic, PARTITIONS, min_insync_replicas=2)
    moves.execute(back)
    moves.until_done(back)
    with Load(cluster, topic, PARTITIONS) as load:
        load.until_more(200)
        for plan, replicas in ((there, THERE), (back, HERE)):
            said = moves.execute(plan).out
            assert "Current partition replica assignment" in said
            moves.until_done(plan)
            until_exact(cluster, topic, spread(replicas))
            load.until_more(100)
        assert not load.writers[0].failed
    assert "No partition reassignments found" in moves.run("--list").check().out


@pytest.mark.parametrize(("struck", "strike"), STRIKES)
def test_a_move_ends_whatever_process_fails_meanwhile(
    cluster: TidelogCluster, tools: ToolRunner, tmp_path: Path, struck: str, strike: str
) -> None:
    topic = f"{struck}-{strike.replace(' ', '')}"
    moves = Moves(cluster, tools, tmp_path)
    back, there = moves.plan(topic, HERE), moves.plan(topic, THERE)
    cluster.create_topic(topic, PARTITIONS, min_insync_replicas=2)
    moves.execute(back)
    moves.until_done(back)
    until_exact(cluster, topic, spread(HERE))
    fill(cluster, topic)
    with Load(cluster, topic, PARTITIONS) as load:
        load.until_more(200)
        leader = cluster.leader(topic)
        node = {
            "source": cluster.brokers[leader],
            "target": cluster.brokers[THERE[0]],
            "controller": cluster.controller,
        }[struck]
        moves.throttle(RATE)
        moves.execute(there)
        assert "No partition reassignments found" not in moves.run("--list").check().out
        if strike == "SIGSTOP":
            node.program.send(SIGSTOP)
            load_goes_on(load, struck)
            node.program.send(SIGCONT)
        else:
            node.kill()
            load_goes_on(load, struck)
            node.start()
        moves.throttle(None)
        moves.until_done(there)
        until_exact(cluster, topic, spread(THERE))
        load.until_more(100)


def fill(cluster: TidelogCluster, topic: str) -> None:
    """Write so many bytes that a throttled move lasts."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for at in range(FILLED_BYTES // 1000):
        producer.produce(
            topic, f"filler:{at}:".encode().ljust(1000, b"."), partition=at % PARTITIONS
        )
    assert producer.flush(DEADLINE_S) == 0


def load_goes_on(load: Load, struck: str) -> None:
    if struck != "controller":
        load.until_more(50)


def test_a_move_to_a_dead_broker_waits_is_listed_and_is_cancelled(
    cluster: TidelogCluster, tools: ToolRunner, tmp_path: Path
) -> None:
    topic, moves = "cancelled", Moves(cluster, tools, tmp_path)
    back, there = moves.plan(topic, HERE), moves.plan(topic, (1, 2, 6))
    cluster.create_topic(topic, PARTITIONS, min_insync_replicas=2)
    moves.execute(back)
    moves.until_done(back)
    with Load(cluster, topic, PARTITIONS) as load:
        load.until_more(200)
        cluster.brokers[6].kill()
        moves.execute(there)
        listed = moves.run("--list").check().out
        assert re.search(rf"{topic}-0: replicas: 1,2,6,3\. adding: 6\. removing: 3\.", listed), (
            listed
        )
        assert not moves.is_done(there)
        # Kafka's tool waits for the dead broker to clear its throttles (KAFKA-13392).
        cancel = ("--reassignment-json-file", str(there), "--cancel", "--preserve-throttles")
        cancelled = moves.run(*cancel).check().out
        assert "Successfully cancelled" in cancelled
        load.until_more(100)
        cluster.brokers[6].start()
        until_exact(cluster, topic, spread(HERE))
