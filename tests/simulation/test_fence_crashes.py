"""A crash in every disk operation beside fences: no fence below the log's end is ever forgotten.

Nor is one known that the log does not have. Each case is begun again and again, the process or the
power goes one disk operation later each time; then seeded lives of appends, fences, syncs, cuts,
retention and crashes follow. The truth is what was appended: the entries below the log's end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.simulation.kernel import Crash, DiskOperation, Plan, ProcessKilled
from tests.simulation.log_node import RECORDS, SMALL, Node, P
from tests.support.storage_logs import removed_now
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch
from tidelog.storage.log.fences import FenceEntry, Fences
from tidelog.storage.log.partition_log import PartitionLog

LEADERS = Fences(
    (
        FenceEntry(1, 8, ChangeKind.FENCE, 5, 5),
        FenceEntry(2, 4, ChangeKind.FENCE, 500, 499),
        FenceEntry(3, 8, ChangeKind.FENCE, 2_000, 2_000),
    )
)
EXPIRE = replace(SMALL, retention_bytes=300, file_delete_delay_ms=0)


class Truth:
    """The fences that were appended to a log, by offset: a later append replaces an earlier one."""

    def __init__(self) -> None:
        self.by_offset: dict[int, set[FenceEntry]] = {}
        self.newest = 0

    def append(self, node: Node, log: PartitionLog, kind: ChangeKind = ChangeKind.FENCE) -> None:
        self.newest += 1
        node.clock.now_ms += 1_000
        newest = log.fences.newest
        is_after_control = newest is not None and newest.offset == log.end_offset - 1
        data_end = newest.data_end if newest and is_after_control else log.end_offset
        entry = FenceEntry(self.newest, 4 + self.newest, kind, log.end_offset, data_end)
        self.by_offset.setdefault(log.end_offset, set()).add(entry)
        said = FenceRecord(kind, entry.resize_epoch, entry.undeleted_count)
        batch = change_batch(said, leader_epoch=1, timestamp_ms=node.clock.now_ms)
        answer = log.append_as_leader(batch, 1, node.clock.now_ms, from_client=False)
        assert not isinstance(answer, Rejected), answer

    def check(self, log: PartitionLog, where: str) -> None:
        """Each fence below the end is known, and no other one is."""
        assert log.damaged is None, f"{where}: {log.damaged}"
        known = {entry.offset: entry for entry in log.fences.entries}
        for offset, entry in known.items():
            assert offset < log.end_offset, f"{where}: {entry} at or above {log.end_offset}"
            assert entry in self.by_offset.get(offset, ()), f"{where}: {entry} was never appended"
        for offset in self.by_offset:
            if offset < log.start_offset:
                assert offset in known, f"{where}: {offset}, below the start, is forgotten"
            elif offset < log.end_offset:
                header = log.segments.header_at(offset)
                is_there = header is not None and header.base_offset == offset and header.control
                assert (offset in known) == is_there, f"{where}: {offset}, in the log: {is_there}"


@dataclass(frozen=True)
class Case:
    """Something to crash in, with fences."""

    name: str
    act: Callable[[Node, PartitionLog, Truth], None]
    keeps_all: bool = True
    """Whether the two fences of before are there in any case."""


def _checkpoint(node: Node) -> None:
    checkpoint = finish(node.directory.checkpoint())
    if checkpoint is not None:
        checkpoint.run()
        node.directory.checkpointed(checkpoint)


def _append_and_sync(node: Node, log: PartitionLog, truth: Truth) -> None:
    node.append(log, RECORDS)
    truth.append(node, log)
    truth.append(node, log, ChangeKind.SEAL)
    _sync(log)
    _checkpoint(node)


def _sync(log: PartitionLog) -> None:
    """Sync as the group commit does: the small files first, by a thread."""
    pending = log.epochs_to_write()
    if pending is not None:
        pending.run()
        log.epochs_written(pending)
    log.sync()


def _append_and_stop(node: Node, log: PartitionLog, truth: Truth) -> None:
    truth.append(node, log)
    node.directory.close()


def _expire_unsynced(node: Node, log: PartitionLog, truth: Truth) -> None:
    """Retention removes the batch of a fence that no sync has covered."""
    truth.append(node, log)
    for number in range(RECORDS, RECORDS + 12):
        node.append(log, number)
    log.high_watermark = log.end_offset
    log.configure(EXPIRE)
    finish(log.housekeeping(node.clock.now_ms))
    _checkpoint(node)
    node.clock.now_ms += 1
    removed_now(node.directory)


def _delete_records_unsynced(node: Node, log: PartitionLog, truth: Truth) -> None:
    """The log's start passes a fence that no sync has covered, and is noted."""
    truth.append(node, log)
    node.append(log, RECORDS)
    log.high_watermark = log.end_offset
    log.advance_start(log.end_offset)
    _checkpoint(node)
    _sync(log)
    _checkpoint(node)


