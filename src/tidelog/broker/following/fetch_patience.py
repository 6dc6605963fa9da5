"""Wait time of a follower's fetch at the leader while partitions are added to it. Pure.

Owns when the connection of a delayed fetch is closed, so that the next one names an added partition
at once, and when fetches wait for a short time instead. Not the connection: see ``source_fetcher``.
The leader may be about to respond to a fetch that is given up; so this happens only to an idle
fetch, and at most once per response:

| the fetch in flight, when a partition is added | what happens to it |
|---|---|
| waits at the leader, which has no records | given up ``INTERRUPT_MS`` after it was added |
| has waited less than two round trips | checked again after that time |
| its response is arriving, or its wait is short | nothing: the next fetch names the partition |
| is the first since another was given up | nothing: its wait is short |

Waits are short for ``SHORT_FOR_MS`` after a partition was added: others are often added soon.
"""

from __future__ import annotations

INTERRUPT_MS = 10
"""How long an idle fetch may delay an added partition; also the wait of a short fetch."""

SHORT_FOR_MS = 500
"""How long waits are short after a partition was added: the default of Kafka's
``replica.fetch.wait.max.ms``. Rarer additions therefore cause little more work."""


class FetchPatience:
    """The timing of one fetcher's requests; times are in ms, of the monotonic clock."""

    def __init__(self) -> None:
        self._short_until_ms: int | None = None
        self._is_owed = False
        """Whether no response has arrived since a request was given up."""
        self._sent: tuple[int, int] | None = None
        self._trip_ms: int | None = None
        """The last measured round trip, without the wait at the leader."""

    def added(self, now_ms: int) -> None:
        """A partition was added."""
        self._short_until_ms = now_ms + SHORT_FOR_MS

    def wait_ms(self, longest_ms: int, now_ms: int) -> int:
        """Return how long the next request may wait at the leader, at most ``longest_ms``."""
        if self._short_until_ms is not None and now_ms >= self._short_until_ms:
            self._short_until_ms = None
        if self._is_owed or self._short_until_ms is not None:
            return min(longest_ms, INTERRUPT_MS)
        return longest_ms

    def sent(self, wait_ms: int, now_ms: int) -> None:
        """A request is in flight; the leader may delay its response by ``wait_ms``."""
        self._sent = (now_ms, wait_ms)

    def answered(self, now_ms: int) -> None:
        """Its response has arrived."""
        assert self._sent is not None
        sent_ms, wait_ms = self._sent
        took_ms = now_ms - sent_ms
        if took_ms >= wait_ms:
            self._trip_ms = took_ms - wait_ms
        elif self._trip_ms is None or took_ms < self._trip_ms:
            # An upper bound: the leader may have delayed the response for part of it.
            self._trip_ms = took_ms
        self._is_owed = False

    def ended(self) -> None:
        """No request is in flight any longer, with or without a response."""
        self._sent = None

    def gave_up(self) -> None:
        """The request in flight was given up for an added partition."""
        self._is_owed = True

    def give_up_in_ms(self, now_ms: int, *, is_arriving: bool) -> int | None:
        """Return in how many ms to give up the request in flight (0: now) unless its response
        arrives; None: not at all. ``is_arriving``: part of the response has arrived."""
        if self._sent is None or self._is_owed or is_arriving:
            return None
        sent_ms, wait_ms = self._sent
        if wait_ms <= INTERRUPT_MS:
            return None
        idle_from_ms = sent_ms + max(INTERRUPT_MS, 2 * (self._trip_ms or 0))
        return max(0, idle_from_ms - now_ms)
