"""Callbacks that wait for the commit of offsets of one partition, in the order of the offsets.

Owns the order, and that each is called once. Not when an offset is committed: see ``partition``.
Memory grows with the waiting requests; a caller that stops waiting calls ``forget``.

A producer does not wait while the ISR is too small for the high watermark to move (``too_few``).
The group coordinator does: its records are committed later, or truncated under another leader.

An exception of a callback is logged, and the other callbacks are called.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from tidelog.model.errors import ErrorCode

Committed = Callable[[ErrorCode], None]
"""Called once with the outcome: NONE when the offset is below the high watermark."""

logger = logging.getLogger(__name__)

_offset_of = itemgetter(0)


class AwaitedCommits:
    """The queue of one partition."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: deque[tuple[int, Committed, bool]] = deque()
        """By offset. Others only ask whether there are any."""

    def add(self, offset: int, committed: Committed, *, patient: bool = True) -> None:
        """Call ``committed`` when the high watermark has passed ``offset``.

        If not ``patient``, call it also when the ISR becomes too small.
        """
        # In order of offsets, not of arrival: a producer's retry waits for older records.
        insort(self.entries, (offset, committed, patient), key=_offset_of)

    def forget(self, offset: int, committed: Committed) -> None:
        """Undo ``add``; without effect after the call."""
        entries = self.entries
        place = bisect_left(entries, offset, key=_offset_of)
        while place < len(entries) and entries[place][0] == offset:
            if entries[place][1] is committed:
                del entries[place]
                return
            place += 1

    def reached(self, high_watermark: int) -> None:
        """Call those with offsets below. A callback may append, and so call this again."""
        entries = self.entries
        while entries and entries[0][0] < high_watermark:
            _call(entries.popleft()[1], ErrorCode.NONE)

    def too_few(self) -> None:
        """Call those that are not patient: the ISR is too small for acks=all."""
        waiting = self.entries
        if all(patient for _, _, patient in waiting):
            return
        self.entries = deque(entry for entry in waiting if entry[2])
        for _, committed, patient in waiting:
            if not patient:
                _call(committed, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def give_up(self, error: ErrorCode) -> None:
        """Call all with an error."""
        entries, self.entries = self.entries, deque()
        while entries:
            _call(entries.popleft()[1], error)


def _call(committed: Committed, error: ErrorCode) -> None:
    try:
        committed(error)
    except Exception:
        logger.exception("%r failed", committed)