def _truncate(node: Node, log: PartitionLog, truth: Truth) -> None:
    truth.append(node, log)
    _sync(log)
    assert finish(log.truncation(log.end_offset - 1, node.clock.now_ms)) is None
    truth.append(node, log, ChangeKind.SEAL)
    _sync(log)
    _checkpoint(node)


def _truncate_below(node: Node, log: PartitionLog, truth: Truth) -> None:
    assert finish(log.truncation(11, node.clock.now_ms)) is None
    node.append(log, 11)
    truth.append(node, log)
    _sync(log)
    _checkpoint(node)


def _start_again(node: Node, log: PartitionLog, truth: Truth) -> None:
    """The leader's fences come with its log start."""
    for entry in LEADERS.below(1_000).entries:
        truth.by_offset.setdefault(entry.offset, set()).add(entry)
    assert finish(log.restart(1_000, node.clock.now_ms, fences=LEADERS)) is None
    assert log.fences == LEADERS.below(1_000)
    _checkpoint(node)
    truth.append(node, log)
    _sync(log)
    _checkpoint(node)


CASES = [
    Case("append and sync", _append_and_sync),
    Case("append and stop", _append_and_stop),
    Case("retention before the sync", _expire_unsynced),
    Case("a log start before the sync", _delete_records_unsynced),
    Case("truncate and fence again", _truncate),
    Case("truncate below the fences", _truncate_below, keeps_all=False),
    Case("start again with the leader's", _start_again, keeps_all=False),
]


def _prepared(seed: int, configs: TopicConfigs = SMALL) -> tuple[Node, PartitionLog, Truth]:
    """A log whose first fence lies among its records, and the second at its end; all synced."""
    node, truth = Node(seed, configs), Truth()
    log = node.prepare()
    truth.append(node, log)
    truth.append(node, log)
    _sync(log)
    log.high_watermark = log.end_offset
    _checkpoint(node)
    return node, log, truth


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_crash_anywhere_forgets_no_fence(case: Case, kind: str) -> None:
    for number in range(1, 1_000):
        crashed = _crash_once(case, kind, number, part=number % 2)
        if kind == "power":
            _crash_once(case, kind, number, part=(number + 1) % 2)
        if not crashed and number > 3:
            return
    raise AssertionError("the operation never ended")


def _crash_once(case: Case, kind: str, number: int, part: float) -> bool:
    node, log, truth = _prepared(number)
    if case.act is _start_again:
        truth.by_offset[20].add(LEADERS.entries[0]._replace(offset=20))
    node.disk.plan = _at_change(number, Crash(kind, part))
    crashed = False
    try:
        case.act(node, log, truth)
    except ProcessKilled:
        crashed = True
    else:
        _end(node, kind)
    node.disk.plan = None
    node.boot += kind == "power"
    where = f"{case.name}: {kind} in operation {number}, part {part}"
    log = node.open().logs[P]
    if case.act is _start_again and log.start_offset >= 1_000:
        assert log.fences.below(1_000) == LEADERS.below(1_000), where
        return crashed
    truth.check(log, where)
    if case.keeps_all:
        assert len(log.fences.entries) >= 2, where
    # What the start found is durable with the next sync.
    _sync(log)
    _checkpoint(node)
    _end(node, "power")
    node.boot += 1
    before, after = log.fences, node.open().logs[P].fences
    assert before == after, f"{where}, then a power loss"
    return crashed


