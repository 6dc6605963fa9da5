"""Fetches of what is not in the page cache: a thread reads it first, then the loop does."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import COMMITTED, Transactions
from tests.support.lone_broker import LoneBroker, Peer
from tests.support.network_server import until
from tests.support.produce_fetch import fetch
from tests.support.set_clock import burn
from tests.support.storage_logs import NOW_MS, QuickDisk, QuickFile, batch, new_log, reopen
from tidelog.broker.handlers import fetch as fetch_handler
from tidelog.model.configs.topic import TopicConfigs
from tidelog.records.batch import Rejected, walk
from tidelog.runtime import pace
from tidelog.runtime.disk import RealDisk, RealFile
from tidelog.runtime.seams import Seams
from tidelog.storage.log import cold, region
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.region import find_region

PAGE = 4096


class ColdFile(QuickFile):
    """Knows which of its pages are in memory; a read brings them there, and notes what waited."""

    disk: ColdDisk

    def _pages(self, position: int, size: int) -> set[tuple[str, int]]:
        end = min(position + size, self.size())
        return {(self.path, at) for at in range(position // PAGE, -(-end // PAGE))}

    def read_at(self, position: int, size: int) -> bytes:
        disk = self.disk
        cold = self._pages(position, size) - disk.warm
        if cold and self.path.endswith((".log", "index")):
            disk.waits.append((threading.get_ident(), self.path, len(cold)))
        disk.warm |= cold
        return super().read_at(position, size)

    def in_memory(self, position: int, size: int) -> bool:
        self.disk.questions += 1
        burn(self.disk.question_s)
        return self._pages(position, size) <= self.disk.warm


class ColdDisk(QuickDisk):
    """``waits``: reads that a disk would have been waited for, with their threads."""

    def __init__(self) -> None:
        self.warm: set[tuple[str, int]] = set()
        self.waits: list[tuple[int, str, int]] = []
        self.questions = 0
        self.question_s = 0.0

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        file = ColdFile(plain.path, plain._fd)
        file.disk = self
        return file

    def lose_page_cache(self) -> None:
        self.warm.clear()
        self.waits.clear()
        self.questions = 0


@pytest.mark.parametrize("most", [2_000, 200_000])
def test_the_loop_waits_for_no_disk_when_old_records_are_read(tmp_path: Path, most: int) -> None:
    async def work() -> None:
        disk = ColdDisk()
        configs = {"segment.bytes": "300000"}
        lone = LoneBroker(tmp_path, seams=Seams(disk=disk))
        await lone.start()
        hosted = lone.lead("t", configs=configs)
        for _ in range(300):
            hosted.append(batch(1, size=3_000), NOW_MS)
        assert len(hosted.log.segments) > 2
        peer = await Peer.connect(lone.port)
        try:
            for start in (0, 250, 290):
                hosted.log.segments.forget_positions()
                for segment in hosted.log.segments[:-1]:
                    segment.drop_indexes()
                disk.lose_page_cache()
                answer = await peer.ask(fetch(start, max_bytes=most), 12)
                (part,) = answer.responses[0].partitions
                assert part.error_code == 0
                _, first = next(walk(part.records))
                assert first.base_offset == start
                assert disk.waits or start == 290, "it was cold"
                here = [wait for wait in disk.waits if wait[0] == threading.get_ident()]
                assert not here or start == 290, "the newest records were just written"
        finally:
            await lone.stop()

    asyncio.run(work())


def test_the_loop_waits_for_no_disk_when_aborted_transactions_are_looked_up(tmp_path: Path) -> None:
    async def work() -> None:
        disk = ColdDisk()
        lone = LoneBroker(tmp_path, seams=Seams(disk=disk))
        await lone.start()
        hosted = lone.lead("t", configs={"segment.bytes": "300000"})
        transactions = Transactions(hosted, 3_000)
        for _ in range(300):
            transactions.data(20)
            transactions.abort(20)
            hosted.log.sync()
        assert len(hosted.log.segments) > 2
        peer = await Peer.connect(lone.port)
        try:
            for start in (0, 250):
                disk.lose_page_cache()
                request = fetch(start, max_bytes=20_000)
                request.isolation_level = COMMITTED
                answer = await peer.ask(request, 12)
                (part,) = answer.responses[0].partitions
                assert part.error_code == 0 and len(part.records)
                assert part.aborted_transactions[0].first_offset == start
                assert any(path.endswith(".txnindex") for _, path, _ in disk.waits), "it was cold"
                assert threading.get_ident() not in {wait[0] for wait in disk.waits}
        finally:
            await lone.stop()

    asyncio.run(work())


async def lone_with_cold(tmp_path: Path, disk: ColdDisk, partitions: int) -> LoneBroker:
    """A broker of many partitions, in each of which something is cold."""
    lone = LoneBroker(tmp_path, seams=Seams(disk=disk))
    await lone.start()
    lone.lead("t", partitions)
    for hosted in lone.broker.partitions.all():
        hosted.append(batch(1, size=100), NOW_MS)
        hosted.log.roll(NOW_MS)
        hosted.log.segments.forget_positions()
    disk.lose_page_cache()
    return lone


@pytest.mark.parametrize("max_wait_ms", [0, 20])
def test_many_partitions_are_read_in_steps_after_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_wait_ms: int
) -> None:
    """After the thread had read, and after the wait, all of them were read in one turn."""
    partitions = 2 * pace.PART + 50
    read_at_once: list[int] = []
    read = fetch_handler._FetchResponse.read_some

    def noted(answer: Any, part: Any, found: Any) -> int:
        read_at_once.append(len(part))
        return read(answer, part, found)

    monkeypatch.setattr(fetch_handler._FetchResponse, "read_some", noted)

    async def work() -> None:
        disk = ColdDisk()
        lone = await lone_with_cold(tmp_path, disk, partitions)
        peer = await Peer.connect(lone.port)
        try:
            asked = fetch(0, range(partitions), min_bytes=2**20, max_wait_ms=max_wait_ms)
            answer = await peer.ask(asked, 12)
            (topic,) = answer.responses
            assert sum(len(part.records) > 0 for part in topic.partitions) == partitions
            assert disk.waits and threading.get_ident() not in {each[0] for each in disk.waits}
            assert len(read_at_once) >= 6 and max(read_at_once) == pace.PART
        finally:
            await lone.stop()

    asyncio.run(work())


def test_files_are_let_go_when_the_client_goes_before_they_are_read(tmp_path: Path) -> None:
    async def work() -> None:
        disk = ColdDisk()
        lone = await lone_with_cold(tmp_path, disk, 12 * pace.PART)
        files = next(iter(lone.broker.partitions.all())).log.resources.files
        peer = await Peer.connect(lone.port)
        try:
            disk.question_s = pace.REQUESTS_MS / 1000 / pace.PART * 2
            peer.send(fetch(0, range(12 * pace.PART)), 12)
            await until(lambda: disk.questions)
            assert files._pins
            peer.writer.transport.abort()
            await until(lambda: not lone.server.connections and not files._pins)
            assert not disk.waits, "it had no reader any longer"
        finally:
            await lone.stop()

    asyncio.run(work())


def test_the_end_of_a_log_is_not_asked_about(tmp_path: Path) -> None:
    async def work() -> None:
        disk = ColdDisk()
        lone = LoneBroker(tmp_path, seams=Seams(disk=disk))
        await lone.start()
        hosted = lone.lead("t")
        peer = await Peer.connect(lone.port)
        try:
            for at in range(20):
                hosted.append(batch(1, size=3_000), NOW_MS)
                answer = await peer.ask(fetch(at), 12)
                assert len(answer.responses[0].partitions[0].records)
            assert disk.questions == 0
        finally:
            await lone.stop()

    asyncio.run(work())


def test_what_was_written_long_before_the_end_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may be larger than what the kernel keeps of it."""
    monkeypatch.setattr(cold, "HOT_BYTES", 30_000)

    async def work() -> None:
        disk = ColdDisk()
        lone = LoneBroker(tmp_path, seams=Seams(disk=disk))
        await lone.start()
        hosted = lone.lead("t")
        for _ in range(40):
            hosted.append(batch(1, size=3_000), NOW_MS)
        assert cold.cold_read(hosted.log, 35, 3_000) is None and disk.questions == 0
        disk.lose_page_cache()
        found = cold.cold_read(hosted.log, 5, 3_000)
        assert found is not None and disk.questions
        found.done()
        await lone.stop()

    asyncio.run(work())


