"""A follower that must begin where the leader's log begins, inside of a batch (DeleteRecords).

Found by the cluster simulation: the follower waited for offset 296, the leader's first batch begins
at 295, and the follower never joined the ISR again. Seed 5018 found the same with a log that was
not empty: of the follower's epoch the leader knew only that its own log began at 74.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.support.broker_pair import Pair, content, running
from tests.support.lone_broker import until
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.records.builder import NewRecord, build_batch

NOW_MS = int(time.time() * 1000)


def begins_at(pair: Pair, start: int) -> HostedPartition:
    """A leader of two batches of three records whose log starts at an offset."""
    leader = pair.lead(isr=(1,))
    for batch in range(2):
        values = [NewRecord(NOW_MS, None, b"%d" % (batch * 3 + n)) for n in range(3)]
        leader.append(build_batch(values), NOW_MS)
    leader.log.high_watermark = 6
    leader.log.advance_start(start)
    return leader


def test_an_empty_follower_begins_with_the_batch_in_which_the_leader_begins(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = begins_at(pair, 4)
            follower = pair.follow(isr=(1,))
            await until(lambda: follower.end_offset == 6)
            await until(lambda: follower.start_offset == 4)
            assert content(follower) == content(leader)

    asyncio.run(main())


@pytest.mark.parametrize("held", [8, 4])
@pytest.mark.parametrize("start", [4, 3])
def test_nothing_stays_of_an_epoch_that_the_leader_has_forgotten(
    tmp_path: Path, held: int, start: int
) -> None:
    """With 8 records the follower must cut where the leader begins, with 4 it ends there."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = begins_at(pair, start)
            follower = pair.follow(isr=(1,))
            for _ in range(held):
                other = build_batch([NewRecord(NOW_MS, None, b"never committed")])
                follower.log.append_as_leader(other, 0, NOW_MS)
            await until(lambda: follower.end_offset == 6)
            await until(lambda: follower.start_offset == start)
            assert content(follower) == content(leader)
            assert follower.log.segments[0].base_offset == 3

    asyncio.run(main())
