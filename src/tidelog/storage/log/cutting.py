"""Truncation of a log at an offset, or of the whole log (docs/decisions/0027).

Owns the steps, in pieces (``model.work``): every wait for the disk is a call for a thread. From
the first step to the last the log is ``cutting``: nothing is appended or synced, no other change
begins, and a change of role or a deletion waits. Batches that stay can be read.

| step | where | a crash after it finds |
|---|---|---|
| find the position of the cut, with files of its own | a thread | all as it was |
| recovery point, watermark with its note, and log start fall | a thread | a log that claims less |
| memory has the new end: readers find no batch after it | the owner | the same |
| segments are renamed, the newest first, each durably before the next | a thread | a shorter log |
| the last one is cut, epochs and snapshots follow | a thread | the log with or without the cut |
| the file, then the names are synced; producers are read again | a thread | the log as cut |

Until memory has the new end a refusal leaves all as it was, but for checkpoints that claim less.
After that a failure is final for the directory, because memory and files disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.work import Work
from tidelog.records.batch import Rejected
from tidelog.runtime.disk import File
from tidelog.storage.log.aborted_recovery import entries_below
from tidelog.storage.log.changes import LogChange, during
from tidelog.storage.log.epoch_file import PendingEpochs
from tidelog.storage.log.epoch_writing import epochs_written, pending_epochs
from tidelog.storage.log.fence_writing import take_fences, writing_fences
from tidelog.storage.log.fences import Fences
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.segment_removal import SegmentRemoval, take_out, taken_out
from tidelog.storage.log.service import found_damaged, out_of_service, write_failed
from tidelog.storage.log.snapshots import load_producers, remove_snapshots
from tidelog.storage.log.state import Claims, LogState
from tidelog.storage.log.tail import end_at
from tidelog.storage.segments.apart import SegmentApart, own_files
from tidelog.storage.segments.fresh_segments import first_segment, make_files
from tidelog.storage.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from tidelog.storage.segments.open_files import OpenFiles
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound

NOTHING_KEPT = -1
"""All snapshots are above this offset."""


def truncation(log: LogState, offset: int, now_ms: int) -> Work[Rejected | None]:
    """Drop every record from ``offset`` on, in pieces; a batch across it goes as a whole.

    The log then ends where the last batch that stays does, at or below ``offset``. Below the
    first segment: everything goes. Producers and epochs follow. Durable at the end, so that no
    power loss can bring back what new batches replaced. A refusal leaves all as it was,
    or the directory out of service. Once begun, the pieces must be run to the end.
    """
    if log.failed or log.closed or log.change is not None:
        return out_of_service(log)
    if offset >= log.end_offset:
        return None
    if offset < log.segments[0].base_offset:
        return (yield from restart(log, offset, now_ms))
    with during(log, LogChange.CUT):
        try:
            return (yield from _truncate(log, offset, now_ms))
        except Unsound as error:
            return found_damaged(log, f"{log.path}: {error}")


def restart(
    log: LogState, offset: int, now_ms: int, *, fences: Fences | None = None
) -> Work[Rejected | None]:
    """Drop everything and go on with an empty log that begins at ``offset``, in pieces.

    ``fences``: the leader's below ``offset``, instead of the log's own. They are in their file
    before the log begins there, so that no crash leaves a log without them.
    """
    if log.failed or log.closed or log.change is not None:
        return out_of_service(log)
    former = log.fences
    refused: Rejected | None = out_of_service(log)
    with during(log, LogChange.CUT):
        try:
            if fences is not None:
                take_fences(log, fences.below(offset))
                if not (yield from writing_fences(log)):
                    return refused
            refused = yield from _restart(log, offset, now_ms)
            return refused
        except OSError as error:
            return write_failed(log, error)
        finally:
            if refused is not None and not log.failed:
                take_fences(log, former)


def _truncate(log: LogState, offset: int, now_ms: int) -> Work[Rejected | None]:
    place = log.segments.segment_at(offset)
    kept = log.segments[place]
    check = _Check(kept, offset)
    try:
        yield check.run
        claimed = yield from _lower_claims(log, check.end)
    except OSError as error:
        return write_failed(log, error)
    try:
        opened = _opened_for_cut(log, check.kept)
    except OSError as error:
        return _not_begun(log, claimed, error)
    try:
        # The newest first: a crash in between leaves a shorter log, never one with a hole.
        removal = take_out(log, log.segments[:place:-1])
    except OSError as error:
        opened.release()
        return _not_begun(log, claimed, error)
    check.kept.hand_over(kept)
    # Before the files change: a reader that comes meanwhile finds no batch that is about to go.
    _end_at(log, kept, check.end, uncut_end=check.end)
    log.snapshots.cancel(above=check.end)
    cut = _Cut(log, removal, pending_epochs(log), above=check.end)
    cut.opened = opened
    cut.kept = [*(SegmentApart(segment, check.own) for segment in log.segments[:-1]), check.kept]
    cut.now_ms, cut.committed = now_ms, log.high_watermark
    if kept.base_offset in log.aborted.held:
        log.aborted.cut(kept.base_offset, check.end)
    else:
        cut.reads_aborted = log.aborted.has(kept.base_offset)
    return (yield from _carry_out(log, cut, now_ms))


def _restart(log: LogState, offset: int, now_ms: int) -> Work[Rejected | None]:
    try:
        # A crash may leave any of the segments: all of them hold the log's start.
        claimed = yield from _lower_claims(log, min(offset, log.start_offset))
    except OSError as error:
        return write_failed(log, error)
    try:
        removal = take_out(log, log.segments[::-1])
    except OSError as error:
        return _not_begun(log, claimed, error)
    fresh = first_segment(log.resources, log.path, now_ms, offset)
    log.segments.begin_with(fresh)
    log.epochs.clear()
    _end_at(log, fresh, offset, uncut_end=0)
    log.configure(log.configs)  # a new jitter for each segment
    log.snapshots.cancel()
    cut = _Cut(log, removal, pending_epochs(log), above=NOTHING_KEPT)
    cut.fresh = fresh
    refused = yield from _carry_out(log, cut, now_ms)
    if refused is None:
        # Only now: an earlier checkpoint would give the next start a log start without a log.
        log.begin_again(offset)
    return refused


def _carry_out(log: LogState, cut: _Cut, now_ms: int) -> Work[Rejected | None]:
    names_changed = log.dirty.names_changed
    try:
        yield cut.run
    except OSError as error:
        return _cut_short(log, error)
    finally:
        cut.opened.release()
        quiet = names_changed == log.dirty.names_changed
        taken_out(log, cut.removal, now_ms)
        epochs_written(log, cut.epochs)
        for path in cut.removed:
            log.resources.files.forget(path)
    if quiet:
        # Its last sync came after all of its own changes, and there were no others.
        log.dirty.names_synced(log.dirty.names_changed)
    if cut.aborted is not None:
        log.aborted.hold(log.segments.active.base_offset, cut.aborted)
    former = log.replace_producers(cut.producers)
    log.producers.forgotten += former.forgotten
    while former.discard():
        yield None
    return out_of_service(log) if log.failed else None


def _lower_claims(log: LogState, offset: int) -> Work[Claims]:
    """Lower the checkpoints before a cut: otherwise the next start takes the cut for damage, or
    drops a log that ends below its checkpointed start. Return what was claimed.

    An OSError leaves memory as it was: nothing is cut then, and all stays readable.
    """
    former = log.lower_claims(offset)
    try:
        # Claims that were lower already are on disk as they are: then no checkpoint is needed
        # (0038).
        if max(former) > offset and log.resources.before_cut is not None:
            yield from log.resources.before_cut()
        yield from log.watermark_note.lowering(offset)
    except OSError:
        log.restore_claims(former)
        raise
    # A compaction that was planned before the cut no longer fits (``swap``).
    log.generation += 1
    return former


def _not_begun(log: LogState, claimed: Claims, error: OSError) -> Rejected:
    """Refuse a cut of which only the claims were lowered: memory claims again what the files have,
    so readers and the cleaner are not held back, and the next cut finds the same."""
    log.restore_claims(claimed)
    return write_failed(log, error)


def _opened_for_cut(log: LogState, kept: SegmentApart) -> _Opened:
    """Open the files to cut first: a shortage of descriptors must not stop the cut half-way."""
    opened = _Opened(log.resources.files)
    sizes = (
        (kept.index_path, kept.index.written * OFFSET_ENTRY_BYTES),
        (kept.time_index_path, kept.time_index.written * TIME_ENTRY_BYTES),
        (kept.log_path, kept.size),
    )
    try:
        for path, size in sizes:
            # A missing index has no entries, and a full disk may have no room for it.
            if path == kept.log_path or log.resources.disk.exists(path):
                opened.add(path, size)
    except OSError:
        opened.release()
        raise
    return opened


def _end_at(log: LogState, active: Segment, end: int, *, uncut_end: int) -> None:
    """Set what the files will hold once they are cut: the log ends in ``active``, at ``end``."""
    log.segments.activate(active)
    log.resources.indexes.forget(active)
    log.segments.forget_positions()
    log.resources.kept_reads.forget(log)
    end_at(log, end)
    log.cut_at(end, uncut_end=uncut_end)
    log.epochs.truncate_end(end)
    take_fences(log, log.fences.below(end))


def _cut_short(log: LogState, error: OSError) -> Rejected:
    """Fail the directory for an unfinished cut, whatever the error: memory and files disagree, and
    an append would put new batches after batches that should be gone."""
    log.resources.fail(f"a cut of {log.path} was not finished: {error}")
    return out_of_service(log)


class _Check:
    # Finds where a segment is to be cut, by ``run`` in any thread.
    def __init__(self, segment: Segment, offset: int) -> None:
        self.own = own_files(segment.resources.disk)
        self.kept = SegmentApart(segment, self.own)
        self.end = -1
        self._offset = offset

    def run(self) -> None:
        try:
            position, self.end = self.kept.cut_for(self._offset)
            self.kept.cut_at(position, self.end)
        finally:
            self.own.files.close()


class _Opened:
    # Files of the last segment, open until ``release``, and the sizes that they are to have.
    def __init__(self, files: OpenFiles) -> None:
        self.sizes: list[tuple[File, int]] = []
        self._files = files

    def add(self, path: str, size: int) -> None:
        self.sizes.append((self._files.pin(path), size))

    def release(self) -> None:
        for file, _ in self.sizes:
            self._files.release(file)
        self.sizes = []


class _Cut:
    # The part of a cut that works on the disk, by ``run`` in any thread.
    def __init__(
        self, log: LogState, removal: SegmentRemoval, epochs: PendingEpochs, *, above: int
    ) -> None:
        self.removal = removal
        self.epochs = epochs
        self.opened = _Opened(log.resources.files)
        self.kept: Sequence[Segment] = ()
        """All segments that stay, the thread's own."""
        self.fresh: Segment | None = None
        self.now_ms = 0
        self.committed = 0
        self.removed: list[str] = []
        self.producers = ProducerState()
        self.reads_aborted = False
        """Whether the last segment's aborted transactions are in its files only."""
        self.aborted: bytes | None = None
        self._disk = log.resources.disk
        self._directory = log.path
        self._above = above

    def run(self) -> None:
        """OSError: it is half done. Unsound: all but the producers is done."""
        self.removal.run()
        for file, size in self.opened.sizes:
            file.truncate(size)
        if self.fresh is not None:
            make_files(self._disk, self.fresh)
        self.epochs.run()
        self.removed = remove_snapshots(self._disk, self._directory, above=self._above)
        # Of the cut files only the log itself: an index that is torn is built again.
        for file, _ in self.opened.sizes[-1:]:
            file.sync()
        self.removal.directory.sync()
        if self.kept:
            own, end = self.kept[-1].resources, self.kept[-1].next_offset
            try:
                self.producers = load_producers(
                    self._disk,
                    self._directory,
                    self.kept,
                    end,
                    self.now_ms,
                    high_watermark=self.committed,
                )
                if self.reads_aborted:
                    self.aborted = entries_below(self._disk, self._directory, self.kept, end)
            finally:
                own.files.close()
