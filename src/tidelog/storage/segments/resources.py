"""The resources that all logs of one directory share: disk, open files, index cache, fatal fault.

Owns the sharing. Not a log: see `log.state`. Promise 25: a failed write or fsync is final for the
directory, so the first one is kept here, and every log of the directory refuses appends after it.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.runtime.disk import Disk
from tidelog.storage.loaded import Loading
from tidelog.storage.removals import Removals
from tidelog.storage.segments.kept_reads import KeptReads
from tidelog.storage.segments.open_files import DEFAULT_OPEN_FILES, OpenFiles

DEFAULT_INDEX_CACHE_BYTES = 64 * 1024 * 1024

DISK_FULL = "the disk is full"

_HEALS = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: "the disk quota is used up",
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "this machine has too many open files",
}


class HoldsIndexes(Protocol):
    """A closed segment, as the index cache knows it."""

    def drop_indexes(self) -> None: ...


class IndexCache:
    """The closed segments whose indexes are in memory; the least recently used drops its own
    first."""

    def __init__(self, limit_bytes: int = DEFAULT_INDEX_CACHE_BYTES) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[HoldsIndexes, int] = OrderedDict()
        self.bytes = 0

    def hold(self, segment: HoldsIndexes, size: int) -> None:
        """Count a segment's freshly loaded indexes."""
        self.bytes += size - self._held.pop(segment, 0)
        self._held[segment] = size
        while self.bytes > self._limit and len(self._held) > 1:
            oldest, freed = self._held.popitem(last=False)
            self.bytes -= freed
            oldest.drop_indexes()

    def used(self, segment: HoldsIndexes) -> None:
        """Note that a segment was used just now."""
        if segment in self._held:
            self._held.move_to_end(segment)

    def forget(self, segment: HoldsIndexes) -> None:
        """Stop counting a segment (it was removed, or is the active one)."""
        self.bytes -= self._held.pop(segment, 0)


@dataclass
class Resources:
    """Shared by all logs of one directory; ``failed`` is the sentence of the fatal fault."""

    disk: Disk
    files: OpenFiles
    indexes: IndexCache = field(default_factory=IndexCache)
    kept_reads: KeptReads[Any] = field(default_factory=KeptReads)
    random: random.Random = field(default_factory=random.Random)
    removals: Removals = field(init=False)
    """Paths that are removed after a delay, in a thread."""
    checks_records: bool = False
    """Whether leaders check each record of a client's batch (``log.batch.check=full``)."""
    failed: str | None = None
    shortage: str | None = None
    """Why writes are refused now, if that can pass: no room; the broker reports it."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Unique numbers: for the names of files that two threads may write at the same time."""
    loading: Loading = field(default_factory=Loading)
    """The progress of the start."""
    on_failure: Callable[[str], None] | None = None
    """Called once, with the reason, when the directory fails."""
    on_refused: Callable[[str], None] | None = None
    """Called with the reason whenever a shortage that can pass (a full disk) refused an access."""
    sync_soon: Callable[[TopicPartition], bool] | None = None
    """Asks for a sync of a log by a thread; returns whether one will come."""
    on_damage: Callable[[TopicPartition], None] | None = None
    """Called when a log is found to be damaged: a thread then syncs the note of the damage, as all
    that a log has ``unsynced``. Without a function here the note is synced at once."""
    before_cut: Callable[[], Work[None]] | None = None
    """Makes lowered checkpoints durable before a log is cut below them, in pieces. OSError if it
    fails."""

    def __post_init__(self) -> None:
        self.removals = Removals(self.disk)

    @classmethod
    def of(cls, disk: Disk, open_files: int = DEFAULT_OPEN_FILES) -> Resources:
        return cls(disk, OpenFiles(disk, open_files))

    def passing(self, error: OSError) -> str | None:
        """Name a shortage that can pass (a full disk); None for any other failure, which is
        final."""
        return _HEALS.get(error.errno or 0)

    def refused_for(self, error: OSError) -> str | None:
        """Do as ``passing`` for an access that is refused now, and report it to ``on_refused``."""
        shortage = self.passing(error)
        if shortage is not None and self.on_refused is not None:
            self.on_refused(shortage)
        return shortage

    def is_full(self, error: OSError) -> bool:
        """Whether the error is a shortage that can pass: the same work may be tried again later."""
        return self.passing(error) is not None

    def asks_for_sync(self, partition: TopicPartition) -> bool:
        """Ask for a sync of a log by a thread; False where no thread does that."""
        return self.sync_soon is not None and self.sync_soon(partition)

    def fail(self, reason: str) -> None:
        """Take the directory out of service for good; only the first reason is kept."""
        if self.failed is None:
            self.failed = reason
            if self.on_failure is not None:
                self.on_failure(reason)
