"""One run of the nemesis: work on a cluster, rounds of faults, and the books at its end.

`TIDELOG_SEED` and `TIDELOG_NEMESIS_S` (40, in `make chaos` 600) set what happens and how long; the
seed and each round are printed, and the same seed draws the same rounds again. After each round the
cluster must recover in time (promise 24); at the end the books are held against the topic, and the
replicas against each other.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

from tests.chaos.nemesis import FaultyCluster
from tests.chaos.schedule import Kind, Round, schedule
from tests.support.acked_stream import (
    GroupReader,
    Place,
    Writer,
    read_all,
    renumbered_values,
    violations,
)
from tests.support.cluster import TidelogCluster, differing_replicas
from tests.support.log_files import batches
from tests.support.own_time import OwnTime, until_in_time
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.zookeeper import ZooKeeper

LONG = os.environ.get("TIDELOG_CHAOS") == "long"
SECONDS = float(os.environ.get("TIDELOG_NEMESIS_S", "600" if LONG else "40"))
SEED = int(os.environ.get("TIDELOG_SEED", str(random.SystemRandom().randrange(2**32))))
TOPIC = "stream"
PARTITIONS = 3
OFFSETS_PARTITIONS = 4
SESSION_MS = 3000
CONFIG = {
    "broker.session.timeout.ms": SESSION_MS,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "replica.lag.time.max.ms": 2000,
}
LEADERS_WITHIN_S = SESSION_MS / 1000 + 2
"""Promise 24, on a quiet machine."""

PATIENCE = 3
"""How much longer than promised the clients may make it. What a busy machine takes is taken off:
`own_time.py`."""

IN_SYNC_WITHIN_S = 20
NEAR = 6
"""How far around a record that is there twice its neighbours are shown."""


def pause(seconds: float) -> None:
    """Let the cluster be as it is: how long a fault lasts is part of the fault."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 10, "a pause is over", 0.02)


def writers_of(cluster: TidelogCluster) -> list[Writer]:
    """Several producers at a pace that leaves the machine to the cluster."""
    at = cluster.bootstrap
    return [
        Writer(at, TOPIC, "idempotent", PARTITIONS, idempotent=True, per_s=300),
        Writer(at, TOPIC, "keyed", PARTITIONS, idempotent=True, keys=20, per_s=300),
        Writer(at, TOPIC, "plain", PARTITIONS, idempotent=False, per_s=300),
    ]


