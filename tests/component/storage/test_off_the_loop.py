"""What the owner's thread of a log leaves to others: snapshots, checkpoints of names used again."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_pair import flip_a_bit
from tests.support.controlled_broker import open_channel
from tests.support.controller_commands import (
    OK,
    A,
    B,
    command,
    leader_and_isr,
    run,
    running,
    stop,
)
from tests.support.lone_broker import Peer, until
from tests.support.pieces import by_threads, in_thread
from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import (
    NOW_MS,
    FaultyDisk,
    QuickDisk,
    batch,
    new_log,
    offset_for_time,
    records_of,
    reopen,
    resources,
)
from tests.support.watched_disk import WatchedDisk
from tidelog.broker.control_plane.seen_epochs import SEEN_FILE, SeenEpochs, SeenEpochsFile
from tidelog.broker.data_loss.loss_notes import LossNote, LossNotes
from tidelog.broker.following.follower_log import take_in
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.batch import Rejected, read_header
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams
from tidelog.storage.checkpoints import decode_offsets
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.directory import claims
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log import expiring, snapshots
from tidelog.storage.log.forgetting import forgotten_beyond
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import (
    ProducerState,
    encode,
)
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended
from tidelog.storage.log.rewriting import write_again
from tidelog.storage.log.service import found_damaged
from tidelog.storage.names import DAMAGED, HIGH_WATERMARKS
from tidelog.storage.segments.resources import IndexCache

SMALL = TopicConfigs(segment_bytes=800)


def sent(log: PartitionLog, producer: int, sequence: int = 0) -> None:
    made = batch(1, producer=Producer(producer, 0, sequence))
    assert isinstance(log.append_as_leader(made, 0, NOW_MS), Appended)


# Snapshots of producers (S13)


def test_a_snapshot_is_encoded_and_written_by_the_thread_of_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = WatchedDisk()
    encoders: list[int] = []

    def noted(entries: list[object]) -> bytes:
        encoders.append(threading.get_ident())
        return encode(entries)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "encode", noted)
    log = new_log(tmp_path, SMALL, resources(disk))
    for producer in range(40):
        sent(log, producer)
    assert len(log.segments) > 3
    pending = log.unsynced()
    assert pending is not None
    sent(log, 0, 1)
    in_thread(pending.run)
    log.synced(pending)
    assert encoders and threading.get_ident() not in encoders
    assert not disk.here("write", ending=".snapshot.tmp")
    # What was appended after the roll is in no snapshot; what was before is.
    log.resources.files.close()
    found = reopen(tmp_path, SMALL)
    assert set(found.producers.entries) == set(range(40))
    assert found.producers.entries[0].last_sequence == 1


def test_a_snapshot_says_what_was_when_it_was_taken(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for sequence in range(7):
        sent(log, 7, sequence)
    copied = log.producers.copied()
    before = encode(copied)
    sent(log, 7, 7)
    sent(log, 8)
    assert encode(copied) == before
    assert ProducerState.decode(before).entries[7].last_sequence == 6
    assert log.producers.entries[7].last_sequence == 7


def test_no_snapshot_of_what_was_cut_appears_when_its_thread_is_late(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for sequence in range(10):
        sent(log, 7, sequence)
    log.roll(NOW_MS)
    pending = log.unsynced()
    assert pending is not None and pending.snapshots
    assert finish(log.truncation(5, NOW_MS)) is None
    pending.run()
    log.synced(pending)
    assert not list((tmp_path / "t-0").glob("*.snapshot"))
    assert log.unsynced() is None or not log.unsynced().snapshots  # type: ignore[union-attr]


def test_retention_keeps_producers_whose_snapshot_a_kill_prevented(tmp_path: Path) -> None:
    """Simulation, seed 66 of the log: a roll, a kill before the sync, then retention."""
    configs = TopicConfigs(retention_bytes=1)
    log = new_log(tmp_path, configs)
    for sequence in range(3):
        sent(log, 7, sequence)
    log.roll(NOW_MS)
    log.resources.files.close()
    log = reopen(tmp_path, configs)
    sent(log, 8)
    log.high_watermark = log.end_offset
    assert finish(log.housekeeping(NOW_MS)) is None, "a snapshot of what a power loss takes is none"
    log.sync()
    assert finish(log.housekeeping(NOW_MS)) is not None
    assert log.start_offset == 3
    log.resources.files.close()
    found = reopen(tmp_path, configs)
    assert found.producers.entries[7].last_sequence == 2


def test_a_snapshot_for_retention_tells_of_nothing_that_came_while_a_thread_looked_for_one(
    tmp_path: Path,
) -> None:
    """It would name batches after its offset: a power loss, or a cut, takes those, and their
    retry would be taken for a duplicate of what is lost."""
    configs = TopicConfigs(retention_bytes=1)
    log = new_log(tmp_path, configs)
    sent(log, 7)
    log.roll(NOW_MS)
    sent(log, 7, 1)
    log.sync()
    for path in Path(log.path).glob("*.snapshot"):
        path.unlink()  # as after a kill between the roll and its sync
    log.high_watermark = log.end_offset
    sequences = iter(range(2, 100))
    by_threads(log.housekeeping(NOW_MS), lambda: sent(log, 7, next(sequences)))
    for path in Path(log.path).glob("*.snapshot"):
        entry = ProducerState.decode(path.read_bytes()).entries[7]
        assert entry.last_offset < int(path.stem)
    assert finish(log.truncation(2, NOW_MS)) is None
    assert log.producers.entries[7].last_sequence == 1


def test_two_threads_may_write_snapshots_of_one_offset(tmp_path: Path) -> None:
    """Retention writes one that is missing, and a roll at the same offset takes another one, which
    a sync writes: a file of both would be torn, and its second renaming end the directory."""
    log = new_log(tmp_path, shared=resources(disk := _Interrupted()))
    sent(log, 7)
    log.take_snapshot()
    (first,) = log.snapshots.for_sync()
    log.take_snapshot()
    (second,) = log.snapshots.for_sync()
    disk.before_rename = second.write
    first.write()
    assert log.snapshots.written([first, second]) == []
    (found,) = Path(log.path).glob("*.snapshot*")
    assert ProducerState.decode(found.read_bytes()).entries[7].last_sequence == 0


class _Interrupted(QuickDisk):
    """A disk on which another thread has its turn before the next renaming."""

    before_rename: Callable[[], None] | None = None

    def rename(self, path: str, target: str) -> None:
        other, self.before_rename = self.before_rename, None
        if other is not None:
            in_thread(other)
        super().rename(path, target)


def test_a_replica_of_a_used_name_gets_no_snapshot_of_the_former_one(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent(log, 7)
    log.roll(NOW_MS)
    pending = log.unsynced()
    assert pending is not None and pending.snapshots
    log.forget_files()
    pending.run()
    log.synced(pending)
    assert not list((tmp_path / "t-0").glob("*.snapshot"))


def test_beyond_the_limit_the_longest_idle_producer_is_forgotten() -> None:
    state = ProducerState(limit=3)
    header = read_header(batch(1, producer=Producer(0, 0, 0)))
    for at, producer in enumerate((1, 2, 3, 1, 4, 5)):
        state.note(header._replace(producer_id=producer), at, NOW_MS + at)
    assert (list(state.entries), state.forgotten) == ([1, 4, 5], 2)
    assert state.expire(NOW_MS + 4) == 2
    assert list(state.entries) == [5]


def test_beyond_the_limit_of_all_the_longest_idle_are_forgotten() -> None:
    """A client that names a new producer with each batch, in many partitions, filled the memory."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    states = [ProducerState() for _ in range(7)]
    header = read_header(batch(1, producer=Producer(0, 0, 0)))
    last_of: dict[tuple[int, int], int] = {}

    def send(times: int) -> None:
        for _ in range(times):
            at, producer = rng.randrange(6), rng.randrange(300)
            now_ms = NOW_MS + len(sent)
            sent.append(now_ms)
            states[at].note(header._replace(producer_id=producer), 0, now_ms)
            last_of[at, producer] = now_ms

    sent: list[int] = []
    send(5000)
    before = sum(len(each.entries) for each in states)
    assert list(forgotten_beyond(before, states)) == [], "there is room for just these"
    kept = set(sorted(last_of, key=last_of.__getitem__)[before - 700 :])
    turns = len(list(forgotten_beyond(700, states)))
    assert turns == before - 700, seed
    assert {(at, each) for at, state in enumerate(states) for each in state.entries} == kept, seed
    assert sum(each.forgotten for each in states) == before - 700, seed
    # What is sent while it goes on, and a state whose producers all expire, are met in any turn.
    for _ in forgotten_beyond(50, states):
        send(1)
        states[rng.randrange(6)].expire(sent[-1] - rng.randrange(500))
    left = sum(len(each.entries) for each in states)
    assert left <= 50 + 700, seed


