"""What a log loses at its beginning: retention, DeleteRecords, and producers that are silent.

Owns the steps of it, in pieces (``runtime.turns``): the log's owner decides and lets go, a thread
renames and syncs. What is appended meanwhile stays. Which segments go is ``retention``'s.

| step | where |
|---|---|
| if all segments go: what a roll would sync | a thread |
| which segments go; a roll if all do | the owner, in one turn |
| a durable snapshot of the producers of what goes | a thread |
| the log begins behind them, readers find them no more | the owner |
| their files are renamed, each durably before the next; older snapshots go | a thread |
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected
from tidelog.runtime.turns import Pieces, at_once
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.reading import LogReading
from tidelog.storage.log.retention import Expiry, expired
from tidelog.storage.log.snapshots import remove_snapshots

FORGOTTEN_AT_ONCE = 1_000
"""Producers: a millisecond, or two."""


class LogExpiry(LogReading):
    """What goes from the beginning of a log."""

    def advance_start(self, offset: int, *, later: bool = False) -> Rejected | None:
        """Begin the log at ``offset`` (DeleteRecords, a leader's log start): older records go.

        OFFSET_OUT_OF_RANGE above the high watermark; below the present start nothing happens. The
        leader epochs that this ends are written now, or ``later``: before the next sync.
        """
        if self.damaged or self.closed:
            return self._out_of_service()
        if offset > self.high_watermark:
            return Rejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is above the high watermark {self.high_watermark}",
            )
        if offset > self.start_offset:
            self.start_offset = offset
            self.first_dirty_offset = max(self.first_dirty_offset, offset)
            if self.epochs.truncate_start(offset):
                self._write_epochs(later=later)
        return None

    def housekeep(self, now_ms: int, *, at_most: int | None = None) -> str | None:
        """Do as ``housekeeping``, at once. Blocks."""
        return at_once(self.housekeeping(now_ms, at_most=at_most))

    def housekeeping(self, now_ms: int, *, at_most: int | None = None) -> Pieces[str | None]:
        """Apply retention, forget silent producers, in pieces; nothing while the log is changed.

        Returns a sentence for the log when segments went: ``at_most`` so many, each of which costs
        a sync of the directory. Grows with the number of segments. Their files are removed when
        their renaming is durable and ``file.delete.delay.ms`` is over (``Resources.removals``).
        """
        if self.failed or self.closed or self.changing:
            return None
        self.changing = True
        try:
            silent_since = now_ms - self.producer_expiration_ms
            yield from forgotten(self.producers, silent_since)
            return (yield from self._apply_retention(now_ms, at_most))
        except OSError as error:
            self._trouble(error)
            return None
        finally:
            self.changing = False

    def keeping_producers(self, before: int) -> Pieces[bool]:
        """Whether the producers of all before an offset are known without its batches, durably.

        Their retries must be recognised when those are gone. OSError if the disk fails.
        """
        return (
            yield from self.snapshots.keep(
                before,
                self.synced_end_offset,
                lambda: (self.end_offset, self.producers),
                self._note_names,
            )
        )

    def _expired(self, now_ms: int) -> Expiry:
        return expired(
            self.segments,
            self.configs,
            start_offset=self.start_offset,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
        )

    def _apply_retention(self, now_ms: int, at_most: int | None) -> Pieces[str | None]:
        expiry = self._expired(now_ms)
        if expiry.count == len(self.segments):
            while self._waits_to_roll:
                yield from self._syncing_before_roll()
            # What was appended meanwhile does not go with what was old before.
            expiry = self._expired(now_ms)
        count = expiry.count if at_most is None else min(expiry.count, at_most)
        if count and count == len(self.segments) and self.roll(now_ms) is not None:
            # A full disk has no room for a new segment: what makes room goes all the same.
            count -= 1
        while count and not (yield from self.keeping_producers(self.segments[count].base_offset)):
            count -= 1
        if not count or self.failed or self.closed:
            return None
        doomed = self.segments[:count]
        start = self.segments[count].base_offset
        # First: where the removal stops half-way (no descriptor left), readers must not pass over
        # what went as if it had never been.
        self.advance_start(start, later=True)
        departing = self.let_go(doomed)
        older = _OlderSnapshots(self, start)
        try:
            yield _both(departing.run, older.run)
        finally:
            self.gone(departing, now_ms)
            for path in older.removed:
                self.resources.files.forget(path)
        self.synced_end_offset = max(self.synced_end_offset, start)
        removed = sum(segment.size for segment in doomed)
        return (
            f"{self.partition}: {count} segments with {removed} bytes removed "
            f"({expiry.reason}), the log begins at offset {self.start_offset}"
        )


def forgotten(producers: ProducerState, silent_since_ms: int) -> Pieces[None]:
    """Forget silent producers, in turns: even giving up the memory of many takes long."""
    while producers.expire(silent_since_ms, FORGOTTEN_AT_ONCE) == FORGOTTEN_AT_ONCE:
        yield None


class _OlderSnapshots:
    # Removes the snapshots of producers below an offset, in any thread.
    def __init__(self, log: LogReading, start: int) -> None:
        self._disk, self._directory, self._start = log.resources.disk, log.path, start
        self.removed: list[str] = []

    def run(self) -> None:
        self.removed = remove_snapshots(self._disk, self._directory, below=self._start)


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        second()

    return run
