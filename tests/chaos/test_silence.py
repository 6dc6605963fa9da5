"""Processes that are stopped and not dead, and machines that are only busy.

A stopped leader or follower is suspected for its silence (`broker.silence.suspect.ms`, decision
0033) long before its session ends; a silence that is the controller's own moves nothing. One
cluster for all tests, which leave everything running and in sync; it has its defaults, but that no
leadership goes back to the preferred replicas, which the controller looks for after five minutes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.acked_stream import Writer, lost_acks, read_all
from tests.support.cluster import TidelogCluster
from tests.support.links import Network
from tests.support.own_time import OwnTime, Starvation
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

LONG = os.environ.get("TIDELOG_CHAOS") == "long"
LONGEST_GAP_S = 4.0
"""A stopped broker is suspected after 2 s; a producer asks again after its request's 1 s."""

TRIES = 3
"""A loaded machine may make a gap longer: one of so many must keep the promise, and when none does
as it is, what was waited for a processor meanwhile is taken off (`own_time.py`)."""

STOPPED_S = 3.0
"""How long the controller is stopped, or cut off: longer than a suspicion takes."""

SUSPECTED_S = 2.0
"""The default of `broker.silence.suspect.ms`. With two busy loops a core, a waking process gets
a processor in milliseconds: one that had none for half of this is starved by something else."""

BUSY_S = 60.0 if LONG else 8.0
LOOPS_PER_CORE = 2


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[TidelogCluster]:
    config = {"auto.leader.rebalance.enable": "false"}
    with TidelogCluster(tmp_path_factory.mktemp("cluster"), 3, config, network) as started:
        yield started