def test_a_producer_that_sends_again_while_the_longest_idle_are_forgotten_is_kept() -> None:
    """What was the longest idle when a turn ended need not be it in the next one."""
    states = [ProducerState(), ProducerState()]
    header = read_header(batch(1, producer=Producer(0, 0, 0)))

    def send(at: int, producers: range, now_ms: int) -> None:
        for producer in producers:
            states[at].note(header._replace(producer_id=producer), 0, now_ms)

    first = 199
    send(0, range(first + 5), NOW_MS)
    send(1, range(10), NOW_MS + 1)
    forgetting = forgotten_beyond(5, states)  # all but five
    for _ in range(first + 1):
        next(forgetting)
    assert [len(each.entries) for each in states] == [5, 10]
    send(0, range(first, first + 5), NOW_MS + 2)
    assert list(forgetting) == [None] * 9
    assert [list(each.entries) for each in states] == [list(range(first, first + 5)), []]


def test_a_producer_that_begins_a_newer_epoch_costs_no_other_one() -> None:
    state = ProducerState(limit=2)
    header = read_header(batch(1, producer=Producer(0, 0, 0)))
    for producer, epoch in ((1, 0), (2, 0), (2, 1)):
        state.note(header._replace(producer_id=producer, producer_epoch=epoch), 0, NOW_MS)
    assert (list(state.entries), state.forgotten) == ([1, 2], 0)


