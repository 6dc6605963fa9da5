"""Three brokers and a controller, killed and stopped at random: nothing acked is lost or twice.

Part of `make chaos` (`TIDELOG_CHAOS=long`) only. `TIDELOG_ROUNDS` (default 25) and `TIDELOG_SEED`
set how often and what; the seed is printed. At the end all replicas have the same bytes.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support.acked_stream import GroupReader, Writer, read_all, violations
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(os.environ.get("TIDELOG_CHAOS") != "long", reason="for `make chaos`"),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

ROUNDS = int(os.environ.get("TIDELOG_ROUNDS", "25"))
SEED = int(os.environ.get("TIDELOG_SEED", str(random.SystemRandom().randrange(2**32))))
TOPIC = "stream"
PARTITIONS = 3
OFFSETS_PARTITIONS = 4
STOPPED_S = (0.5, 2.5, 5)
"""Shorter and longer than the session of 3 s."""

CONFIG = {
    "broker.session.timeout.ms": 3000,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "replica.lag.time.max.ms": 2000,
}


def pause(seconds: float) -> None:
    """Let the cluster go on as it is: how long a fault lasts is part of the fault."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 10, "a pause is over")


def do_fault(cluster: TidelogCluster, chance: random.Random) -> str:
    """One fault and its end; what it was."""
    ids = chance.sample(sorted(cluster.brokers), 3)
    nodes = [cluster.brokers[each] for each in ids]
    what = chance.choice(["kill", "leader", "stop", "two", "all", "kill and stop", "controller"])
    killed = {"kill": 1, "leader": 1, "two": 2, "all": 3}.get(what, 0)
    if what == "leader":
        nodes.sort(key=lambda node: node is not cluster.brokers.get(cluster.leader(TOPIC)))
    for node in nodes[:killed]:
        node.kill()
    if what == "controller":
        cluster.controller.kill()
    if "stop" in what:
        nodes[0].program.send(SIGSTOP)
    if what == "kill and stop":
        nodes[1].kill()
    pause(chance.choice(STOPPED_S) if "stop" in what else chance.choice((0.05, 0.4, 1)))
    if "stop" in what:
        nodes[0].program.send(SIGCONT)
    if what == "kill and stop":
        nodes[1].start()
    if what == "controller":
        cluster.controller.start()
    for node in nodes[:killed]:
        node.start()
    return f"{what} of {ids}"


@pytest.mark.parametrize("durability", ["replicated", "sync"])
def test_brokers_killed_and_stopped_at_random(tmp_path: Path, durability: str) -> None:
    print(f"TIDELOG_SEED={SEED}")
    chance = random.Random(SEED)
    with TidelogCluster(tmp_path, config={**CONFIG, "log.durability": durability}) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2, segment_bytes=1 << 20)
        writers = [
            Writer(cluster.bootstrap, TOPIC, "idempotent", PARTITIONS, idempotent=True),
            Writer(cluster.bootstrap, TOPIC, "plain", PARTITIONS, idempotent=False),
        ]
        reader = GroupReader(cluster.bootstrap, TOPIC, "readers")
        for part in (*writers, reader):
            part.start()
        for number in range(ROUNDS):
            wanted = [len(writer.acked) + 300 for writer in writers]
            fault = do_fault(cluster, chance)
            wait_until(
                lambda wanted=wanted: all(  # type: ignore[misc]
                    writer.has_acked(count + 1)
                    for writer, count in zip(writers, wanted, strict=True)
                ),
                DEADLINE_S,
                f"writers go on after {fault}, round {number}, seed {SEED}",
            )
        for writer in writers:
            writer.finish()
            assert not writer.failed, writer.state()
        for topic in (TOPIC, "__consumer_offsets"):
            cluster.until_in_sync(topic, 3)
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        wait_until(
            lambda: not reader.missing(found), DEADLINE_S, f"the group reads all, seed {SEED}"
        )
        reader.finish()
        wrong = violations(writers, found, reader)
        for node in cluster.brokers.values():
            assert node.stop() == 0, node.said("stopped cleanly")
        wrong += differing_replicas(cluster, TOPIC, PARTITIONS)
        wrong += differing_replicas(cluster, "__consumer_offsets", OFFSETS_PARTITIONS)
        assert not wrong, f"{len(wrong)} broken promises, seed {SEED}:\n" + "\n".join(wrong[:20])
