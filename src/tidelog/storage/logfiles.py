"""The files of one partition: segments, rolling, what is not yet synced, what is to be removed.

Owns the list of segments and every file beside them; ``log`` is what others see of it. Decides
nothing about records. Ordering: a segment's end is known before its successor exists; files that
were replaced are renamed first and removed later, when the renaming is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.errors import ErrorCode
from tidelog.model.topic_configs import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import Rejected
from tidelog.runtime.disk import File
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    PartitionMetadata,
    encode_epochs,
    encode_partition_metadata,
)
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.producers import ProducerState
from tidelog.storage.recovery import Recovered
from tidelog.storage.resources import Resources
from tidelog.storage.retention import NO_ROOM
from tidelog.storage.segment import Segment
from tidelog.storage.snapshots import snapshot_path, thin_out, write_snapshot
from tidelog.storage.syncing import PendingSync
from tidelog.storage.watermark_note import WatermarkNote

SNAPSHOT_INTERVAL_BYTES = 64 * 1024 * 1024
"""After so many bytes a sync writes a producer snapshot too, so that a start after a crash need
not walk the headers of the whole active segment."""

REWRITE_BYTES = 1024 * 1024

PRODUCER_EXPIRATION_MS = 86_400_000
"""Default of ``producer.id.expiration.ms``."""


class LogFiles:
    """Segments and files of one replica. Offsets from ``start_offset`` to ``end_offset``."""

    def __init__(
        self,
        resources: Resources,
        path: str,
        partition: TopicPartition,
        configs: TopicConfigs,
        segments: list[Segment],
    ) -> None:
        self.resources = resources
        self.path = path
        self.partition = partition
        self.configs = configs
        self.metadata: PartitionMetadata | None = None
        self.segments = segments
        self.start_offset = segments[0].base_offset
        self.end_offset = segments[-1].next_offset
        self.high_watermark = self.start_offset
        self.watermark_note = WatermarkNote(resources, path)
        self.synced_end_offset = self.start_offset
        """The recovery point: everything below survives a power loss."""
        self.first_dirty_offset = self.start_offset
        """The cleaner's checkpoint: everything below was compacted once."""
        self.epochs = LeaderEpochs()
        self.producers = ProducerState()
        self.producer_expiration_ms = PRODUCER_EXPIRATION_MS
        self.damaged: str | None = None
        self.mended: list[str] = []
        """Damaged files beside the log that it could do without, as a start found them."""
        self.closed = False
        self.recovered = Recovered()
        self.generation = 0
        """+1 whenever offsets may be given out again (truncation)."""
        self.last_sync_ms = 0
        self._active = segments[-1]
        self._active.active = True
        self._jitter_ms = 0
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._dirty_files: set[str] = set()
        self._dirty_directories: set[str] = set()
        self._directories_in_flight = 0
        self._undone = False
        """Whether a partial write to the active segment was cut off again since it began."""
        self._snapshot_size = self._active.size
        """Bytes of the active segment that the newest snapshot covers, as far as we know."""
        self._doomed: list[tuple[int, str]] = []
        self._epochs_unwritten = False
        self.configure(configs)

    # State -----------------------------------------------------------------------------------

    @property
    def failed(self) -> str | None:
        """Why appends are refused for good: damage, a failed disk, or None."""
        return self.damaged or self.resources.failed

    @property
    def size(self) -> int:
        """Bytes of all batches. Grows with the number of segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def _names_unsynced(self) -> bool:
        return self.path in self._dirty_directories or self._directories_in_flight > 0

    def configure(self, configs: TopicConfigs) -> None:
        """Apply changed topic configurations to everything from now on."""
        self.configs = configs
        jitter = min(configs.segment_jitter_ms, configs.segment_ms)
        self._jitter_ms = self.resources.random.randrange(jitter) if jitter > 0 else 0
        self._active.room = NO_ROOM

    def mark_created(self) -> None:
        """Have the next sync cover the directory itself and its name in the one above."""
        self._dirty_directories |= {self.path, self.path.rpartition("/")[0] or "/"}

    def mark_recovered(self) -> None:
        """Have the next sync cover what an earlier life may have left unsynced beside segments.

        After kill -9 the files are there, but neither their names nor the small ones' content
        need be on the disk: a later power loss would take them, synced records included.
        """
        self.mark_created()
        small = (names.EPOCH_CHECKPOINT, names.PARTITION_METADATA, names.SNAPSHOT)
        for name in self.resources.disk.list(self.path):
            if name.endswith(small):
                self._dirty_files.add(f"{self.path}/{name}")

    def mark_epochs_unwritten(self) -> None:
        """Have the next sync write the leader epochs: the file does not say what is in memory."""
        self._epochs_unwritten = True

    def set_metadata(self, metadata: PartitionMetadata, *, durable: bool = True) -> None:
        """Write ``partition.metadata``; a new log's becomes durable with its first sync."""
        content = encode_partition_metadata(metadata)
        if durable:
            self.resources.disk.replace(f"{self.path}/{names.PARTITION_METADATA}", content)
        else:
            self._write_file(names.PARTITION_METADATA, content)
        self.metadata = metadata

    # Segments --------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> Rejected | None:
        """Begin a new segment at the end of the log; a refusal (disk full) changes nothing."""
        if self.failed or self.closed:
            return self._out_of_service()
        active = self._active
        if active.size == 0 and active.base_offset == self.end_offset:
            return None
        try:
            if self._undone:
                # A closed segment is not scanned below the recovery point: a power loss must not
                # bring back what was cut off its end.
                active.open_log().sync()
                self._undone = False
            if len(self.segments) == 1 and self._names_unsynced:
                # A power loss must not take the log's beginning and leave what follows.
                self.resources.disk.sync_directory(self.path)
            path = write_snapshot(self.resources, self.path, self.end_offset, self.producers)
            active.close_indexes()
            fresh = new_segment(self.resources, self.path, self.end_offset, now_ms)
        except OSError as error:
            return self._trouble(error)
        self._dirty_files.add(path)
        if self.end_offset <= self.synced_end_offset:
            # Its bytes are synced, its indexes are not, and no sync of bytes to come covers them.
            self._dirty_files |= {active.index_path, active.time_index_path}
        self._dirty_directories.add(self.path)
        active.active = False
        active.hold_in_cache()
        self._activate(fresh)
        try:
            thin_out(self.resources, self.path, self.segments)
        except OSError as error:
            return self._trouble(error)
        return None

    def _activate(self, segment: Segment) -> None:
        segment.active = True
        self.resources.indexes.forget(segment)
        self.segments.append(segment)
        self._active = segment
        self._snapshot_size = segment.size
        self.configure(self.configs)  # a new jitter for each segment

    def remove_segments(self, doomed: Sequence[Segment], now_ms: int) -> None:
        """Take segments out of the log, in this order; their files go after
        ``file.delete.delay.ms``.

        Each is gone durably before the next goes: no crash leaves a hole between two others.
        """
        if self._names_unsynced:
            # The segment that takes over must not be lost when the old ones are gone.
            self.resources.disk.sync_directory(self.path)
        gone = set(doomed)
        self.segments = [segment for segment in self.segments if segment not in gone]
        self._hints.clear()
        for segment in doomed:
            self.resources.indexes.forget(segment)
            for suffix in names.SEGMENT_SUFFIXES:
                self._doom(segment.path(suffix), now_ms)
            if segment is not doomed[-1]:
                self.resources.disk.sync_directory(self.path)

    def _doom(self, path: str, now_ms: int) -> None:
        disk = self.resources.disk
        if disk.exists(path):
            self.resources.files.forget(path)
            disk.rename(path, path + names.DELETED)
            self._dirty_directories.add(self.path)
            self._dirty_files.discard(path)
            self._doomed.append((now_ms + self.configs.file_delete_delay_ms, path + names.DELETED))

    def purge(self, now_ms: int, *, at_most: int | None = None) -> int:
        """Remove renamed files whose delay is over and whose renaming is durable; how many."""
        if not self._doomed or self._dirty_directories or self._directories_in_flight:
            return 0
        due = [path for due_ms, path in self._doomed if due_ms <= now_ms][:at_most]
        gone = set(due)
        self._doomed = [entry for entry in self._doomed if entry[1] not in gone]
        for path in due:
            if self.resources.disk.exists(path):
                self.resources.disk.remove(path)
        return len(due)

    # Syncing ---------------------------------------------------------------------------------

    def unsynced(self, *, closed_only: bool = False) -> PendingSync | None:
        """Return what to sync so that all (or all closed segments) is durable; None if nothing.

        ``run`` it anywhere, then hand it to ``synced`` on the log's own thread, always. An OSError
        (too many open files, a full disk) leaves everything to the next call; others are final.
        """
        if self.failed or self.closed:
            return None  # promise 25: nothing is synced after a failure
        try:
            return self._take_unsynced(closed_only)
        except OSError as error:
            self._trouble(error)
            if self.failed:
                return None
            raise

    def _take_unsynced(self, closed_only: bool) -> PendingSync | None:
        # Once the recovery point is above an epoch's first batch, only this file knows of it.
        self._write_missing_epochs()
        synced = self.synced_end_offset
        grown = self._active.size - self._snapshot_size
        if not closed_only and grown > SNAPSHOT_INTERVAL_BYTES and not self.failed:
            try:
                self._snapshot()
            except OSError as error:
                self._trouble(error)  # without room, the next sync tries again
        paths = []
        for segment in reversed(self.segments):
            if segment.next_offset <= synced and segment is not self._active:
                break
            if segment is self._active:
                if not closed_only and self.end_offset > synced:
                    paths.append(segment.log_path)
                continue
            paths += (segment.log_path, segment.index_path, segment.time_index_path)
        if not (paths or self._dirty_files or self._dirty_directories):
            return None
        pinned = self._pin(paths + sorted(self._dirty_files))
        directories = sorted(self._dirty_directories)
        self._dirty_files, self._dirty_directories = set(), set()
        self._directories_in_flight += len(directories)
        end = self._active.base_offset if closed_only else self.end_offset
        disk, above = self.resources.disk, self.path.rpartition("/")[0]
        return PendingSync(disk, above, pinned, directories, end, self.generation)

    def _snapshot(self) -> None:
        """Note the producers of the active segment so far. OSError leaves the older snapshots."""
        path = write_snapshot(self.resources, self.path, self.end_offset, self.producers)
        self._dirty_files.add(path)
        self._dirty_directories.add(self.path)
        self._snapshot_size = self._active.size
        thin_out(self.resources, self.path, self.segments)

    def _pin(self, paths: Sequence[str]) -> list[File]:
        pinned: list[File] = []
        files = self.resources.files
        for path in paths:
            try:
                pinned.append(files.pin(path))
            except FileNotFoundError:
                # Removed since it was noted (an old snapshot, an index of a removed segment).
                continue
            except OSError:
                for file in pinned:
                    files.release(file)
                raise
        return pinned

    def synced(self, pending: PendingSync) -> None:
        """Take back a pending sync that was run: the recovery point moves, or the log fails."""
        for file in pending.files:
            self.resources.files.release(file)
        self._directories_in_flight -= len(pending.directories)
        if pending.overtaken and self.closed:
            return
        if pending.error is not None:
            self.resources.fail(f"fsync in {self.path} failed: {pending.error}")
        elif pending.generation == self.generation and pending.end_offset > self.synced_end_offset:
            self.synced_end_offset = pending.end_offset

    def write_again(self) -> None:
        """Write everything above the recovery point once more, as it is. OSError as usual.

        After an fsync that failed in an earlier life the page cache may hold bytes that are not on
        the disk and count as clean: no later fsync writes them, unless they are written anew.
        """
        for segment in self.segments:
            located = segment.locate(max(self.synced_end_offset, segment.base_offset))
            position = segment.size if located is None else located[0]
            while position < segment.size:
                content = segment.read_bytes(position, min(REWRITE_BYTES, segment.size - position))
                segment.open_log().write_at(position, [content])
                position += len(content)
        if self.end_offset <= self.synced_end_offset and self.resources.disk.exists(
            self._active.log_path
        ):
            # No sync covers it, yet it may have been cut there, and the cut not be synced: a power
            # loss would bring back what was cut off. Its length is made anew, as its bytes are.
            file = self._active.open_log()
            file.truncate(self._active.size + 1)
            file.truncate(self._active.size)
            file.sync()
        for path in sorted(self._dirty_files):
            content = self.resources.disk.read(path)
            self.resources.files.get(path).write_at(0, [content])

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
        if self.failed:
            return self._out_of_service()
        active = self._active
        try:
            if not self.end_offset and not self.resources.disk.exists(active.log_path):
                return self.unsynced()  # nothing was ever written to it
            for segment in self.segments:
                segment.write_indexes()
            if not active.indexes_are_complete():
                active.close_indexes()
                self._dirty_files |= {active.index_path, active.time_index_path}
                self._dirty_directories.add(self.path)
            if not self.resources.disk.exists(snapshot_path(self.path, self.end_offset)):
                self._snapshot()
            return self.unsynced()
        except OSError as error:
            return self._trouble(error)

    def finish_stop(self, pending: PendingSync | Rejected | None) -> bool:
        """Take back the sync of ``write_before_stop``; whether all of it worked."""
        if isinstance(pending, PendingSync):
            self.synced(pending)
        self.forget_files()
        return not (isinstance(pending, Rejected) or self.failed or self._dirty_files)

    def forget_files(self) -> None:
        """Close all files without writing anything (before the directory is renamed)."""
        self.closed = True
        for segment in self.segments:
            self.resources.indexes.forget(segment)
            for suffix in names.SEGMENT_SUFFIXES:
                self.resources.files.forget(segment.path(suffix))
        self.watermark_note.close()

    # Trouble ---------------------------------------------------------------------------------

    def _write_epochs(self, *, later: bool = False) -> None:
        """Write the leader epochs; what a full disk refuses is written before the next sync.

        ``later``: before the next sync in any case.
        """
        self._epochs_unwritten = True
        if later:
            return
        try:
            self._write_missing_epochs()
        except OSError as error:
            self._trouble(error)

    def _write_missing_epochs(self) -> None:
        if self._epochs_unwritten:
            self._write_file(names.EPOCH_CHECKPOINT, encode_epochs(self.epochs.entries))
            self._epochs_unwritten = False

    def _write_file(self, name: str, content: bytes) -> None:
        """Replace a small file: a kill leaves the old or the new one. The next sync covers it."""
        path = f"{self.path}/{name}"
        disk = self.resources.disk
        file = disk.open(path + names.TEMPORARY, create=True)
        try:
            if file.size():
                # Only then: ext4 writes a file out at its close that was cut to nothing.
                file.truncate(0)
            file.write_at(0, [content])
        finally:
            file.close()
        self.resources.files.forget(path)
        disk.rename(path + names.TEMPORARY, path)
        self._dirty_files.add(path)
        self._dirty_directories.add(self.path)

    def _trouble(self, error: OSError) -> Rejected:
        """A full disk heals (promise 28); any other failed write is final (promise 25)."""
        passing = self.resources.passing(error)
        if passing is not None:
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {self.path}")
        self.resources.fail(f"a write to {self.path} failed: {error}")
        return self._out_of_service()

    def found_damaged(self, reason: str) -> Rejected:
        """Take the log out of service: its bytes are not what was written (promise 26).

        A note beside it has the next start look at all of it, however this life ends.
        """
        if self.damaged is None and not self.closed:
            self.damaged = reason
            try:
                self.resources.note_damage(self.path, reason)
            except OSError as error:
                self._trouble(error)
            if self.resources.on_damage is not None:
                self.resources.on_damage(self.partition)
        return self._out_of_service()

    def _cut_short(self, error: OSError) -> Rejected:
        """Half a cut is final, whatever was wanting: memory does not say what the files hold, and
        an append would put new batches behind those that should be gone."""
        self.resources.fail(f"a cut of {self.path} was not finished: {error}")
        return self._out_of_service()

    def _out_of_service(self) -> Rejected:
        reason = self.failed or f"{self.path} is closed"
        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, reason)


def first_segment(resources: Resources, directory: str, now_ms: int) -> Segment:
    """Return the segment of a log that never had one; its file is made by the first write."""
    segment = Segment(resources, directory, 0, 0, 0)
    segment.created_ms = now_ms
    segment.start_indexes()
    return segment


def new_segment(resources: Resources, directory: str, base_offset: int, now_ms: int) -> Segment:
    """Create an empty segment; after an OSError it does not exist."""
    segment = Segment(resources, directory, base_offset, 0, base_offset)
    segment.created_ms = now_ms
    # The log file comes last: once it exists, nothing may be appended to the segment before it.
    segment.restart_indexes()
    resources.files.get(segment.log_path, create=True).truncate(0)
    return segment
