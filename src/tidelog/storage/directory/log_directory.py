"""One ``log.dirs`` entry: its lock, the start of its logs, checkpoints, partition directories.

Owns the directory's own files (checkpoints, the marker of a clean stop), and partition directories
from creation to removal: created, loaded, renamed to ``-delete`` or ``-stray``, removed after a
delay. Not whose directory it is: see `identity`. Not which replicas should exist: see `broker`. Not
copies on their way here: see `storage.future`.

The last process ended ``clean`` (its marker exists), ``crashed`` (no marker, the same boot of the
operating system: all that was written is still there), or ``unclean`` (no marker, another boot:
unsynced bytes may be gone).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial

from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work, finish
from tidelog.runtime.disk import Directory, File
from tidelog.runtime.seams import Seams
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    DamagedFile,
    MetaProperties,
    PartitionMetadata,
    decode_offsets,
    encode_clean_shutdown,
)
from tidelog.storage.directory.checkpointing import Checkpoint, Checkpoints
from tidelog.storage.directory.claims import CLAIMS, Offsets, claims_of
from tidelog.storage.directory.contents import contents_of
from tidelog.storage.directory.identity import DirectoryRefused as DirectoryRefused
from tidelog.storage.directory.identity import LastStop as LastStop
from tidelog.storage.directory.identity import claim
from tidelog.storage.directory.side_by_side import Opening
from tidelog.storage.directory.unaware_note import UnawareNote
from tidelog.storage.foreign import strange_in
from tidelog.storage.loaded import Loaded as Loaded
from tidelog.storage.log.checking import Checks
from tidelog.storage.log.closing import close_all
from tidelog.storage.log.opening import ConfigsOf, create_log, open_log
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.rewriting import sync_again
from tidelog.storage.log.state import PRODUCER_EXPIRATION_MS
from tidelog.storage.removals import Removal
from tidelog.storage.segments.open_files import DEFAULT_OPEN_FILES
from tidelog.storage.segments.resources import Resources


class LogDirectory:
    """One locked directory. Synchronous; used by one thread, except for ``run`` methods."""

    def __init__(
        self,
        seams: Seams,
        path: str,
        lock: File,
        meta: MetaProperties,
        last_stop: LastStop,
        names_of_directory: Directory,
        *,
        ran_synced: bool,
        open_files: int,
        producer_expiration_ms: int,
    ) -> None:
        self.path = path
        self.meta = meta
        self.last_stop = last_stop
        self.ran_synced = ran_synced
        """Whether the last process ran with ``log.durability=sync``: acked means synced."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.futures: dict[TopicPartition, str] = {}
        """The ``-future`` directories here: copies of replicas in other log directories."""
        self.strange: set[TopicPartition] = set()
        """Replicas without an id in whose directories is what no partition has."""
        self.moving: dict[TopicPartition, PartitionLog] = {}
        """Logs on their way here or from here: a power loss may find them in either place."""
        self.resources = Resources.of(seams.disk, open_files)
        self.resources.random = seams.random
        self.resources.before_cut = self.writing_checkpoint
        self.unaware_note = UnawareNote(self.resources, path)
        self._seams = seams
        self._disk = seams.disk
        self._lock = lock
        self._names = names_of_directory
        """The directory, open for its syncs: it does not fail for want of a descriptor."""
        self._producer_expiration_ms = producer_expiration_ms
        self._noted: set[TopicPartition] = set()
        """Partitions that the checkpoint files may name, hosted or not."""
        self._checkpoints = Checkpoints(seams.disk)
        self._loaded = False
        self._claims_lost_records = False
        """Whether a power loss took records below a checkpointed high watermark."""
        self._registered = False
        self._life: bytes | None = None
        """What ``recording_life`` could not write on a full disk."""
        self._renamed = False

    @property
    def failed(self) -> str | None:
        """The sentence of the fatal fault that took the directory out of service, or None."""
        return self.resources.failed

    # Loading ---------------------------------------------------------------------------------

    def load(
        self,
        configs_of: ConfigsOf,
        helpers: Executor | None = None,
        most_helpers: int = 1,
    ) -> Loaded:
        """Open all logs; ``-delete`` directories are removed after this broker's own
        ``log.segment.delete.delay.ms``, ``-stray`` ones are listed.

        No controller has sent anything yet: ``configs_of`` makes a topic's configuration from what
        each replica keeps of it on disk. ``helpers`` (processes) check ``most_helpers`` logs at a
        time where that takes long.

        The marker of a clean stop is removed, durably, at the end: after that the end of this
        process counts. Blocks for as long as recovery takes; damage is listed, not raised. OSError
        for an unreadable disk, LoadAbandoned after ``abandon_load``.
        """
        loaded = Loaded()
        removed_ms = self._seams.clock.wall_ms() + configs_of(()).file_delete_delay_ms
        starts, recovery, watermarks, cleaned = (self._offsets(name, loaded) for name in CLAIMS)
        self._noted = {*recovery, *starts, *watermarks, *cleaned}
        fences = self._offsets(names.FIRST_FENCES, loaded)
        contents = contents_of(self._disk, self.path)
        loaded.strays, loaded.unknown = contents.strays, contents.unknown
        self.futures = contents.futures
        for path in contents.deleted:
            self.resources.removals.add(path, removed_ms)
        clean, unclean = (self.last_stop is stop for stop in (LastStop.CLEAN, LastStop.UNCLEAN))

        def ending_of(key: TopicPartition) -> Ending:
            offsets = recovery.get(key, 0), watermarks.get(key, 0), starts.get(key, 0)
            knows_start = key in starts
            return Ending(
                *offsets, clean=clean, unsynced_may_be_gone=unclean, knows_start=knows_start
            )

        self.resources.loading.logs = len(contents.hosted)
        Opening(self._disk, self.resources.loading, helpers, most_helpers).open_all(
            self._load_one(
                loaded, partition, path, configs_of, ending_of(partition), cleaned, fences
            )
            for partition, path in contents.hosted
        )
        ids = {x.metadata.topic_id for x in self.logs.values() if x.metadata is not None}
        unknown = self.unaware_note.load(ids, self._seams.clock.wall_ms())
        if unknown is not None:
            loaded.compared.append(unknown)
        self._remove_clean_marker()
        self._loaded = True
        self._claims_lost_records = any(
            log.failed is None and watermarks.get(partition, 0) > log.end_offset
            for partition, log in self.logs.items()
        )
        return loaded

    def abandon_load(self) -> None:
        """Let a ``load`` that runs in another thread end before its next read."""
        self.resources.loading.abandoned = True

    def _load_one(
        self,
        loaded: Loaded,
        partition: TopicPartition,
        path: str,
        configs_of: ConfigsOf,
        ending: Ending,
        cleaned: Offsets,
        fences: Offsets,
    ) -> Checks[None]:
        self.resources.loading.begin(path)
        log = yield from open_log(
            self.resources,
            path,
            partition,
            configs_of,
            ending,
            now_ms=self._seams.clock.wall_ms(),
            first_dirty_offset=cleaned.get(partition, 0),
            first_fences=fences,
        )
        log.forget_producers_after(self._producer_expiration_ms)
        self.logs[partition] = log
        if self.ran_synced and self.last_stop is not LastStop.CLEAN and not log.failed:
            # Readers got all that was synced: it must be durable again before they read it.
            sync_again(log)
        self.resources.loading.opened += 1
        loaded.logs += 1
        loaded.recovered_bytes += log.recovered.scanned_bytes
        loaded.mended += log.recovered.mended
        loaded.compared += log.recovered.compared
        if log.damaged is not None:
            loaded.damaged.append((partition, log.damaged))
        if log.metadata is None and strange_in(self._disk, path) is not None:
            self.strange.add(partition)

    def _offsets(self, name: str, loaded: Loaded) -> Offsets:
        try:
            return decode_offsets(self._disk.read(f"{self.path}/{name}"))
        except FileNotFoundError:
            return {}
        except DamagedFile as error:
            # Zero is always a safe checkpoint: the start reads more, and no record is lost.
            loaded.mended.append(f"{self.path}/{name}: {error}: every offset in it counts as 0")
            return {}

    # Partitions ------------------------------------------------------------------------------

    def create(
        self,
        partition: TopicPartition,
        configs: TopicConfigs,
        metadata: PartitionMetadata | None = None,
        *,
        start_offset: int = 0,
    ) -> PartitionLog:
        """Create the log of a new replica, or return the existing one.

        OSError if it fails, ``names.InvalidName`` for a partition that can have no directory.
        """
        existing = self.logs.get(partition)
        if existing is not None:
            return existing
        path = f"{self.path}/{names.directory_name(partition)}"
        if partition in self._noted:
            # An earlier replica of this name: its recovery point must not count for the new one.
            # One write serves many creations: the files then name no deleted replica.
            finish(self.writing_checkpoint())
            self._noted.discard(partition)
        log = create_log(
            self.resources,
            path,
            partition,
            configs,
            now_ms=self._seams.clock.wall_ms(),
            metadata=metadata,
            start_offset=start_offset,
        )
        log.forget_producers_after(self._producer_expiration_ms)
        self.logs[partition] = log
        return log

    def is_unfinished(self, partition: TopicPartition) -> bool:
        """Whether a log is what a failed creation leaves: no topic id, and never a record."""
        log = self.logs[partition]
        is_empty = log.start_offset == log.end_offset == log.size == 0
        return is_empty and log.metadata is None and log.failed is None

    def is_noted(self, partition: TopicPartition) -> bool:
        """Whether the checkpoint files may name an earlier replica: then ``create`` writes them
        again, and blocks for that long. A ``checkpoint`` that was run before spares it."""
        return partition in self._noted and partition not in self.logs

    def delete(
        self, partition: TopicPartition, *, delay_ms: int | None = None, durable: bool = True
    ) -> None:
        """Delete a replica: its directory is renamed now, and removed after a delay.

        ``delay_ms`` None: the topic's ``file.delete.delay.ms``. Not ``durable``: call
        ``syncing_names``, once for many, before the deletion is reported. KeyError for an unknown
        partition.
        """
        log = self.logs[partition]
        path = self._quarantine(log, names.DELETE_DIRECTORY)
        if durable:
            finish(self.syncing_names())
        self.remove_later(path, log.configs.file_delete_delay_ms if delay_ms is None else delay_ms)

    def mark_stray(
        self,
        partition: TopicPartition,
        *,
        remove_after_ms: int | None = None,
        durable: bool = True,
    ) -> str:
        """Quarantine a stale replica as ``-stray``; removed after a delay, or kept (None).

        ``durable`` as with ``delete``.
        """
        path = self._quarantine(self.logs[partition], names.STRAY_DIRECTORY)
        if durable:
            finish(self.syncing_names())
        if remove_after_ms is not None:
            self.remove_later(path, remove_after_ms)
        return path

    def leave(self, partition: TopicPartition) -> None:
        """Ignore a replica's directory until the next start; it stays on disk as it is."""
        self.logs[partition].forget_files()
        del self.logs[partition]

    def remove_later(self, path: str, delay_ms: int) -> None:
        """Remove a directory that was quarantined without a limit, after a delay."""
        self.resources.removals.add(path, self._seams.clock.wall_ms() + delay_ms)

    def _quarantine(self, log: PartitionLog, ending: str) -> str:
        log.forget_files()
        target = self.mark(log.path, log.partition, ending)
        del self.logs[log.partition]
        return target

    def mark(self, path: str, partition: TopicPartition, ending: str) -> str:
        """Give a directory of a partition a name that is no replica's; durable as ``delete``."""
        name = names.marked_name(partition, self._seams.new_uuid().hex, ending)
        self._disk.rename(path, target := f"{self.path}/{name}")
        self._renamed = True
        return target

    def take_over(self, path: str, final: str) -> None:
        """Give a complete copy the name of its replica; durable as ``delete``. OSError."""
        self._disk.rename(path, final)
        self._renamed = True

    def syncing_names(self, *, always: bool = False) -> Work[None]:
        """Make renamings durable, in pieces; ``always``: also another call's. OSError."""
        if self._renamed or always:
            self._renamed = False
            yield self._names.sync

    def due_removal(self) -> Removal | None:
        """Return the removal that is due in any log: ``run`` it anywhere, then ``removed``."""
        self.resources.files.take_up()  # every few seconds, even where no log is read
        return self.resources.removals.due(self._seams.clock.wall_ms())

    def removed(self, removal: Removal) -> None:
        """Take back a removal that was run; a failure is final, other remains are tried again."""
        self.resources.removals.finished(removal, self._seams.clock.wall_ms())
        if removal.error is not None and not self.resources.is_full(removal.error):
            self.resources.fail(f"removing from {self.path} failed: {removal.error}")

    # Checkpoints -----------------------------------------------------------------------------

    def checkpoint(self) -> Work[Checkpoint | None]:
        """Return the checkpoint files as they should be now; None when nothing has changed. In
        turns: thousands of logs take long.

        ``run`` it anywhere, then give it to ``checkpointed``. A recovery point never exceeds what a
        sync has returned for. None before all logs are loaded: the files would lose the others.
        """
        if not self._loaded:
            return None
        logs = ChainMap(self.logs, self.moving) if self.moving else self.logs
        return self._changed((yield from claims_of(logs)))

    def _changed(self, claims: Mapping[str, Offsets]) -> Checkpoint | None:
        contents: dict[str, bytes | Offsets] = {
            f"{self.path}/{name}": offsets for name, offsets in claims.items()
        }
        if self._life is not None:
            contents[f"{self.path}/{names.LIFE}"] = self._life
        named = frozenset(claims[names.RECOVERY_POINTS])
        # A thread may write the files at any later moment, so they may name these partitions.
        self._noted |= named
        return self._checkpoints.changed(contents, named)

    def writing_checkpoint(self) -> Work[None]:
        """Write the checkpoint files as they should be now, in pieces. OSError."""
        checkpoint = yield from self.checkpoint()
        if checkpoint is not None:
            yield checkpoint.run
            if checkpoint.error is not None:
                raise checkpoint.error
            self.checkpointed(checkpoint)

    def checkpointed(self, checkpoint: Checkpoint) -> None:
        """Take back a checkpoint that was run; a failure other than a full disk is final."""
        if checkpoint.error is None:
            if self._checkpoints.finished(checkpoint):
                # No other write is under way, and a late older one writes nothing.
                self._noted = set(checkpoint.named)
        elif not self.resources.is_full(checkpoint.error):
            self.resources.fail(f"writing checkpoints in {self.path} failed: {checkpoint.error}")

    # Start and stop --------------------------------------------------------------------------

    def recording_life(self, boot_id: str, *, durability: str) -> Work[bool]:
        """Record this boot of the operating system, once the broker is registered, in pieces.

        False when the disk is too full: then the record is written with the checkpoints. Until then
        the former record makes the next start more careful, not less; where it would make it less
        careful, OSError.

        The next start trusts what this boot has written. Before that, the checkpoints must drop the
        offsets of records that a power loss took: otherwise new records at these offsets would
        count as committed after a kill, and their torn tail as damage. This is not done at the
        load: until the loss is reported, the files keep the offsets.
        """
        path = f"{self.path}/{names.LIFE}"
        content = f"boot.id={boot_id}\nlog.durability={durability}\n".encode()
        self._registered = True
        try:
            if self._claims_lost_records:
                yield from self.writing_checkpoint()
                self._claims_lost_records = False
            if self._disk.exists(path) and self._disk.read(path) == content:
                return True
            yield partial(self._disk.replace, path, content)
        except OSError as error:
            claims_more = self.ran_synced and durability != "sync"
            if claims_more or not self.resources.is_full(error):
                raise
            self._life = content
            return False
        self._life = None
        return True

    def now_ms(self) -> int:
        """Return the wall clock, in ms."""
        return self._seams.clock.wall_ms()

    def free_bytes(self) -> int:
        """Return the free bytes of the file system."""
        return self._disk.free_bytes(self.path)

    def total_bytes(self) -> int:
        """Return the size of the file system in bytes."""
        return self._disk.total_bytes(self.path)

    def close(self, broker_epoch: int = -1) -> bool:
        """Stop cleanly: all logs synced, checkpoints, then the marker, durably; unlock.

        False (and no marker) when anything failed: the next start recovers. A directory that was
        not loaded stays as it is. If it was loaded by a process that never registered, it gets a
        marker only if it had one: an unclean end of an earlier process was not reported yet.
        """
        if not self._loaded:
            for log in self.logs.values():
                log.forget_files()
            self._unlock()
            return self.failed is None
        clean = close_all(self.logs.values(), self._seams.threads) and self.failed is None
        checkpoint = finish(self.checkpoint())
        if checkpoint is not None and clean:
            checkpoint.run()
            self.checkpointed(checkpoint)
            clean = checkpoint.error is None
        reported = self._registered or self.last_stop in (LastStop.NEW, LastStop.CLEAN)
        if clean and reported:
            marker = f"{self.path}/{names.CLEAN_SHUTDOWN}"
            try:
                self._disk.replace(marker, encode_clean_shutdown(broker_epoch))
            except OSError as error:
                self.resources.fail(f"writing {marker} failed: {error}")
                clean = False
        self._unlock()
        return clean

    def _unlock(self) -> None:
        self.resources.files.close()
        self._names.close()
        self._lock.close()

    def _remove_clean_marker(self) -> None:
        marker = f"{self.path}/{names.CLEAN_SHUTDOWN}"
        if self._disk.exists(marker):
            self._disk.remove(marker)
            self._names.sync()


def open_directory(
    seams: Seams,
    path: str,
    *,
    cluster_id: str,
    node_id: int,
    boot_id: str,
    open_files: int = DEFAULT_OPEN_FILES,
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    founded_as: str = "",
) -> LogDirectory | DirectoryRefused:
    """Lock a directory and check its identity; a fresh one gets ours. ``load`` opens its logs.

    Refused: another process has it, or it belongs to another cluster or node. OSError when the
    directory cannot be created or read.
    """
    claimed = claim(seams, path, cluster_id, node_id, boot_id, founded_as)
    if isinstance(claimed, DirectoryRefused):
        return claimed
    return LogDirectory(
        seams,
        path,
        claimed.lock,
        claimed.meta,
        claimed.last_stop,
        claimed.names,
        ran_synced=claimed.ran_synced,
        open_files=open_files,
        producer_expiration_ms=producer_expiration_ms,
    )
