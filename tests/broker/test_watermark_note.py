"""When a broker writes the note of a high watermark, and what it does when it cannot."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

from tests.support.lone_broker import LoneBroker
from tests.support.storage_logs import NOW_MS, FaultyDisk
from tidelog.broker.partitions.partition import HostedPartition, Role
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.seams import Seams
from tidelog.storage.log.watermark_note import FILE, NOTHING


def test_it_is_written_while_not_all_replicas_are_in_sync(tmp_path: Path) -> None:
    """With all in sync what is committed is on all of them: no election loses it."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            hosted = lone.lead("t", replicas=(1, 2), isr=(1, 2))
            note = hosted.log.watermark_note
            write(hosted)
            hosted.follower_fetched(2, 1)
            assert (hosted.high_watermark, note.offset) == (1, NOTHING)
            hosted.take_isr((1,), 1)
            write(hosted)
            assert (hosted.high_watermark, note.offset) == (2, 2)
            # A follower of such a partition notes it too.
            following = replace(hosted.state, leader=2, leader_epoch=1, isr=(2,), isr_version=2)
            lone.broker.partitions.apply(hosted, following)
            hosted.log.end_offset = 3
            hosted.replicated(10, 3)
            assert (hosted.high_watermark, note.offset) == (3, 3)
            alone = lone.lead("alone")
            write(alone)
            assert (alone.high_watermark, alone.log.watermark_note.offset) == (1, NOTHING)
        finally:
            await lone.stop()

    asyncio.run(main())


def test_what_was_committed_before_the_isr_shrank_is_noted_then(tmp_path: Path) -> None:
    """A follower receives a shrunken ISR after the watermark that came with it."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            hosted = lone.lead("t", replicas=(1, 2, 3), isr=(1, 2, 3))
            note = hosted.log.watermark_note
            hosted.take_isr((1, 2), 1)
            assert note.offset == NOTHING, "nothing is committed yet"
            hosted.take_isr((1, 2, 3), 2)
            write(hosted)
            following = replace(hosted.state, leader=2, leader_epoch=1, isr_version=3)
            lone.broker.partitions.apply(hosted, following)
            hosted.replicated(0, 1)
            assert (hosted.high_watermark, note.offset) == (1, NOTHING)
            shrunk = replace(following, isr=(2,), isr_version=4)
            lone.broker.partitions.apply(hosted, shrunk)
            assert note.offset == 1
        finally:
            await lone.stop()

    asyncio.run(main())


def test_what_cannot_be_noted_is_not_acknowledged(tmp_path: Path) -> None:
    """Promise 25: a directory that has just failed acknowledges nothing."""

    async def main() -> None:
        disk = FaultyDisk()
        lone = LoneBroker(tmp_path, seams=Seams(disk=disk))
        await lone.start()
        try:
            hosted = lone.lead("t", replicas=(1, 2), isr=(1,))
            write(hosted)
            assert hosted.high_watermark == 1
            disk.failing = (FILE,)
            disk.fault = errno.EIO
            result = hosted.append(build_batch([NewRecord(NOW_MS, None, b"x")]), NOW_MS)
            assert isinstance(result, Rejected)
            assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert (hosted.role, hosted.high_watermark) == (Role.OFFLINE, 1)
        finally:
            await lone.stop()

    asyncio.run(main())


def write(hosted: HostedPartition) -> None:
    hosted.append(build_batch([NewRecord(NOW_MS, None, b"x")]), NOW_MS)
