"""A follower that must begin where the leader's log begins, inside of a batch (DeleteRecords).

Found by the cluster simulation: the follower waited for offset 296, the leader's first batch begins
at 295, and the follower never joined the ISR again.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.support.lone_broker import until
from tests.unit.test_broker_following import content, running

from tidelog.records.builder import NewRecord, build_batch


def test_an_empty_follower_begins_with_the_batch_in_which_the_leader_begins(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = pair.lead(isr=(1,))
            now_ms = int(time.time() * 1000)
            for batch in range(2):
                values = [NewRecord(now_ms, None, b"%d" % (batch * 3 + n)) for n in range(3)]
                leader.append(build_batch(values), now_ms)
            leader.log.high_watermark = 6
            leader.log.advance_start(4)
            follower = pair.follow(isr=(1,))
            await until(lambda: follower.end_offset == 6)
            await until(lambda: follower.start_offset == 4)
            assert content(follower) == content(leader)

    asyncio.run(main())