def test_what_follows_a_state_is_held_to_its_limit() -> None:
    """A start after a kill notes what helper processes found after a snapshot."""
    state, later = ProducerState(limit=2), ProducerState(limit=2)
    header = read_header(batch(1, producer=Producer(0, 0, 0)))
    for offset, producer in enumerate((1, 2)):
        state.note(header._replace(producer_id=producer), offset, NOW_MS + offset)
    for offset, producer in enumerate((2, 3), 2):
        later.note(header._replace(producer_id=producer), offset, NOW_MS + offset)
    state.follow(later, 2)
    assert (list(state.entries), state.forgotten) == ([2, 3], 1)
    assert [each.first_offset for each in state.entries[2].batches] == [1, 2]


def test_a_snapshot_of_too_many_producers_keeps_the_youngest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = ProducerState(limit=50)
    header = read_header(batch(1, producer=Producer(0, 0, 0)))
    shuffled = random.Random(5).sample(range(50), 50)
    for at, producer in enumerate([*shuffled, shuffled[0]]):
        state.note(header._replace(producer_id=producer), at, NOW_MS + at)
    content = encode(state.copied())
    monkeypatch.setattr("tidelog.storage.log.producers.MAX_PRODUCERS", 20)
    found = ProducerState.decode(content)
    assert (list(found.entries), found.forgotten) == ([*shuffled[31:], shuffled[0]], 30)


def test_many_silent_producers_are_forgotten_in_turns() -> None:
    state = ProducerState()
    header = read_header(batch(1, producer=Producer(0, 0, 0)))
    for producer in range(10):
        state.note(header._replace(producer_id=producer), 0, NOW_MS + producer)
    left = [len(state.entries) for _ in expiring.forgotten(state, NOW_MS + 7)]
    assert (left, list(state.entries)) == ([9, 8, 7, 6, 5, 4, 3, 2], [8, 9])


# Cuts, what retention takes out, snapshots (S9)

SLOW = ("sync", "sync_directory", "rename", "remove", "truncate")


def synced(log: PartitionLog) -> None:
    pending = log.unsynced()
    if pending is not None:
        in_thread(pending.run)
        log.synced(pending)


def _truncate(log: PartitionLog) -> None:
    assert by_threads(log.truncation(20, NOW_MS)) is None
    assert log.end_offset == 20


def _restart(log: PartitionLog) -> None:
    assert by_threads(log.restart(7, NOW_MS)) is None
    assert (log.start_offset, log.end_offset, log.high_watermark) == (7, 7, 7)


def _restart_ahead(log: PartitionLog) -> None:
    assert by_threads(log.restart(1000, NOW_MS)) is None
    assert (log.start_offset, log.end_offset, log.high_watermark) == (1000, 1000, 1000)


def _retain(log: PartitionLog) -> None:
    log.configure(replace(SMALL, retention_bytes=1500))
    assert by_threads(log.housekeeping(NOW_MS)) is not None
    assert log.start_offset > 0


def _retain_nothing(log: PartitionLog) -> None:
    log.configure(replace(SMALL, retention_ms=1))
    assert by_threads(log.housekeeping(NOW_MS + 10**9)) is not None
    assert log.start_offset == log.end_offset == 40


def _snapshot_that_a_kill_prevented(log: PartitionLog) -> None:
    for path in Path(log.path).glob("*.snapshot"):
        path.unlink()
    _retain(log)


