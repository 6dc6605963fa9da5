"""A thread has a part in a log's change: what waits for it, what goes on, and for how long."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_pair import Pair, append, until_same
from tests.support.controller_commands import (
    OK,
    A,
    B,
    command,
    fetched,
    follow,
    leader_and_isr,
    run,
    running,
    stop,
)
from tests.support.every_yield import every_yield
from tests.support.lone_broker import LoneBroker, until
from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import NOW_MS, QuickDisk, QuickFile
from tests.support.watched_disk import WatchedDisk
from tidelog.broker.control_plane import control_channel
from tidelog.broker.partitions.log_work import LogWork
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work, finish
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.disk import RealFile
from tidelog.runtime.seams import Seams
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.partition_log import PartitionLog

STUCK = int(ErrorCode.KAFKA_STORAGE_ERROR)


class HeldFile(QuickFile):
    disk: HeldDisk

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self.disk.wait(self.path)


class HeldDisk(QuickDisk):
    """Holds each thread that cuts a log's file, until it is let go."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.held = threading.Event()
        self._loop = threading.get_ident()

    def wait(self, path: str) -> None:
        if path.endswith(".log") and threading.get_ident() != self._loop:
            self.held.set()
            assert self.may_go.wait(30)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        file = HeldFile(plain.path, plain._fd)
        file.disk = self
        return file


async def being_cut(lone: LoneBroker, disk: HeldDisk) -> tuple[PartitionLog, asyncio.Task[Any]]:
    """Begin a cut of t-0 from 10 records to 4, which a thread is in the midst of."""
    hosted = lone.broker.partitions.get("t", 0)
    assert hosted is not None
    for _ in range(10):
        hosted.append(build_batch([NewRecord(NOW_MS, None, b"x")]), NOW_MS)
    log = hosted.log
    work = lone.broker.log_work.run(log, log.truncation(4, NOW_MS))
    cut = asyncio.create_task(work)
    await until(disk.held.is_set)
    assert log.change is LogChange.CUT
    return log, cut


async def led(channel: Any, lone: LoneBroker) -> None:
    states = {0: (0, 0), 1: (0, 0)}
    assert await command(channel, leader_and_isr({"t": (A, states)})) == [OK] * 2


def epoch(lone: LoneBroker, partition: int) -> int:
    hosted = lone.broker.partitions.get("t", partition)
    return -1 if hosted is None else hosted.leader_epoch


def test_a_new_role_waits_for_the_cut_and_holds_up_no_other_partition(tmp_path: Path) -> None:
    async def work() -> None:
        disk = HeldDisk()
        async with running(tmp_path, disk) as (lone, channel):
            await led(channel, lone)
            log, cut = await being_cut(lone, disk)
            commands = leader_and_isr({"t": (A, {0: (1, 0), 1: (1, 0)})})
            asked = asyncio.create_task(channel.ask(commands, 5))
            await until(lambda: epoch(lone, 1) == 1)
            assert epoch(lone, 0) == 0 and not asked.done() and log.change is LogChange.CUT
            disk.may_go.set()
            answer = await asked
            errors = [
                error.error_code for topic in answer.topics for error in topic.partition_errors
            ]
            assert errors == [OK] * 2 and await cut is None
            assert (epoch(lone, 0), log.end_offset, log.change) == (1, 4, None)

    run(work())


def test_new_replicas_do_not_wait_for_the_cut_of_another_log(tmp_path: Path) -> None:
    async def work() -> None:
        disk = HeldDisk()
        async with running(tmp_path, disk) as (lone, channel):
            await led(channel, lone)
            log, cut = await being_cut(lone, disk)
            asked = asyncio.create_task(channel.ask(follow(range(9), leader_epoch=1), 5))
            await until(lambda: fetched(lone) == 8)
            assert log.change is LogChange.CUT and not asked.done()
            disk.may_go.set()
            await asked
            await cut
            assert fetched(lone) == 9

    run(work())


