"""The lines of a broker whose log directory refuses writes: one a minute, with a count."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker
from tidelog.broker.partitions import inventory
from tidelog.broker.partitions.refused_writes import LINE_EVERY_MS, RefusedWrites
from tidelog.broker.partitions.shortages import LEAST_FREE_BYTES, REMEMBERED_MS, Shortages
from tidelog.storage.segments.resources import DISK_FULL


class Clock:
    def __init__(self) -> None:
        self.now_ms = 5

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


def test_a_full_disk_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refused = RefusedWrites("/data", clock)
    for _ in range(100):
        refused("the disk is full")
    clock.now_ms += LINE_EVERY_MS - 1
    refused("the disk is full")
    clock.now_ms += 1
    refused("the disk quota is used up")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("/data: the disk is full: what is to be written there is refused")
    assert "the disk quota is used up" in lines[1]
    assert lines[1].endswith("(100 more since the last line)")


def test_a_directory_is_short_of_room_until_a_look_finds_more(tmp_path: Path) -> None:
    """Each look is one answer of the file system."""

    async def work() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            lone.lead("t", 2)
            partitions = lone.broker.partitions
            (directory,) = partitions.directories
            clock = Clock()
            shortages = Shortages([directory], clock)
            # Others may write to the same file system between two looks: not between all of them.
            assert any(
                shortages.measured() == {directory: directory.free_bytes()} for _ in range(100)
            )
            for free, said in ((LEAST_FREE_BYTES - 1, DISK_FULL), (LEAST_FREE_BYTES, None)):
                shortages.check({directory: free})
                assert directory.resources.shortage == said
            # A large batch finds no room although some is left, or a quota is used up.
            quota = "the disk quota is used up"
            for later_ms, free, said in (
                (0, 1 << 20, quota),
                (REMEMBERED_MS, 1 << 20, quota),
                (1, 1 << 20, None),
            ):
                if not later_ms:
                    shortages.refused(directory, quota)
                    assert directory.resources.shortage == quota
                clock.now_ms += later_ms
                shortages.check({directory: free})
                assert directory.resources.shortage == said
            shortages.refused(directory, DISK_FULL)
            for free, said in ((1 << 20, DISK_FULL), ((1 << 20) + 1, None)):
                shortages.check({directory: free})
                assert directory.resources.shortage == said
            # An unknown number is no room, and no shortage of its own.
            shortages.check({})
            assert directory.resources.shortage is None
        finally:
            await lone.stop()

    asyncio.run(work())


def test_heartbeats_name_a_directory_without_room_and_the_replicas_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            lone.lead("t", 2)
            hosted = lone.lead("u", 3)
            partitions = lone.broker.partitions
            (directory,) = partitions.directories
            error = OSError(errno.ENOSPC, "No space left on device")
            assert partitions.failures() is None
            directory.resources.refused_for(error)
            (short,) = partitions.failures().shortages
            assert (short.log_dir, short.reason) == (str(tmp_path), DISK_FULL)
            named = {each.topic_id: each.partition_indexes for each in short.topics}
            assert named[hosted.topic_id] == [0, 1, 2]
            assert sorted(map(len, named.values())) == [2, 3]
            # The number of those that it names is bounded.
            monkeypatch.setattr(inventory, "MOST_NAMED", 3)
            (short,) = partitions.failures().shortages
            assert sum(len(each.partition_indexes) for each in short.topics) == 3
            # The broker asks the file system, too.
            directory.resources.shortage = None
            with monkeypatch.context() as full:
                full.setattr(type(directory), "free_bytes", lambda _: 0)
                await lone.broker.maintenance.check_room()
            assert directory.resources.shortage == DISK_FULL
        finally:
            await lone.stop()

    asyncio.run(work())


def test_each_log_directory_of_a_broker_says_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            (directory,) = lone.broker.partitions.directories
            error = OSError(errno.ENOSPC, "No space left on device")
            assert directory.resources.refused_for(error) == "the disk is full"
            assert directory.resources.refused_for(OSError(errno.EIO, "")) is None
        finally:
            await lone.stop()

    asyncio.run(work())
    (line,) = [r for r in caplog.records if r.name == "tidelog.broker.partitions.refused_writes"]
    assert line.levelname == "ERROR"
    assert line.getMessage().startswith(f"{tmp_path}: the disk is full")
