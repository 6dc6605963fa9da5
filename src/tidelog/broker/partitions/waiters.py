"""Waiters of one partition, and the events that wake them.

Owns the waiters. Not the events: see ``partition``; not the responses: see the handlers. A caller
that stops waiting removes its waiter.

| waiter | woken by |
|---|---|
| ``commits``: producers, the groups' coordinator | the high watermark passes their offset |
| ``readers``: Fetch requests of consumers | the high watermark moves; another leader epoch |
| ``fenced``: those that stand at a fence of a newer resize epoch | nothing else |
| ``followers``: their sessions and Fetch requests | an append; the log's start, the watermark |
| ``deletions``: DeleteRecords | the log's start moves on a follower |

All are woken when the leadership ends, or the partition is no longer served. An exception of a
waiter is logged, and the others are woken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from tidelog.broker.partitions.awaited_commits import AwaitedCommits
from tidelog.model.errors import ErrorCode

logger = logging.getLogger(__name__)


class Waiter(Protocol):
    """A request that waits for more records."""

    def more(self, size: int) -> None:
        """Check again: about ``size`` more bytes can be read, 0 if unknown."""


class FollowerWaiter(Waiter, Protocol):
    """A follower's fetch session, for one partition; called for each change to send next."""

    def moved(self) -> None:
        """The high watermark, the log start offset or the ISR has changed."""


class Waiting:
    """The waiters of one partition."""

    __slots__ = ("commits", "deletions", "fenced", "followers", "readers", "uncommitted_bytes")

    def __init__(self) -> None:
        self.commits = AwaitedCommits()
        self.readers: dict[Waiter, None] = {}
        self.fenced: dict[Waiter, None] = {}
        self.followers: dict[FollowerWaiter, None] = {}
        self.deletions: dict[Waiter, None] = {}
        self.uncommitted_bytes = 0
        """Bytes appended since the high watermark moved last, which readers get when it moves."""

    def committed(self, high_watermark: int) -> None:
        """Wake readers and commits after a move of the high watermark; they may move it again."""
        if self.commits.entries:
            self.commits.reached(high_watermark)
        if self.readers:
            wake(self.readers, self.uncommitted_bytes)
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

    def give_up(self, error: ErrorCode) -> None:
        """Wake all waiters: this partition is not served here any longer, with ``error``."""
        self.commits.give_up(error)
        wake(self.readers)
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