class Work:
    """Producers and a group on a faulty cluster, and how fast it recovers."""

    def __init__(self, faulty: FaultyCluster) -> None:
        self.cluster = faulty.cluster
        self.writers = writers_of(self.cluster)
        self.reader = GroupReader(self.cluster.bootstrap, TOPIC, "readers")
        self.slowest_leaders_s = 0.0
        self.slowest_in_sync_s = 0.0
        for part in (*self.writers, self.reader):
            part.start()

    def until_recovered(self, what: str) -> None:
        """Every partition acknowledges again, then all replicas are in sync."""
        wanted = [(writer, len(writer.acked) + 3 * PARTITIONS) for writer in self.writers]
        own = OwnTime(self.cluster.pids)
        led_s = until_in_time(
            lambda: all(writer.has_acked(count) for writer, count in wanted),
            LEADERS_WITHIN_S * PATIENCE,
            self.cluster.pids,
            lambda: f"{self._state(wanted)} go on {what}\n{self.cluster.said('')}",
        )
        for topic in (TOPIC, "__consumer_offsets"):
            self.cluster.until_in_sync(topic, 3)
        in_sync_s = own.wall_s()
        self.slowest_leaders_s = max(self.slowest_leaders_s, led_s)
        self.slowest_in_sync_s = max(self.slowest_in_sync_s, in_sync_s)
        assert own.seconds() < IN_SYNC_WITHIN_S * PATIENCE, f"in sync after {own.said()} {what}"

    def _state(self, wanted: list[tuple[Writer, int]]) -> str:
        """What each writer has, and what it should have had by now."""
        return "; ".join(f"{each.state()}, {count} wanted" for each, count in wanted)

    def check(self) -> None:
        """Let all come to rest, and hold the books against the topic and its replicas."""
        cluster = self.cluster
        for writer in self.writers:
            writer.finish()
            assert not writer.failed, writer.state()
        found = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
        wait_until(
            lambda: not self.reader.missing(found),
            DEADLINE_S,
            lambda: f"the group reads all; {self.reader.state()}",
        )
        self.reader.finish()
        for topic in (TOPIC, "__consumer_offsets"):
            cluster.until_in_sync(topic, 3)
        for node in cluster.brokers.values():
            assert node.stop() == 0, node.said("stopped cleanly")
        idempotent = {p: v for p, v in found.items() if not v.startswith("plain:")}
        renumbered = renumbered_values(idempotent, cluster.batches_of(TOPIC))
        if renumbered:
            print(f"sent again under another number by librdkafka: {sorted(renumbered)}")
        wrong = violations(self.writers, found, self.reader, renumbered)
        wrong += evidence(cluster, {p: v for p, v in idempotent.items() if v not in renumbered})
        wrong += differing_replicas(cluster, TOPIC, PARTITIONS)
        wrong += differing_replicas(cluster, "__consumer_offsets", OFFSETS_PARTITIONS)
        assert not wrong, f"{len(wrong)} broken promises, seed {SEED}:\n" + "\n".join(wrong[:60])
        print(
            f"{sum(len(writer.acked) for writer in self.writers)} records acked; slowest: leaders "
            f"{self.slowest_leaders_s:.1f} s, in sync {self.slowest_in_sync_s:.1f} s after a round"
        )


def evidence(cluster: TidelogCluster, found: dict[Place, str]) -> list[str]:
    """The batches of an idempotent producer's records that are there twice, as stopped brokers
    have them."""
    times = Counter(found.values())
    twice = {value for value, count in times.items() if count > 1}
    return [
        f"{value} at {place}: broker {node_id} has {batch}"
        for place, value in sorted(found.items())
        if value in twice
        for node_id, node in cluster.brokers.items()
        for batch in batches(node.log_folder(), TOPIC, place[0])
        if abs(batch.base_offset - place[1]) <= NEAR
    ]


def do_round(faulty: FaultyCluster, found: Round) -> None:
    """Begin the faults of a round, let each last, end it; processes are up again afterwards."""
    pause(found.work_s)
    ranks = faulty.ranks(faulty.cluster.leader(TOPIC))
    for fault in found.faults:
        faulty.begin(fault, ranks)
    since = time.monotonic()
    for fault in sorted(found.faults, key=lambda fault: fault.lasts_s):
        pause(max(0.0, fault.lasts_s - (time.monotonic() - since)))
        faulty.end(fault, ranks)
    faulty.until_ready()


def run_faults(
    folder: Path, run: str, kinds: tuple[Kind, ...], zookeeper: ZooKeeper | None = None
) -> None:
    """Work, rounds of faults, and the books."""
    durability = random.Random(SEED).choice(("replicated", "replicated", "sync"))
    print(f"TIDELOG_SEED={SEED}, {run}, {SECONDS:.0f} s, log.durability={durability}")
    begun = time.monotonic()
    with FaultyCluster(folder, {**CONFIG, "log.durability": durability}, zookeeper) as faulty:
        faulty.cluster.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2, segment_bytes=1 << 20)
        work = Work(faulty)
        work.until_recovered("at first")
        for number, found in enumerate(schedule(SEED, SECONDS, kinds)):
            if time.monotonic() - begun > SECONDS:
                break
            print(f"{time.monotonic() - begun:5.1f} s: round {number}, {found}")
            do_round(faulty, found)
            work.until_recovered(f"after round {number}, {found}, seed {SEED}")
        work.check()
