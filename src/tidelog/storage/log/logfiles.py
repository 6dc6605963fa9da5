"""The files of one partition: segments, rolling, what is not yet synced, what is to be removed.

Owns the list of segments and every file beside them; ``log`` is what others see of it. Decides
nothing about records. Ordering: a segment's end is known before its successor exists; files that
were replaced are renamed first and removed later, when the renaming is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidelog.model.configs.topic_values import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import Rejected
from tidelog.runtime.disk import Directory
from tidelog.runtime.turns import Pieces, at_once
from tidelog.storage import names
from tidelog.storage.log.departing import Departing
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.recovery import Recovered
from tidelog.storage.log.small_files import SmallFiles
from tidelog.storage.log.snapshots import WaitingSnapshots, snapshot_path
from tidelog.storage.log.syncing import PendingSync, closed_unsynced
from tidelog.storage.log.watermark_note import WatermarkNote
from tidelog.storage.segments.fresh_segments import new_segment
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.room import NO_ROOM
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound

SNAPSHOT_INTERVAL_BYTES = 64 * 1024 * 1024
"""After so many bytes a sync writes a producer snapshot too, so that a start after a crash need
not walk the headers of the whole active segment."""

INDEX_ENTRIES_UNWRITTEN = 1024
INDEX_BYTES_UNWRITTEN = 4 * 1024 * 1024
"""A sync writes the indexes of the active segment from so many new entries, or bytes, on: a start
after a crash trusts what is below the recovery point only as far as they go."""

PRODUCER_EXPIRATION_MS = 86_400_000
"""Default of ``producer.id.expiration.ms``."""


class LogFiles(SmallFiles):
    """Segments and files of one replica. Offsets from ``start_offset`` to ``end_offset``."""

    def __init__(
        self,
        resources: Resources,
        path: str,
        partition: TopicPartition,
        configs: TopicConfigs,
        segments: list[Segment],
    ) -> None:
        super().__init__(resources, path, partition)
        self.configs = configs
        self.segments = segments
        self.start_offset = segments[0].base_offset
        self.end_offset = segments[-1].next_offset
        self.high_watermark = self.start_offset
        self.watermark_note = WatermarkNote(resources, path)
        self.synced_end_offset = self.start_offset
        """The recovery point: everything below survives a power loss."""
        self.first_dirty_offset = self.start_offset
        """The cleaner's checkpoint: everything below was compacted once."""
        self.producers = ProducerState()
        self.producer_expiration_ms = PRODUCER_EXPIRATION_MS
        self.mended: list[str] = []
        """Damaged files beside the log that it could do without, as a start found them."""
        self.compared: list[str] = []
        """Files that a start could not simply believe, and has held against the batches."""
        self.recovered = Recovered()
        self.generation = 0
        """+1 whenever offsets may be given out again (truncation)."""
        self.lowered = 0
        """+1 whenever what it claims in the checkpoints falls: older answers are void then."""
        self.last_sync_ms = 0
        self._active = segments[-1]
        self._active.active = True
        self._jitter_ms = 0
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._undone = self._undone_synced = 0
        """How many partial writes were cut off again, and how many of them a sync has covered."""
        self._snapshot_size = self._active.size
        """Bytes of the active segment that the newest snapshot covers, as far as we know."""
        self.snapshots = WaitingSnapshots(resources, path)
        self.write_again: Callable[[LogFiles], None] | None = None
        """Writes what an earlier life may not have synced once more; a start had no room for it."""
        self._doomed: deque[tuple[int, int, str]] = deque()
        """Files that are renamed: the number of the change, when they may go, their path."""
        self.configure(configs)

    # State -----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of all batches. Grows with the number of segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def _names_unsynced(self) -> bool:
        return self._names_durable < self._names_changed

    @property
    def _waits_to_roll(self) -> bool:
        """Whether a sync must come before a roll.

        A closed segment is not scanned below the recovery point: a power loss must not bring back
        what was cut off its end. Nor may it take the log's beginning, and leave what follows.
        """
        undone = self._undone_synced < self._undone
        return undone or (len(self.segments) == 1 and self._names_unsynced)

    def _lowest_offset(self) -> int:
        """See ``SmallFiles``."""
        return self.segments[0].base_offset

    def configure(self, configs: TopicConfigs) -> None:
        """Apply changed topic configurations to everything from now on."""
        self.configs = configs
        jitter = min(configs.segment_jitter_ms, configs.roll_ms)
        self._jitter_ms = self.resources.random.randrange(jitter) if jitter > 0 else 0
        self._active.room = NO_ROOM

    def mark_created(self) -> None:
        """Have the next sync cover the directory itself and its name in the one above."""
        self._dirty_directories.add(self.path.rpartition("/")[0] or "/")
        self._note_names()

    def mark_recovered(self) -> None:
        """Have the next sync cover what an earlier life may have left unsynced beside segments.

        After kill -9 the files are there, but neither their names nor the small ones' content
        need be on the disk: a later power loss would take them, synced records included.
        """
        self.mark_created()
        small = (
            names.EPOCH_CHECKPOINT,
            names.EPOCH_CHECKSUM,
            names.PARTITION_METADATA,
            names.SNAPSHOT,
        )
        for name in self.resources.disk.list(self.path):
            if name.endswith(small):
                self._dirty_files.add(f"{self.path}/{name}")
        for segment in self.segments[:-1]:
            if segment.next_offset >= self.synced_end_offset:
                # It may have been rolled behind the sync of its bytes, and its indexes with it.
                self._dirty_files |= set(segment.index_paths)

    # Segments --------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> Rejected | None:
        """Begin a new segment at the end of the log; a refusal (disk full) changes nothing.

        Blocks where a sync must come before: ``syncing_before_roll`` spares that.
        """
        if self.failed or self.closed:
            return self._out_of_service()
        active = self._active
        if active.size == 0 and active.base_offset == self.end_offset:
            return None
        try:
            if self._waits_to_roll:
                at_once(self._syncing_before_roll())
            active.close_indexes()
            fresh = new_segment(self.resources, self.path, self.end_offset, now_ms)
        except OSError as error:
            return self._trouble(error)
        self._take_snapshot()
        # Its bytes may be synced, or about to be by a thread: no sync of bytes to come covers them.
        self._dirty_files |= set(active.index_paths)
        self._note_names()
        active.active = False
        active.hold_in_cache()
        self._activate(fresh)
        return None

    def _puts_roll_off(self) -> bool:
        """Whether a roll is to wait: a thread has been asked to sync what must be before it."""
        return self._waits_to_roll and self.resources.asks_for_sync(self.partition)

    def syncing_before_roll(self) -> Pieces[Rejected | None]:
        """Make durable, in pieces, what must be before the next roll; a refusal if that fails."""
        if self.failed or self.closed:
            return self._out_of_service()
        try:
            yield from self._syncing_before_roll()
        except OSError as error:
            return self._trouble(error)
        return self._out_of_service() if self.failed or self.closed else None

    def _syncing_before_roll(self) -> Pieces[None]:
        files, undone = self.resources.files, self._undone
        if self._undone_synced < undone:
            file = files.pin(self._active.log_path)
            try:
                yield file.sync
            finally:
                files.release(file)
            self._undone_synced = max(self._undone_synced, undone)
        if len(self.segments) == 1 and self._names_unsynced:
            directory = files.pin_directory(self.path)
            try:
                yield from self.syncing_names(directory)
            finally:
                files.release(directory)

    def roll_overdue(self, now_ms: int) -> None:
        """Begin a new segment where the active one has waited for ``max.compaction.lag.ms``.

        An append does it in time; this is for a log that nothing is appended to.
        """
        if self.configs.compacted and not (self.failed or self.closed or self.cutting):
            first = self._active.first_timestamp
            due = first is not None and 0 <= first < now_ms - self.configs.max_compaction_lag_ms
            if due and not self._puts_roll_off():
                self.roll(now_ms)

    def _activate(self, segment: Segment) -> None:
        segment.active = True
        self.resources.indexes.forget(segment)
        self.segments.append(segment)
        self._active = segment
        self._snapshot_size = segment.size
        self.configure(self.configs)  # a new jitter for each segment

    def let_go(self, doomed: Sequence[Segment]) -> Departing:
        """Take segments out of the log, in this order; readers find them no more.

        ``run`` what is returned anywhere, then hand it to ``gone``, always. OSError: nothing has
        changed.
        """
        files = self.resources.files
        directory = files.pin_directory(self.path)
        gone = set(doomed)
        self.segments = [segment for segment in self.segments if segment not in gone]
        paths = [self._forget_segment(segment) for segment in doomed]
        return Departing(
            self.resources.disk, directory, paths, self._names_changed, self._names_unsynced
        )

    def _forget_segment(self, segment: Segment) -> list[str]:
        """Close the files of a segment that goes; return their paths."""
        files = self.resources.files
        self._hints.clear()
        self.resources.indexes.forget(segment)
        paths = [segment.path(suffix) for suffix in names.SEGMENT_SUFFIXES]
        for path in paths:
            files.forget(path)
            self._dirty_files.discard(path)
        return paths

    def exchange(self, former: Sequence[Segment], fresh: Segment) -> list[str]:
        """Let another segment, whose files are there, take the place of some neighbours; return the
        paths of theirs. Readers find it from now on."""
        at = self.segments.index(former[0])
        self.segments[at : at + len(former)] = [fresh]
        return [path for segment in former for path in self._forget_segment(segment)]

    def remove_renamed(self, paths: Iterable[str], now_ms: int) -> None:
        """Have files go that were renamed: when that is durable, and after
        ``file.delete.delay.ms``."""
        number, due_ms = self._note_names(), now_ms + self.configs.file_delete_delay_ms
        self._doomed.extend((number, due_ms, path) for path in paths)

    def gone(self, departing: Departing, now_ms: int) -> None:
        """Take renamed files back: they are removed when that is durable, and after
        ``file.delete.delay.ms``."""
        self.resources.files.release(departing.directory)
        if self.closed:
            return  # the next start finds them
        if departing.synced:
            self._names_are_durable(departing.names)
        due_ms = now_ms + self.configs.file_delete_delay_ms
        for path in departing.renamed[: departing.durable]:
            self.resources.removals.add(path, due_ms)
        if len(departing.renamed) > departing.durable:
            self.remove_renamed(departing.renamed[departing.durable :], now_ms)

    def syncing_names(self, directory: Directory) -> Pieces[None]:
        """Make the names in the log's open directory durable, in pieces. OSError as usual."""
        number = self._names_changed
        yield directory.sync
        self._names_synced(number)

    def _names_synced(self, number: int) -> None:
        """Take note of a sync of the directory that came after the first ``number`` changes."""
        if number == self._names_changed:
            self._dirty_directories.discard(self.path)
        self._names_are_durable(number)

    def _names_are_durable(self, number: int) -> None:
        """Let the files go, in their time, whose renaming is one of the first ``number`` changes.

        Before that a power loss could bring back one name and not another, and leave a hole.
        """
        self._names_durable = max(self._names_durable, number)
        while self._doomed and self._doomed[0][0] <= self._names_durable:
            _, due_ms, path = self._doomed.popleft()
            self.resources.removals.add(path, due_ms)

    # Syncing ---------------------------------------------------------------------------------

    def unsynced(self, *, closed_only: bool = False, most: int = 2**31) -> PendingSync | None:
        """Return what to sync so that all (or all closed segments) is durable; None if nothing.

        Of more than ``most`` closed segments only the oldest: then it ``leaves_rest``.
        ``run`` it anywhere, then hand it to ``synced`` on the log's own thread, always. An OSError
        (too many open files, a full disk) leaves everything to the next call; others are final.
        """
        if self.resources.failed or self.closed or self.cutting:
            return None  # promise 25: nothing is synced after a failure
        if self.damaged is not None and not self.damage_unsynced:
            return None
        try:
            if self.damaged is not None:
                return self._note_to_sync(self.synced_end_offset, self.generation)
            return self._take_unsynced(closed_only, most)
        except Unsound as error:
            self.found_damaged(f"{self.path}: {error}")
            return None
        except OSError as error:
            self._trouble(error)
            if self.failed:
                return None
            raise

    def _take_unsynced(self, closed_only: bool, most: int) -> PendingSync | None:
        if self.write_again is not None:
            # On the loop, where no cut comes between: what a crash left above the recovery point.
            self.write_again(self)
            self.write_again = None
        # Once the recovery point is above an epoch's first batch, only this file knows of it.
        self._write_missing_epochs()
        synced = self.synced_end_offset
        grown = self._active.size - self._snapshot_size
        if not closed_only and not self.failed:
            if grown > SNAPSHOT_INTERVAL_BYTES:
                self._take_snapshot()
            self._write_index_of_active()
        part, left = closed_unsynced(self.segments, synced, most)
        paths = [path for each in part for path in (each.log_path, *each.index_paths)]
        end = self._active.base_offset if closed_only else self.end_offset
        if left:
            end = left[0].base_offset
        elif not closed_only and end > synced:
            paths.append(self._active.log_path)
        left_files = self._dirty_files & {path for each in left for path in each.index_paths}
        if not (paths or self._dirty_files or self._dirty_directories or self.snapshots):
            return None
        # A snapshot is written after the records of which it tells: with the last part.
        with_them = bool(self.snapshots) and not left
        dirty = self._dirty_directories | ({self.path} if with_them else set())
        pinned, directories = self.resources.files.pin_all(
            paths + sorted(self._dirty_files.difference(paths, left_files)), sorted(dirty)
        )
        bases = frozenset(segment.base_offset for segment in self.segments) if with_them else ()
        snapshots = self.snapshots.for_sync(bases) if with_them else []
        names_changed = self._names_changed if self.path in dirty else 0
        self._dirty_files, self._dirty_directories = left_files, set()
        above = self.path.rpartition("/")[0]
        pending = PendingSync(
            above, pinned, directories, names_changed, end, self.generation, snapshots
        )
        pending.undone = self._undone
        pending.leaves_rest = bool(left)
        return pending

    def _write_index_of_active(self) -> None:
        index, written = self._active.index, self._active.index.written
        new = len(index) - written
        behind = self._active.size - (index.entry(written - 1)[0] if written else 0)
        if new >= INDEX_ENTRIES_UNWRITTEN or (new and behind >= INDEX_BYTES_UNWRITTEN):
            try:
                self._active.write_indexes()
            except OSError as error:
                self._trouble(error)  # without room, the next sync tries again

    def _take_snapshot(self) -> None:
        """Have the next sync write the producers as they are now."""
        self._snapshot_size = self._active.size
        self.snapshots.take(self.end_offset, self.producers)

    def _snapshots_written(self, pending: PendingSync) -> None:
        for error in self.snapshots.written(pending.snapshots):
            self._trouble(error)  # without room, the next sync tries again
        for snapshot in pending.snapshots:
            for path in snapshot.thinned_out:
                self.resources.files.forget(path)

    def synced(self, pending: PendingSync) -> None:
        """Take back a pending sync that was run: the recovery point moves, or the log fails."""
        for file in (*pending.files, *pending.directories):
            self.resources.files.release(file)
        if pending.notes_damage:
            self.resources.files.forget(f"{self.path}/{names.DAMAGED}")
        if pending.snapshots:
            self._snapshots_written(pending)
        if pending.overtaken and self.closed:
            return
        if pending.error is not None:
            why = pending.error if isinstance(pending.error, OSError) else repr(pending.error)
            self.resources.fail(f"fsync in {self.path} failed: {why}")
            return
        if pending.notes_damage:
            self.damage_unsynced = False
            return
        self._undone_synced = max(self._undone_synced, pending.undone)
        if not self.closed:
            self._names_are_durable(pending.names)
        if self.cutting or pending.generation != self.generation:
            return  # what is cut may be given out again
        if pending.end_offset > self.synced_end_offset:
            self.synced_end_offset = pending.end_offset

    def sync(self) -> None:
        """Make everything durable now. Blocks; check ``failed`` afterwards.

        Without file descriptors or room nothing is synced, and ``synced_end_offset`` stays.
        """
        try:
            pending = self.unsynced()
        except OSError as error:
            self._trouble(error)
            return
        if pending is not None:
            pending.run()
            self.synced(pending)

    def close(self) -> bool:
        """Stop cleanly: indexes and producers written, everything synced, files closed.

        The log refuses everything afterwards. False when something could not be written: then
        the next start must recover.
        """
        if self.closed:
            return True
        pending = self.write_before_stop()
        if isinstance(pending, PendingSync):
            pending.run()
        return self.finish_stop(pending)

    def write_before_stop(self) -> PendingSync | Rejected | None:
        """Write what a clean stop leaves; return what to sync, or why it could not be written.

        What an earlier stop has left and nothing has changed since is not written again.
        """
        if self.failed and not self.damage_unsynced:
            return self._out_of_service()
        active = self._active
        try:
            if self.damaged is not None:
                return self.unsynced()
            if not self.end_offset and not self.resources.disk.exists(active.log_path):
                return self.unsynced()  # nothing was ever written to it
            for segment in self.segments:
                segment.write_indexes()
            if not active.indexes_are_complete():
                active.close_indexes()
                self._dirty_files |= set(active.index_paths)
                self._note_names()
            if not self.resources.disk.exists(snapshot_path(self.path, self.end_offset)):
                self._take_snapshot()
            return self.unsynced()
        except OSError as error:
            return self._trouble(error)

    def finish_stop(self, pending: PendingSync | Rejected | None) -> bool:
        """Take back the sync of ``write_before_stop``; whether all of it worked."""
        if isinstance(pending, PendingSync):
            self.synced(pending)
        unwritten = bool(self._dirty_files or self.snapshots)
        self.forget_files()
        return not (isinstance(pending, Rejected) or self.failed or unwritten)

    def forget_files(self) -> None:
        """Close all files without writing anything (before the directory is renamed)."""
        self._call_off_epochs()
        self.closed = True
        self.snapshots.cancel()
        for segment in self.segments:
            self.resources.indexes.forget(segment)
            for suffix in names.SEGMENT_SUFFIXES:
                self.resources.files.forget(segment.path(suffix))
        for name in (names.EPOCH_CHECKSUM, names.DAMAGED):
            self.resources.files.forget(f"{self.path}/{name}")
        self.resources.files.forget_directory(self.path)
        self.resources.removals.forget_below(self.path)
        self.watermark_note.close()
