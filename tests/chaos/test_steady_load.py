"""Minutes of a steady load: disk, memory and pauses stay bounded, and nothing is lost.

Ten seconds in `make test`; `TIDELOG_CHAOS=long` five minutes, and then as long the same load on
Apache Kafka as the benchmarks start it, whose produces are printed beside tidelog's.
`TIDELOG_STEADY_S` and `TIDELOG_SEED` set how long and which moments are looked up. What was
measured is printed when all tests are done, in `make test`, too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.clusters import kafka_cluster
from benchmarks.nodes import apache_kafka

from tests.chaos.steady_load import (
    CHECK_S,
    COMPACTED,
    DELETE_DELAY_MS,
    FIGURES,
    KAFKA_SERVER,
    KAFKA_SIZES,
    KEPT,
    KEYS,
    PARTITIONS,
    RETENTION_BYTES,
    SERVER,
    TIDELOG_SIZES,
    Load,
    Sampler,
    kept_records,
    lost_records,
    stalls,
)
from tests.support.acked_stream import Place
from tests.support.cluster import TidelogCluster
from tests.support.java import missing
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(TARGET != "tidelog", reason="looks at tidelog's disks and metrics"),
]

LONG = os.environ.get("TIDELOG_CHAOS") == "long"
SECONDS = float(os.environ.get("TIDELOG_STEADY_S", "300" if LONG else "10"))
SEED = int(os.environ.get("TIDELOG_SEED", str(random.SystemRandom().randrange(2**32))))
PER_S = 400.0
ENOUGH = 3000
"""Records of each kind that a load has at least, however slow the machine is: with fewer there may
be nothing to remove. All else that is done in a load is then done twice at least."""

OVERDUE_S = DELETE_DELAY_MS / 1000 + 5.5
"""How long a file may wait for its removal. What its server waited for a processor is taken off:
`own_time.py`."""

MOST_DISK_BYTES = 6 << 20
"""Of a server at any time, whatever the load has written: topics, offsets, metadata and all."""

MOST_GROWTH_BYTES = 32 << 20
"""Of resident memory, from a third of the load to its end."""


Record = Callable[[str, object], None]
"""Takes a figure to print when all tests are done: pytest's `record_property`."""


def run(bootstrap: str, servers: dict[str, TidelogNode], replicas: int, record: Record) -> None:
    """Load for a while, then hold it all against its bounds and the books.

    Without `servers` (it is Kafka) there are no disks, memory and metrics to look at.
    """
    name = f"{'tidelog' if servers else 'Apache Kafka'}, {replicas} broker{'s' * (replicas > 1)}"
    record(FIGURES, f"{name}: {SECONDS:.0f} s of steady load, TIDELOG_SEED={SEED}")
    sizes = TIDELOG_SIZES if servers else KAFKA_SIZES
    load = Load(bootstrap, replicas, PER_S, random.Random(SEED), sizes)
    samplers = {
        name: Sampler(node.log_folder(), node.program.pid) for name, node in servers.items()
    }

    def look(until_s: float) -> bool:
        load.look()
        for sampler in samplers.values():
            sampler.look()
        return time.monotonic() >= until_s and load.has_done(ENOUGH)

    end_s = time.monotonic() + SECONDS
    try:
        wait_until(lambda: look(end_s), SECONDS + DEADLINE_S, "the load has lasted", CHECK_S)
        load.finish()
    finally:
        load.probe.kill()
    record(FIGURES, f"{name}: {load.said()}")
    record(FIGURES, f"{name}: a produce took {load.latency()}")
    bounded(servers, samplers, record)
    # What is still to be removed goes when nothing more comes.
    wait_until(
        lambda: look(0) and not any(sampler.waiting for sampler in samplers.values()),
        DEADLINE_S,
        "everything that was removed is gone",
        CHECK_S,
    )
    nothing_lost(bootstrap, load)


