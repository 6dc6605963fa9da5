"""How long a process waits for another that took its connection: longer after each time-out.

Owns the rule and the count of time-outs in a row: of a broker for its controller, of a follower for
its source, of a controller for the broker that it commands. One that is slow for a while, because
its machine has too much to do, must greet all the same: who always gives up after the same time and
begins anew is never greeted, and adds to what the other has to do. The time for the TCP connect
does not grow: after a cut it is over once a try was made behind it. Nor do heartbeats wait longer,
by which a controller that hangs is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.client.errors import RequestTimedOut

MOST_TIMES = 8
"""How many times the least patience the longest is: 32 s with the default session."""


def patience_ms(least_ms: int, time_outs: int) -> int:
    """Return for how many ms to wait after ``time_outs`` in a row: doubled by each, to a bound."""
    return least_ms * min(1 << min(time_outs, MOST_TIMES), MOST_TIMES)


def is_over(waited_ms: int, limit_ms: int, least_ms: int, another_is_active: bool) -> bool:
    """Return whether a wait for one of several is over, of which one does what is wanted at a time.

    | waited | another can do it | nobody says so |
    |---|---|---|
    | less than ``least_ms`` | no | no |
    | more than that | yes: this one hung, and was followed | no: it may be slow |
    | ``limit_ms``, the patience with this one | yes | yes: others have their turn |
    """
    return waited_ms >= (least_ms if another_is_active else limit_ms)


class GrowingTimeout:
    """What is waited for the greeting, and in a session for the answer to what it begins with.

    It is that with one peer: its answer ends the row, and no other's does.
    """

    def __init__(self, least_ms: int) -> None:
        self.least_ms = least_ms
        self._time_outs = 0

    @property
    def now_ms(self) -> int:
        """How long to wait in this try."""
        return patience_ms(self.least_ms, self._time_outs)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a RequestTimedOut of what is done in it."""
        try:
            yield
        except RequestTimedOut:
            self._time_outs += 1
            raise

    def answered(self) -> None:
        """The other answered what was begun with, with whatever it was."""
        self._time_outs = 0
