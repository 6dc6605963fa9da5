"""The last stable offset of a log, and what follows when a transaction in it has ended (KIP-98).

Owns both. Not the rule of the offset: see `transactions`. Not what is open: see `producers`.
"""

from __future__ import annotations

from tidelog.storage.log.aborted import aborted
from tidelog.storage.log.state import LogState
from tidelog.storage.log.transactions import EndedTransaction, last_stable
from tidelog.storage.segments.segment import NO_ROOM


def last_stable_offset(log: LogState) -> int:
    """Return the offset below which every transaction is decided, and its marker committed.

    Between the log's start and its high watermark; the same time however many are open.
    """
    transactions = log.producers.transactions
    if not transactions.unstable and not transactions.is_outdated:
        return log.high_watermark  # nearly always, and each Fetch asks
    return last_stable(
        transactions,
        log_start=log.start_offset,
        high_watermark=log.high_watermark,
    )


def transaction_ended(log: LogState, ended: EndedTransaction) -> None:
    """Account for a marker that was appended to the active segment."""
    entry = aborted(ended)
    if entry is not None:
        active = log.segments.active
        log.aborted.add(active.base_offset, entry)
        if log.aborted.fills(active.base_offset):
            active.room = NO_ROOM
    # What ended before and is committed is forgotten, whether or not a reader asks.
    last_stable_offset(log)