def bounded(servers: dict[str, TidelogNode], samplers: dict[str, Sampler], record: Record) -> None:
    """Record what each server came to; AssertionError when something grows with the load."""
    wrong = []
    for name, sampler in samplers.items():
        measured = sampler.measured
        disk = measured.most(measured.disk, 0, SECONDS)
        first_s, _ = measured.resident[0]
        early = measured.most(measured.resident, 0, max(first_s, SECONDS / 3))
        late = measured.most(measured.resident, SECONDS * 2 / 3, SECONDS + DEADLINE_S)
        longer = {bound: int(count) for bound, count in stalls(servers[name].metrics_port).items()}
        record(
            FIGURES,
            f"{name}: disk at most {disk / 1e6:.1f} MB, memory {early / 1e6:.1f} MB and "
            f"{late / 1e6:.1f} MB at last, a removed file waited {measured.oldest_removed_s:.1f} s "
            f"at most ({measured.oldest_removed_own_s:.1f} s without the machine's part), stalls "
            f"longer than each bound: {longer or 'not measured'}",
        )
        if measured.oldest_removed_own_s > OVERDUE_S:
            waited_s = measured.oldest_removed_own_s
            file = measured.oldest_removed
            wrong.append(f"{name}: {file}, removed, was there for {waited_s:.1f} s of its server")
        if disk > MOST_DISK_BYTES:
            wrong.append(f"{name}: {disk} bytes on disk")
        if late - early > MOST_GROWTH_BYTES:
            wrong.append(f"{name}: memory grew from {early} to {late} bytes")
    assert not wrong, "; ".join(wrong)


def nothing_lost(bootstrap: str, load: Load) -> None:
    """What retention keeps and the newest of each key are there; both did their work."""
    starts: dict[int, int] = {}
    found: dict[Place, str] = {}

    def retained() -> bool:
        nonlocal starts, found
        starts, found = kept_records(bootstrap, KEPT, PARTITIONS)
        return min(starts.values()) > 0

    wait_until(retained, DEADLINE_S, "retention has removed something")
    assert not (lost := lost_records(load.kept, starts, found, newest=False)), lost[:5]
    assert sum(map(len, found.values())) > RETENTION_BYTES / 8, "and not too much"

    def compacted() -> bool:
        nonlocal starts, found
        starts, found = kept_records(bootstrap, COMPACTED, PARTITIONS)
        return len(found) < len(load.compacted.acked)

    # A helper process does it, which takes its time to start on a loaded machine.
    wait_until(compacted, DEADLINE_S, "compaction has removed something", CHECK_S)
    assert not (lost := lost_records(load.compacted, starts, found, newest=True)), lost[:5]
    assert len(found) >= min(KEYS, len(load.compacted.acked))


def test_a_file_removed_in_the_place_of_another_waits_again(tmp_path: Path) -> None:
    """As in a log whose first segment is compacted again and again, each time within the delay."""
    sampler = Sampler(tmp_path, os.getpid())
    removed, fresh = tmp_path / "00000000000000000000.log.deleted", tmp_path / "fresh"
    for content in "123":
        fresh.write_text(content)
        fresh.rename(removed)
        sampler.look()
        assert sampler.waiting == 1
    assert sampler.measured.oldest_removed_s == 0.0
    sampler.look()
    assert sampler.measured.oldest_removed_s > 0.0
    assert sampler.measured.oldest_removed == removed


def test_one_server_under_a_steady_load(tmp_path: Path, record_property: Record) -> None:
    with TidelogNode(tmp_path / "node", SERVER) as node:
        run(node.bootstrap, {"server": node}, 1, record_property)


def test_three_brokers_under_a_steady_load(tmp_path: Path, record_property: Record) -> None:
    with TidelogCluster(tmp_path, 3, SERVER) as cluster:
        servers = {f"broker {node_id}": node for node_id, node in cluster.brokers.items()}
        run(cluster.bootstrap, servers, 3, record_property)


@pytest.mark.java
@pytest.mark.skipif(not LONG, reason="for `make chaos`")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_one_kafka_under_the_same_load(tmp_path: Path, record_property: Record) -> None:
    """The positive control: what is asked of tidelog Kafka does, too; and how fast it is."""
    node = apache_kafka(tmp_path)
    node.configure(KAFKA_SERVER)
    with node:
        run(node.bootstrap, {}, 1, record_property)


@pytest.mark.java
@pytest.mark.skipif(not LONG, reason="for `make chaos`")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_three_kafka_brokers_under_the_same_load(tmp_path: Path, record_property: Record) -> None:
    made = kafka_cluster(tmp_path)
    for node in made.nodes:
        node.configure(KAFKA_SERVER)
    with made as cluster:
        cluster.start()
        run(cluster.bootstrap, {}, 3, record_property)
