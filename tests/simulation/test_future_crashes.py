"""A crash in every single disk operation of a move between log directories.

The process or the power goes one disk operation later each time. Whatever is left, a start finds
one whole replica with all that is safe, continues a copy that it finds, and removes what is left of
a replica that has moved.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from tests.simulation.kernel import Crash, DiskOperation, Plan, ProcessKilled
from tests.simulation.kernel.faults import Fail
from tests.simulation.log_node import P
from tests.simulation.two_disks import TwoDisks, drive
from tests.support.transactional_logs import check_aborted, markers_in, send
from tests.support.transactional_logs import end as own_marker
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch
from tidelog.storage.directory.claims import CLAIMS
from tidelog.storage.future import places
from tidelog.storage.future.mirror import Mirror
from tidelog.storage.log.fences import FenceEntry
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.syncing import PendingSync
from tidelog.storage.names import LOG_STARTS

SMALL = TopicConfigs(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)
RECORDS = 20
GOES_ON_EVERY = 3
"""Each start is checked; after each third one the move goes on to its end, too."""


@dataclass
class Life:
    """A replica at work: what is appended, synced and done to it while it moves."""

    node: TwoDisks
    act: Callable[[Life], None]
    appends_in: tuple[str, ...] = ("/a", "/b")
    safe_end: int = 0
    """What survives a power loss: it was synced."""
    known_start: int = 0
    known_mark: int = 0
    """By a checkpoint."""
    steps: int = 0
    taken: tuple[PartitionLog, PendingSync] | None = None
    is_alone: bool = False
    fences: list[FenceEntry] = field(default_factory=list)

    def work(self) -> None:
        """What others do between two steps of the move."""
        node, self.steps = self.node, self.steps + 1
        if self.is_alone:
            return
        if self.steps % 3 == 0 and node.directory.path in self.appends_in:
            node.append(next_number(node))
        if self.steps % 4 == 0:
            self.sync()
        if self.steps % 7 == 0:
            node.checkpoint()
            # Below the log's start, while a fence before it is not in its file.
            self.known_start = CLAIMS[LOG_STARTS](node.log)
            self.known_mark = node.log.high_watermark
        self.act(self)
        self.safe_end = max(self.safe_end, node.log.synced_end_offset)

    def sync(self) -> None:
        """Begin a sync, or end the one that was begun, perhaps of the log before the move."""
        taken, self.taken = self.taken, None
        if taken is None:
            log = self.node.log
            pending = log.unsynced()
            self.taken = None if pending is None else (log, pending)
        else:
            log, pending = taken
            pending.run()
            log.synced(pending)


def nothing(_: Life) -> None:
    pass


def cut(life: Life) -> None:
    """A follower loses its first records, is truncated, and continues with others."""
    if life.steps == 5:
        assert life.node.log.advance_start(7) is None
    if life.steps == 9:
        finish(life.node.log.housekeeping(life.node.clock.now_ms))
    if life.steps in (4, 12) and life.node.log.change is None:
        log = life.node.log
        end = log.end_offset - 4
        life.safe_end, life.known_mark = min(life.safe_end, end), min(life.known_mark, end)
        for offset in [each for each in life.node.acked if each >= end]:
            del life.node.acked[offset]
        assert finish(log.truncation(end, life.node.clock.now_ms)) is None


def alone(life: Life) -> None:
    """No sync and no checkpoint of others makes durable what the move must."""


def fence(life: Life) -> None:
    """The partition grows and shrinks a few times, and retention removes the first fences."""
    log = life.node.log
    if life.steps in (1, 3, 6, 10, 15, 21, 28) and life.node.directory.path in life.appends_in:
        change = FenceRecord(ChangeKind.FENCE, len(life.fences) + 1, 8)
        batch = change_batch(change, leader_epoch=1, timestamp_ms=life.node.clock.now_ms)
        epoch, now_ms = max(1, log.latest_epoch), life.node.clock.now_ms
        assert not isinstance(
            log.append_as_leader(batch, epoch, now_ms, from_client=False), Rejected
        )
        log.high_watermark = log.end_offset
        life.fences.append(log.fences.entries[-1])
    if life.steps == 11:
        assert log.advance_start(log.end_offset - 2) is None
        finish(log.housekeeping(life.node.clock.now_ms))


def abort(life: Life) -> None:
    """Transactions are aborted before the move, while segments are copied, and in its last part."""
    log = life.node.log
    if life.steps in ABORTED_IN and life.node.directory.path in life.appends_in:
        sequence = ABORTED_IN.index(life.steps)
        send(log, 8, sequence)
        own_marker(log, 8, committed=False)
        log.high_watermark = log.end_offset
    if life.steps == 12 and log.change is None:
        log.roll(life.node.clock.now_ms)


ABORTED_IN = (0, 1, 5, 9, 12, 15, 19, 24, 30)

ACTS = {
    "transactions are aborted": abort,
    "appends": nothing,
    "cuts at both ends": cut,
    "alone": alone,
    "fences": fence,
}


def at_change(number: int, crash: Crash) -> Callable[[], Plan]:
    def make() -> Plan:
        changes = itertools.count(1)

        def plan(operation: DiskOperation) -> Crash | None:
            return crash if operation.kind != "read" and next(changes) == number else None

        return plan

    return make


def prepared(seed: int, act: Callable[[Life], None], *appends_in: str) -> Life:
    node = TwoDisks(seed, SMALL)
    node.create()
    life = Life(node, act, appends_in or ("/a", "/b"))
    for number in range(RECORDS):
        node.append(number)
        if act is abort and number in (5, 6, 12):
            send(node.log, 9, number)
            own_marker(node.log, 9, committed=False)
    node.log.sync()
    node.checkpoint()
    life.safe_end, life.is_alone = node.log.synced_end_offset, act is alone
    return life


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_crash_anywhere_in_a_move_leaves_one_whole_replica(
    act: Callable[[Life], None], kind: str
) -> None:
    for number in range(1, 2_000):
        parts = (0.0, 1.0) if kind == "power" else (number % 2,)
        crashed = [crash_once(act, kind, number, part) for part in parts]
        if not all(crashed):
            assert number > 20
            return
    raise AssertionError("the move never ended")


def crash_once(act: Callable[[Life], None], kind: str, number: int, part: float) -> bool:
    """Crash in the operation with this number; False when the move ended before it."""
    life = prepared(number, act)
    node = life.node
    node.plan(at_change(number, Crash(kind, part)))
    with suppress(ProcessKilled):
        drive(node.moving(), life.work)
    crashed = node.crashed is not None
    node.plan(None)
    where = f"{kind} in operation {number}, part {part}"
    if not crashed:
        node._crash(node.views["/a"], kind)
    check(life, kind, where)
    if not crashed or number % GOES_ON_EVERY == 0:
        goes_on(life, kind, where)
    return crashed


def check(life: Life, kind: str, where: str) -> None:
    node = life.node
    assert node.start() is not None, where
    whole(life, kind, where)
    listed = node.listed()
    assert sum(endings.count("") for endings in listed.values()) == 1, f"{where}: {listed}"


def goes_on(life: Life, kind: str, where: str) -> None:
    """The copy that is left becomes the replica, without a loss; nothing of a move is left over."""
    node = life.node
    futures = [each for each in node.directories if P in each.futures]
    if futures:
        assert futures[0] is not node.directory, where
    after = Life(node, nothing)
    drive(node.moving(), after.work)
    whole(life, kind, where)
    node.remove_due()
    assert sorted(node.listed().values()) == [[], [""]], f"{where}: {node.listed()}"
    node.append(next_number(node))
    if after.taken is not None:
        after.sync()  # never two of one log at a time
    node.log.sync()
    node.checkpoint()
    node._crash(node.views["/a"], "power")
    assert node.start() is not None
    whole(life, kind, where)


def next_number(node: TwoDisks) -> int:
    entry = node.log.producers.entries.get(7)
    return 0 if entry is None else entry.last_sequence + 1


def whole(life: Life, kind: str, where: str) -> None:
    node, log = life.node, life.node.log
    assert log.damaged is None, f"{where}: {log.damaged}"
    assert log.start_offset >= life.known_start, where
    assert log.high_watermark >= (life.known_mark if kind == "kill" else life.known_start), where
    found = node.read()
    # Each control batch is a fence that is known, and no other offset is one.
    fences = {each.offset for each in log.fences.entries} | markers_in(log)
    check_aborted(log, random.Random(len(found)), ranges=4)
    assert sorted(found) == [
        each for each in range(log.start_offset, log.end_offset) if each not in fences
    ], where
    for entry in life.fences:
        if kind == "kill" or entry.offset < life.safe_end:
            assert entry in log.fences.entries, f"{where}: {entry}"
    for offset, value in node.acked.items():
        if offset >= log.start_offset and (kind == "kill" or offset < life.safe_end):
            assert found.get(offset) == value, f"{where}: {offset} is {found.get(offset)!r}"


def test_a_power_loss_after_a_move_finds_the_replica_where_it_moved_to() -> None:
    for seed in range(20):
        life = prepared(seed, alone)
        drive(life.node.moving(), life.work)
        life.node._crash(life.node.views["/a"], "power")
        check(life, "power", f"seed {seed}")
        assert life.node.directory.path == "/b"


def test_a_move_keeps_all_that_a_log_knows() -> None:
    life = prepared(1, nothing)
    node = life.node
    node.log.begin_epoch(5)
    node.append(RECORDS)
    opened = send(node.log, 8, 0)
    own_marker(node.log, 9, coordinator_epoch=6)
    node.append(RECORDS + 1)
    node.log.advance_start(3)
    node.log.watermark_note.write(node.log.high_watermark)
    former, origin = node.log, node.directory
    producers = former.producers
    drive(node.moving(), life.work)
    log, epochs = node.log, former.epochs.all_from(0)
    assert log is not former and node.directory is not origin and former.closed
    assert (log.start_offset, log.high_watermark) == (3, log.end_offset)
    assert log.producers is producers and log.epochs.all_from(0) == epochs
    assert log.watermark_note.content == former.watermark_note.content
    assert log.metadata is not None and former.metadata is not None
    assert log.metadata.copy_of == former.metadata.created
    last = next_number(node)
    node.append(last)
    node._crash(node.views["/a"], "kill")
    node.start()
    assert node.log.epochs.all_from(0) == epochs and node.log.start_offset == 3
    assert node.log.producers.entries[7].last_sequence == last
    assert node.log.producers.entries[8].open_since == opened
    assert node.log.producers.entries[9].coordinator_epoch == 6


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_target_never_hurts_the_replica(number: int) -> None:
    for at in range(1, 1_000):
        life = prepared(at, nothing, "/a")
        node = life.node
        origin, log = node.directory, node.log
        changes = itertools.count(1)

        def plan(operation: DiskOperation) -> Fail | None:
            strikes = operation.kind != "read" and next(changes) == at  # noqa: B023
            return Fail(number, 0.5) if strikes else None

        node.disks["/b"].plan = plan
        try:
            drive(node.moving(), life.work)
            failed = node.directories[1].failed is not None
        except OSError:
            failed = True
            assert node.log is log and not log.closed
        node.disks["/b"].plan = None
        assert origin.failed is None
        if not failed:
            return
        if node.log is log:
            node.append(next_number(node))
            assert not isinstance(log.read(0, 100), Rejected)
            whole(life, "kill", f"operation {at}")
    raise AssertionError("the move never ended")


@pytest.mark.parametrize("appended", [0, 1, 9])
def test_a_cut_leaves_nothing_of_what_it_removed_in_the_copy(appended: int) -> None:
    """Also when the log is as long again before the next plan, so that no size tells of the cut."""
    node = prepared(1, nothing).node
    log, target = node.log, node.directories[1]
    assert log.metadata is not None
    path = places.new_path(target, P, UUID(int=3))
    places.make(node.disk, path, log.metadata)
    mirror = Mirror(node.disk, log, path)
    copy_all(mirror)
    assert finish(log.truncation(log.end_offset - 6, node.clock.now_ms)) is None
    log.begin_epoch(5)
    for _ in range(appended):
        node.append(next_number(node))
    copy_all(mirror)
    mirror.finish(log.segments.active.base_offset)
    bases = set()
    for segment in log.segments:
        name = segment.log_path.rpartition("/")[2]
        bases.add(name.partition(".")[0])
        assert node.disk.read(f"{path}/{name}") == node.disk.read(segment.log_path), name
    found = {each.partition(".")[0] for each in node.disk.list(path) if each[0].isdigit()}
    assert found == bases, "an index is left without its segment"


def copy_all(mirror: Mirror) -> None:
    while steps := mirror.plan(500):
        mirror.run(steps)
