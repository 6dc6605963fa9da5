"""The leader epoch cache of a log: the offset where each leader epoch begins.

Owns the list in memory. Pure. Not its file format: see `checkpoints`. Not its file: see
`log.epoch_writing`. Source: KIP-101 and KIP-279 as Apache Kafka's leader epoch cache applies them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class LeaderEpochs:
    """(epoch, start offset) pairs, both rising."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries = list(entries)
        self.latest = self.entries[-1][0] if self.entries else -1
        """The newest epoch, -1 when there is none. A field: each append compares it."""
        self._below: list[tuple[int, int]] = []
        """The entries that ``truncate_start`` dropped or moved, up to the epoch of the log's
        start."""

    def begin(self, epoch: int, start_offset: int) -> bool:
        """Note that ``epoch`` begins at an offset; False when nothing changes.

        An epoch that got no records is replaced by the next one at its offset.
        """
        if epoch < 0 or epoch <= self.latest:
            return False
        while self.entries and self.entries[-1][1] >= start_offset:
            self.entries.pop()
        self.entries.append((epoch, start_offset))
        self.latest = epoch
        return True

    def end_of(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the greatest epoch not above ``epoch``; (-1, -1) if none.

        ``end_offset`` is the log's. An epoch above all known ones is unknown: (-1, -1).
        """
        if epoch < 0 or not self.entries or epoch > self.latest:
            return -1, -1
        if epoch == self.latest:
            return epoch, end_offset
        place = bisect_right(self.entries, (epoch, 2**63))
        if place == 0:
            # The epoch is older than all of this log: the other log must be cut to our start.
            return epoch, self.entries[0][1]
        return self.entries[place - 1][0], self.entries[place][1]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at an offset, -1 before the first known epoch."""
        place = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[place - 1][0] if place else -1

    def truncate_end(self, end_offset: int) -> bool:
        """Drop the epochs that begin at or after the log's new end; whether any was dropped."""
        keep = bisect_left(self.entries, end_offset, key=lambda entry: entry[1])
        changed = keep < len(self.entries)
        del self.entries[keep:]
        self.latest = self.entries[-1][0] if self.entries else -1
        del self._below[bisect_left(self._below, end_offset, key=lambda entry: entry[1]) :]
        return changed

    def truncate_start(self, start_offset: int) -> bool:
        """Drop the epochs before the log's new start, except for the epoch that holds it."""
        place = bisect_right(self.entries, start_offset, key=lambda entry: entry[1])
        if place == 0 or (place == 1 and self.entries[0][1] == start_offset):
            return False
        taken = self.entries[:place]
        if self._below and self._below[-1][0] == taken[0][0]:
            del taken[0]  # the offset where it really began is known
        self._below += taken
        self.entries[:place] = [(self.entries[place - 1][0], start_offset)]
        return True

    def all_from(self, offset: int) -> list[tuple[int, int]]:
        """Return the epochs from an offset on, including known ones below the log's start."""
        entries = self.entries
        if self._below:
            whole = LeaderEpochs()
            for epoch, start in self._below + entries:
                whole.begin(epoch, start)  # the epoch of the log's start keeps its first offset
            whole.truncate_start(offset)
            entries = whole.entries
        return list(entries)

    def clear(self) -> None:
        """Forget all."""
        self.entries.clear()
        self.latest = -1
        self._below.clear()
