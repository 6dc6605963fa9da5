"""The state of one partition that a fetcher reads: position, buffered batches, errors. No I/O.

Owns that state. Not the requests: see ``fetcher``.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field, replace

from tidelog.client.errors import ClientError, Refused, TakenOver
from tidelog.client.fetching.batches import Fetched, split_at
from tidelog.client.fetching.fetch_sessions import PartitionFetch
from tidelog.client.offsets import EpochEnd
from tidelog.client.retries import is_worth_retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.runtime.backoff import Backoff

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FetchedPartition:
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
    lagging_since: float | None = None
    leader: int = -1
    leader_epoch: int = -1
    asked_in: int = -1
    """The leader epoch in which the leader was last checked for truncation."""
    waits_for: str = ""
    """The task that must end before its leader is looked up again."""
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
    named: Named = NOT_NAMED
    """Count and epochs of its requests; NOT_NAMED: those of a reader that is not aware."""
    gate: int | None = None
    """Up to this offset it may be returned; None: as far as it was fetched."""

    def wants_more(self, most_bytes: int) -> bool:
        """Whether it may be fetched now, with less than so many bytes buffered."""
        return (
            not self.busy
            and not self.paused
            and self.problem is None
            and (self.stop is None or self.fetch_offset < self.stop)
            and self.buffered_bytes < most_bytes
        )

    def is_ready(self) -> bool:
        """Whether a buffered batch may be returned."""
        if not self.buffered or self.paused:
            return False
        return self.gate is None or self.buffered[0].offset < self.gate

    def wanted(self, most_bytes: int) -> PartitionFetch:
        """Return what its leader is asked for next."""
        return PartitionFetch(self.fetch_offset, most_bytes, self.leader_epoch, named=self.named)

    def add(self, fetched: Fetched) -> int:
        """Buffer what was fetched, and fetch on after it; return its bytes."""
        self.fetch_offset, self.fetch_epoch = fetched.next_offset, fetched.leader_epoch
        self.buffered.append(fetched)
        self.buffered_bytes += (size := len(fetched.records))
        return size

    def reset_to(self, offset: int) -> None:
        """Fetch on at the offset of a reset; what is buffered is returned before."""
        self.fetch_offset, self.fetch_epoch = offset, -1
        if not self.buffered:
            self.position, self.epoch = offset, -1

    def take(self) -> Fetched | None:
        """Remove the first buffered batches that may be returned, and go past them.

        None: there are none before the gate; then the position is at the gate.
        """
        fetched: Fetched | None = self.buffered.popleft()
        assert fetched is not None
        if self.gate is not None and fetched.next_offset > self.gate:
            fetched, rest = split_at(fetched, self.gate)
            if rest is not None:
                self.buffered.appendleft(replace(rest, offset=max(rest.offset, self.gate)))
        if fetched is None:
            assert self.gate is not None
            self.position = self.gate
            return None
        self.position, self.epoch = fetched.next_offset, fetched.leader_epoch
        return fetched

    def least_epoch(self, now: float, longest_ms: int) -> int:
        """Return the lowest epoch of a leader that can have the records before the position.

        A deposed leader that does not know it yet would report the position as out of range. But a
        committed position can be from an earlier topic of this name with higher epochs: a leader
        that metadata name for ``longest_ms`` is accepted.
        """
        if self.lagging_since is not None and (now - self.lagging_since) * 1000 > longest_ms:
            return -1
        return self.fetch_epoch

    def fails_for_good(self, error: ClientError, now: float, limit_ms: int) -> bool:
        """Take up a failure: whether the partition stops. Otherwise its leader is looked for again.

        A failure that lasts longer than ``limit_ms`` is logged, once.
        """
        if self.failing_since is None:
            self.failing_since = now
        lasted_ms = (now - self.failing_since) * 1000
        unknown = isinstance(error, Refused) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not is_worth_retrying(error) or (unknown and lasted_ms > limit_ms):
            self.problem = error
            return True
        if lasted_ms > limit_ms and not self.is_said:
            self.is_said = True
            sentence = "%s: nothing could be read for %d ms: %s"
            logger.warning(sentence, self.partition, lasted_ms, error)
        self.leader, self.waits_for = -1, ""
        return False

    def pause_s(self, error: ClientError, backoff: Backoff) -> float:
        """Return the pause before its leader is looked for again.

        None at first where the leader has only begun a newer leader epoch, as at each resize, or
        where metadata show the leader that has taken over.
        """
        fenced = isinstance(error, Refused) and error.code == ErrorCode.FENCED_LEADER_EPOCH
        is_known = fenced or isinstance(error, TakenOver)
        return 0.0 if is_known and not self.failures else backoff.pause_s(self.failures)

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