@pytest.mark.parametrize("what", ["role", "other life", "deletion", "full"])
def test_a_command_that_waits_too_long_for_a_cut_is_answered_with_a_retriable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def work() -> None:
        disk = HeldDisk()
        monkeypatch.setattr(control_channel, "LOGS_AT_REST_WITHIN_S", 0.05)
        ordered: dict[str, Any] = {
            "role": (leader_and_isr({"t": (A, {0: (1, 0), 1: (1, 0)})}), 5),
            "other life": (leader_and_isr({"t": (B, {0: (1, 0), 1: (1, 0)})}), 5),
            "deletion": (stop(A, 1), 4),
            "full": (leader_and_isr({"t": (A, {1: (1, 0)})}, kind=2), 5),
        }
        request, version = ordered[what]
        async with running(tmp_path, disk) as (lone, channel):
            await led(channel, lone)
            log, cut = await being_cut(lone, disk)
            errors = sorted(await command(channel, request, version))
            assert errors == ([STUCK] if what == "deletion" else [OK, STUCK])
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None and hosted.log is log and log.change is LogChange.CUT
            disk.may_go.set()
            assert await cut is None
            # It comes again, as the controller has it.
            errors = await command(channel, request, version)
            assert errors == [OK] * (1 if what in ("deletion", "full") else 2)
            hosted = lone.broker.partitions.get("t", 0)
            if what in ("deletion", "full"):
                assert hosted is None
            else:
                assert hosted is not None
                expected = (A, 4) if what == "role" else (B, 0)
                assert (hosted.topic_id, hosted.end_offset) == expected

    run(work())


def test_a_stop_waits_until_a_cut_has_ended(tmp_path: Path) -> None:
    async def work() -> None:
        disk = HeldDisk()
        async with running(tmp_path, disk) as (lone, channel):
            await led(channel, lone)
            log, cut = await being_cut(lone, disk)
            cut.cancel()
            stopping = asyncio.create_task(lone.broker.log_work.settled())
            await asyncio.sleep(0)
            assert not stopping.done() and log.change is LogChange.CUT
            disk.may_go.set()
            await stopping
            assert (log.end_offset, log.change, log.failed) == (4, None, None)
            # A leader again, as of this epoch.
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None
            made = hosted.append(build_batch([NewRecord(NOW_MS, None, b"y")]), NOW_MS)
            assert not isinstance(made, Rejected) and made.first_offset == 4

    run(work())


def test_what_is_to_be_stored_while_its_log_is_cut_is_stored_afterwards(tmp_path: Path) -> None:
    async def work() -> None:
        disk = HeldDisk()
        config = {"log.durability": "sync"}
        async with running(tmp_path, disk, **config) as (lone, channel):
            await led(channel, lone)
            log, cut = await being_cut(lone, disk)
            hosted, other = (lone.broker.partitions.get("t", at) for at in (0, 1))
            assert hosted is not None and other is not None
            lone.broker.commit.want(hosted)
            other.append(build_batch([NewRecord(NOW_MS, None, b"y")]), NOW_MS)
            await until(lambda: other.log.synced_end_offset == 1)
            assert log.synced_end_offset <= 4
            disk.may_go.set()
            assert await cut is None
            hosted.append(build_batch([NewRecord(NOW_MS, None, b"y")]), NOW_MS)
            await until(lambda: log.synced_end_offset == 5)

    run(work())


@pytest.mark.parametrize("how", ["cut", "restart"])
def test_a_follower_cuts_without_waiting_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """From the leader's answer to the cut: no sync, rename or removal is the loop's."""
    disk = WatchedDisk()

    async def work() -> None:
        pair = Pair(tmp_path)
        pair.follower.seams = Seams(disk=disk)
        await pair.start()
        try:
            leader = pair.lead(epoch=0)
            append(leader, "a", "b")
            follower = pair.follow(epoch=0)
            await until(lambda: follower.end_offset == 2)
            pair.follow(epoch=1, leader=2, isr=(2, 1))
            append(follower, "lost", "lost too")
            pair.lead(epoch=2, isr=(1,))
            if how == "restart":
                assert finish(leader.log.restart(50, NOW_MS)) is None
            append(leader, "c")
            disk.calls.clear()
            pair.follow(epoch=2, isr=(1,))
            await until_same(leader, follower)
            assert follower.log.generation == 1
        finally:
            await pair.stop()

    cut: list[Any] = []

    def noting(original: Any) -> Any:
        def pieces(self: PartitionLog, *rest: Any, **named: Any) -> Any:
            before = len(disk.calls)
            result = yield from original(self, *rest, **named)
            cut.extend(disk.calls[before:])
            return result

        return pieces

    for name in ("truncation", "restart"):
        monkeypatch.setattr(PartitionLog, name, noting(getattr(PartitionLog, name)))
    run(work())
    kinds = {"sync", "sync_directory", "rename", "remove", "truncate"}
    slow = [call for call in cut if call.kind in kinds]
    loop = threading.get_ident()
    assert slow and not [call for call in slow if call.thread == loop]


