"""Parts of segment files: the same whole batches that a read returns, or nothing."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker, Peer
from tests.support.storage_logs import remove_due
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.disk import RealDisk, RealFile
from tidelog.storage.log.region import LEAST_BYTES, FileRegion, find_region
from tidelog.storage.segments.open_files import OpenFiles


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
            region = find_region(hosted.log, offset, room, hosted.log.high_watermark)
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


def test_a_reader_that_goes_on_gets_the_same_as_one_that_begins_there(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 300, 9_000)
        log = lone.broker.partitions.get("t", 0).log  # type: ignore[union-attr]
        for room in (80_000, 200_000, 1_200_000):
            offset = remembered = 0
            while (region := find_region(log, offset, room, log.high_watermark)) is not None:
                log.segments.forget_positions()
                other = find_region(log, offset, room, log.high_watermark)
                assert other is not None
                assert (other.position, other.size) == (region.position, region.size)
                headers = [
                    header
                    for _, header in walk(os.pread(region.fileno, region.size, region.position))
                ]
                assert headers[0].base_offset == offset
                offset = headers[-1].next_offset
                known = log.segments.remembered(offset)
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
        region = find_region(log, 0, 100_000, log.high_watermark)
        assert region is not None
        offset = len(list(walk(os.pread(region.fileno, region.size, region.position))))
        assert log.segments.remembered(offset) is not None
        finish(log.truncation(offset, int(time.time() * 1000)))
        assert log.segments.remembered(offset) is None
        assert find_region(log, offset, 100_000, log.high_watermark) is None
        await lone.stop()

    asyncio.run(main())


def test_what_is_not_committed_or_small_is_not_given(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 60, 9_000)
        log = lone.broker.partitions.get("t", 0).log  # type: ignore[union-attr]
        assert find_region(log, 10, LEAST_BYTES - 1, log.high_watermark) is None
        assert find_region(log, 57, 10**6, log.high_watermark) is None
        assert find_region(log, 60, 10**6, log.high_watermark) is None
        assert find_region(log, 10, 10**6, log.high_watermark) is not None
        assert find_region(log, 10, 10**6, 0) is None
        assert find_region(log, 10, 10**6, 10) is None
        assert find_region(log, 10, 10**6, 15) is None
        await lone.stop()

    asyncio.run(main())


def test_a_region_of_a_segment_that_is_not_wholly_committed_ends_below_the_limit(
    tmp_path: Path,
) -> None:
    """With acks=all the active segment never is, and lagging consumers read most of it."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        hosted = lone.lead("t", configs={"segment.bytes": "1000000"})
        now = int(time.time() * 1000)
        rng = random.Random(4)
        for _ in range(300):
            records = [
                NewRecord(now, None, rng.randbytes(3_000)) for _ in range(rng.choice((1, 3)))
            ]
            hosted.append(build_batch(records), now)
        log = hosted.log
        assert len(log.segments) > 1
        begins = {each.base_offset: each for _, each in walk(all_batches(hosted))}
        found = 0
        for _ in range(400):
            limit = rng.randrange(log.end_offset + 1)
            offset, room = rng.randrange(limit + 1), rng.choice((100_000, 300_000, 2_000_000))
            region = find_region(log, offset, room, limit)
            if region is None:
                continue
            found += 1
            headers = [each for _, each in walk(read_of(region))]
            last = headers[-1].next_offset
            assert headers[0].base_offset <= offset and last <= limit
            following = begins.get(last)
            readable = following is not None and following.next_offset <= limit
            assert region.more_follows or not readable
            # At most the last batch that the index names may be above the limit after all.
            assert not region.more_follows or last < limit
        assert found > 200
        await lone.stop()

    asyncio.run(main())


