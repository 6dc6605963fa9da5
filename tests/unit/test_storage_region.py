"""Parts of segment files: the same whole batches that a read returns, or nothing."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

from tests.support.lone_broker import LoneBroker, Peer

from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.storage.region import LEAST_BYTES, find_region


async def filled(folder: Path, batches: int, size: int) -> LoneBroker:
    lone = LoneBroker(folder)
    await lone.start()
    hosted = lone.lead("t", configs={"segment.bytes": "1000000"})
    now = int(time.time() * 1000)
    for _ in range(batches):
        hosted.append(build_batch([NewRecord(now, None, os.urandom(size))]), now)
    return lone


def test_a_region_is_what_a_read_returns(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 400, 9_000)
        hosted = lone.broker.partitions.get("t", 0)
        assert hosted is not None and len(hosted.log.segments) > 3
        rng = random.Random(1)
        found = 0
        for _ in range(300):
            offset, room = rng.randrange(420), rng.randrange(1, 1_200_000)
            region = find_region(hosted.log, offset, room)
            if region is None:
                continue
            found += 1
            assert LEAST_BYTES <= len(region) <= room
            sent = os.pread(region.fileno, region.size, region.position)
            headers = [header for _, header in walk(sent)]
            assert headers[0].base_offset == offset
            assert sum(header.size for header in headers) == len(sent)
            read = hosted.read(offset, room)
            assert isinstance(read, memoryview) and bytes(read[: len(sent)]) == sent
        assert found > 100
        await lone.stop()

    asyncio.run(main())


def test_who_reads_on_is_given_the_same_as_who_begins_there(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 300, 9_000)
        log = lone.broker.partitions.get("t", 0).log  # type: ignore[union-attr]
        for room in (80_000, 200_000, 1_200_000):
            offset = remembered = 0
            while (region := find_region(log, offset, room)) is not None:
                log._hints.clear()
                other = find_region(log, offset, room)
                assert other is not None
                assert (other.position, other.size) == (region.position, region.size)
                headers = [
                    header
                    for _, header in walk(os.pread(region.fileno, region.size, region.position))
                ]
                assert headers[0].base_offset == offset
                offset = headers[-1].next_offset
                known = log.remembered(offset)
                if known is not None:
                    remembered += 1
                    assert known[1] == region.position + region.size
            assert offset and (remembered or room > 1_000_000), "whole segments are not remembered"
        await lone.stop()

    asyncio.run(main())


def test_where_to_read_on_is_forgotten_when_the_log_is_cut(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 60, 9_000)
        log = lone.broker.partitions.get("t", 0).log  # type: ignore[union-attr]
        region = find_region(log, 0, 100_000)
        assert region is not None
        offset = len(list(walk(os.pread(region.fileno, region.size, region.position))))
        assert log.remembered(offset) is not None
        log.truncate_to(offset, int(time.time() * 1000))
        assert log.remembered(offset) is None
        assert find_region(log, offset, 100_000) is None
        await lone.stop()

    asyncio.run(main())


def test_what_is_not_committed_or_small_is_not_given(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 60, 9_000)
        log = lone.broker.partitions.get("t", 0).log  # type: ignore[union-attr]
        assert find_region(log, 10, LEAST_BYTES - 1) is None
        assert find_region(log, 57, 10**6) is None
        assert find_region(log, 60, 10**6) is None
        assert find_region(log, 10, 10**6) is not None
        log.high_watermark = 50
        assert find_region(log, 10, 10**6) is None
        await lone.stop()

    asyncio.run(main())


def test_a_region_outlives_the_removal_of_its_segment(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 300, 9_000)
        hosted = lone.broker.partitions.get("t", 0)
        assert hosted is not None
        before = bytes(hosted.read(3, 500_000))  # type: ignore[arg-type]
        region = find_region(hosted.log, 3, 500_000)
        assert region is not None
        hosted.log.advance_start(250)
        hosted.log.housekeep(int(time.time() * 1000))
        hosted.log.purge(2**60)
        sent = os.pread(region.fileno, region.size, region.position)
        assert before.startswith(sent) and len(sent) == region.size
        await lone.stop()

    asyncio.run(main())


def test_clients_get_the_same_records_either_way(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 400, 9_000)
        peer = await Peer.connect(lone.port)
        request = messages.FetchRequest
        offset = 0
        while offset < 400:
            asked = request.FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=300_000
            )
            topic = request.FetchTopic(topic="t", partitions=[asked])
            answer = await peer.ask(request(max_bytes=10**7, topics=[topic]), 12)
            records = answer.responses[0].partitions[0].records
            seen = [header.base_offset for _, header in walk(records)]
            assert seen == list(range(offset, offset + len(seen))) and seen
            offset += len(seen)
        await lone.stop()

    asyncio.run(main())