def _thin_out_snapshots(log: PartitionLog) -> None:
    for sequence in range(1, 4):
        sent(log, 0, sequence)
        log.take_snapshot()
        synced(log)


def _compact(log: PartitionLog) -> None:
    keys = (b"a", b"b")
    log.configure(replace(SMALL, cleanup_policy=frozenset({"compact"})))
    for at in range(12):
        made = build_batch([NewRecord(NOW_MS, keys[at % 2], b"x" * 200)])
        assert isinstance(log.append_as_leader(made, 0, NOW_MS), Appended)
    synced(log)
    log.high_watermark = log.end_offset
    log.configure(replace(log.configs, segment_bytes=4000))  # several segments become one
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None and any(len(group) > 1 for group in plan.groups)
    disk = log.resources.disk
    assert isinstance(disk, WatchedDisk)
    result = compact(QuickDisk(), plan)
    disk.calls.clear()
    assert by_threads(applying(log, result, NOW_MS)) is not None
    assert disk.of("sync_directory") and not disk.here("sync", "sync_directory")


@pytest.mark.parametrize(
    "change",
    [
        _truncate,
        _restart,
        _restart_ahead,
        _retain,
        _retain_nothing,
        _snapshot_that_a_kill_prevented,
        _thin_out_snapshots,
        _compact,
    ],
)
@pytest.mark.parametrize("indexes", ["sound", "missing"])
def test_no_change_of_a_log_waits_for_the_disk(
    tmp_path: Path, change: Callable[[PartitionLog], None], indexes: str
) -> None:
    """The kind: what syncs, renames, removes or cuts a file is a thread's, and so is what reads all
    of a segment."""
    disk = WatchedDisk()
    log = new_log(tmp_path, SMALL, resources(disk))
    for producer in range(40):
        sent(log, producer)
    synced(log)
    assert len(log.segments) == 5
    log.high_watermark = log.end_offset
    if indexes == "missing":
        for path in (tmp_path / "t-0").glob("*index"):
            path.unlink()
        for segment in log.segments[:-1]:
            segment.drop_indexes()
            log.resources.indexes.forget(segment)
    disk.calls.clear()
    change(log)
    assert disk.of(*SLOW)
    rolled = disk.here("truncate", ending=f"{40:020}.log")  # an empty file, when it is made
    assert [each for each in disk.here(*SLOW) if each not in rolled] == []
    if indexes == "missing" and change is _truncate:
        assert not disk.here("read", ending=".log")
    # What follows is as sound as ever.
    end = log.end_offset
    sent(log, 99)
    log.high_watermark = end
    log.sync()
    log.resources.files.close()
    found = reopen(tmp_path, SMALL, ending=Ending(end, end, log.start_offset))
    assert found.damaged is None
    assert (found.end_offset, found.producers.entries[99].last_sequence) == (end + 1, 0)


# Names that are used again (S9)


def directory(tmp_path: Path, disk: QuickDisk) -> LogDirectory:
    found = open_directory(
        Seams(disk=disk), str(tmp_path / "data"), cluster_id="c", node_id=1, boot_id="b"
    )
    assert isinstance(found, LogDirectory)
    found.load(lambda _: TopicConfigs())
    return found


def checkpoint(found: LogDirectory) -> None:
    made = finish(found.checkpoint())
    if made is not None:
        made.run()
        found.checkpointed(made)


def test_many_partitions_that_are_created_again_cost_one_checkpoint(tmp_path: Path) -> None:
    disk = WatchedDisk()
    found = directory(tmp_path, disk)
    names = [TopicPartition("t", at) for at in range(40)]
    for name in names:
        found.create(name, TopicConfigs())
    checkpoint(found)
    for name in names:
        found.delete(name, durable=False)
    finish(found.syncing_names())
    disk.calls.clear()
    for name in names:
        found.create(name, TopicConfigs())
    assert len(disk.of("sync", "sync_directory")) <= 8, "four files, and their names"
    # Once the files on disk no longer name them, nothing is to be written at all.
    for name in names:
        found.delete(name, durable=False)
    checkpoint(found)
    disk.calls.clear()
    for name in names:
        assert not found.is_noted(name)
        found.create(name, TopicConfigs())
    assert not disk.of("sync", "sync_directory")


def test_a_checkpoint_under_way_keeps_its_names_noted(tmp_path: Path) -> None:
    found = directory(tmp_path, WatchedDisk())
    names = [TopicPartition("t", at) for at in range(2)]
    for name in names:
        found.create(name, TopicConfigs())
    first = finish(found.checkpoint())
    found.delete(names[0], durable=False)
    second = finish(found.checkpoint())
    assert first is not None and second is not None
    first.run()
    found.checkpointed(first)
    assert found.is_noted(names[0]), "the newer one was not run yet"
    second.run()
    found.checkpointed(second)
    assert not found.is_noted(names[0])


