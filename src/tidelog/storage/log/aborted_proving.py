"""What a thread reads and checks before aborted transactions are looked up on the event loop.

Owns that step for one segment: its file where the check fits, otherwise its batches, as
`aborted_reading` does it itself. Not which segments need it: a look-up says so (``Unproved``). The
result counts only if the log's files of aborted transactions are the same afterwards.
"""

from __future__ import annotations

from array import array

from tidelog.storage.log.aborted import encode_aborted, lowest_firsts
from tidelog.storage.log.aborted_files import ProvedFile, read_entries
from tidelog.storage.log.aborted_recovery import aborted_by_batches
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.soundness import Unsound

CHECKED_AT_ONCE = 64 * 1024
"""Bytes of a file that a look-up checks itself: 2,000 entries, in less than a millisecond."""


class Unproved(Exception):
    """A look-up needs a segment whose file is long, missing or wrong, and was not checked yet."""

    def __init__(self, base: int) -> None:
        super().__init__(f"the aborted transactions of the segment {base} are not checked")
        self.base = base


class ProvingRead:
    """The check of one segment that any thread may ``run``; then ``done`` on the owner's thread,
    always, as of a ``cold.ColdRead``."""

    __slots__ = ("_base", "_changes", "_entries", "_is_file", "_log", "_lowest", "_segments")

    def __init__(self, log: LogState, base: int) -> None:
        self._log = log
        self._base = base
        self._segments = tuple(log.segments[: log.segments.segment_at(base) + 1])
        self._changes = log.aborted.changes
        self._entries: bytes | None = None
        self._lowest: array[int] | None = None
        self._is_file = True

    def run(self) -> None:
        """Read and check. Blocks; the look-up that comes afterwards meets the errors."""
        log, base, end = self._log, self._base, self._segments[-1].next_offset
        disk = log.resources.disk
        try:
            entries, _ = read_entries(disk, log.path, base, end)
            if entries is None:
                self._is_file = False
                of_batches = aborted_by_batches(disk, log.path, self._segments, base, end)
                entries = encode_aborted(of_batches)
            self._lowest = lowest_firsts(entries)
            self._entries = entries
        except (OSError, Unsound):
            pass

    def done(self) -> None:
        """Let look-ups use what was found."""
        log, entries, lowest = self._log, self._entries, self._lowest
        if entries is None or lowest is None or log.aborted.changes != self._changes:
            return
        if self._is_file:
            log.aborted.proved[self._base] = ProvedFile(len(entries), lowest)
        elif log.change is not LogChange.SWAP:
            # The next sync writes the file again: not while a thread gives it another name.
            log.aborted.hold(self._base, entries, lowest=lowest)
            log.resources.asks_for_sync(log.partition)
