"""What a sender's next identity is, after a batch was lost: the next epoch of its producer id."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker
from tests.support.storage_logs import NOW_MS, batch
from tidelog.broker.handlers import init_producer_id
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.client.producing.sender import RecordSender
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader, Rejected, walk
from tidelog.records.builder import Producer

LARGEST = 500


class Numbering(LoneBroker):
    """Hands out producer ids as a real broker does."""

    def _init_producer_id(self, *asked: Any) -> Any:
        if asked[1].producer_id >= 0:
            return init_producer_id.handle(*asked)
        return super()._init_producer_id(*asked)


def headers(hosted: HostedPartition) -> list[BatchHeader]:
    found = hosted.read(0, 1_000_000)
    assert not isinstance(found, Rejected)
    return [header for _, header in walk(found)]


def test_what_was_sent_under_the_former_epoch_is_fenced(tmp_path: Path) -> None:
    async def work() -> None:
        lone = Numbering(tmp_path)
        await lone.start()
        try:
            hosted = lone.lead("t", configs={"max.message.bytes": str(LARGEST)})
            async with Cluster(lone.bootstrap) as cluster, RecordSender(cluster) as sender:
                await (await sender.send("t", b"first", partition=0))
                with pytest.raises(Refused, match="MESSAGE_TOO_LARGE"):
                    await (await sender.send("t", bytes(LARGEST), partition=0))
                await (await sender.send("t", b"second", partition=0))
            first, second = headers(hosted)
            assert (first.producer_epoch, first.base_sequence) == (0, 0)
            renumbered = (second.producer_id, second.producer_epoch, second.base_sequence)
            assert renumbered == (first.producer_id, 1, 0)
            # A network held up what was sent before the sender gave up its numbers.
            late = batch(1, producer=Producer(first.producer_id, 0, 1))
            got = hosted.append(late, NOW_MS)
            assert isinstance(got, Rejected)
            assert got.error is ErrorCode.INVALID_PRODUCER_EPOCH
        finally:
            await lone.stop()

    asyncio.run(work())