def _end(node: Node, kind: str) -> None:
    node.disk.lose_power() if kind == "power" else node.disk.kill(node.view)


def _at_change(number: int, crash: Crash) -> Plan:
    changes = itertools.count(1)

    def plan(operation: DiskOperation) -> Crash | None:
        return crash if operation.kind != "read" and next(changes) == number else None

    return plan


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_seeded_lives_forget_no_fence(first: int) -> None:
    for seed in range(first, first + 50):
        _live(seed)


def _live(seed: int) -> None:
    rng = random.Random(seed)
    node, log, truth = _prepared(seed)
    for life in range(4):
        steps = rng.randint(3, 25)
        crash = Crash(rng.choice(("kill", "power")), rng.choice((0.0, 0.5, 1.0)))
        # Some lives end in a disk operation, the others after their last step.
        node.disk.plan = _at_change(rng.randint(1, 150), crash)
        done: list[str] = []
        ends = crash.kind
        try:
            for _ in range(steps):
                done.append(rng.choice(tuple(STEPS)))
                STEPS[done[-1]](node, log, truth, rng)
            truth.check(log, f"seed {seed}, life {life}, {done}")
        except ProcessKilled:
            pass
        else:
            node.disk.plan = None
            ends = rng.choice(("kill", "power", "stop"))
            if ends == "stop":
                node.directory.close()
            _end(node, "power" if ends == "power" else "kill")
        node.disk.plan = None
        node.boot += ends == "power"
        log = node.open().logs[P]
        truth.check(log, f"seed {seed}, after life {life} ({ends}), {done}")
        # What a crash has taken may be appended again, and is another fence then.
        truth.by_offset = {entry.offset: {entry} for entry in log.fences.entries}
        log.high_watermark = log.end_offset


def _step_append(node: Node, log: PartitionLog, _truth: Truth, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        entry = log.producers.entries.get(7)
        node.append(log, 0 if entry is None else entry.last_sequence + 1)


def _step_fence(node: Node, log: PartitionLog, truth: Truth, rng: random.Random) -> None:
    truth.append(node, log, rng.choice((ChangeKind.FENCE, ChangeKind.SEAL)))


def _step_cut(node: Node, log: PartitionLog, truth: Truth, rng: random.Random) -> None:
    offset = rng.randint(log.start_offset, log.end_offset)
    assert finish(log.truncation(offset, node.clock.now_ms)) is None
    for gone in [each for each in truth.by_offset if each >= log.end_offset]:
        del truth.by_offset[gone]


def _step_expire(node: Node, log: PartitionLog, _truth: Truth, rng: random.Random) -> None:
    log.high_watermark = rng.randint(log.high_watermark, log.end_offset)
    log.configure(replace(EXPIRE, retention_bytes=rng.choice((0, 300, 900))))
    finish(log.housekeeping(node.clock.now_ms))
    log.configure(SMALL)
    removed_now(node.directory)


def _step_delete(_node: Node, log: PartitionLog, _truth: Truth, rng: random.Random) -> None:
    log.high_watermark = rng.randint(log.high_watermark, log.end_offset)
    log.advance_start(rng.randint(log.start_offset, log.high_watermark))


STEPS: dict[str, Callable[[Node, PartitionLog, Truth, random.Random], None]] = {
    "append": _step_append,
    "fence": _step_fence,
    "sync": lambda _node, log, _truth, _rng: _sync(log),
    "checkpoint": lambda node, _log, _truth, _rng: _checkpoint(node),
    "cut": _step_cut,
    "expire": _step_expire,
    "delete": _step_delete,
}
