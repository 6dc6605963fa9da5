"""A removal of positions that is under way: the records that it has still to write.

Owns the cut into parts of ``PART`` records. Not when a part is written: see `removals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tidelog.groups.records import Record
from tidelog.model.effects import Answer

PART = 250
"""Records that one decision writes: 2.5 ms from the decision to the log."""


class PendingRemoval:
    """A removal under way: its remaining records, and the requests that wait for its end."""

    __slots__ = ("_ahead", "_records", "answers", "is_refused", "parts", "whole")

    def __init__(
        self, records: Iterator[Record], answers: tuple[Answer, ...] = (), *, whole: bool
    ) -> None:
        """``whole``: the group is removed, and its tombstone is the last of ``records``."""
        self._records = records
        self._ahead: list[Record] = []
        self.whole = whole
        self.answers = answers
        self.is_refused = False
        """Whether the log refused a part, and the rest waits for its time."""
        self.parts = 0
        """Parts that were decided, and not refused."""

    @property
    def has_more(self) -> bool:
        """Whether there are more records to write, as far as ``take`` has looked ahead."""
        return bool(self._ahead)

    def take(self) -> list[Record]:
        """Return the next part; fewer than ``PART`` records, or none, at the end."""
        taken = self._ahead
        # One more, to know the last part when it is written.
        taken.extend(islice(self._records, PART + 1 - len(taken)))
        part, self._ahead = taken[:PART], taken[PART:]
        return part

    def put_back(self, records: tuple[Record, ...]) -> None:
        """Put taken records back, before all others."""
        self._ahead[:0] = records
