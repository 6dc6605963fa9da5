"""The transactions of one partition's log: which are open, and up to where all is decided.

Owns the rule of the last stable offset (KIP-98). Pure. Not whose transaction it is: see
`producers`, whose snapshots have what is open. Each call takes the same time however many are
open, and memory grows with those that hold the last stable offset back.

| a transaction                                 | holds the last stable offset back           |
|-----------------------------------------------|---------------------------------------------|
| is open                                       | at its first record                         |
| ended by a marker at or above the watermark   | the same: the marker may still be cut       |
| ended by a marker below the watermark         | no                                          |
| began below the log's start                   | no further than to the log's start          |
| may be open again: a cut takes its marker     | at the log's start, until the cut has ended |
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple


class Ended(NamedTuple):
    """A transaction that has ended. ``at_ms``: when this log took its marker."""

    marker: int
    first_offset: int
    at_ms: int


class TransactionEvent(NamedTuple):
    """A transaction of a producer was begun (``marker_epoch`` is None), or ended by a marker."""

    offset: int
    producer_id: int
    epoch: int
    at_ms: int
    marker_epoch: int | None = None
    """The epoch of the coordinator that wrote the marker."""
    committed: bool = False


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended. Offsets of its first record and its marker."""

    producer_id: int
    first_offset: int
    marker: int
    last_stable_offset: int
    """Below it all is decided once the marker is committed."""
    committed: bool


class OpenTransactions:
    """The transactions of one log that are open, or whose markers may not be committed.

    A transaction is named by the offset of its first record.
    """

    __slots__ = ("_ended", "_first_of_open", "is_outdated", "unstable")

    def __init__(self, open_since: Iterable[int] = ()) -> None:
        """``open_since``: the first offsets of what is open."""
        rising = sorted(open_since)
        self._first_of_open: OrderedDict[int, None] = OrderedDict.fromkeys(rising)
        self.unstable: OrderedDict[int, None] = OrderedDict.fromkeys(rising)
        """Open or not known to be committed; rising, as the next one. Others only ask whether there
        are any."""
        self._ended: deque[Ended] = deque()
        """By the marker."""
        self.is_outdated = False
        """Whether what ended, and was forgotten, may be open again: a cut lowers the watermark, and
        has not read yet what it leaves."""

    def __len__(self) -> int:
        """How many are open."""
        return len(self._first_of_open)

    @property
    def ended(self) -> list[Ended]:
        """Those that have ended, as far as they are remembered, by their markers."""
        return list(self._ended)

    def before_uncommitted(self, time_ms: int, high_watermark: int) -> int:
        """Return a time before all markers that may not be committed, ``time_ms`` at most."""
        self.first_unstable(high_watermark)
        return min(time_ms, self._ended[0].at_ms - 1) if self._ended else time_ms

    def begin(self, first_offset: int) -> None:
        """A transaction begins at ``first_offset``, above all others."""
        self._first_of_open[first_offset] = None
        self.unstable[first_offset] = None

    def end(self, first_offset: int, marker: int, at_ms: int) -> int:
        """An open transaction ends at ``marker``, above all others.

        Return the first offset of what is open then, or the offset after the marker: below it all
        is decided once the marker is committed. Replicas have the same, but for one that was
        started at a later log start: it does not know what is open below that.
        """
        del self._first_of_open[first_offset]
        self._ended.append(Ended(marker, first_offset, at_ms))
        return next(iter(self._first_of_open), marker + 1)

    def first_unstable(self, high_watermark: int) -> int | None:
        """Return the first offset that is not known to be decided, None where all is.

        ``high_watermark``: never lower than before. What ended below it is forgotten.
        """
        if not self.unstable:
            return None
        ended = self._ended
        while ended and ended[0].marker < high_watermark:
            del self.unstable[ended.popleft().first_offset]
        return next(iter(self.unstable), None)

    def precede(self, ended: Iterable[Ended]) -> None:
        """Add transactions that ended before all others that are remembered here."""
        before = list(ended)
        self._ended.extendleft(reversed(before))
        firsts = [transaction.first_offset for transaction in before]
        self.unstable = OrderedDict.fromkeys(sorted([*firsts, *self.unstable]))


def last_stable(transactions: OpenTransactions, *, log_start: int, high_watermark: int) -> int:
    """Return the last stable offset: below it every transaction is decided, and its marker
    committed."""
    if transactions.is_outdated:
        return min(log_start, high_watermark)
    first = transactions.first_unstable(high_watermark)
    return high_watermark if first is None else min(max(first, log_start), high_watermark)
