"""Who waits for offsets of one partition to be committed, in the order of the offsets.

Owns the order and that each one is told once; when an offset is committed is ``partition``'s.
Grows with the requests that wait; one that waits no longer is to be forgotten by who made it.

A producer does not wait while the ISR is too small for the watermark to move (``too_few``); the
groups' coordinator does: what it has appended is committed later, or cut by another leader.

One that fails when it is told is logged: the others are told, and who told them goes on.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from tidelog.model.errors import ErrorCode

Committed = Callable[[ErrorCode], None]
"""Told once how it ended: NONE when the offset is below the high watermark."""

logger = logging.getLogger(__name__)

_offset_of = itemgetter(0)


class AwaitedCommits:
    """The queue of one partition."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[tuple[int, Committed, bool]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, offset: int, committed: Committed, *, patient: bool = True) -> None:
        """Have ``committed`` told when the high watermark has passed ``offset``.

        Who is not ``patient`` is also told when the ISR becomes too small.
        """
        # In order of offsets, not of arrival: a producer's retry waits for what is older.
        insort(self._entries, (offset, committed, patient), key=_offset_of)

    def forget(self, offset: int, committed: Committed) -> None:
        """Undo ``add``; nothing when it was told."""
        entries = self._entries
        at = bisect_left(entries, offset, key=_offset_of)
        while at < len(entries) and entries[at][0] == offset:
            if entries[at][1] is committed:
                del entries[at]
                return
            at += 1

    def reached(self, high_watermark: int) -> None:
        """Tell those whose offsets are below. They may append, and so reach more, meanwhile."""
        entries = self._entries
        while entries and entries[0][0] < high_watermark:
            _tell(entries.popleft()[1], ErrorCode.NONE)

    def too_few(self) -> None:
        """The ISR is below ``min.insync.replicas``: tell those that are not patient."""
        waiting = self._entries
        if all(patient for _, _, patient in waiting):
            return
        self._entries = deque(entry for entry in waiting if entry[2])
        for _, committed, patient in waiting:
            if not patient:
                _tell(committed, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def give_up(self, error: ErrorCode) -> None:
        """Tell all that it ended otherwise."""
        entries, self._entries = self._entries, deque()
        while entries:
            _tell(entries.popleft()[1], error)


def _tell(committed: Committed, error: ErrorCode) -> None:
    try:
        committed(error)
    except Exception:
        logger.exception("%r failed", committed)
