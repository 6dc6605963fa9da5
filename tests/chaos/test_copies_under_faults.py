"""Transactions from topic to topic while both grow and shrink, and everything fails at random.

Ten minutes in `make chaos`, which keeps the table of the run in docs/internals. `TIDELOG_SEED` and
`TIDELOG_NEMESIS_S` set what happens and how long. Each acknowledged record is copied once, and the
records of a key in their order; at the end nothing is open.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.copies_run import SOURCE, TARGET, CopyingRun, what_is_open
from tests.chaos.copies_verdict import violations
from tests.chaos.fault_run import LONG, SECONDS, SEED
from tests.chaos.nemesis import FaultyCluster
from tests.chaos.resize_verdict import counted, keep
from tests.chaos.schedule import DISKS, EVERYTHING
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET as PROGRAM

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(os.environ.get("TIDELOG_CHAOS") != "long", reason="for `make chaos`"),
    pytest.mark.skipif(PROGRAM != "tidelog", reason="its own cluster of tidelog's processes"),
]

PAGE = Path(__file__).parents[2] / "docs/internals/copies-under-faults.md"
INITIAL = 4
CONFIG = {
    "broker.session.timeout.ms": 3_000,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 2_000,
    "group.initial.rebalance.delay.ms": 100,
    "retired.check.interval.ms": 500,
    "retired.purge.delay.ms": 0,
}


def test_each_record_is_copied_once_and_in_order_under_faults(tmp_path: Path) -> None:
    print(f"TIDELOG_SEED={SEED}, {SECONDS:.0f} s")
    with FaultyCluster(tmp_path, CONFIG) as faulty:
        cluster = faulty.cluster
        for topic in (SOURCE, TARGET):
            cluster.create_topic(topic, INITIAL, 3, retired_purge="drained", segment_bytes=20_000)
        run = CopyingRun(faulty, tmp_path, SEED)
        try:
            run.course(EVERYTHING + DISKS, SECONDS)
        finally:
            print(f"what copies said is in {tmp_path}; {run.tally}")
        wait_until(
            lambda: not what_is_open(cluster.bootstrap),
            DEADLINE_S,
            lambda: f"something is open: {what_is_open(cluster.bootstrap)}",
        )
    found = violations(run.sent, run.acked, run.copied)
    text = table(run, found)
    print(text)
    assert not found, found[:20]
    assert run.aborted > SECONDS / 20, "too little is aborted to see anything"
    if LONG:
        keep(text, PAGE)


def table(run: CopyingRun, found: list[str]) -> str:
    """Return the figures of a run as a table of Markdown."""
    tally = run.tally
    rows = [
        ("the run", f"{SECONDS:.0f} s, 3 brokers and a controller, `TIDELOG_SEED={SEED}`"),
        ("records acknowledged", f"{tally.acked:,}; {tally.undetermined} undetermined"),
        ("records that committed readers got", f"{len(run.copied):,}"),
        ("aborted records, which the control got", f"{run.aborted:,}"),
        ("resizes", f"{counted(tally.resizes)}; {tally.refused} refused"),
        ("what was done to copies", counted(tally.copies)),
        ("faults of servers", counted(tally.faults)),
        ("elections of preferred leaders", str(tally.elections)),
        ("slowest recovery, until all but the last is copied", f"{tally.slowest_catch_up_s:.1f} s"),
        ("records that lack, or are there twice, or in a wrong order", str(len(found))),
    ]
    return "\n".join(["| what | figures |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])
