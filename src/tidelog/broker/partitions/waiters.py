"""Waiters of one partition, and the events that wake them.

Owns the waiters. Not the events: see ``partition``; not the responses: see the handlers. A caller
that stops waiting removes its waiter.

| waiter | woken by |
|---|---|
| ``commits``: producers, the groups' coordinator | the high watermark passes their offset |
| ``readers``: Fetch requests of consumers | the high watermark moves; another leader epoch |
| ``stable``: those at read_committed (KIP-98) | the last stable offset moves; the same |
| ``fenced``: those that stand at a fence of a newer resize epoch | nothing else |
| ``followers``: their sessions and Fetch requests | an append; the log's start, the watermark |
| ``deletions``: DeleteRecords | the log's start moves on a follower |

All are woken when the leadership ends, or the partition is no longer served. An exception of a
waiter is logged, and the others are woken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.partitions.awaited_commits import AwaitedCommits
from tidelog.model.errors import ErrorCode
from tidelog.records.record import CorruptRecords
from tidelog.storage.log.stable import last_stable_offset

if TYPE_CHECKING:
    from tidelog.storage.log.state import LogState

logger = logging.getLogger(__name__)


class Waiter(Protocol):
    """A request that waits for more records."""

    def more(self, size: int) -> None:
        """Check again: about ``size`` more bytes can be read, 0 if unknown."""


class FollowerWaiter(Waiter, Protocol):
    """A follower's fetch session, for one partition; called for each change to send next."""

    def moved(self) -> None:
        """The high watermark, the log start offset or the ISR has changed."""


class StableReaders:
    """Those that wait for the last stable offset of one log, which moves with its watermark."""

    __slots__ = ("_mark", "_offset", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Waiter, None] = {}
        self._offset = self._mark = -1
        """The last stable offset and the high watermark of which those that wait know."""

    def of(self, log: LogState) -> dict[Waiter, None]:
        """Return where to wait from now on."""
        if not self.waiting:
            self._offset, self._mark = last_stable_offset(log), log.high_watermark
        return self.waiting

    def committed(self, log: LogState, size: int) -> None:
        """The high watermark has moved by ``size`` bytes: wake them if the stable offset has."""
        before, former_mark = self._offset, self._mark
        offset, self._mark = last_stable_offset(log), log.high_watermark
        if offset == before:
            return
        self._offset = offset
        if before != former_mark or offset != log.high_watermark:
            size = bytes_below_stable(log, before, offset)
        wake(self.waiting, size)


def bytes_below_stable(log: LogState, begin: int, end: int) -> int:
    """Return the bytes of batches between two offsets; 0 where the log cannot be read: a reader
    that is woken meets the error."""
    try:
        return log.segments.bytes_between(begin, end)
    except (OSError, CorruptRecords):
        return 0


class Waiting:
    """The waiters of one partition."""

    __slots__ = (
        "commits",
        "deletions",
        "fenced",
        "followers",
        "readers",
        "stable",
        "uncommitted_bytes",
    )

    def __init__(self) -> None:
        self.commits = AwaitedCommits()
        self.readers: dict[Waiter, None] = {}
        self.stable = StableReaders()
        self.fenced: dict[Waiter, None] = {}
        self.followers: dict[FollowerWaiter, None] = {}
        self.deletions: dict[Waiter, None] = {}
        self.uncommitted_bytes = 0
        """Bytes appended since the high watermark moved last, which readers get when it moves."""

    def committed(self, log: LogState) -> None:
        """Wake readers and commits after a move of the high watermark; they may move it again."""
        if self.commits.entries:
            self.commits.reached(log.high_watermark)
        if self.readers:
            wake(self.readers, self.uncommitted_bytes)
        if self.stable.waiting:
            self.stable.committed(log, self.uncommitted_bytes)
        self.uncommitted_bytes = 0
        if self.followers:
            self.moved()

    def moved(self) -> None:
        """Notify followers of a new high watermark or ISR."""
        for waiter in self.followers:
            waiter.moved()

    def start_moved(self) -> None:
        """Wake followers: the log start offset has moved."""
        wake(self.followers)

    def epoch_began(self, *, led_before: bool) -> None:
        """Wake those whose rules are others in another leader epoch.

        Delayed fetches of a leader's followers have the former epoch: they are refused at once.
        """
        if led_before:
            wake(self.followers)
        else:
            self._wake_readers()

    def _wake_readers(self) -> None:
        wake(self.readers)
        wake(self.stable.waiting)

    def give_up(self, error: ErrorCode) -> None:
        """Wake all waiters: this partition is not served here any longer, with ``error``."""
        self.commits.give_up(error)
        self._wake_readers()
        wake(self.fenced)
        wake(self.followers)
        wake(self.deletions)


def wake(waiters: Iterable[Waiter], size: int = 0) -> None:
    """Wake each waiter, with ``size`` more bytes."""
    for waiter in list(waiters):
        try:
            waiter.more(size)
        except Exception:
            logger.exception("%r failed", waiter)
