"""Retention, compaction and checkpoints of a broker without a controller."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import QuickDisk
from tidelog.broker.fetching import client_sessions
from tidelog.broker.metadata.configurations import DEFAULT_BROKER, ConfigCache, EntityType
from tidelog.broker.partitions import maintenance
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.runtime.loop import helper_processes
from tidelog.runtime.seams import Seams

HOUR_MS = 3_600_000


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def fill(hosted: HostedPartition, count: int, keys: int, age_ms: int = 0) -> None:
    now = int(time.time() * 1000)
    for number in range(count):
        record = NewRecord(now - age_ms, b"%d" % (number % keys), b"v%d" % number)
        result = hosted.append(build_batch([record]), now)
        assert hasattr(result, "first_offset"), result


def stored(hosted: HostedPartition) -> int:
    count, offset = 0, hosted.start_offset
    while offset < hosted.high_watermark:
        data = hosted.read(offset, 2**26)
        assert isinstance(data, memoryview), data
        for _, header in walk(data):
            count += 1
            offset = header.next_offset
        if not len(data):
            break
    return count


def test_a_broker_remembers_so_many_producers_of_all_its_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MAX_PRODUCERS_OF_ALL", 5)
    monkeypatch.setattr(maintenance, "PRODUCERS_TICK_MS", 5)

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        first = lone.lead("t", 2)
        second = lone.broker.partitions.get("t", 1)
        assert second is not None
        now = int(time.time() * 1000)
        for number in range(8):
            for hosted in (first, second):
                made = build_batch([NewRecord(now, b"k", b"v")], producer=Producer(number, 0, 0))
                assert hasattr(hosted.append(made, now + number), "first_offset")
        lone.broker.maintenance.start()
        states = [each.log.producers for each in (first, second)]
        await until(lambda: sum(len(each.entries) for each in states) <= 5)
        assert {7, 6} <= set(states[0].entries) | set(states[1].entries)
        assert sum(each.forgotten for each in states) == 11
        await lone.stop()

    run(main())


def test_retention_acts_when_its_configuration_changes(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.broker.maintenance.start()
        configs = {"segment.bytes": "1048576", "retention.ms": "-1"}
        hosted = lone.lead("t", configs=configs)
        fill(hosted, 50, 10, age_ms=5 * HOUR_MS)
        await lone.broker.maintenance.check_retention()
        assert hosted.start_offset == 0
        lone.lead("t", configs={**configs, "retention.ms": str(HOUR_MS)})
        await until(lambda: hosted.start_offset == 50)
        await lone.stop()

    run(main())


def test_removed_segments_leave_the_disk_after_their_delay(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        configs = {"retention.ms": "1000", "file.delete.delay.ms": "0"}
        hosted = lone.lead("t", configs=configs)
        fill(hosted, 50, 10, age_ms=HOUR_MS)
        maintenance, commit = lone.broker.maintenance, lone.broker.commit
        await maintenance.check_retention()
        assert any(name.endswith(".deleted") for name in os.listdir(tmp_path / "t-0"))
        await commit.settled()
        await maintenance.remove()
        assert not any(name.endswith(".deleted") for name in os.listdir(tmp_path / "t-0"))
        await lone.stop()

    run(main())


def test_nothing_is_done_to_an_unassigned_replica(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        hosted = lone.lead("t", configs={"retention.ms": "-1"})
        fill(hosted, 5, 5, age_ms=300 * HOUR_MS)
        await lone.stop()
        again = LoneBroker(tmp_path)
        await again.start()
        found = again.broker.partitions.get("t", 0)
        assert found is not None
        await again.broker.maintenance.check_retention()
        assert (found.start_offset, found.end_offset) == (0, 5)
        await again.stop()

    run(main())


def test_compaction_runs_in_a_helper_process_and_keeps_the_newest(tmp_path: Path) -> None:
    async def main() -> None:
        helper = helper_processes()
        lone = LoneBroker(tmp_path, seams=Seams(processes=helper))
        await lone.start()
        configs = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"}
        hosted = lone.lead("c", configs=configs)
        for _ in range(3):
            fill(hosted, 30, 10)
            hosted.log.roll(int(time.time() * 1000))
        lone.broker.commit.want(hosted)
        await lone.broker.commit.settled()
        before = stored(hosted)
        await lone.broker.maintenance.cleaning.clean()
        assert (before, stored(hosted)) == (90, 10)
        assert hosted.end_offset == 90
        await lone.stop()
        helper.shutdown()

    run(main())


def test_what_is_set_for_all_brokers_holds_at_once(tmp_path: Path) -> None:
    """log.cleaner.backoff.ms and producer.id.expiration.ms, which are no topic's."""

    async def main() -> None:
        helper = helper_processes()
        slow = {"log.cleaner.backoff.ms": HOUR_MS, "log.retention.check.interval.ms": HOUR_MS}
        lone = LoneBroker(tmp_path, slow, seams=Seams(processes=helper))
        await lone.start()
        lone.broker.maintenance.start()
        configs = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"}
        hosted = lone.lead("c", configs=configs)

        async def dirty() -> None:
            fill(hosted, 30, 10)
            hosted.log.roll(int(time.time() * 1000))
            lone.broker.commit.want(hosted)
            await lone.broker.commit.settled()

        def set_for_all(texts: dict[str, str]) -> None:
            change = [(EntityType.BROKER, DEFAULT_BROKER, texts)]
            finish(lone.broker.topic_configs.apply(change, complete=False))

        set_for_all({"log.cleaner.backoff.ms": "20"})
        for _ in range(2):
            # The second round has nothing but the clock to begin with.
            await dirty()
            await until(lambda: stored(hosted) == 10)
        a_second_ago = int(time.time() * 1000) - 1000
        record = NewRecord(a_second_ago, b"k", b"v")
        batch = build_batch([record], producer=Producer(7, 0, 0))
        appended = hosted.append(batch, a_second_ago)
        assert hasattr(appended, "first_offset"), appended
        await lone.broker.maintenance.check_retention()
        assert 7 in hosted.log.producers.entries
        set_for_all({"log.cleaner.backoff.ms": "20", "producer.id.expiration.ms": "1"})
        await until(lambda: 7 not in hosted.log.producers.entries)
        await lone.stop()
        helper.shutdown()

    run(main())