def test_a_fetcher_that_ends_leaves_no_cut_half_done(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def work() -> None:
        pair = Pair(tmp_path)
        pair.follower.seams = Seams(disk=disk)
        await pair.start()
        leader = pair.lead(epoch=0)
        append(leader, "a", "b")
        follower = pair.follow(epoch=0)
        await until(lambda: follower.end_offset == 2)
        pair.follow(epoch=1, leader=2, isr=(2, 1))
        append(follower, "lost", "lost too")
        pair.lead(epoch=2, isr=(1,))
        pair.follow(epoch=2, isr=(1,))
        await until(disk.held.is_set)
        await pair.follower.broker.followers.close()
        assert follower.log.change is LogChange.CUT
        disk.may_go.set()
        await pair.stop()
        assert follower.log.closed and follower.log.end_offset == 2 and follower.log.change is None

    run(work())


def test_no_stale_log_is_quarantined_while_a_change_of_it_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change begins in the turn in which the request lets others run."""
    found: list[tuple[bool, bool]] = []

    def change(log: PartitionLog) -> Work[None]:
        was_closed = log.closed
        yield lambda: None
        found.append((was_closed, log.closed))

    async def work() -> None:
        plain = LogWork.until_free
        begun: list[asyncio.Task[None]] = []

        async def watched(
            self: LogWork, log: PartitionLog, deadline_s: float | None = None
        ) -> bool:
            is_free = await plain(self, log, deadline_s)
            begun.append(asyncio.create_task(self.run(log, change(log))))
            return is_free

        async with running(tmp_path) as (lone, channel):
            await led(channel, lone)
            monkeypatch.setattr(LogWork, "until_free", watched)
            assert (
                await command(channel, leader_and_isr({"t": (B, {0: (1, 0), 1: (1, 0)})}))
                == [OK] * 2
            )
            await asyncio.gather(*begun)
            assert found and all(before == after for before, after in found), found

    with every_yield():
        run(work())


class MovingDisk(QuickDisk):
    """Holds the sync of a copy that is complete, then that of the names around it."""

    def __init__(self) -> None:
        self.target = ""
        self.complete, self.may_move = threading.Event(), threading.Event()
        self.moved, self.may_end = threading.Event(), threading.Event()

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        if path.endswith("-future"):
            self.complete.set()
            assert self.may_move.wait(DEADLINE_S)
        elif path == self.target and Path(path, "t-0").exists():
            self.moved.set()
            assert self.may_end.wait(DEADLINE_S)


def test_a_deletion_that_waits_for_a_move_waits_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former directory is still there: it could become that of the next replica of the name,
    which the end of the move would then remove."""
    one, two = tmp_path / "one", tmp_path / "two"

    async def work() -> None:
        disk = MovingDisk()
        monkeypatch.setattr(control_channel, "LOGS_AT_REST_WITHIN_S", 0.5)
        plain, waits = LogWork.until_free, asyncio.Event()

        async def watched(
            self: LogWork, log: PartitionLog, deadline_s: float | None = None
        ) -> bool:
            if deadline_s is not None:
                waits.set()
            return await plain(self, log, deadline_s)

        async with running(tmp_path, disk, **{"log.dirs": f"{one},{two}"}) as (lone, channel):
            await led(channel, lone)
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None
            for directory in lone.broker.directories:
                if directory.logs.get(hosted.key) is not hosted.log:
                    disk.target = directory.path
            origin = lone.broker.partitions.directory_of(hosted)
            former = f"{hosted.log.path}/"
            assert lone.broker.future_replicas.alter(hosted.key, disk.target) == OK
            await until(disk.complete.is_set)
            monkeypatch.setattr(LogWork, "until_free", watched)
            asked = asyncio.create_task(command(channel, stop(A, 1), 4))
            await waits.wait()
            disk.may_move.set()
            await until(disk.moved.is_set)
            origin.resources.files.get_directory(former.removesuffix("/"))
            await until(lambda: asked.done() or hosted.log.closed)
            is_open = not hosted.log.closed
            if not is_open:
                disk.may_end.set()
            assert is_open and await asked == [STUCK]
            assert lone.broker.partitions.get("t", 0) is hosted
            disk.may_end.set()
            await lone.broker.log_work.settled()
            assert former not in origin.resources.files._open, "the next log there has its own"
            assert await command(channel, stop(A, 1), 4) == [OK]

    run(work())
