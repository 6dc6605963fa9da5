"""Growing timeouts of a handshake with a slow peer: each timeout in a row doubles the next one.

Owns the rule and the count: of a broker with its controller, of a follower with its leader, of a
controller with a broker. A peer on an overloaded machine must complete a handshake eventually; a
constant timeout with a retry would never let it, and would add to its load. The timeout of the TCP
connect does not grow: after a network partition the next attempt succeeds. The timeout of
heartbeats does not grow either: it detects a controller that hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.client.errors import RequestTimedOut

MOST_TIMES = 8
"""The longest timeout, as a multiple of the shortest: 32 s with the default session."""


def patience_ms(least_ms: int, time_outs: int) -> int:
    """Return the timeout in ms after ``time_outs`` timeouts in a row: doubled by each, bounded."""
    return least_ms * min(1 << min(time_outs, MOST_TIMES), MOST_TIMES)


def is_over(waited_ms: int, limit_ms: int, least_ms: int, another_is_active: bool) -> bool:
    """Return whether to stop waiting for one of several peers, of which one is active at a time.

    | waited | another is known to be active | no other is |
    |---|---|---|
    | less than ``least_ms`` | no | no |
    | more than that | yes: this one hung, and was replaced | no: it may be slow |
    | ``limit_ms``, the timeout of this one | yes | yes: try the others |
    """
    return waited_ms >= (least_ms if another_is_active else limit_ms)


class GrowingTimeout:
    """The timeout for one peer's handshake, and for the first response of a session.

    Only a response of this peer resets it.
    """

    def __init__(self, least_ms: int) -> None:
        self.least_ms = least_ms
        self._time_outs = 0

    @property
    def now_ms(self) -> int:
        """The timeout of this attempt."""
        return patience_ms(self.least_ms, self._time_outs)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a RequestTimedOut raised inside this context."""
        try:
            yield
        except RequestTimedOut:
            self._time_outs += 1
            raise

    def answered(self) -> None:
        """Reset the count: the peer responded, even if with an error."""
        self._time_outs = 0
