"""What a check of batches has met of transactions, for a state of producers that follows it.

Owns what of that is kept. A start checks batches before it knows from which snapshot of producers
it goes on, and any of a producer's transactions may be open there. So of those that ended below the
watermark the last marker of each producer stays: it ends whichever is open. Pure.

| a producer has had                        | what is kept of it                            |
|-------------------------------------------|-----------------------------------------------|
| markers below the watermark               | the last one, with the highest epoch of them  |
| a transaction that it ended below it      | nothing else                                  |
| a marker at or above it, and what it ends | both: they hold the last stable offset back   |
| a transaction that is open                | where it begins                               |

Memory grows with the producers, with what is open, and with the markers that may not be committed.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.storage.log.transactions import TransactionEvent

NEVER = -1


class TransactionEvents:
    """The events of one log's transactions as far as they are kept, in the order of the log."""

    __slots__ = ("_by_offset", "_last_markers", "high_watermark", "newest_abort")

    def __init__(self, high_watermark: int = 0) -> None:
        """``high_watermark``: never above that of the log when the events are followed."""
        self.high_watermark = high_watermark
        self.newest_abort = NEVER
        """The offset of the last marker that aborts."""
        self._by_offset: dict[int, TransactionEvent] = {}
        self._last_markers: dict[int, int] = {}
        """By producer id, of those below the watermark."""

    def __iter__(self) -> Iterator[TransactionEvent]:
        return iter(self._by_offset.values())

    def __len__(self) -> int:
        return len(self._by_offset)

    def begun(self, event: TransactionEvent) -> None:
        """A transaction was begun, after all other events."""
        self._by_offset[event.offset] = event

    def ended(self, event: TransactionEvent, first_offset: int) -> None:
        """A marker came, after all other events. ``first_offset``: of what it ends, as far as that
        is known here; -1 for nothing."""
        if not event.committed:
            self.newest_abort = event.offset
        if event.offset < self.high_watermark:
            self._by_offset.pop(first_offset, None)
            before = self._last_markers.get(event.producer_id, NEVER)
            former = self._by_offset.pop(before, None)
            if former is not None and former.epoch > event.epoch:
                event = event._replace(epoch=former.epoch)
            self._last_markers[event.producer_id] = event.offset
        self._by_offset[event.offset] = event

    def clear(self) -> None:
        """Forget all but which marker was the last that aborts."""
        self._by_offset.clear()
        self._last_markers.clear()