def test_a_number_of_the_broker_is_its_own_then_that_of_all_then_the_files() -> None:
    cache = ConfigCache(1, {})

    def after(own: str | None, all_brokers: str | None) -> int:
        name = "log.cleaner.backoff.ms"
        sets = [(EntityType.BROKER, "1", own), (EntityType.BROKER, DEFAULT_BROKER, all_brokers)]
        given = [(kind, who, {} if text is None else {name: text}) for kind, who, text in sets]
        finish(cache.apply(given, complete=True))
        return cache.number(name, 5)

    assert after(None, None) == 5
    assert after(None, "6") == 6
    assert after("7", "6") == 7
    assert after("soon", "6") == 6, "what an old tool wrote is passed over"


def test_checkpoints_are_what_a_restart_begins_from(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.broker.maintenance.start()
        hosted = lone.lead("t")
        fill(hosted, 7, 7)
        lone.broker.maintenance.checkpoint_soon()
        path = tmp_path / "replication-offset-checkpoint"
        await until(lambda: path.exists() and "t 0 7" in path.read_text())
        await lone.stop()

    run(main())


class SlowDisk(QuickDisk):
    """A disk that replaces checkpoints only when it is let."""

    def __init__(self) -> None:
        self.replacing = threading.Event()
        self.gate = threading.Event()

    def replace(self, path: str, content: bytes) -> None:
        if path.endswith("-checkpoint"):
            self.replacing.set()
            assert self.gate.wait(DEADLINE_S)
        super().replace(path, content)


def test_a_stop_waits_for_the_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    async def main() -> None:
        disk = SlowDisk()
        with ThreadPoolExecutor(2) as threads:
            lone = LoneBroker(tmp_path, seams=Seams(disk=disk, threads=threads))
            await lone.start()
            maintenance = lone.broker.maintenance
            maintenance.start()
            fill(lone.lead("t"), 7, 7)
            maintenance.checkpoint_soon()
            await until(disk.replacing.is_set)
            stopping = asyncio.create_task(maintenance.stop())
            done, _ = await asyncio.wait([stopping], timeout=0.2)
            assert not done
            disk.gate.set()
            await stopping
            assert not maintenance._under_way
            await lone.stop()
        assert (tmp_path / ".kafka_cleanshutdown").exists()

    asyncio.run(main())


COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"}


async def dirty_log(lone: LoneBroker) -> HostedPartition:
    await lone.start()
    hosted = lone.lead("c", configs=COMPACTED)
    for _ in range(3):
        fill(hosted, 30, 10)
        hosted.log.roll(int(time.time() * 1000))
    lone.broker.commit.want(hosted)
    await lone.broker.commit.settled()
    return hosted


class Counting(ThreadPoolExecutor):
    """Counts its tasks; fails those before ``broken`` as a pool whose process was killed."""

    def __init__(self, broken: int = 0) -> None:
        super().__init__(1)
        self.tasks = 0
        self.broken = broken

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.tasks += 1
        if self.tasks <= self.broken:
            failed: Future[Any] = Future()
            failed.set_exception(BrokenProcessPool("killed"))
            return failed
        return super().submit(fn, *args, **kwargs)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def left(folder: Path, ending: str) -> list[Path]:
    return list(folder.glob(f"*/*{ending}"))


def test_a_damaged_log_is_not_compacted_again_and_again(tmp_path: Path) -> None:
    async def main() -> None:
        with Counting() as helper:
            lone = LoneBroker(tmp_path, seams=Seams(processes=helper))
            hosted = await dirty_log(lone)
            damage(Path(hosted.log.segments[1].log_path))
            for _ in range(3):
                await lone.broker.maintenance.cleaning.clean()
            assert helper.tasks == 1
            assert not left(tmp_path, ".cleaned")
            hosted.log.advance_start(hosted.log.segments[2].base_offset)
            finish(hosted.log.housekeeping(int(time.time() * 1000)))
            await lone.broker.maintenance.cleaning.clean()
            assert helper.tasks > 1 and stored(hosted) == 10
            await lone.stop()

    asyncio.run(main())


def test_compaction_goes_on_after_its_helper_was_killed(tmp_path: Path) -> None:
    async def main() -> None:
        with Counting(broken=1) as helper:
            lone = LoneBroker(tmp_path, seams=Seams(processes=helper))
            hosted = await dirty_log(lone)
            for _ in range(2):
                await lone.broker.maintenance.cleaning.clean()
            assert stored(hosted) == 10
            await lone.stop()

    asyncio.run(main())


def test_removed_segments_of_an_idle_topic_leave_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        configs = {"segment.ms": "1", "retention.ms": str(HOUR_MS), "file.delete.delay.ms": "0"}
        hosted = lone.lead("t", configs=configs)
        for _ in range(20):
            fill(hosted, 5, 5, age_ms=5 * HOUR_MS)
            hosted.log.roll(int(time.time() * 1000))
        await lone.broker.maintenance.check_retention()
        assert hosted.start_offset == 100 and len(hosted.log.segments) == 1
        await lone.broker.commit.settled()
        await lone.broker.maintenance.remove()
        assert not left(tmp_path, ".deleted")
        await lone.stop()

    asyncio.run(main())


def set_aside(folder: Path) -> list[Path]:
    # Not below: a directory that goes while it is walked is an error of the walk.
    return list(folder.glob("*-delete"))


def test_a_deleted_replica_leaves_the_disk_soon_after_its_delay(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path, {"log.retention.check.interval.ms": str(HOUR_MS)})
        await lone.start()
        lone.broker.maintenance.start()
        hosted = lone.lead("t", configs={"file.delete.delay.ms": "1"})
        fill(hosted, 5, 5)
        lone.broker.partitions.stop("t", 0, delete=True)
        finish(lone.broker.partitions.syncing_names())
        assert set_aside(tmp_path)
        await until(lambda: not set_aside(tmp_path))
        await lone.stop()

    asyncio.run(main())


def test_fetch_sessions_end_by_time_without_any_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N7: what a session takes stayed until another request came."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.lead("t")
        request = messages.FetchRequest
        part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
        asked = request(
            max_wait_ms=0, session_epoch=0, topics=[request.FetchTopic("t", partitions=[part])]
        )
        peer = await Peer.connect(lone.port)
        assert (await peer.ask(asked, 11)).session_id
        sessions = lone.broker.fetch_sessions
        await lone.broker.maintenance.remove()
        assert len(sessions) == 1 and sessions.held
        monkeypatch.setattr(client_sessions, "EXPIRY_MS", 0)
        await lone.broker.maintenance.remove()
        assert (len(sessions), sessions.held) == (0, 0)
        peer.writer.close()
        await lone.stop()

    run(main())
