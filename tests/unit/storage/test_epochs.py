"""Where leader epochs begin, over starts, copies and compaction: never higher than they did.

An epoch whose start is reported too high makes a follower keep records that were never committed.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import (
    NOW_MS,
    QuickDisk,
    batch,
    new_log,
    records_of,
    reopen,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.runtime.disk import RealFile
from tidelog.storage.checkpoints import encode_checksums, encode_epochs
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log.epoch_file import PendingEpochs
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.names import EPOCH_CHECKPOINT, EPOCH_CHECKSUM

COMPACTED = TopicConfigs(
    cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=1024
)
TRUE = [(0, 0), (1, 100), (2, 200)]


def fill(log: PartitionLog) -> None:
    """Hundred records in each of three epochs, of five keys."""
    while log.end_offset < 300:
        key = b"k%d" % (log.end_offset % 5)
        log.append_as_leader(batch(key=key), log.end_offset // 100, NOW_MS)
    log.high_watermark = log.end_offset


def compact_all(log: PartitionLog) -> None:
    log.high_watermark = log.end_offset
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    assert finish(applying(log, compact(log.resources.disk, plan), NOW_MS)) is not None


def compacted(path: Path) -> PartitionLog:
    log = new_log(path, COMPACTED)
    fill(log)
    compact_all(log)
    first = log.segments.header_at(0)
    assert first is not None and first.base_offset > 0, "the beginning is a gap"
    assert log.epochs.entries == TRUE
    return log


def clean(log: PartitionLog) -> Ending:
    return Ending(log.end_offset, log.end_offset, clean=True)


def gap_before(log: PartitionLog, offset: int) -> int:
    """Return where the last batch below an offset ends."""
    return log.segments[log.segments.segment_at(offset - 1)].cut_for(offset)[1]


def copy_of(leader: PartitionLog, copy: PartitionLog) -> None:
    while copy.end_offset < leader.end_offset:
        read = leader.read(copy.end_offset, 1 << 20)
        assert not isinstance(read, Rejected)
        assert not isinstance(copy.append_as_follower(bytes(read), NOW_MS), Rejected)
    copy.high_watermark = copy.end_offset


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("configs", [TopicConfigs(), COMPACTED])
def test_a_start_keeps_the_epochs_of_a_compacted_log(
    tmp_path: Path, configs: TopicConfigs, is_clean: bool
) -> None:
    """S2. Whatever a start knows of the topic: the file says where epochs begin."""
    log = compacted(tmp_path)
    assert log.close()
    ending = clean(log) if is_clean else Ending(0, log.end_offset)
    found = reopen(tmp_path, configs, ending=ending)
    assert found.epochs.entries == TRUE
    assert found.recovered.mended == []


def test_a_follower_cuts_what_was_never_committed_after_its_leader_was_restarted(
    tmp_path: Path,
) -> None:
    """S2. The follower led epoch 0 to its end and wrote five records more than were committed."""
    (tmp_path / "leader").mkdir()
    (tmp_path / "follower").mkdir()
    follower = new_log(tmp_path / "follower", COMPACTED)
    for number in range(105):
        follower.append_as_leader(batch(key=b"k%d" % (number % 5)), 0, NOW_MS)
    leader = compacted(tmp_path / "leader")
    leader.close()
    leader = reopen(tmp_path / "leader", COMPACTED, ending=clean(leader))
    epoch, end = leader.end_offset_for_epoch(follower.latest_epoch)
    assert (epoch, end) == (0, 100)
    assert finish(follower.truncation(end, NOW_MS)) is None
    copy_of(leader, follower)
    # What compaction has taken from the leader alone is of epoch 0, below where it ended.
    kept = [record.offset for record in records_of(follower) if record.offset >= 100]
    assert kept == [record.offset for record in records_of(leader) if record.offset >= 100]


def test_a_copy_of_a_compacted_log_does_not_move_epochs_up(tmp_path: Path) -> None:
    """The first batch of an epoch that a follower sees need not be the first one that was."""
    for name in ("leader", "copy"):
        (tmp_path / name).mkdir()
    leader = compacted(tmp_path / "leader")
    copy = new_log(tmp_path / "copy", COMPACTED)
    copy_of(leader, copy)
    assert copy.epochs.entries == [
        (0, 0),
        (1, gap_before(leader, 100)),
        (2, gap_before(leader, 200)),
    ]
    for epoch, (_, start) in zip((1, 2), copy.epochs.entries[1:], strict=True):
        assert start <= dict(TRUE)[epoch]
    assert copy.close()
    found = reopen(tmp_path / "copy", COMPACTED, ending=clean(copy))
    assert found.epochs.entries == copy.epochs.entries


def test_a_file_without_a_checksum_is_not_believed_at_the_end_of_a_gap(tmp_path: Path) -> None:
    """02f3bcb wrote what it had wrongly taken from the batches."""
    log = compacted(tmp_path)
    folder = tmp_path / "t-0"
    first = [log.segments.header_at(offset) for offset in (0, 100, 200)]
    wrong = [(epoch, each.base_offset) for epoch, each in enumerate(first) if each is not None]
    assert wrong != TRUE
    lowered = [(0, 0), (1, gap_before(log, 100)), (2, gap_before(log, 200))]
    log.close()
    (folder / EPOCH_CHECKSUM).unlink()
    put(folder / EPOCH_CHECKPOINT, encode_epochs(wrong))
    found = reopen(tmp_path, COMPACTED, ending=clean(log))
    assert found.epochs.entries == lowered
    assert found.close()
    again = reopen(tmp_path, COMPACTED, ending=clean(log))
    assert again.epochs.entries == lowered
    assert (folder / EPOCH_CHECKSUM).exists()


def test_a_true_file_without_a_checksum_keeps_its_epochs(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfigs(segment_bytes=1024))
    fill(log)
    log.close()
    (tmp_path / "t-0" / EPOCH_CHECKSUM).unlink()
    found = reopen(tmp_path, ending=clean(log))
    assert found.epochs.entries == TRUE
    assert found.recovered.mended == []


@pytest.mark.parametrize("what", ["no file", "a damaged file", "a damaged checksum", "an old file"])
def test_epochs_that_only_batches_tell_begin_no_higher_than_they_did(
    tmp_path: Path, what: str
) -> None:
    log = compacted(tmp_path)
    lowest = [(0, 0), (1, gap_before(log, 100)), (2, gap_before(log, 200))]
    log.close()
    file, checksum = (tmp_path / "t-0" / name for name in (EPOCH_CHECKPOINT, EPOCH_CHECKSUM))
    match what:
        case "no file":
            file.unlink()
        case "a damaged file":
            put(file, file.read_bytes().replace(b"1 100", b"1 101"))
        case "a damaged checksum":
            put(checksum, bytes(8))
        case "an old file":
            put(file, encode_epochs(TRUE[:1]))
    found = reopen(tmp_path, COMPACTED, ending=clean(log))
    assert found.epochs.entries == lowest
    said = found.recovered.mended + found.recovered.compared
    assert said if what != "no file" else not said


def test_a_kill_between_the_checksum_and_the_file_does_no_harm(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    file = tmp_path / "t-0" / EPOCH_CHECKPOINT
    before = file.read_bytes()
    log.begin_epoch(7)
    log.sync()
    after = file.read_bytes()
    for content in (before, after):
        put(file, content)
        found = reopen(tmp_path, COMPACTED, ending=clean(log))
        assert found.epochs.entries == TRUE
        assert found.recovered.mended == []
        found.resources.files.close()


def old_file(log: PartitionLog, entries: list[tuple[int, int]]) -> None:
    """Put back an epoch file of former times, with its checksum, as a power loss does."""
    content = encode_epochs(entries)
    folder = Path(log.path)
    put(folder / EPOCH_CHECKPOINT, content)
    put(folder / EPOCH_CHECKSUM, encode_checksums(content, None)[0])


@pytest.mark.parametrize("start", [0, 3])
def test_an_epoch_begins_with_the_log_where_a_log_start_went_back(
    tmp_path: Path, start: int
) -> None:
    """S2, seed 180. Records of epochs 1 and 2 were deleted, the file forgot epoch 1, and then a
    power loss took the log start that it went by."""
    log = new_log(tmp_path, COMPACTED)
    while log.end_offset < 100:
        log.append_as_leader(batch(key=b"k"), 1 if log.end_offset < 5 else 2, NOW_MS)
    compact_all(log)
    first = log.segments.header_at(0)
    assert first is not None and first.base_offset > 8, "epoch 1 is gone, and more"
    assert log.close()
    old_file(log, [(2, 8)])
    found = reopen(tmp_path, ending=replace(clean(log), log_start=start))
    assert found.end_offset_for_epoch(1) == (1, start)
    assert found.epochs.entries == [(2, start)]


def test_a_file_that_knows_no_epoch_of_the_batches_is_not_believed(tmp_path: Path) -> None:
    """S2, seed 352. All was deleted, an epoch began there, and a kill took the log start back: what
    is left of the file is that epoch, which has no records and lies at the end."""
    log = new_log(tmp_path, TopicConfigs(segment_bytes=1024))
    fill(log)
    log.close()
    old_file(log, [(3, 300)])
    found = reopen(tmp_path, ending=clean(log))
    assert found.epochs.entries == TRUE


@pytest.mark.parametrize("known", [1, 2])
def test_an_epoch_that_the_file_lacks_begins_before_the_gap(tmp_path: Path, known: int) -> None:
    """S2. Recovery reads from an index entry on: the batch there need not be an epoch's first."""
    log = new_log(tmp_path, replace(COMPACTED, segment_bytes=20_000, index_interval_bytes=1))
    while log.end_offset < 300:
        offset = log.end_offset
        key = b"kept%d" % offset if offset % 30 == 20 else b"k"
        log.append_as_leader(batch(key=key), offset // 100, NOW_MS)
    log.roll(NOW_MS)
    compact_all(log)
    lowest = [0, gap_before(log, 100), gap_before(log, 200)]
    assert log.close()
    old_file(log, TRUE[:known])
    for point in range(1, 300, 7):
        found = reopen(tmp_path, ending=Ending(point, 300))
        starts = [start for _, start in found.epochs.entries]
        bounds = zip(lowest, starts, (start for _, start in TRUE), strict=True)
        assert all(low <= start <= true for low, start, true in bounds), (point, starts)
        found.resources.files.close()


EPOCH_IN_BATCH = 12
"""The position of the leader epoch, which no CRC covers."""


def below_the_start(path: Path, file: bytes | None, said: int, at: int) -> PartitionLog:
    """A log that begins with its last segment, below which a batch says another epoch."""
    log = new_log(path, TopicConfigs(segment_bytes=1024))
    fill(log)
    log.close()
    lower, last = log.segments[at], log.segments[-1]
    content = bytearray(Path(lower.log_path).read_bytes())
    content[EPOCH_IN_BATCH : EPOCH_IN_BATCH + 4] = said.to_bytes(4, "big")
    put(Path(lower.log_path), bytes(content[:-5]))
    if file is None:
        (path / "t-0" / EPOCH_CHECKPOINT).unlink()
    else:
        put(path / "t-0" / EPOCH_CHECKPOINT, file)
    return reopen(path, ending=replace(clean(log), log_start=last.base_offset))


@pytest.mark.parametrize("file", [None, b"torn", encode_epochs([(0, 0)])])
@pytest.mark.parametrize("said", [0, 1, 2, 900])
def test_a_removed_file_that_comes_back_torn_tells_no_epoch(
    tmp_path: Path, file: bytes | None, said: int
) -> None:
    """A batch that is not read had an epoch above that of the first that is read: the replica was
    out of service."""
    found = below_the_start(tmp_path, file, said, 1)
    assert found.damaged is None
    assert found.epochs.entries == [(2, found.start_offset)]
    assert found.end_offset_for_epoch(2) == (2, 300)


def test_a_batch_that_is_read_and_says_a_lower_epoch_is_damage_as_before(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfigs(segment_bytes=1024))
    fill(log)
    log.close()
    path = Path(log.segments[1].log_path)
    content = bytearray(path.read_bytes())
    content[EPOCH_IN_BATCH : EPOCH_IN_BATCH + 4] = (900).to_bytes(4, "big")
    put(path, bytes(content))
    (tmp_path / "t-0" / EPOCH_CHECKPOINT).unlink()
    found = reopen(tmp_path, ending=clean(log))
    assert found.damaged is not None and "after epoch 900" in found.damaged


def test_an_empty_log_has_the_epochs_of_its_file(tmp_path: Path) -> None:
    """All was deleted; a false epoch of what came back would have gone to followers and clients."""
    log = new_log(tmp_path, TopicConfigs())
    fill(log)
    log.sync()
    log.close()
    path = Path(log.segments[0].log_path)
    last = log.segments[0].size - len(batch(key=b"k0"))
    content = bytearray(path.read_bytes())
    content[last + EPOCH_IN_BATCH : last + EPOCH_IN_BATCH + 4] = (900).to_bytes(4, "big")
    put(path, bytes(content))
    found = reopen(tmp_path, ending=replace(clean(log), log_start=300))
    assert (found.damaged, found.latest_epoch, found.end_offset) == (None, 2, 300)


@pytest.mark.parametrize("begun_after", [None, 3])
@pytest.mark.parametrize("start", [50, 100, 150, 250, 300])
def test_a_kill_that_takes_a_log_start_along_leaves_a_file_that_knows_the_epochs(
    tmp_path: Path, start: int, begun_after: int | None
) -> None:
    """S8. Records are deleted, the file is written, and a kill comes before the log start is
    checkpointed: it had forgotten epochs of batches that are there, was called damaged, and all
    batches were walked."""
    log = new_log(tmp_path)
    fill(log)
    assert log.advance_start(start) is None
    if begun_after is not None:
        log.begin_epoch(begun_after)
        log.append_as_leader(batch(), begun_after, NOW_MS)
    seen = log.epochs.entries[0]
    assert seen[1] == start
    log.sync()
    log.resources.files.close()
    found = reopen(tmp_path, ending=Ending(log.end_offset, log.end_offset))
    assert found.start_offset == 0
    assert found.epochs.entries == TRUE + ([] if begun_after is None else [(begun_after, 300)])
    assert (found.recovered.mended, found.recovered.compared) == ([], [])
    found.resources.files.close()
    again = reopen(tmp_path, ending=Ending(log.end_offset, log.end_offset, log_start=start))
    assert again.epochs.entries == log.epochs.entries
    assert (again.recovered.mended, again.recovered.compared) == ([], [])


def test_what_retention_took_is_forgotten_in_the_file_too(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfigs(segment_bytes=1024, retention_bytes=3000))
    fill(log)
    log.sync()
    while finish(log.housekeeping(NOW_MS)) is not None:
        log.sync()
    assert log.start_offset > 200
    log.sync()
    assert (tmp_path / "t-0" / EPOCH_CHECKPOINT).read_bytes() == encode_epochs(log.epochs.entries)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_file_that_a_version_without_checksums_wrote_is_compared(
    tmp_path: Path, is_compacted: bool
) -> None:
    """S2. 02f3bcb after this code: it leaves the checksum as it was, and that is no damage."""
    log = compacted(tmp_path) if is_compacted else new_log(tmp_path, COMPACTED)
    fill(log)
    folder = tmp_path / "t-0"
    lowest = [(0, 0), *((epoch, gap_before(log, start)) for epoch, start in TRUE[1:])]
    first = [log.segments.header_at(start) for _, start in TRUE]
    assert log.close()
    told = [(epoch, each.base_offset) for epoch, each in enumerate(first) if each is not None]
    put(folder / EPOCH_CHECKPOINT, encode_epochs(told))
    put(folder / EPOCH_CHECKSUM, encode_checksums(encode_epochs(TRUE[:1]), None)[0])
    found = reopen(tmp_path, COMPACTED, ending=clean(log))
    assert found.epochs.entries == (lowest if is_compacted else TRUE)
    assert found.recovered.mended == [] and len(found.recovered.compared) == 1
    assert found.close()
    again = reopen(tmp_path, COMPACTED, ending=clean(log))
    assert again.epochs.entries == found.epochs.entries
    assert again.recovered.mended == again.recovered.compared == []


def test_no_flipped_bit_of_the_file_moves_an_epoch(tmp_path: Path) -> None:
    """S2. What the checksum does not vouch for must agree with the batches at both of its sides."""
    log = new_log(tmp_path)
    fill(log)
    log.append_as_leader(batch(), 3, NOW_MS)
    true = log.epochs.entries
    assert log.close()
    file = tmp_path / "t-0" / EPOCH_CHECKPOINT
    content = file.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        put(file, flipped)
        found = reopen(tmp_path, ending=clean(log))
        assert found.epochs.entries == true, bytes(flipped)
        found.resources.files.close()


# What a thread writes, before a sync


def waiting(path: Path, disk: QuickDisk | None = None) -> tuple[PartitionLog, PendingEpochs]:
    """A log with a record of epoch 3, whose file a thread is to write, and what it is given."""
    log = new_log(path, shared=resources(disk))
    log.append_as_leader(batch(), 3, NOW_MS)
    log.epoch_file.unwritten = True
    pending = log.epochs_to_write()
    assert pending is not None
    return log, pending


def found_after_a_kill(path: Path, log: PartitionLog) -> PartitionLog:
    log.resources.files.close()
    found = reopen(path, ending=Ending(0, log.end_offset))
    assert found.recovered.mended == found.recovered.compared == []
    assert found.epochs.entries == log.epochs.entries
    assert not list((path / "t-0").glob("*.tmp"))
    return found


@pytest.mark.parametrize("late", ["never", "for another epoch", "to be taken back", "for a sync"])
def test_the_file_of_the_epochs_is_as_memory_however_late_a_thread_is(
    tmp_path: Path, late: str
) -> None:
    log, pending = waiting(tmp_path)
    if late == "for another epoch":
        log.append_as_leader(batch(), 4, NOW_MS)
    elif late == "for a sync":
        log.sync()
    pending.run()
    if late == "to be taken back":
        log.append_as_leader(batch(), 4, NOW_MS)
    log.epochs_written(pending)
    assert pending.is_written == (late in ("never", "to be taken back"))
    assert log.epochs_to_write() is None
    log.append_as_leader(batch(), 5, NOW_MS)
    log.sync()
    found_after_a_kill(tmp_path, log)


def test_a_replica_of_a_used_name_gets_no_epochs_of_the_former_one(tmp_path: Path) -> None:
    log, pending = waiting(tmp_path)
    log.forget_files()
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    pending.run()
    log.epochs_written(pending)
    assert log.failed is None
    assert not list((tmp_path / "t-0").iterdir())


class Strikes(QuickDisk):
    """Raises ``error`` where the file of the epochs, or the one beside it, is made or renamed."""

    error: BaseException | None = None
    at = ""

    def _strike(self, kind: str, path: str) -> None:
        if self.error is not None and self.at == f"{kind} {Path(path).name.split('.tmp')[0]}":
            raise self.error

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        self._strike("open", path.rpartition(".")[0].rpartition(".")[0])
        return super().open(path, create=create, read_only=read_only)

    def rename(self, source: str, target: str) -> None:
        self._strike("rename", target)
        super().rename(source, target)


STRUCK = [
    f"{kind} {name}" for kind in ("open", "rename") for name in (EPOCH_CHECKSUM, EPOCH_CHECKPOINT)
]


@pytest.mark.parametrize("at", STRUCK)
def test_a_kill_while_a_thread_writes_the_epochs_does_no_harm(tmp_path: Path, at: str) -> None:
    disk = Strikes()
    log, pending = waiting(tmp_path, disk)
    disk.error, disk.at = KeyboardInterrupt(), at
    with pytest.raises(KeyboardInterrupt):
        pending.run()
    found_after_a_kill(tmp_path, log)


@pytest.mark.parametrize("at", STRUCK)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_epochs_that_a_thread_cannot_write(tmp_path: Path, at: str, code: int) -> None:
    """A full disk heals (promise 28); any other failure is final (promise 25)."""
    disk = Strikes()
    log, pending = waiting(tmp_path, disk)
    disk.error, disk.at = OSError(code, "struck"), at
    pending.run()
    log.epochs_written(pending)
    assert not list((tmp_path / "t-0").glob("*.tmp"))
    assert (log.failed is None) == (code == errno.ENOSPC)
    assert log.epochs_to_write() is None or log.failed is None
    disk.error = None
    if log.failed is None:
        log.sync()
        assert log.synced_end_offset == log.end_offset
        found_after_a_kill(tmp_path, log)
