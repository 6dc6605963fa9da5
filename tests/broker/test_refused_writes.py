"""The lines of a broker whose log directory refuses writes: one a minute, with a count."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker
from tidelog.broker.partitions.refused_writes import LINE_EVERY_MS, RefusedWrites


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
