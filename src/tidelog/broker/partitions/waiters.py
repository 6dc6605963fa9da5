"""Who waits at one partition, and what wakes each of them.

Owns the waiting; when something has happened is ``partition``'s, and what is then answered the
handlers'. One that waits no longer is to be taken off by who put it there.

| who waits | woken by |
|---|---|
| ``commits``: producers, the groups' coordinator | the high watermark passes their offset |
| ``readers``: Fetch requests of consumers | the high watermark moves; another leader epoch |
| ``followers``: their sessions and Fetch requests | an append; the log's start, the watermark |
| ``deletions``: DeleteRecords | the log's start moves on a follower |

All are woken when the partition leads no more, or serves no more. One that fails when it is woken
is logged: the others are woken, and who wakes them goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from tidelog.broker.partitions.awaited_commits import AwaitedCommits
from tidelog.model.errors import ErrorCode

logger = logging.getLogger(__name__)


class Waiter(Protocol):
    """A request that waits for more to read."""

    def more(self, size: int) -> None:
        """About ``size`` more bytes can be read, or 0: look again."""


class FollowerWaiter(Waiter, Protocol):
    """A follower's session, for one partition; told of all that its next answer must say."""

    def moved(self) -> None:
        """The high watermark, the log's start or the ISR is another one."""


class Waiting:
    """Those who wait at one partition."""

    __slots__ = ("commits", "deletions", "followers", "readers", "uncommitted_bytes")

    def __init__(self) -> None:
        self.commits = AwaitedCommits()
        self.readers: dict[Waiter, None] = {}
        self.followers: dict[FollowerWaiter, None] = {}
        self.deletions: dict[Waiter, None] = {}
        self.uncommitted_bytes = 0
        """What came since the high watermark moved last: what readers get when it moves."""

    def committed(self, high_watermark: int) -> None:
        """The high watermark has moved. Those who are told may append, and so move it, again."""
        self.commits.reached(high_watermark)
        if self.readers:
            wake(self.readers, self.uncommitted_bytes)
        self.uncommitted_bytes = 0
        if self.followers:
            self.moved()

    def moved(self) -> None:
        """What followers are told besides records is another: the watermark, or the ISR."""
        for waiter in self.followers:
            waiter.moved()

    def start_moved(self) -> None:
        """The log begins later than before: followers hear of it at once."""
        wake(self.followers)

    def give_up(self, error: ErrorCode) -> None:
        """Nothing more comes of this partition here, as ``error`` says."""
        self.commits.give_up(error)
        wake(self.readers)
        wake(self.followers)
        wake(self.deletions)


def wake(waiters: Iterable[Waiter], size: int = 0) -> None:
    """Tell each of ``size`` more bytes; with none, to look again."""
    for waiter in list(waiters):
        try:
            waiter.more(size)
        except Exception:
            logger.exception("%r failed", waiter)
