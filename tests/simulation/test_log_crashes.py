"""A crash in every single disk operation of what a log does rarely: nothing synced is ever lost.

Where the random lives of `test_log.py` go by chance, this goes through all places: each
operation is begun again and again, the process or the power goes one disk operation later each
time, and the directory is opened and read.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from tests.simulation.kernel import (
    UNLIMITED,
    Crash,
    ProcessKilled,
    crash_at,
    fail_once,
)
from tests.simulation.log_node import KEYS, RECORDS, SMALL, Node, P, at_change, kept
from tests.simulation.scenarios.log import COMPACT, DELETE
from tests.simulation.scenarios.log_steps import PATH
from tests.support.compacting import few
from tests.support.pieces import beside_others
from tests.support.storage_logs import removed_now
from tests.support.transactional_logs import check_aborted, send, stable_by_batches
from tests.support.transactional_logs import end as own_marker
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import Work, finish
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.reader import read_all
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.directory.log_directory import LastStop
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.stable import last_stable_offset
from tidelog.storage.segments.index_files import open_indexes


@dataclass(frozen=True)
class Case:
    """Something to crash in: what it does, and which records must be there afterwards."""

    name: str
    act: Callable[[Node, PartitionLog], None]
    safe: Callable[[int], bool] = lambda offset: True
    configs: TopicConfigs = SMALL
    may_vanish: bool = False
    is_nameless: bool = False
    has_markers: bool = False
    """Whether some offsets have control records."""
    has_aborted: bool = False
    """Whether transactions were aborted in some segments, durably, before it begins."""
    adopts: bool = False
    """Whether it ends with an identity that is durable, because that was answered."""
    """The replica is older than topic ids."""


def _expire(node: Node, log: PartitionLog) -> None:
    log.configure(TopicConfigs(segment_bytes=400, retention_bytes=800, file_delete_delay_ms=0))
    finish(log.housekeeping(node.clock.now_ms))
    log.sync()
    node.clock.now_ms += 1
    removed_now(node.directory)


def _expire_all(node: Node, log: PartitionLog) -> None:
    log.configure(TopicConfigs(segment_bytes=400, retention_ms=1, file_delete_delay_ms=0))
    node.clock.now_ms += 1_000_000
    finish(log.housekeeping(node.clock.now_ms))
    log.sync()
    removed_now(node.directory)


def _compact(node: Node, log: PartitionLog) -> None:
    plan = plan_compaction(log, node.clock.now_ms)
    assert plan is not None
    assert finish(applying(log, compact(node.view, plan), node.clock.now_ms)) is not None
    log.sync()
    node.clock.now_ms += 1
    removed_now(node.directory)


def _compact_in_runs(node: Node, log: PartitionLog) -> None:
    """A table for three keys at a time: later runs read a clean part, and headers of it."""
    runs = 0
    while plan := plan_compaction(log, node.clock.now_ms, share=few(3)):
        result = compact(node.view, plan)
        assert finish(applying(log, result, node.clock.now_ms)) is not None
        _newest_are_read(node, log)
        runs += 1
    assert runs > 1
    removed_now(node.directory)


def _append_and_roll(node: Node, log: PartitionLog) -> None:
    for number in range(RECORDS, RECORDS + 6):
        node.append(log, number)
    log.sync()


def _transact(node: Node, log: PartitionLog) -> None:
    """Transactions that are open, or end, across rolls, syncs, a cut and retention of the start."""
    end = log.end_offset
    for sequence in range(4):
        send(log, 8, sequence)
        send(log, 9, sequence)
        own_marker(log, 9, committed=sequence % 2 == 0)
        node.append(log, RECORDS + sequence)
        if sequence == 1:
            log.sync()
            log.raise_watermark(end + 5)
        elif sequence == 2:
            own_marker(log, 8)
            log.roll(node.clock.now_ms)
    finish(log.truncation(log.end_offset - 2, node.clock.now_ms))
    own_marker(log, 9)
    log.raise_watermark(log.end_offset - 1)
    log.sync()
    _checkpointed(node)


def _checkpointed(node: Node) -> None:
    checkpoint = finish(node.directory.checkpoint())
    if checkpoint is not None:
        checkpoint.run()
        node.directory.checkpointed(checkpoint)


def _abort_some(node: Node, log: PartitionLog) -> None:
    """Transactions are aborted in several segments, all of it is synced, and a checkpoint says so.

    One of them is open in all segments.
    """
    send(log, 50, 0)
    for sequence in range(6):
        send(log, 51, sequence)
        own_marker(log, 51, committed=sequence % 3 == 2)
        node.append(log, RECORDS + sequence)
    own_marker(log, 50, committed=False)
    log.sync()
    log.high_watermark = log.end_offset
    _checkpointed(node)


def _abort_more(node: Node, log: PartitionLog) -> None:
    for sequence in range(3):
        send(log, 52, sequence)
        own_marker(log, 52, committed=False)
        log.roll(node.clock.now_ms)
        log.sync()
    log.raise_watermark(log.end_offset)
    _checkpointed(node)


def _cut_aborted(node: Node, log: PartitionLog) -> None:
    finish(log.truncation(RECORDS + 5, node.clock.now_ms))
    _abort_more(node, log)


def _compact_aborted(node: Node, log: PartitionLog) -> None:
    log.configure(replace(COMPACTED, segment_bytes=2000))  # several segments become one
    _compact(node, log)


def _expire_aborted(node: Node, log: PartitionLog) -> None:
    _expire(node, log)
    _abort_more(node, log)


def _delete(node: Node, _log: PartitionLog) -> None:
    node.directory.delete(P, delay_ms=0)
    removed_now(node.directory)


def _checkpoint(node: Node, log: PartitionLog) -> None:
    log.advance_start(3)
    checkpoint = finish(node.directory.checkpoint())
    assert checkpoint is not None
    checkpoint.run()
    node.directory.checkpointed(checkpoint)


def _keep_other_configs(_node: Node, log: PartitionLog) -> None:
    """A power loss before the next sync tore the file, and with it the topic id."""
    finish(log.keeping_configs((("retention.ms", "86400000"),)))


def _adopt_topic_id(_node: Node, log: PartitionLog) -> None:
    """The file is new beside records that are durable: a torn one would be damage."""
    log.adopt_metadata(kept(SMALL))
    finish(log.syncing_metadata())


def _adopt_topic_id_beside_other_configs(_node: Node, log: PartitionLog) -> None:
    """Maintenance keeps changed configurations between the two steps."""
    log.adopt_metadata(kept(SMALL))
    finish(log.keeping_configs((("retention.ms", "86400000"),)))
    finish(log.syncing_metadata())
    assert log.metadata is not None and len(log.metadata.configs) == 1


def _adopt_partition_epoch(_node: Node, log: PartitionLog) -> None:
    """Level 1.5: the file is there, and durable; maintenance changes it, too."""
    log.adopt_metadata(replace(kept(SMALL), partition_epoch=7))
    finish(log.syncing_metadata())
    finish(log.keeping_configs((("retention.ms", "86400000"),)))
    log.adopt_metadata(replace(kept(SMALL), partition_epoch=8))
    finish(log.keeping_configs((("retention.ms", "3600000"),)))
    finish(log.syncing_metadata())
    assert log.metadata is not None and log.metadata.partition_epoch == 8


def _delete_records(node: Node, log: PartitionLog) -> None:
    log.advance_start(13)
    finish(log.housekeeping(node.clock.now_ms))
    log.sync()


def _beside(node: Node, pieces: Work[object], reading: Callable[[], None] = lambda: None) -> None:
    """Do work in pieces; checkpoints are written and syncs are run between them, and reads."""
    log = node.directory.logs[P]

    def others() -> None:
        reading()
        pending = log.unsynced()
        checkpoint = finish(node.directory.checkpoint())
        for value in (pending, checkpoint):
            if value is not None:
                value.run()
        if pending is not None:
            log.synced(pending)
        if checkpoint is not None:
            node.directory.checkpointed(checkpoint)
        reading()

    beside_others(pieces, others)


def _retain_beside_others(node: Node, log: PartitionLog) -> None:
    log.configure(TopicConfigs(segment_bytes=400, retention_bytes=800, file_delete_delay_ms=0))
    _beside(node, log.housekeeping(node.clock.now_ms))
    removed_now(node.directory)


def _compact_beside_others(node: Node, log: PartitionLog) -> None:
    """Whatever the names of the files are, all that compaction keeps can be read."""
    log.configure(replace(COMPACTED, segment_bytes=2000))  # several segments become one
    plan = plan_compaction(log, node.clock.now_ms)
    assert plan is not None and any(len(group) > 1 for group in plan.groups)
    pieces = applying(log, compact(node.view, plan), node.clock.now_ms)

    _beside(node, pieces, lambda: _newest_are_read(node, log))
    assert log.first_dirty_offset == plan.end_offset and not log.failed
    _newest_are_read(node, log)
    removed_now(node.directory)


def _newest_are_read(node: Node, log: PartitionLog) -> None:
    found = node.read(log)
    for offset in range(RECORDS - KEYS, RECORDS):
        assert found.get(offset) == b"v%d" % offset


COMPACTED = TopicConfigs(
    segment_bytes=400,
    cleanup_policy=COMPACT,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
)

CASES = [
    Case("append and roll", _append_and_roll),
    Case("retention", _expire, lambda offset: offset >= RECORDS - 2),
    Case("retention of everything", _expire_all, lambda offset: False),
    Case("delete records", _delete_records, lambda offset: offset >= 13),
    Case(
        "truncate into an old segment",
        lambda node, log: finish(log.truncation(11, node.clock.now_ms)) and None,
        lambda offset: offset < 11,
    ),
    Case(
        "truncate to the start",
        lambda node, log: finish(log.truncation(0, node.clock.now_ms)) and None,
        lambda offset: False,
    ),
    Case(
        "start again above the start",
        lambda node, log: finish(log.restart(11, node.clock.now_ms)) and None,
        lambda offset: False,
    ),
    Case(
        "start again ahead of the end",
        lambda node, log: finish(log.restart(1_000, node.clock.now_ms)) and None,
        lambda offset: False,
    ),
    Case(
        "truncate beside checkpoints",
        lambda node, log: _beside(node, log.truncation(11, node.clock.now_ms)),
        lambda offset: offset < 11,
    ),
    Case(
        "start again beside checkpoints",
        lambda node, log: _beside(node, log.restart(1_000, node.clock.now_ms)),
        lambda offset: False,
    ),
    Case("retention beside syncs", _retain_beside_others, lambda offset: offset >= RECORDS - 2),
    Case("compaction", _compact, lambda offset: offset >= RECORDS - KEYS, COMPACTED),
    Case(
        "compaction in runs of few keys",
        _compact_in_runs,
        lambda offset: offset >= RECORDS - KEYS,
        replace(COMPACTED, file_delete_delay_ms=60_000),
    ),
    Case(
        "compaction beside syncs",
        _compact_beside_others,
        lambda offset: offset >= RECORDS - KEYS,
        COMPACTED,
    ),
    Case("transactions", _transact, has_markers=True),
    Case(
        "transactions, then a clean stop",
        lambda node, log: _transact(node, log) or (node.directory.close() and None),
        has_markers=True,
    ),
    Case(
        "aborted transactions, retention",
        _expire_aborted,
        lambda offset: False,
        has_markers=True,
        has_aborted=True,
    ),
    Case(
        "aborted transactions, a cut in an old segment",
        _cut_aborted,
        has_markers=True,
        has_aborted=True,
    ),
    Case(
        "aborted transactions, compaction",
        _compact_aborted,
        lambda offset: False,
        COMPACTED,
        has_markers=True,
        has_aborted=True,
    ),
    Case("clean stop", lambda node, log: node.directory.close() and None),
    Case(
        "deletion of the partition",
        lambda node, log: (
            node.directory.delete(P, delay_ms=0) or (removed_now(node.directory) and None)
        ),
        may_vanish=True,
    ),
    Case("checkpoint", _checkpoint, lambda offset: offset >= 3),
    Case("other configurations", _keep_other_configs),
    Case("a topic id is adopted", _adopt_topic_id, is_nameless=True),
    Case(
        "a topic id is adopted beside other configurations",
        _adopt_topic_id_beside_other_configs,
        is_nameless=True,
    ),
    Case("a partition epoch is adopted", _adopt_partition_epoch, adopts=True),
]


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_crash_anywhere_loses_nothing_safe(case: Case, kind: str) -> None:
    for number in range(1, 1_000):
        if not _crash_once(case, kind, number, part=number % 2) and number > 3:
            return
        if kind == "power":
            _crash_once(case, kind, number, part=(number + 1) % 2)
    raise AssertionError("the operation never ended")


def _crash_once(case: Case, kind: str, number: int, part: float) -> bool:
    """Crash in the operation with this number; False when the case ended before it."""
    node = Node(number, case.configs, is_nameless=case.is_nameless)
    log = node.prepare()
    if case.has_aborted:
        _abort_some(node, log)
    node.disk.plan = at_change(number, Crash(kind, part))
    crashed = False
    try:
        case.act(node, log)
    except ProcessKilled:
        crashed = True
    else:
        node.disk.lose_power() if kind == "power" else node.disk.kill(node.view)
    node.disk.plan = None
    node.boot += kind == "power"
    _check(node, case, f"{case.name}: {kind} in operation {number}, part {part}")
    if (case.is_nameless or case.adopts) and not crashed:
        assert node.directory.logs[P].metadata == log.metadata, "what was answered is durable"
    return crashed


def _check(node: Node, case: Case, where: str) -> None:
    directory = node.open()
    log = directory.logs.get(P)
    if log is None:
        assert case.may_vanish, where
        return
    assert log.damaged is None, f"{where}: {log.damaged}"
    found = node.read(log)
    for offset in filter(case.safe, range(RECORDS)):
        assert found.get(offset) == b"v%d" % offset, f"{where}: {offset} is {found.get(offset)!r}"
    assert last_stable_offset(log) == stable_by_batches(log), where
    check_aborted(log, random.Random(where), ranges=5)
    if not (case.configs.compacted or case.has_markers):
        assert sorted(found) == list(range(log.start_offset, log.end_offset)), where
    # It goes on: offsets are not given out again below what was safe, producers are known.
    before = log.end_offset
    node.append(log, RECORDS + 1000 if before == 0 else _next_sequence(log))
    assert log.end_offset == before + 1, where


def _next_sequence(log: PartitionLog) -> int:
    entry = log.producers.entries.get(7)
    return 0 if entry is None else entry.last_sequence + 1


def test_retention_of_everything_never_rewinds_offsets() -> None:
    for number in range(1, 60):
        node = Node(number, CASES[0].configs)
        log = node.prepare()
        node.disk.plan = crash_at(node.disk.operations + number, Crash("power", number % 2))
        try:
            _expire_all(node, log)
        except ProcessKilled:
            pass
        else:
            node.disk.lose_power()
        node.disk.plan = None
        node.boot += 1
        assert node.open().logs[P].end_offset == RECORDS, number


def test_power_loss_a_start_that_dies_before_registering_a_second_start_still_unclean() -> None:
    node = Node(1, TopicConfigs(cleanup_policy=DELETE))
    node.prepare()
    node.disk.lose_power()
    node.boot += 1
    assert node.open().last_stop is LastStop.UNCLEAN
    node.disk.kill(node.view)
    assert node.open().last_stop is LastStop.UNCLEAN
    finish(node.directory.recording_life(str(node.boot), durability="sync"))
    node.disk.kill(node.view)
    assert node.open().last_stop is LastStop.CRASHED


@pytest.mark.parametrize("ending", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_a_torn_index_or_checkpoint_does_not_stop_the_start(ending: str) -> None:
    for seed in range(20):
        node = Node(seed, CASES[0].configs)
        node.prepare()
        node.disk.kill(node.view)
        rng = random.Random(seed)
        for path in node.disk.walk(PATH):
            if path.endswith(ending):
                file = node.disk.file(path)
                if rng.random() < 0.5 or not file.data:
                    file.truncate(rng.randint(0, len(file.data)))
                else:
                    file.flip_bit(rng.randrange(8 * len(file.data)))
        log = node.open().logs[P]
        assert log.damaged is None, log.damaged
        assert node.read(log) == {offset: b"v%d" % offset for offset in range(RECORDS)}, seed


def test_the_indexes_of_a_segment_that_was_synced_before_it_was_closed_are_durable() -> None:
    """Nothing looks at a segment below the recovery point: retention goes by its last time."""
    for seed in range(20):
        node = Node(seed, TopicConfigs(index_interval_bytes=100))
        log = node.prepare()
        closed = log.segments[-1]
        assert log.synced_end_offset == log.end_offset
        assert log.roll(node.clock.now_ms) is None
        node.append(log, RECORDS)
        newest = closed.newest
        log.sync()
        node.disk.lose_power()
        node.boot += 1
        found = node.open().logs[P].segments[0]
        assert (found.base_offset, found.newest) == (closed.base_offset, newest), seed
        both = open_indexes(found.resources, found.base_offset, *found.index_paths)
        assert both is not None and both[1].last() == newest, seed


def test_indexes_that_a_killed_life_closed_after_their_sync_are_durable_with_the_next() -> None:
    """S16: no sync of bytes to come covers them, and the life that knew of them is gone."""
    for seed in range(20):
        node = Node(seed, TopicConfigs(index_interval_bytes=100))
        log = node.prepare()
        closed = log.segments[-1]
        assert log.roll(node.clock.now_ms) is None
        node.append(log, RECORDS)
        newest = closed.newest
        node.disk.kill(node.view)
        finish(node.open().recording_life(str(node.boot), durability="sync"))
        node.directory.logs[P].sync()
        node.disk.lose_power()
        node.boot += 1
        found = node.open().logs[P].segments[0]
        assert (found.base_offset, found.newest) == (closed.base_offset, newest), seed
        both = open_indexes(found.resources, found.base_offset, *found.index_paths)
        assert both is not None and both[1].last() == newest, seed


def test_damage_below_the_recovery_point_takes_no_other_log_along() -> None:
    """Seed 93010: what was written again after a crash was looked for, and the start failed."""
    for bit in range(8 * 61):
        node = Node(1, SMALL)
        log = node.prepare()
        closed = log.segments[1]
        position = closed.locate(closed.next_offset - 1)
        assert position is not None
        node.disk.kill(node.view)
        node.disk.flip_bit(closed.log_path, 8 * position[0] + bit)
        again = node.open().logs[P]
        if again.damaged is not None:
            assert closed.log_path in again.damaged, bit
            continue
        # What no start looks at is looked at when it is read.
        for offset in range(RECORDS):
            data = again.read(offset, 1)
            if isinstance(data, Rejected):
                assert again.damaged is not None, bit
                break
            (record,) = read_all(data, offset)
            assert (record.offset, record.value) == (offset, b"v%d" % offset), bit


def test_damage_below_the_tail_is_named_and_never_served() -> None:
    for seed in range(40):
        node = Node(seed, CASES[0].configs)
        log = node.prepare()
        for number in range(RECORDS, RECORDS + 8):
            node.append(log, number)
        # The first unsynced batch of several: sound ones follow.
        segment = log.segments[log.segments.segment_at(RECORDS)]
        position = segment.locate(RECORDS)
        assert position is not None
        node.disk.kill(node.view)
        bit = random.Random(seed).randrange(8 * 17, 8 * 61)
        node.disk.flip_bit(segment.log_path, 8 * position[0] + bit)
        again = node.open().logs[P]
        assert again.damaged is not None, f"seed {seed}: bit {bit} went unnoticed"
        assert isinstance(again.read(0, 100), Rejected)
        assert isinstance(again.append_as_leader(b"", 1, 0), Rejected)


def test_an_fsync_that_failed_before_a_kill_is_made_good_by_the_next_start() -> None:
    node = Node(1, SMALL)
    log = node.prepare()
    for number in range(RECORDS, RECORDS + 4):
        node.append(log, number)
    node.disk.plan = fail_once("sync", ".log")
    log.sync()
    assert log.failed
    node.disk.plan = None
    node.disk.kill(node.view)
    # The page cache has the bytes, counts them as clean, and would never write them.
    again = node.open().logs[P]
    again.sync()
    assert again.synced_end_offset == again.end_offset == RECORDS + 4
    node.disk.lose_power()
    node.boot += 1
    last = node.open().logs[P]
    assert last.damaged is None
    assert len(node.read(last)) == RECORDS + 4


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_a_full_disk_cut_off_a_closed_segment_does_not_come_back(checkpointed: bool) -> None:
    for seed in range(30):
        node = Node(seed, TopicConfigs(segment_bytes=4_000))
        log = node.prepare()
        node.disk.capacity = node.disk.used()
        record = NewRecord(node.clock.now_ms, b"k", b"x" * 300)
        refusal = log.append_as_leader(build_batch([record]), 1, node.clock.now_ms)
        assert isinstance(refusal, Rejected) and "full" in refusal.reason
        node.disk.capacity = UNLIMITED
        assert log.roll(node.clock.now_ms) is None
        node.append(log, RECORDS)
        log.sync()
        if checkpointed:
            checkpoint = finish(node.directory.checkpoint())
            assert checkpoint is not None
            checkpoint.run()
        node.disk.lose_power()
        node.boot += 1
        again = node.open().logs[P]
        assert again.damaged is None
        assert len(node.read(again)) == RECORDS + 1, seed


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_partition_created_again_is_not_measured_by_its_former_incarnation(
    in_flight: bool,
) -> None:
    node = Node(1, SMALL)
    node.prepare()
    directory = node.directory
    directory.logs[P].advance_start(1)
    late = finish(directory.checkpoint())
    assert late is not None
    if not in_flight:
        late.run()
        directory.checkpointed(late)
    directory.delete(P)
    log = directory.create(P, SMALL, kept(SMALL))
    if in_flight:
        late.run()
        directory.checkpointed(late)
    node.append(log, 0)
    log.sync()
    node.disk.kill(node.view)
    again = node.open().logs[P]
    assert again.damaged is None, again.damaged
    assert (again.start_offset, again.end_offset) == (0, 1)


def test_a_snapshot_of_producers_that_a_power_loss_made_untrue_does_not_come_back() -> None:
    """It would take for a duplicate what the log lost, and refuse what it lacks."""
    untrue = 0
    for seed in range(600):
        node = Node(seed, SMALL)
        log = node.prepare()
        finish(node.directory.recording_life("1", durability="replicated"))
        node.append(log, RECORDS)
        assert log.roll(node.clock.now_ms) is None
        for waiting in log.snapshots.for_sync():
            waiting.write()  # before the records are synced, as earlier versions did at a roll
        node.disk.lose_power()
        node.boot += 1
        behind = f"{RECORDS + 1}.snapshot"
        names = [path for path in node.disk.walk(PATH) if path.endswith(behind)]
        log = node.open().logs[P]
        if log.end_offset > RECORDS or not names:
            continue
        untrue += 1
        for sequence in range(3):
            record = NewRecord(node.clock.now_ms, b"k", b"x")
            other = build_batch([record], producer=Producer(8, 0, sequence))
            assert not isinstance(log.append_as_leader(other, 1, node.clock.now_ms), Rejected)
        node.disk.lose_power()
        node.boot += 1
        log = node.open().logs[P]
        assert log.damaged is None
        assert log.producers.entries[7].last_sequence == RECORDS - 1, seed
    assert untrue > 20


def test_a_watermark_that_a_power_loss_made_untrue_is_lowered_before_more_is_written() -> None:
    """A kill soon afterwards: what was written since is not committed, nor damaged for its tail."""
    taken = 0
    for seed in range(40):
        node = Node(seed, SMALL)
        log = node.prepare()
        finish(node.directory.recording_life("1", durability="replicated"))
        for number in range(RECORDS, RECORDS + 8):
            node.append(log, number)
        log.high_watermark = log.end_offset
        _checkpoint(node, log)
        node.disk.lose_power()
        node.boot += 1
        finish(node.open().recording_life(str(node.boot), durability="replicated"))
        log = node.directory.logs[P]
        end = log.end_offset
        if end >= RECORDS + 6:
            continue
        taken += 1
        node.append(log, _next_sequence(log))
        # The next append is torn.
        with pytest.raises(ProcessKilled):
            node.disk.plan = crash_at(node.disk.operations + 1, Crash("kill", 0.5))
            node.append(log, _next_sequence(log))
        node.disk.plan = None
        log = node.open().logs[P]
        assert log.damaged is None, f"{seed}: {log.damaged}"
        assert (log.end_offset, log.high_watermark) == (end + 1, end), seed
    assert taken > 10


def test_a_start_that_completes_a_compaction_and_loses_power_keeps_what_was_aborted() -> None:
    numbers = []
    for number in itertools.count(1):
        left = _left_by_a_compaction(number)
        if left is None:
            break
        numbers += [number] if left else []
    assert len(numbers) > 5
    number = numbers[-1]
    struck = 0
    while _crash_in_the_start(number, struck + 1):
        struck += 1
    assert struck > 2


def _left_by_a_compaction(number: int) -> Node | bool | None:
    """Lose power in this operation of a compaction; return the node if a start has to complete it,
    None when the compaction ended before."""
    node = Node(number, COMPACTED)
    log = node.prepare()
    _abort_some(node, log)
    log.configure(replace(COMPACTED, segment_bytes=2000))
    node.disk.plan = at_change(number, Crash("power", number % 2))
    with suppress(ProcessKilled):
        _compact(node, log)
        return None
    node.disk.plan = None
    node.boot += 1
    is_begun = any(name.endswith(".log.swap") for name in node.disk.view().list(log.path))
    return node if is_begun else False


def _crash_in_the_start(number: int, again: int) -> bool:
    """Lose power in an operation of the start that follows, too; False when it has no such one."""
    node = _left_by_a_compaction(number)
    assert isinstance(node, Node)
    node.disk.plan = at_change(again, Crash("power", 0.0))
    with suppress(ProcessKilled):
        node.open()
        return False
    node.disk.plan = None
    node.boot += 1
    case = next(case for case in CASES if case.name == "aborted transactions, compaction")
    _check(node, case, f"power in operation {number}, then in {again} of the start")
    return True
