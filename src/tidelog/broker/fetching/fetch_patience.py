"""How long a follower's request may wait at the leader while partitions are added to it. Pure.

Owns when a request under way is given up, so that a partition that was added is asked for at once,
and when requests are short instead; the connection is ``follower_fetcher``'s. What is given up may
have been about to be answered, so it happens to a request that idles, and once per answer:

| when a partition is added, the request under way | what becomes of it |
|---|---|
| waits at the leader, which has nothing to tell | given up ``INTERRUPT_MS`` later |
| is younger than an answer takes, twice | looked at again when it is not |
| is being answered, or is short | nothing: the next one names the partition |
| is the first since one was given up | nothing: it is short |

Requests are short for ``SHORT_FOR_MS`` after a partition was added: more come together.
"""

from __future__ import annotations

INTERRUPT_MS = 10
"""How long a request that idles may hold up a partition that was added; a short one waits so long
at the leader."""

SHORT_FOR_MS = 500
"""How long requests are short after a partition was added: Kafka's ``replica.fetch.wait.max.ms``,
so that a follower to which one is added more seldom is hardly busier for it."""


class FetchPatience:
    """What one fetcher knows of its requests; times are of the monotonic clock, in ms."""

    def __init__(self) -> None:
        self._short_until_ms: int | None = None
        self._is_owed = False
        """Whether nothing was answered since a request was given up."""
        self._sent: tuple[int, int] | None = None
        self._trip_ms: int | None = None
        """How long an answer takes that the leader does not hold back, as seen last."""

    def added(self, now_ms: int) -> None:
        """A partition was added."""
        self._short_until_ms = now_ms + SHORT_FOR_MS

    def wait_ms(self, longest_ms: int, now_ms: int) -> int:
        """Return how long the next request waits at the leader for news, at most ``longest_ms``."""
        if self._short_until_ms is not None and now_ms >= self._short_until_ms:
            self._short_until_ms = None
        if self._is_owed or self._short_until_ms is not None:
            return min(longest_ms, INTERRUPT_MS)
        return longest_ms

    def sent(self, wait_ms: int, now_ms: int) -> None:
        """A request is under way; the leader may hold it for ``wait_ms``."""
        self._sent = (now_ms, wait_ms)

    def answered(self, now_ms: int) -> None:
        """It was answered."""
        assert self._sent is not None
        sent_ms, wait_ms = self._sent
        took_ms = now_ms - sent_ms
        if took_ms >= wait_ms:
            self._trip_ms = took_ms - wait_ms
        elif self._trip_ms is None or took_ms < self._trip_ms:
            # Nobody knows how much of it the leader waited.
            self._trip_ms = took_ms
        self._is_owed = False

    def ended(self) -> None:
        """No request is under way any more, answered or not."""
        self._sent = None

    def gave_up(self) -> None:
        """The request under way was given up for a partition that was added."""
        self._is_owed = True

    def give_up_in_ms(self, now_ms: int, *, is_arriving: bool) -> int | None:
        """Return in how many ms the request under way is to be given up (0: now) if nothing has
        come by then; None: not at all. ``is_arriving``: some of its answer is here."""
        if self._sent is None or self._is_owed or is_arriving:
            return None
        sent_ms, wait_ms = self._sent
        if wait_ms <= INTERRUPT_MS:
            return None
        idle_from_ms = sent_ms + max(INTERRUPT_MS, 2 * (self._trip_ms or 0))
        return max(0, idle_from_ms - now_ms)
