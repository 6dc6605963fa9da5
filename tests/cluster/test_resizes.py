"""A topic under load grows and shrinks while processes die: no key loses its order, and no record.

The product's own producers and group members write and read it, and stock consumers beside them.
The order checker judges the history; stock consumers promise no order between the homes of a key,
but they receive everything.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.order.aware_run import RealRun
from tests.order.checks import lags_of, violations_in
from tests.order.history import Outcome, Send
from tests.order.reference import Reference
from tests.order.timeline import report
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.stock_members import KafkaPythonMember, LibrdkafkaMember, StockMember
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

TOPIC = "breathing"
INITIAL = 4
LONGEST_LAG_S = 45.0
"""A member whose coordinator died waits for its session and for the join of the others."""

CONFIG = {
    "inter.broker.protocol.version": "1.5",
    "offsets.topic.num.partitions": 1,
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": 3_000,
    "group.initial.rebalance.delay.ms": 100,
    "retired.check.interval.ms": 500,
    "retired.purge.delay.ms": 0,
}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    with TidelogCluster(tmp_path_factory.mktemp("resizes"), config=CONFIG) as started:
        started.create_topic(TOPIC, INITIAL, 3, retired_purge="drained", segment_bytes=20_000)
        yield started


def stock_members(cluster: TidelogCluster) -> list[StockMember]:
    """One member of each kind with each reset, each in its own group; all have joined."""
    kinds = (LibrdkafkaMember, KafkaPythonMember)
    members = [kind(cluster.bootstrap, TOPIC, r) for kind in kinds for r in ("earliest", "latest")]
    for member in members:
        member.start()
    for member in members:
        wait_until(member.has_joined.is_set, DEADLINE_S, lambda m=member: f"{m.group} {m.error}")
    return members


async def resize_under_load(run: RealRun, cluster: TidelogCluster) -> None:
    """Grow and shrink, first undisturbed, then while a leader and the controller die."""
    for count in (8, 16, 5):
        await run.resize(count)
        await run.pause(0.5)
    # The retired partitions leave when all groups have committed past their data.
    await run.resize(8)
    leader = cluster.brokers[cluster.leader(TOPIC, 0)]
    growing = asyncio.create_task(run.resize(16))
    await run.pause(random.uniform(0, 0.3))
    await asyncio.to_thread(leader.kill)
    await asyncio.to_thread(leader.start)
    await growing
    shrinking = asyncio.create_task(run.resize(6))
    await run.pause(random.uniform(0, 0.3))
    await asyncio.to_thread(cluster.controller.kill)
    await asyncio.to_thread(cluster.controller.start)
    await shrinking


async def course(cluster: TidelogCluster, seed: int) -> RealRun:
    """Run the clients and the resizes; return the run with its whole history."""
    run = RealRun(cluster.bootstrap, TOPIC, INITIAL, seed)
    run.start()
    try:
        await run.until(lambda: len(run.history.of(Send)) > 50, lambda: "the writers write")
        await resize_under_load(run, cluster)
        await run.pause(0.5)
        await run.finish()
        return run
    finally:
        await run.close()


def test_keys_keep_their_order_while_a_topic_grows_and_shrinks(cluster: TidelogCluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    members = stock_members(cluster)
    try:
        run = asyncio.run(course(cluster, seed))
        acked = {s.uid: s for s in run.history.of(Send) if s.outcome is Outcome.OK}

        def missing() -> dict[str, list[Send]]:
            lacks = {
                each.group: [
                    acked[uid] for uid in acked.keys() - {int(value) for _, _, value in each.values}
                ]
                for each in members
            }
            return {group: sends for group, sends in lacks.items() if sends}

        wait_until(lambda: not missing(), DEADLINE_S, lambda: f"not received: {missing()}")
    finally:
        for member in members:
            member.end()
    reference = Reference(run.history)
    found = violations_in(reference)
    print(Counter(send.outcome for send in run.history.of(Send)))
    assert not found, report(reference, found, seed)
    assert len(acked) > 500
    flushes = [each.flushes for group in run.groups for each in group.members]
    assert sum(flushes) > 10, flushes
    lags = lags_of(reference)
    print(f"longest lags: {lags}")
    assert max(lags.values()) < LONGEST_LAG_S
