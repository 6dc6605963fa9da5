"""A topic grows and shrinks all the time while processes, links and disks fail at random.

Ten minutes in `make chaos`, which keeps the table of the run in docs/internals. `TIDELOG_SEED` and
`TIDELOG_NEMESIS_S` set what happens and how long. The order checker judges the history of aware
producers and groups; a stock group receives everything.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.chaos.fault_run import LONG, SECONDS, SEED
from tests.chaos.nemesis import FaultyCluster
from tests.chaos.resize_run import ResizingRun
from tests.chaos.resize_verdict import keep, table
from tests.chaos.schedule import DISKS, EVERYTHING
from tests.order.checks import lags_of, violations_in
from tests.order.history import Outcome, Send, to_lines
from tests.order.reference import Reference
from tests.order.timeline import report
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.stock_members import LibrdkafkaMember
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(os.environ.get("TIDELOG_CHAOS") != "long", reason="for `make chaos`"),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

TOPIC = "breathing"
INITIAL = 4
CONFIG = {
    "broker.session.timeout.ms": 3_000,
    "offsets.topic.num.partitions": 1,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 2_000,
    "group.initial.rebalance.delay.ms": 100,
    "retired.check.interval.ms": 500,
    "retired.purge.delay.ms": 0,
}


def test_keys_keep_their_order_under_faults(tmp_path: Path) -> None:
    print(f"TIDELOG_SEED={SEED}, {SECONDS:.0f} s")
    with FaultyCluster(tmp_path, CONFIG) as faulty:
        cluster = faulty.cluster
        cluster.create_topic(TOPIC, INITIAL, 3, retired_purge="drained", segment_bytes=20_000)
        stock = LibrdkafkaMember(cluster.bootstrap, TOPIC, "earliest")
        stock.start()
        run = ResizingRun(faulty, TOPIC, INITIAL, SEED)
        try:
            wait_until(stock.has_joined.is_set, DEADLINE_S, lambda: f"joined: {stock.error}")
            asyncio.run(run.course(EVERYTHING + DISKS, SECONDS))
            acked = {s.uid for s in run.history.of(Send) if s.outcome is Outcome.OK}
            wait_until(
                lambda: acked <= {int(value) for _, _, value in stock.values},
                DEADLINE_S,
                lambda: (
                    f"{len(acked - {int(value) for _, _, value in stock.values})} records of "
                    f"{len(acked)} were not received by the stock group; {stock.error}"
                ),
            )
        finally:
            stock.end()
            (tmp_path / "history.jsonl").write_text("\n".join(to_lines(run.history)))
            print(f"the history is in {tmp_path}; {run.tally}")
    reference = Reference(run.history)
    found = violations_in(reference)
    course = f"{SECONDS:.0f} s, 3 brokers and a controller, `TIDELOG_SEED={SEED}`"
    received = {"the stock group (librdkafka)": len(stock.values)}
    text = table(run.tally, run.history, found, lags_of(reference), received, course)
    print(text)
    assert not found, report(reference, found, SEED)
    if LONG:
        keep(text)
