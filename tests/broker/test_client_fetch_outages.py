"""A partition without a leader holds up no other, and the log names it once per outage."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker
from tests.support.processes import DEADLINE_S
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.producing.sender import RecordSender
from tidelog.model.topics import TopicPartition
from tidelog.runtime.backoff import Backoff

LED, LOST = TopicPartition("led", 0), TopicPartition("lost", 0)


def test_a_partition_without_a_leader_is_logged_once_per_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [line for line in caplog.messages if "lost-0: nothing could be read" in line]

    async def story() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.lead("led")
        lone.lead("lost")
        settings = ClusterSettings(default_api_timeout_ms=50, backoff=Backoff(5, 10))
        async with (
            asyncio.timeout(DEADLINE_S),
            Cluster(lone.bootstrap, settings) as cluster,
            RecordSender(cluster) as sender,
        ):
            fetcher = Fetcher(cluster)
            fetcher.assign({LED: 0, LOST: 0})
            read: list[tuple[TopicPartition, int]] = []

            async def read_until(place: tuple[TopicPartition, int]) -> None:
                while place not in read:
                    for piece in await fetcher.poll(20):
                        read.extend((piece.partition, row.offset) for row in piece.rows())

            offset = 0
            for outage in (1, 2):
                # Another broker leads, which is not there.
                lone.lead("lost", leader=2, epoch=2 * outage - 1)
                while len(lines()) < outage:
                    await sender.send("led", b"1")
                    await sender.flush()
                    await read_until((LED, offset))
                    offset += 1
                for _ in range(20):
                    await fetcher.poll(10)
                assert len(lines()) == outage
                lone.lead("lost", epoch=2 * outage)
                await sender.send("lost", b"1")
                await sender.flush()
                await read_until((LOST, outage - 1))
            await fetcher.close()
        await lone.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert len(lines()) == 2