def until_over(seconds: float) -> None:
    """Let a fault last."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 10, "a fault has lasted", 0.02)


def until_more(writer: Writer, count: int) -> None:
    """Wait until so many more records were acknowledged."""
    wanted = len(writer.acked) + count
    wait_until(lambda: writer.has_acked(wanted), DEADLINE_S, writer.state, 0.01)


def settled(cluster: TidelogCluster) -> dict[str, tuple[int, str]]:
    """All partition states, once every replica is in sync: those of an earlier test's topics, too,
    whose stopped broker may still be on its way back."""

    def in_sync() -> bool:
        found = [json.loads(state) for _, state in states(cluster).values()]
        return all(each["leader"] >= 0 and len(each["isr"]) == 3 for each in found)

    wait_until(in_sync, DEADLINE_S, lambda: f"all replicas are in sync: {states(cluster)}")
    return states(cluster)


def states(cluster: TidelogCluster) -> dict[str, tuple[int, str]]:
    """All partition states in the store, each with the version of its node: what changes and
    changes back shows too."""
    path = cluster.controller.folder / "metadata.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
        found = store.execute("SELECT path, version, data FROM nodes WHERE path LIKE '%/state'")
        return {path: (version, json.dumps(json.loads(data))) for path, version, data in found}


def gap_s(
    cluster: TidelogCluster, topic: str, victim: Callable[[], int], request_timeout_ms: int
) -> tuple[float, float]:
    """Stop a broker under a producer with acks=all until it goes on; the longest time between two
    acknowledgements, and what the servers and the producer waited for a processor meanwhile.
    Everything that was acknowledged is there, once."""
    cluster.create_topic(topic, min_insync_replicas=2)
    writer = Writer(
        *(cluster.bootstrap, topic, "writer", 1),
        idempotent=True,
        per_s=500,
        request_timeout_ms=request_timeout_ms,
    )
    writer.start()
    until_more(writer, 300)
    stopped = cluster.brokers[victim()].program
    writer.longest_gap_s = 0.0
    own = OwnTime(cluster.pids)
    stopped.send(SIGSTOP)
    try:
        until_more(writer, 600)
        longest_s, waited_s = writer.longest_gap_s, own.waited_s()
    finally:
        stopped.send(SIGCONT)
    writer.finish()
    assert not writer.failed and not writer.wrong, writer.state()
    cluster.until_in_sync(topic, 3)
    found = read_all(cluster.bootstrap, topic, 1)
    lost = lost_acks(writer, found)
    assert not lost, f"{len(lost)} acknowledged records are lost: {lost[:5]}"
    assert len(set(found.values())) == len(found), "a record is there twice"
    return longest_s, waited_s


def shortest_gap_s(cluster: TidelogCluster, name: str, leader: bool, timeout_ms: int) -> float:
    """Try until a gap keeps the promise; print all. Of gaps that do not, what was waited for a
    processor is taken off: on idle cores nothing."""
    gaps: list[tuple[float, float]] = []
    while len(gaps) < TRIES and (not gaps or gaps[-1][0] >= LONGEST_GAP_S):
        topic = f"{name}-{len(gaps)}"

        def victim(topic: str = topic) -> int:
            leads = cluster.leader(topic)
            return leads if leader else next(x for x in cluster.brokers if x != leads)

        gaps.append(gap_s(cluster, topic, victim, timeout_ms))
    said = ", ".join(f"{gap:.2f} (without a processor {waited:.2f})" for gap, waited in gaps)
    print(f"{name}: longest gaps between acknowledgements, in seconds: {said}")
    return min(gap - (waited if gap >= LONGEST_GAP_S else 0.0) for gap, waited in gaps)


def test_a_leader_that_is_stopped_is_replaced_within_four_seconds(cluster: TidelogCluster) -> None:
    assert shortest_gap_s(cluster, "stopped-leader", True, 1_000) < LONGEST_GAP_S


def test_a_follower_that_is_stopped_holds_no_acknowledgement_back_for_four_seconds(
    cluster: TidelogCluster,
) -> None:
    assert shortest_gap_s(cluster, "stopped-follower", False, 10_000) < LONGEST_GAP_S


def test_a_controller_that_was_stopped_moves_nothing(cluster: TidelogCluster) -> None:
    def fault(name: str) -> None:
        cluster.controller.program.send(SIGSTOP)
        until_over(STOPPED_S)
        cluster.controller.program.send(SIGCONT)
        until_quiet(cluster, f"after-{name}")

    assert_moves_nothing(cluster, "controller-stopped", fault)


def test_a_controller_that_was_cut_off_from_all_brokers_moves_nothing(
    cluster: TidelogCluster, network: Network
) -> None:
    def fault(name: str) -> None:
        for node_id in cluster.brokers:
            network.cut(str(node_id), "controller")
            network.cut("controller", str(node_id))
        until_over(STOPPED_S)
        network.heal("controller", [str(node_id) for node_id in cluster.brokers])
        until_quiet(cluster, f"after-{name}")

    assert_moves_nothing(cluster, "controller-cut", fault)


def test_busy_cores_move_nothing(cluster: TidelogCluster) -> None:
    def fault(_: str) -> None:
        with ExitStack() as running:
            for _ in range(LOOPS_PER_CORE * (os.cpu_count() or 1)):
                loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                running.callback(loop.wait)
                running.callback(loop.kill)
            until_over(BUSY_S)

    assert_moves_nothing(cluster, "busy", fault)


def until_quiet(cluster: TidelogCluster, topic: str) -> None:
    """Let every silence be judged that may come of a fault, until the controller decides again."""
    until_over(STOPPED_S)
    cluster.create_topic(topic)


def assert_moves_nothing(cluster: TidelogCluster, topic: str, fault: Callable[[str], None]) -> None:
    """No partition has another state after the fault than before, nor had one meanwhile.

    It is done again, and said, when one of the processes was starved meanwhile: then the machine
    was far busier than a broker must bear without being suspected.
    """
    for number in range(TRIES):
        name = f"{topic}-{number}"
        cluster.create_topic(name, 6, min_insync_replicas=2)
        before = settled(cluster)
        with Starvation(cluster.pids, SUSPECTED_S) as starvation:
            fault(name)
        after = states(cluster)
        moved = {path: (old, after.get(path)) for path, old in before.items() if after[path] != old}
        if not moved:
            return
        said = f"{starvation.longest_s:.2f} s of {SUSPECTED_S} s without a processor"
        print(f"{name}: {len(moved)} partitions moved, {said}")
        if starvation.longest_s < SUSPECTED_S / 2:
            break
    raise AssertionError(f"{said}; {moved}\n{cluster.controller.said('moved nothing')}")
