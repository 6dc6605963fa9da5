"""The counters of one hosted partition since this broker started, as ``/metrics`` shows them.

Owns the counts; the code that does the work adds to them. The event loop's thread writes them, the
endpoint's thread reads them. Not the sums of several partitions: see ``sums``.

| count | meaning |
|---|---|
| ``appends`` | batches that this broker appended as leader, for clients and for groups |
| ``fetches`` | reads for a Fetch of a consumer or follower below the read limit |
| ``refused_appends``, ``refused_fetches`` | those that got an error; not one of ``ELSEWHERE`` |
| ``replicated_in``, ``replicated_out`` | bytes received as a follower, bytes sent to followers |
| ``reassigned_in``, ``reassigned_out`` | those of them for targets that have not joined (KIP-455) |
| ``isr_shrinks``, ``isr_expansions`` | changes of the ISR of a partition that is led here |
| ``messages`` | records appended while this broker led |
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.errors import ErrorCode

ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors of clients with old metadata: no failures, as in Kafka's meters of failed requests."""


@dataclass(slots=True, eq=False)
class Counts:
    """The counts of one hosted partition."""

    appends: int = 0
    fetches: int = 0
    refused_appends: int = 0
    refused_fetches: int = 0
    replicated_in: int = 0
    replicated_out: int = 0
    reassigned_in: int = 0
    reassigned_out: int = 0
    isr_shrinks: int = 0
    isr_expansions: int = 0
    # Records of former leaderships, and where the log ended when the present one began: one object,
    # so that another thread never sees the half of a change.
    _messages: tuple[int, int | None] = (0, None)

    def leads(self, led: bool, end_offset: int, before: int, after: int) -> None:
        """This broker leads, and ``led`` up to now or not. Its log ends at ``end_offset``; its ISR
        had ``before`` members and has ``after``."""
        if led:
            self.isr_changed(before, after)
        else:
            self._messages = (self._messages[0], end_offset)

    def led_until(self, end_offset: int) -> None:
        """End the count of a leadership."""
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