def test_what_a_former_life_wrote_is_asked_about_at_the_end_of_a_log_too(tmp_path: Path) -> None:
    """After a start of the machine nothing of it is in memory, however little there is."""

    async def work() -> None:
        disk = ColdDisk()
        for epoch in range(2):
            lone = LoneBroker(tmp_path, seams=Seams(disk=disk))
            await lone.start()
            hosted = lone.lead("t", epoch=epoch)
            if epoch:
                peer = await Peer.connect(lone.port)
                hosted.append(batch(1, size=3_000), NOW_MS)
                disk.lose_page_cache()
                answer = await peer.ask(fetch(5), 12)
                assert len(answer.responses[0].partitions[0].records)
                assert disk.waits, "it was cold"
                assert all(thread != threading.get_ident() for thread, _, _ in disk.waits)
            else:
                for _ in range(20):
                    hosted.append(batch(1, size=3_000), NOW_MS)
            await lone.stop()

    asyncio.run(work())


def test_the_page_cache_can_be_asked(tmp_path: Path) -> None:
    """Where the file system cannot say, the answer is yes: the test is of the call, then."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1_000_000))
    file = RealDisk().open(str(path))
    assert len(file.read_at(0, 1_000_000)) == 1_000_000
    assert file.in_memory(0, 1_000_000) and file.in_memory(999_999, 1)
    file.close()


def committed(tmp_path: Path, size: int) -> PartitionLog:
    """A log of one closed segment of some MB, after a clean stop: nothing of it was checked."""
    configs = TopicConfigs()
    log = new_log(tmp_path, configs)
    while log.size < size:
        log.append_as_leader(batch(1, size=16_000), 0, NOW_MS)
    log.roll(NOW_MS)
    log.high_watermark = end = log.end_offset
    assert log.close()
    return reopen(tmp_path, configs, ending=Ending(end, end, clean=True))


def test_a_region_has_at_most_a_megabyte_that_was_not_checked(tmp_path: Path) -> None:
    log = committed(tmp_path, 5_000_000)
    offset, sizes = 0, []
    while offset < log.end_offset:
        found = find_region(log, offset, 50_000_000, log.high_watermark)
        if found is None:
            break
        sizes.append(found.size)
        offset = max(log.segments._positions)
        if found.position + found.size >= log.segments[0].size - 70_000:
            break
    assert sizes and max(sizes) <= region.UNCHECKED_BYTES
    assert sum(sizes) > 4_000_000
    whole = find_region(log, 0, 50_000_000, log.high_watermark)
    assert whole is not None and whole.size > 4_000_000, "what was checked goes in one piece"


def test_a_read_checks_at_most_a_megabyte(tmp_path: Path) -> None:
    log = committed(tmp_path, 3_000_000)
    found = log.read(0, 50_000_000)
    assert not isinstance(found, Rejected) and 900_000 < len(found) <= 1_048_576


def test_many_small_batches_are_checked_in_parts(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(5_000):
        log.append_as_leader(batch(1, size=1), 0, NOW_MS)
    found = log.read(0, 1_000_000)
    assert not isinstance(found, Rejected)
    assert sum(1 for _ in walk(found)) == 4_096
    rest = log.read(4_096, 1_000_000)
    assert not isinstance(rest, Rejected) and sum(1 for _ in walk(rest)) == 904