def test_a_limit_is_kept_when_the_index_lies_about_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 60, 9_000)
        log = lone.broker.partitions.get("t", 0).log  # type: ignore[union-attr]
        index = log.segments.active.index
        truth = list(index.first)
        index.first[:] = type(index.first)("i", [x if x < 9 else 9 + (x - 9) // 2 for x in truth])
        assert find_region(log, 0, 10**6, 20) is None, "the index is found to lie, and rebuilt"
        assert list(log.segments.active.index.first) == truth
        region = find_region(log, 0, 10**6, 20)
        assert region is not None
        assert [each.base_offset for _, each in walk(read_of(region))][-1] < 20
        await lone.stop()

    asyncio.run(main())


def all_batches(hosted: HostedPartition) -> bytes:
    pieces, offset = [], 0
    while offset < hosted.log.end_offset:
        piece = hosted.log.read(offset, 1_000_000)
        assert isinstance(piece, memoryview)
        pieces.append(bytes(piece))
        offset = [header for _, header in walk(piece)][-1].next_offset
    return b"".join(pieces)


def read_of(region: FileRegion) -> bytes:
    return os.pread(region.fileno, region.size, region.position)


def test_a_region_outlives_the_removal_of_its_segment(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 300, 9_000)
        hosted = lone.broker.partitions.get("t", 0)
        assert hosted is not None
        before = bytes(hosted.read(3, 500_000))  # type: ignore[arg-type]
        region = find_region(hosted.log, 3, 500_000, hosted.log.high_watermark)
        assert region is not None
        hosted.log.advance_start(250)
        finish(hosted.log.housekeeping(int(time.time() * 1000)))
        hosted.log.sync()
        assert remove_due(hosted.log, 2**60)
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


class Counted(RealFile):
    """A file that counts how often it is closed; ``meanwhile`` is called at a look-up of it."""

    closed = 0
    meanwhile: Callable[[], None] | None = None

    def __hash__(self) -> int:
        if self.meanwhile is not None:
            called, self.meanwhile = self.meanwhile, None
            called()
        return id(self)

    def close(self) -> None:
        self.closed += 1
        super().close()


class CountedDisk(RealDisk):
    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Counted:
        found = super().open(path, create=create, read_only=read_only)
        return Counted(path, found.fileno())


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("change", ["pin", "release", "forget"])
def test_a_region_that_goes_in_another_thread_loses_no_pin(
    tmp_path: Path, change: str, step: int
) -> None:
    """The garbage collector runs in whatever thread it is due, in the midst of the owner's work.

    A pin that is lost leaves a descriptor open for ever; one that counts twice closes it while it
    is read, and its number is another file's then.
    """
    path = tmp_path / "file"
    path.write_bytes(b"content")
    files = OpenFiles(CountedDisk())
    file = files.pin(str(path))
    assert isinstance(file, Counted)
    regions = [FileRegion(file.fileno(), 0, 7, lambda: files.let_go(file))]
    files.pin(str(path))  # what ``release`` undoes

    def collected() -> None:
        other = threading.Thread(target=regions.clear)
        other.start()
        other.join()

    looked_up = 0

    def count() -> None:
        nonlocal looked_up
        if looked_up == step:
            collected()
        else:
            looked_up += 1
            file.meanwhile = count

    file.meanwhile = count
    if change == "pin":
        files.pin(str(path))
    elif change == "release":
        files.release(file)
    else:
        files.forget(str(path))
    file.meanwhile = None
    regions.clear()
    held = {"pin": 2, "release": 0, "forget": 1}[change]
    files.forget(str(path))
    files.take_up()
    for _ in range(held):
        assert file.closed == 0, "it is still pinned"
        assert os.pread(file.fileno(), 7, 0) == b"content"
        files.release(file)
    assert file.closed == 1


def test_the_descriptor_of_a_removed_segment_does_not_wait_for_the_next_read(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        lone = await filled(tmp_path, 300, 9_000)
        hosted = lone.broker.partitions.get("t", 0)
        assert hosted is not None
        region = find_region(hosted.log, 3, 500_000, hosted.log.high_watermark)
        assert region is not None
        fileno = region.fileno
        assert "t-0" in os.readlink(f"/proc/self/fd/{fileno}")
        hosted.log.advance_start(250)
        finish(hosted.log.housekeeping(int(time.time() * 1000)))
        hosted.log.sync()
        assert remove_due(hosted.log, 2**60)
        del region
        lone.broker.directories[0].due_removal()
        held = [os.readlink(f"/proc/self/fd/{x}") for x in os.listdir("/proc/self/fd") if exists(x)]
        assert not [x for x in held if str(tmp_path) in x and x.endswith("(deleted)")]
        await lone.stop()

    asyncio.run(main())


def exists(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_a_region_that_outlives_its_directory_closes_its_file(tmp_path: Path) -> None:
    """A response that is still being sent when all is closed: no file is opened again."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    files = OpenFiles(RealDisk())
    file = files.pin(str(path))
    number = file.fileno()
    regions = [FileRegion(number, 0, 7, lambda: files.let_go(file))]
    files.close()
    assert os.pread(number, 7, 0) == b"content", "it is still being sent"
    other = threading.Thread(target=regions.clear)
    other.start()
    other.join()
    with pytest.raises(OSError):
        os.fstat(number)