def test_the_loop_writes_no_checkpoint_for_a_topic_that_is_created_again(tmp_path: Path) -> None:
    async def work() -> None:
        disk = WatchedDisk()
        async with running(tmp_path, disk) as (lone, channel):
            states = {0: (0, 0), 1: (0, 0), 2: (0, 0)}
            assert await command(channel, leader_and_isr({"t": (A, states)})) == [OK] * 3
            await lone.broker.maintenance.checkpoint()
            for at in range(3):
                assert await command(channel, stop(A, 0, partition=at), 4) == [OK]
            disk.calls.clear()
            assert await command(channel, leader_and_isr({"t": (B, states)})) == [OK] * 3
            written = disk.of("sync", ending="-checkpoint.tmp")
            assert 0 < len(written) <= 4
            assert not disk.here("sync", ending="-checkpoint.tmp")

    run(work())


def test_replicas_that_are_replaced_cost_one_checkpoint_and_one_sync_of_names(
    tmp_path: Path,
) -> None:
    """One LeaderAndIsr names other lives of what is here; a StopReplica takes all away."""

    async def work() -> None:
        disk = WatchedDisk()
        async with running(tmp_path, disk) as (lone, channel):
            states = dict.fromkeys(range(5), (0, 0))
            assert await command(channel, leader_and_isr({"t": (A, states)})) == [OK] * 5
            await lone.broker.maintenance.checkpoint()
            disk.calls.clear()
            assert await command(channel, leader_and_isr({"t": (B, states)})) == [OK] * 5
            assert 0 < len(disk.of("sync", ending="-checkpoint.tmp")) <= 4
            assert len(disk.of("sync_directory", ending=tmp_path.name)) <= 5
            assert not disk.here("sync", "sync_directory")
            assert [each.topic_id for each in lone.broker.partitions.all()] == [B] * 5
            assert sum(name.endswith("-stray") for name in disk.list(str(tmp_path))) == 5
            disk.calls.clear()
            assert await command(channel, stop(B, 0), 4) == [OK]
            assert disk.of("sync_directory", ending=tmp_path.name)
            assert not disk.here("sync", "sync_directory")

    run(work())


def test_a_checkpoint_that_a_failed_one_overtook_is_not_taken_for_durable(tmp_path: Path) -> None:
    """A cut waits for its own: a newer one, which has the same in it, came first and failed."""
    disk = FaultyDisk()
    found = directory(tmp_path, disk)
    log = found.create(TopicPartition("t", 0), TopicConfigs())
    older = finish(found.checkpoint())
    log.append_as_leader(batch(3), 0, NOW_MS)
    log.high_watermark = 2
    newer = finish(found.checkpoint())
    assert older is not None and newer is not None
    disk.failing = (".tmp",)
    disk.fill_up()
    newer.run()
    assert newer.error is not None
    disk.fault = None
    older.run()
    assert older.error is not None


def test_a_checkpoint_asks_many_logs_in_turns(tmp_path: Path) -> None:
    """What happens between the turns: records come, a log is cut, one goes, another comes."""
    found = directory(tmp_path, WatchedDisk())
    names = [TopicPartition("t", at) for at in range(20)]
    for name in names:
        sent(found.create(name, TopicConfigs()), 1)
        found.logs[name].high_watermark = 1
    pieces = found.checkpoint()
    assert [next(pieces) for _ in range(4)] == [None] * 4
    sent(found.logs[names[-1]], 1, 1)
    found.logs[names[-1]].high_watermark = 2
    found.delete(names[0], durable=False)
    assert list(pieces) == [None] * 16
    # Each has its offset as of a moment of the walk; a removed log has none.
    pieces = found.checkpoint()
    assert [next(pieces) for _ in range(4)] == [None] * 4
    assert finish(found.logs[names[1]].truncation(0, NOW_MS)) is None
    found.delete(names[2], durable=False)
    checkpoint(found)
    again = found.create(names[2], TopicConfigs())
    made = by_threads(pieces)
    if made is not None:
        made.run()
        found.checkpointed(made)
    told = decode_offsets((tmp_path / "data" / HIGH_WATERMARKS).read_bytes())
    assert told[names[1]] == 0, "no older claim follows the one that the cut waited for"
    assert told.get(names[2], 0) == again.high_watermark == 0
    assert (names[0] in told, told[names[-1]], len(told)) == (False, 2, 19)


