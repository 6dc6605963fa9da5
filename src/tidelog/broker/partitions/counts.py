"""What partitions have seen since this broker started: the counters that ``/metrics`` shows.

Owns the counts of one partition, each an addition where the work is done, and what stays of them
when the partition goes: a counter that steps back is taken for a restart, and all that it says
afterwards for new. Written by the event loop's thread, read by the endpoint's.

| count | what it counts |
|---|---|
| ``appends`` | batches that this broker appended as leader, for clients and for groups |
| ``fetches`` | reads for a Fetch of a consumer or follower, where there was something to read |
| ``refused_appends``, ``refused_fetches`` | those that got an error; not one of ``ELSEWHERE`` |
| ``replicated_in``, ``replicated_out`` | bytes that a follower got, and that followers were given |
| ``isr_shrinks``, ``isr_expansions`` | changes of the ISR of a partition that is led here |
| ``messages`` | records appended while this broker led |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition

ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""What a client is told after a move: no failure, as in Kafka's meters of failed requests."""


class Counts:
    """Of one hosted partition."""

    __slots__ = (
        "_messages",
        "appends",
        "fetches",
        "isr_expansions",
        "isr_shrinks",
        "refused_appends",
        "refused_fetches",
        "replicated_in",
        "replicated_out",
    )

    def __init__(self) -> None:
        self.appends = 0
        self.fetches = 0
        self.refused_appends = 0
        self.refused_fetches = 0
        self.replicated_in = 0
        self.replicated_out = 0
        self.isr_shrinks = 0
        self.isr_expansions = 0
        # Records of former leaderships, and where the log ended when the present one began: one
        # object, so that another thread never sees the half of a change.
        self._messages: tuple[int, int | None] = (0, None)

    def leads(self, led: bool, end_offset: int, before: int, after: int) -> None:
        """This broker leads, and ``led`` up to now or not. Its log ends at ``end_offset``; its ISR
        had ``before`` members and has ``after``."""
        if led:
            self.isr_changed(before, after)
        else:
            self._messages = (self._messages[0], end_offset)

    def led_until(self, end_offset: int) -> None:
        """This broker leads no more."""
        self._messages = (self.messages(end_offset), None)

    def messages(self, end_offset: int) -> int:
        """Return the records that were appended while this broker led, up to the log's end."""
        before, since = self._messages
        return before if since is None else before + max(0, end_offset - since)

    def isr_changed(self, before: int, after: int) -> None:
        """The ISR of a led partition had ``before`` members and has ``after``."""
        self.isr_shrinks += after < before
        self.isr_expansions += after > before

    def append_refused(self, error: ErrorCode) -> None:
        """A client's append got an error."""
        self.refused_appends += error not in ELSEWHERE

    def fetch_refused(self, error: ErrorCode) -> None:
        """A read got an error."""
        self.refused_fetches += error not in ELSEWHERE


class Sums:
    """The counts of several partitions together."""

    __slots__ = (
        "appends",
        "bytes_in",
        "bytes_out",
        "fetches",
        "isr_expansions",
        "isr_shrinks",
        "messages",
        "refused_appends",
        "refused_fetches",
        "replicated_in",
        "replicated_out",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    appends: int
    bytes_in: int
    """Bytes that were produced here, without those of other leaders."""
    bytes_out: int
    """Bytes that consumers read."""
    fetches: int
    isr_expansions: int
    isr_shrinks: int
    messages: int
    refused_appends: int
    refused_fetches: int
    replicated_in: int
    replicated_out: int

    def add(self, partition: HostedPartition) -> None:
        """Add the counts of one partition."""
        counts = partition.counts
        replicated_in, replicated_out = counts.replicated_in, counts.replicated_out
        self.appends += counts.appends
        self.bytes_in += max(0, partition.bytes_in - replicated_in)
        self.bytes_out += max(0, partition.bytes_out - replicated_out)
        self.fetches += counts.fetches
        self.isr_expansions += counts.isr_expansions
        self.isr_shrinks += counts.isr_shrinks
        self.messages += counts.messages(partition.log.end_offset)
        self.refused_appends += counts.refused_appends
        self.refused_fetches += counts.refused_fetches
        self.replicated_in += replicated_in
        self.replicated_out += replicated_out

    def join(self, other: Sums) -> None:
        """Add other sums."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Past:
    """What stays of the counts of partitions that are hosted no more.

    Of all together, for what is counted without a topic's name; and by topic, for as long as
    another partition of it is hosted here. So it grows with the topics that are.
    """

    def __init__(self) -> None:
        self.all = Sums()
        self.by_topic: dict[str, Sums] = {}

    def went(self, partition: HostedPartition, *, is_last: bool) -> None:
        """A partition goes; ``is_last``: of its topic."""
        self.all.add(partition)
        if is_last:
            self.by_topic.pop(partition.topic, None)
            return
        sums = Sums()
        sums.join(self.by_topic.get(partition.topic, Sums()))
        sums.add(partition)
        # Another object, whole: a scrape may be reading the former one.
        self.by_topic[partition.topic] = sums


def by_topic(hosted: Iterable[HostedPartition]) -> dict[str, Sums]:
    """Return the sums of each topic of which something is hosted. O(partitions)."""
    found: defaultdict[str, Sums] = defaultdict(Sums)
    for partition in hosted:
        found[partition.topic].add(partition)
    return found
