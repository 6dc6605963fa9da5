"""A decision becomes visible to readers: coordinator, sender and leader at work together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.lone_broker import until
from tests.support.marker_broker import begin, markers_of
from tests.support.transaction_broker import TransactionBroker
from tidelog.model.errors import ErrorCode as E
from tidelog.storage.log.stable import last_stable_offset


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_ends_in_all_its_partitions(tmp_path: Path, committed: bool) -> None:
    async def main() -> None:
        broker = TransactionBroker(tmp_path)
        await broker.start()
        broker.broker.transactions.send_with(broker.broker.markers.sender)
        await broker.lead_and_load()
        hosted = [broker.lead("t"), broker.lead("u")]
        for _ in range(3):
            producer_id, epoch = await broker.init()
            assert await broker.add((producer_id, epoch), ("t", 0), ("u", 0)) == [E.NONE] * 2
            for each in hosted:
                begin(each, producer_id, epoch)
            assert await broker.end((producer_id, epoch), committed=committed) == E.NONE
            for each in hosted:
                await until(lambda each=each: last_stable_offset(each.log) == each.end_offset)
        for each in hosted:
            assert [ended.committed for *_, ended in markers_of(each)] == [committed] * 3
        await broker.stop()

    asyncio.run(main())