def test_a_cut_asks_many_logs_in_turns_for_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """And what maintenance asked of that log before is not written after it."""
    found = directory(tmp_path, WatchedDisk())
    names = [TopicPartition("t", at) for at in range(20)]
    for name in names:
        sent(found.create(name, TopicConfigs()), 1)
        found.logs[name].high_watermark = 1
    asked: list[PartitionLog] = []
    watermark = claims.CLAIMS[HIGH_WATERMARKS]

    def noted(log: PartitionLog) -> int:
        asked.append(log)
        return watermark(log)

    monkeypatch.setattr(claims, "CLAIMS", {**claims.CLAIMS, HIGH_WATERMARKS: noted})
    cut = found.logs[names[0]]
    pieces = cut.truncation(0, NOW_MS)
    in_thread(called(next(pieces)))  # it looks where to cut
    maintenance = found.checkpoint()
    assert next(maintenance) is None and cut in asked
    asked.clear()
    turns = 0
    while (call := next(pieces)) is None:
        turns += 1
        assert len(asked) <= 1
        asked.clear()
    assert turns == 20
    in_thread(call)
    late = by_threads(maintenance)
    late.run()
    found.checkpointed(late)
    # The cut may begin now, and a crash find any part of it.
    told = decode_offsets((tmp_path / "data" / HIGH_WATERMARKS).read_bytes())
    assert cut.end_offset == 1 and told[names[0]] == 0
    assert sum(told.values()) == 19
    assert by_threads(pieces) is None and cut.end_offset == 0


def called(call: Callable[[], None] | None) -> Callable[[], None]:
    """What a piece of work has a thread do."""
    assert call is not None
    return call


# Indexes of the active segment (S8)


def test_a_start_after_a_kill_does_not_read_again_what_was_synced(tmp_path: Path) -> None:
    configs = TopicConfigs(index_interval_bytes=0)
    log = new_log(tmp_path, configs)
    one = len(batch())
    for _ in range(3):
        for _ in range(1024):
            log.append_as_leader(batch(), 0, NOW_MS)
        log.sync()
    log.resources.files.close()
    end = Ending(recovery_point=3072, high_watermark=3072)
    found = reopen(tmp_path, configs, ending=end)
    assert found.recovered.scanned_bytes <= 2 * one
    assert (found.end_offset, len(records_of(found))) == (3072, 3072)
    # What is above the recovery point is read, and the part that has no index entry on disk.
    end = Ending(recovery_point=2000, high_watermark=2000)
    found.resources.files.close()
    assert reopen(tmp_path, configs, ending=end).recovered.scanned_bytes >= 1072 * one


