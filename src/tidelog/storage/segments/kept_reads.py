"""Small reads that are given again without the file: many groups read the same newest batches.

Owns what is kept of each log of a directory, its last such read, and when another read is the
same. What is kept was checked when it was read (promise 26). Not the reads: see `log.reading`. A
log whose segments are cut, replaced or closed is forgotten.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Log = TypeVar("Log")

MOST_BYTES = 2048
"""Of one read."""

MOST_READS = 2048
"""Of one directory, in 5 MB; the oldest makes way."""


class KeptRead(NamedTuple):
    """All batches from an offset to a limit; or none, where the first one exceeds ``max_bytes``."""

    offset: int
    limit: int
    data: memoryview
    max_bytes: int


class KeptReads(Generic[Log]):
    """The last small read of each log."""

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        self._reads: dict[Log, KeptRead] = {}

    def find(
        self, log: Log, offset: int, max_bytes: int, limit: int, at_least_one: bool
    ) -> memoryview | None:
        """Return what the read of a log gave before, if the same bytes are to be given now."""
        kept = self._reads.get(log)
        if kept is None or kept[0] != offset or kept[1] != limit:
            return None
        data = kept[2]
        if data:
            return data if len(data) <= max_bytes else None
        return data if max_bytes == kept[3] and not at_least_one else None

    def keep(self, log: Log, read: KeptRead) -> None:
        """Keep a read instead of the log's former one."""
        if log not in self._reads and len(self._reads) >= MOST_READS:
            del self._reads[next(iter(self._reads))]
        # A copy: the bytes that were read may be many more.
        self._reads[log] = read._replace(data=memoryview(bytes(read.data)))

    def forget(self, log: Log) -> None:
        """Keep nothing of a log."""
        self._reads.pop(log, None)
