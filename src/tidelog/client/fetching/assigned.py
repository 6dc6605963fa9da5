"""The state of one partition that a fetcher reads: position, buffered batches, errors. No I/O.

Owns that state. Not the requests: see ``fetcher``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tidelog.client.errors import ClientError
from tidelog.client.fetching.batches import Fetched
from tidelog.client.offsets import EpochEnd
from tidelog.model.topics import TopicPartition


@dataclass(slots=True)
class Assigned:
    """One partition that is read. ``incarnation`` changes with each seek, to detect old responses.

    ``epoch`` and ``fetch_epoch``: the leader epoch of the record before the position, and of the
    record before the fetch offset; -1 when unknown.
    """

    partition: TopicPartition
    position: int
    fetch_offset: int
    stop: int | None = None
    incarnation: int = 0
    epoch: int = -1
    fetch_epoch: int = -1
    behind_since: float | None = None
    leader: int = -1
    leader_epoch: int = -1
    asked_in: int = -1
    """The leader epoch in which the leader was last checked for truncation."""
    busy: bool = False
    paused: bool = False
    failures: int = 0
    failing_since: float | None = None
    is_said: bool = False
    """Whether the failures since then have been logged."""
    not_before: float = 0.0
    buffered: deque[Fetched] = field(default_factory=deque)
    buffered_bytes: int = 0
    problem: ClientError | None = None

    def cut_back(self, end: EpochEnd) -> int:
        """Go back to where the log was truncated; return how many buffered bytes were dropped.

        Buffered batches below the truncation stay; fetching continues after them.
        """
        dropped = 0
        while self.buffered and self.buffered[-1].next_offset > end.end_offset:
            dropped += len(self.buffered.pop().records)
        self.buffered_bytes -= dropped
        if self.buffered:
            last = self.buffered[-1]
            self.fetch_offset, self.fetch_epoch = last.next_offset, last.leader_epoch
            return dropped
        if self.position > end.end_offset:
            self.position, self.epoch = end.end_offset, end.leader_epoch
        self.fetch_offset, self.fetch_epoch = self.position, self.epoch
        return dropped