def test_large_batches_that_were_synced_are_not_read_again_either(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(60):
        log.append_as_leader(batch(1, size=200_000), 0, NOW_MS)
        log.sync()
    log.resources.files.close()
    found = reopen(tmp_path, ending=Ending(recovery_point=60, high_watermark=60))
    assert found.recovered.scanned_bytes < 5_000_000
    assert found.end_offset == 60


# Views of index files (S5)

ENTRIES = 3_000
INDEXED = TopicConfigs(index_interval_bytes=0, segment_bytes=ENTRIES * 89)


def indexed(tmp_path: Path, disk: WatchedDisk) -> PartitionLog:
    """A log of four segments with an entry for each of their batches, opened after a clean stop."""
    log = new_log(tmp_path, INDEXED)
    for at in range(3 * ENTRIES + 10):
        log.append_as_leader(batch(1, timestamp=NOW_MS + at), 0, NOW_MS)
    log.high_watermark = end = log.end_offset
    assert len(log.segments) == 4 and log.close()
    found = reopen(tmp_path, INDEXED, resources(disk), ending=Ending(end, end, clean=True))
    assert found.damaged is None
    return found


def index_bytes(disk: WatchedDisk) -> int:
    return sum(call.size for call in disk.of("read", ending="index"))


def log_bytes(disk: WatchedDisk) -> int:
    return sum(call.size for call in disk.of("read", ending=".log"))


def test_the_first_look_up_by_time_reads_little_of_each_index(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = indexed(tmp_path, disk)
    found = offset_for_time(log, NOW_MS + 2 * ENTRIES + 7)
    assert found is not None and not isinstance(found, Rejected)
    assert found.offset == 2 * ENTRIES + 7
    assert index_bytes(disk) < 40_000, "of 180 kB: three leaves of a segment at most"
    assert log_bytes(disk) < 100_000, "of 800 kB: no index is rebuilt from the batches"


def test_reads_of_more_segments_than_the_cache_holds_read_little_of_an_index(
    tmp_path: Path,
) -> None:
    disk = WatchedDisk()
    log = indexed(tmp_path, disk)
    log.resources.indexes = IndexCache(1)
    for at in range(30):
        offset = at % 3 * ENTRIES + 50 * at
        data = log.read(offset, 1000)
        assert not isinstance(data, Rejected) and read_header(data).base_offset == offset
    assert index_bytes(disk) < 30 * 2200


def test_a_plan_of_compaction_knows_counts_from_sizes(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = indexed(tmp_path, disk)
    log.high_watermark = log.end_offset
    log.configure(replace(INDEXED, cleanup_policy=frozenset({"compact"})))
    disk.calls.clear()
    assert plan_compaction(log, NOW_MS) is not None
    assert index_bytes(disk) == 0


# What a controller says (S9): what was seen of it, topic ids, losses, damage


def test_the_loop_waits_for_no_disk_to_apply_a_command(tmp_path: Path) -> None:
    async def work() -> None:
        disk = WatchedDisk()
        async with running(tmp_path, disk) as (lone, channel):
            assert await open_channel(channel, 2, 1, revision=5) == ErrorCode.NONE
            configs = messages.UpdateConfigsRequest(1, 2, 7, 6)
            assert (await channel.ask(configs, 0)).error_code == OK
            assert disk.of("sync", ending=SEEN_FILE)
            assert lone.broker.channel.seen_epochs == SeenEpochs(2, 6)
            states = dict.fromkeys(range(3), (0, 0))
            ordered = leader_and_isr({"t": (NO_UUID, states)}, epoch=2)
            assert await command(channel, ordered) == [OK] * 3
            disk.calls.clear()
            ordered = leader_and_isr({"t": (A, states)}, epoch=2, migrated=True)
            assert await command(channel, ordered) == [OK] * 3
            assert len(disk.of("sync", ending="partition.metadata.adopted.tmp")) == 3
            assert [each.topic_id for each in lone.broker.partitions.all()] == [A] * 3
            directory = lone.broker.directories[0]
            assert by_threads(directory.recording_life("next", durability="sync"))
            assert disk.of("sync", ending="tidelog.life.tmp")
            assert not disk.here("sync", "sync_directory")

    run(work())


def test_a_newer_channel_may_come_while_the_disk_is_waited_for(tmp_path: Path) -> None:
    """Both wait; whichever is done first, only commands of the newer one are applied."""

    async def work() -> None:
        async with running(tmp_path, WatchedDisk()) as (lone, _):
            older, newer = await Peer.connect(lone.port), await Peer.connect(lone.port)
            answers = await asyncio.gather(
                open_channel(older, 4, 1, revision=9), open_channel(newer, 5, 1, revision=8)
            )
            assert answers[1] == ErrorCode.NONE
            channel = lone.broker.channel.present
            assert channel is not None and channel.controller_epoch == 5
            assert lone.broker.channel.seen_epochs == SeenEpochs(5, 9)

    run(work())
    assert SeenEpochsFile(RealDisk(), str(tmp_path / SEEN_FILE)).read() == SeenEpochs(5, 9)


def test_a_loss_is_noted_by_a_thread_before_the_cut(tmp_path: Path) -> None:
    async def work() -> None:
        disk = WatchedDisk()
        async with running(tmp_path, disk) as (lone, channel):
            assert await command(channel, leader_and_isr({"t": (A, {0: (1, 0)})})) == [OK]
            hosted = lone.broker.partitions.get("t", 0)
            assert hosted is not None
            for _ in range(6):
                hosted.append(batch(1), NOW_MS)
            hosted.become(replace(hosted.state, leader=2, leader_epoch=2, isr=(2,)))
            disk.calls.clear()
            part = messages.FetchResponse.PartitionData(0, 0, 8, 8, 0)
            part.diverging_epoch = messages.FetchResponse.EpochEndOffset(1, 2)
            pieces = take_in(hosted, part, NOW_MS, lone.broker.loss_reports)
            assert await lone.broker.log_work.run(hosted.log, pieces) is None
            assert hosted.log.end_offset == 2
            noted = disk.calls.index(disk.of("sync", ending="tidelog.unreported-losses.tmp")[0])
            cut = disk.calls.index(disk.of("truncate", ending=".log")[0])
            assert noted < cut
            assert not disk.here("sync", "sync_directory")
            # When two that come at once are both reported durable, both are on disk.
            notes = LossNotes(lone.broker.partitions)
            losses = [LossNote(hosted.key, A, at, at + 1, (1,)) for at in (10, 20)]
            done = await asyncio.gather(
                *(lone.broker.log_work.run(None, notes.adding([(hosted, x)])) for x in losses)
            )
            assert done == [None, None]
            assert len(LossNotes(lone.broker.partitions)) == len(notes) == 3

    run(work())


class HeldNotes(WatchedDisk):
    """Holds each thread that syncs a note of damage, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go, self.held = threading.Event(), threading.Event()

    def note(self, kind: str, path: str, size: int = 0) -> None:
        super().note(kind, path, size)
        is_loop = threading.get_ident() == self._thread
        if kind == "sync" and DAMAGED in path and not is_loop:
            self.held.set()
            assert self.may_go.wait(DEADLINE_S)


def test_damage_is_noted_by_a_thread_before_it_is_reported_to_a_controller(tmp_path: Path) -> None:
    """The note is written where damage is met; the report waits until the note is durable."""

    async def work() -> None:
        disk = HeldNotes()
        async with running(tmp_path, disk) as (lone, channel):
            assert await command(channel, leader_and_isr({"t": (A, {0: (1, 0)})})) == [OK]
            partitions = lone.broker.partitions
            hosted = partitions.get("t", 0)
            assert hosted is not None
            assert isinstance(hosted.append(batch(3), NOW_MS), Appended)
            flip_a_bit(hosted)
            disk.calls.clear()
            assert isinstance(hosted.read(0, 1000, committed=False), Rejected)
            assert hosted.log.damaged is not None and hosted.offline_reason is not None
            kept = disk.list(hosted.log.path)
            assert DAMAGED in kept, "a kill must not have it forgotten"
            await until(disk.held.is_set)
            assert partitions.failures() is None
            ((claimed,),) = ([*topic.partitions] for topic in partitions.inventory())
            assert claimed.end_offset == 3
            disk.may_go.set()
            await until(lambda: partitions.failures() is not None)
            assert [each.partition_index for each in partitions.failures().damaged_replicas] == [0]
            ((claimed,),) = ([*topic.partitions] for topic in partitions.inventory())
            assert claimed.end_offset == -1
            assert disk.of("sync", ending=DAMAGED)
            assert disk.of("sync_directory", ending="t-0")
            assert not disk.here("sync", "sync_directory")
            assert hosted.log.unsynced() is None

    run(work())


@pytest.mark.parametrize("fault", [None, errno.EIO])
def test_damage_that_is_met_just_before_a_stop_is_durable_before_the_stop_is_clean(
    tmp_path: Path, fault: int | None
) -> None:
    disk = FaultyDisk()
    found = directory(tmp_path, disk)
    log = found.create(TopicPartition("t", 0), TopicConfigs())
    log.resources.on_damage = lambda _: None
    log.append_as_leader(batch(3), 0, NOW_MS)
    log.sync()
    disk.syncs.clear()
    disk.sync_fault = fault
    found_damaged(log, "a test")
    assert not disk.syncs
    assert found.close() is (fault is None)
    assert any(path.endswith(DAMAGED) for path in disk.syncs)


def test_a_damaged_replica_is_quarantined_by_a_thread(tmp_path: Path) -> None:
    async def work() -> None:
        disk = WatchedDisk()
        async with running(tmp_path, disk) as (lone, channel):
            assert await command(channel, leader_and_isr({"t": (A, {0: (1, 0)})})) == [OK]
            await lone.broker.maintenance.checkpoint()
            damaged = lone.broker.partitions.get("t", 0)
            assert damaged is not None
            found_damaged(damaged.log, "a test")
            ordered = leader_and_isr({"t": (A, {0: (2, 1)})})
            (state,) = ordered.topic_states[0].partition_states
            state.leader, state.isr, state.replicas = 2, [2], [1, 2]
            disk.calls.clear()
            assert await command(channel, ordered) == [OK]
            assert lone.broker.partitions.get("t", 0) is not damaged
            assert disk.of("sync_directory", ending=tmp_path.name)
            assert disk.of("sync", ending="-checkpoint.tmp")
            assert not disk.here("sync", "sync_directory")

    run(work())


def test_what_is_written_again_is_synced_with_the_log(tmp_path: Path) -> None:
    """Without room at the start it is done by a sync of a log that serves, on the loop."""
    disk = FaultyDisk()
    log = new_log(tmp_path, SMALL, resources(disk))
    for sequence in range(3):
        sent(log, 7, sequence)
    log.sync()
    disk.syncs.clear()
    log.write_again = write_again
    pending = log.unsynced()
    assert pending is not None and not disk.syncs
    pending.run()
    log.synced(pending)
    assert log.segments[-1].log_path in disk.syncs
