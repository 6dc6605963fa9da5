"""The aborted transactions of what one Fetch of committed records reads (KIP-98).

Owns the range of their look-up, which is that of the records read, and how many one request gets.
Not the look-up: see ``storage.log.aborted_reading``; not how far a reader may read: see
``partitions.read_limit``.

Where a read has more of them than the request may still get, it has fewer records: it ends before
the first transaction that is left out. A transaction that covers the first batch is never left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.storage.log.aborted import ENTRY_BYTES, AbortedTransaction
from tidelog.storage.log.aborted_reading import MOST_OF_READ, aborted_between
from tidelog.storage.log.region import FileRegion

if TYPE_CHECKING:
    from tidelog.storage.log.state import LogState

MOST_OF_REQUEST = MOST_OF_READ
"""Aborted transactions in one response, unless more of them cover the first batch of a read."""

MOST_AT_ONCE = 1_000
"""Entries of the active segment among which the fast path looks."""

ENTRY_MEMORY = 120
"""Memory of one of them in a response under construction."""

_Aborted = messages.FetchResponse.AbortedTransaction


class AbortedOfRead(NamedTuple):
    """``end``: the records must end there, where not all are in ``transactions``; otherwise
    None."""

    transactions: list[AbortedTransaction]
    end: int | None


NOTHING_ABORTED = AbortedOfRead([], None)


def may_have_aborted(log: LogState, offset: int) -> bool:
    """Return whether any transaction was aborted in the segment of an offset, or after it. Reads
    nothing; O(log of the segments) where one was aborted anywhere."""
    bases = log.aborted.bases
    if not bases:
        return False
    return bases[-1] >= log.segments[log.segments.segment_at(offset)].base_offset


def nothing_aborted(log: LogState, offset: int, records: Any) -> bool:
    """Return whether it is known, without a file and after a short look, that no transaction was
    aborted in what was read from ``offset`` on. Its work has a limit: ``MOST_AT_ONCE``."""
    if not may_have_aborted(log, offset):
        return True
    base, held = log.segments.active.base_offset, log.aborted.held
    if offset < base or base not in held:
        return False
    if len(held[base].entries) > MOST_AT_ONCE * ENTRY_BYTES:
        return False
    return not aborted_between(log, offset, end_of(records)).transactions


def aborted_of_read(
    log: LogState, offset: int, records: Any, most: int, *, soon: bool = False
) -> AbortedOfRead:
    """Return the aborted transactions of what was read from ``offset`` on, ``most`` of them.

    Blocks as ``aborted_between`` does. OSError, Unsound; with ``soon`` Unproved.
    """
    end = end_of(records)
    reached = aborted_between(log, offset, end, most, soon=soon)
    if reached.end == end:
        return AbortedOfRead(reached.transactions, None)
    first = log.segments.header_at(offset)
    if first is not None and reached.end < first.next_offset:
        # Compaction has taken the batches before this one, and some transactions began there.
        reached = aborted_between(log, first.last_offset, end, most, soon=soon)
    return AbortedOfRead(reached.transactions, None if reached.end == end else reached.end)


def end_of(records: Any) -> int:
    """Return the offset after the last batch of records that were read, or one above it where they
    are part of a file. O(their batches)."""
    last = records[-1] if isinstance(records, list) else records
    if isinstance(last, FileRegion):
        return last.bound
    end = 0
    for _, header in walk(last):
        end = header.next_offset
    return end


def answered(transactions: list[AbortedTransaction]) -> list[Any]:
    """Return them as a response has them."""
    return [_Aborted(one.producer_id, one.first_offset) for one in transactions]
