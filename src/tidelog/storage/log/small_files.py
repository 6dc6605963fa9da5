"""The small files beside the segments of a log: what a replica keeps of itself.

Owns what is in them, when they are written, and what of the log's files no sync has covered yet.
A kill leaves the former or the new content of each; the log's next sync makes them durable.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import Rejected
from tidelog.runtime.disk import Disk
from tidelog.runtime.turns import Pieces
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    KeptConfigs,
    PartitionMetadata,
    encode_checksums,
    encode_epochs,
    encode_partition_metadata,
)
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log.syncing import PendingSync
from tidelog.storage.segments.resources import Resources


class PendingEpochs:
    """The files of a log's leader epochs as they should be, written by ``run`` in any thread.

    ``call_off`` (before anybody else writes them, or the directory is renamed) has it write nothing
    that is not written yet.
    """

    def __init__(
        self, resources: Resources, directory: str, content: bytes, former_crc: int | None
    ) -> None:
        self.is_written = False
        """Durably, but for the names."""
        self.error: Exception | None = None
        """Anything but an OSError is a bug; final."""
        checksums, self.crc = encode_checksums(content, former_crc)
        self._files = [
            (f"{directory}/{names.EPOCH_CHECKSUM}", checksums),
            (f"{directory}/{names.EPOCH_CHECKPOINT}", content),
        ]
        # Of this one alone: it may be late, and another replica have this path by then.
        self._ending = f".{next(resources.numbers)}{names.TEMPORARY}"
        self._disk = resources.disk
        self._lock = threading.Lock()
        self._called_off = False

    def run(self) -> None:
        """Write and sync both, the checksum first. Blocks; a failure is kept in ``error``."""
        try:
            for path, content in self._files:
                _write_anew(self._disk, path + self._ending, content, synced=True)
            with self._lock:
                if not self._called_off:
                    for path, _ in self._files:
                        self._disk.rename(path + self._ending, path)
                    self.is_written = True
        except Exception as error:
            self.error = error
        if not self.is_written:
            for path, _ in self._files:
                with suppress(OSError):
                    self._disk.remove(path + self._ending)

    def call_off(self) -> None:
        """Write nothing from now on; ``is_written`` says whether it is."""
        with self._lock:
            self._called_off = True


class SmallFiles:
    """``partition.metadata``, the leader epochs, and whether the log is in service."""

    def __init__(self, resources: Resources, path: str, partition: TopicPartition) -> None:
        self.resources = resources
        self.path = path
        self.partition = partition
        self.metadata: PartitionMetadata | None = None
        self.epochs = LeaderEpochs()
        self.damaged: str | None = None
        self.damage_unsynced = False
        """Whether a power loss could take the note of its damage: until then nobody is told."""
        self.closed = False
        self.changing = False
        """Whether segments are taken out, cut or replaced, in pieces: one such change at a time."""
        self.cutting = False
        """Whether that change is a cut: nothing is appended or synced until it ends."""
        self._dirty_files: set[str] = set()
        self._dirty_directories: set[str] = set()
        self._names_changed = 0
        """How often a name in the directory has changed in this life."""
        self._names_durable = 0
        """The changes of names that a sync which has returned covers, counted likewise."""
        self._epochs_unwritten = False
        self._epochs_pending: PendingEpochs | None = None
        """The leader epochs that a thread may be writing; whoever else writes them calls it off."""
        self.epoch_crc: int | None = None
        """The CRC of what the file of the leader epochs says, None when that is not known."""

    @property
    def failed(self) -> str | None:
        """Why appends are refused for good: damage, a failed disk, or None."""
        return self.damaged or self.resources.failed

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

    def syncing_metadata(self) -> Pieces[None]:
        """Make ``partition.metadata`` durable, in pieces. OSError as usual."""
        files = self.resources.files
        file = files.pin(f"{self.path}/{names.PARTITION_METADATA}")
        try:
            yield file.sync
            directory = files.pin_directory(self.path)
            try:
                yield directory.sync
            finally:
                files.release(directory)
        finally:
            files.release(file)

    def keep_configs(self, configs: KeptConfigs) -> bool:
        """Have the replica keep its topic's own configurations; whether that was news.

        Durable with the next sync. A replica without a topic id has no file to keep them in, and a
        full disk keeps the former ones.
        """
        metadata = self.metadata
        if metadata is None or metadata.configs == configs or self.failed or self.closed:
            return False
        try:
            self.set_metadata(replace(metadata, configs=configs), durable=False)
        except OSError as error:
            self._trouble(error)
            return False
        return True

    def _write_epochs(self, *, later: bool = False) -> None:
        """Write the leader epochs; what a full disk refuses is written before the next sync.

        ``later``: before the next sync in any case.
        """
        self._call_off_epochs()
        self._epochs_unwritten = True
        if later:
            return
        try:
            self._write_missing_epochs()
        except OSError as error:
            self._trouble(error)

    def _epochs_content(self) -> bytes:
        # A kill may take the log's start back to what was checkpointed, as far as there are
        # segments: the file knows the epochs from there on.
        return encode_epochs(self.epochs.all_from(self._lowest_offset()))

    def _lowest_offset(self) -> int:
        """Return the lowest offset at which the next start may have the log begin."""
        return 0

    def _write_missing_epochs(self) -> None:
        self._call_off_epochs()
        if not self._epochs_unwritten:
            return
        content = self._epochs_content()
        beside = f"{self.path}/{names.EPOCH_CHECKSUM}"
        checksums, crc = encode_checksums(content, self.epoch_crc)
        self.resources.files.get(beside, create=True).write_at(0, [checksums])
        self._dirty_files.add(beside)
        self._write_file(names.EPOCH_CHECKPOINT, content)
        self.epoch_crc = crc
        self._epochs_unwritten = False

    def _write_file(self, name: str, content: bytes) -> None:
        """Replace a small file: a kill leaves the old or the new one. The next sync covers it."""
        path = f"{self.path}/{name}"
        self.resources.files.forget(path)
        _replace(self.resources.disk, path, content)
        self._dirty_files.add(path)
        self._note_names()

    def epochs_to_write(self) -> PendingEpochs | None:
        """Return what spares the next sync the writing of the leader epochs; None: nothing does.

        ``run`` it anywhere, then hand it to ``epochs_written``, always.
        """
        if not self._epochs_unwritten or self.failed or self.closed or self.cutting:
            return None
        return self._pending_epochs()

    def _pending_epochs(self) -> PendingEpochs:
        """Return what writes the leader epochs; hand it to ``epochs_written``, always."""
        self._call_off_epochs()
        self._epochs_unwritten = True
        self._epochs_pending = PendingEpochs(
            self.resources, self.path, self._epochs_content(), self.epoch_crc
        )
        return self._epochs_pending

    def epochs_written(self, pending: PendingEpochs) -> None:
        """Take the leader epochs back; what a full disk refused is written before the next sync."""
        if self.closed:
            return
        if isinstance(pending.error, OSError):
            self._trouble(pending.error)
        elif pending.error is not None:
            self.resources.fail(f"a write to {self.path} failed: {pending.error!r}")
        if pending is self._epochs_pending:
            self._epochs_pending = None
            self._note_epochs(pending)

    def _call_off_epochs(self) -> None:
        """Be the only one who writes the leader epochs."""
        pending, self._epochs_pending = self._epochs_pending, None
        if pending is not None:
            pending.call_off()
            self._note_epochs(pending)

    def _note_epochs(self, pending: PendingEpochs) -> None:
        for name in (names.EPOCH_CHECKPOINT, names.EPOCH_CHECKSUM):
            # Whoever has one open has the former file.
            self.resources.files.forget(f"{self.path}/{name}")
        if pending.is_written:
            self._note_names()
            self.epoch_crc = pending.crc
            self._epochs_unwritten = False

    def _note_names(self) -> int:
        """Have the next sync cover a change of names; return its number."""
        self._dirty_directories.add(self.path)
        self._names_changed += 1
        return self._names_changed

    def found_damaged(self, reason: str) -> Rejected:
        """Take the log out of service: its bytes are not what was written (promise 26).

        A note beside it has the next start look at all of it, however this life ends. Whoever
        serves does not wait for it here: the next sync makes it durable.
        """
        if self.damaged is None and not self.closed:
            self.damaged = reason
            on_damage = self.resources.on_damage
            try:
                note_damage(self.resources, self.path, reason, durable=on_damage is None)
                self.damage_unsynced = on_damage is not None
            except OSError as error:
                self._trouble(error)
            if on_damage is not None:
                on_damage(self.partition)
        return self._out_of_service()

    def _note_to_sync(self, end_offset: int, generation: int) -> PendingSync:
        """Return what syncs the note of damage, and nothing else of the log."""
        note = f"{self.path}/{names.DAMAGED}"
        files, directories = self.resources.files.pin_all([note], [self.path])
        above = self.path.rpartition("/")[0]
        pending = PendingSync(above, files, directories, 0, end_offset, generation)
        pending.notes_damage = True
        return pending

    def _trouble(self, error: OSError) -> Rejected:
        """A full disk heals (promise 28); any other failed write is final (promise 25)."""
        passing = self.resources.refused_for(error)
        if passing is not None:
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {self.path}")
        self.resources.fail(f"a write to {self.path} failed: {error}")
        return self._out_of_service()

    def _out_of_service(self) -> Rejected:
        reason = self.failed or f"{self.path} is {'closed' if self.closed else 'being changed'}"
        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, reason)


def note_damage(resources: Resources, directory: str, reason: str, *, durable: bool) -> None:
    """Have the next start look at all of a log, however this life ends. OSError if it fails.

    A full disk has room for the note's name, and that says enough: without it a kill would have
    the damage forgotten.
    """
    path = f"{directory}/{names.DAMAGED}"
    replacing = resources.disk.replace if durable else partial(_replace, resources.disk)
    try:
        replacing(path, f"{reason}\n".encode())
    except OSError as error:
        if not resources.is_full(error):
            raise
        replacing(path, b"")


def _replace(disk: Disk, path: str, content: bytes) -> None:
    """Replace a file that nobody has open; neither its bytes nor its name are synced."""
    _write_anew(disk, path + names.TEMPORARY, content)
    disk.rename(path + names.TEMPORARY, path)


def _write_anew(disk: Disk, path: str, content: bytes, *, synced: bool = False) -> None:
    file = disk.open(path, create=True)
    try:
        if file.size():
            # Only then: ext4 writes a file out at its close that was cut to nothing.
            file.truncate(0)
        file.write_at(0, [content])
        if synced:
            file.sync()
    finally:
        file.close()
