"""How much the connections of one process may hold, and who waits when that is used up.

Owns the limits and the two accounts of memory (bytes being received, bytes not yet sent). Does not
know sockets: a connection asks, waits and is called back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server allows. Sizes in bytes, times in seconds; -1 is no limit where it says so."""

    max_request_bytes: int = 104_857_600
    """``socket.request.max.bytes``: a larger request closes its connection."""

    queued_request_bytes: int = 268_435_456
    """``queued.max.request.bytes``: bytes of requests being received, all connections; -1 none."""

    unsent_answer_bytes: int = 268_435_456
    """Bytes of answers that clients have not read yet, all connections. Above it no Fetch is
    served until some were read: requests that answer little go on."""

    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1

    max_idle_s: float = 600.0
    """``connections.max.idle.ms`` in seconds; -1 is never."""

    max_stall_s: float = 10.0
    """How long a peer may neither send nor read while others wait for the memory it holds."""

    max_pipelined: int = 256
    """Most unanswered requests of one connection; then it is not read."""

    backlog: int = 50
    """``socket.listen.backlog.size``."""


class Account:
    """Bytes in use against a limit, and those who wait for room, first come first served.

    The first in the queue may pass the limit, alone: so two half-received requests can never wait
    for each other. The use is therefore at most the limit plus one request. The queue holds at
    most one entry per connection.
    """

    __slots__ = ("_favoured", "_turn", "_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit if limit >= 0 else 2**63
        self.used = 0
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()
        self._favoured: object | None = None
        self._turn: object | None = None

    @property
    def left(self) -> int:
        """Bytes that may still be taken; never negative."""
        return max(0, self.limit - self.used)

    @property
    def contended(self) -> bool:
        """Whether anyone waits, or passes the limit by favour."""
        return bool(self._waiting) or self._favoured is not None

    def take(self, count: int, owner: object, when_room: Callable[[], None]) -> bool:
        """Take ``count`` bytes for ``owner``; else False, and ``when_room`` is called once later.

        The caller then asks again: nothing was taken on its behalf.
        """
        first = self._turn is owner or not self._waiting
        if first and self._favoured is None and self.used + count > self.limit:
            self._favoured = owner
        if self._favoured is owner or (first and self.used + count <= self.limit):
            self.used += count
            return True
        if not any(entry[0] is owner for entry in self._waiting):
            self._waiting.append((owner, when_room))
        return False

    def give(self, count: int, owner: object) -> None:
        """Give bytes back; the owner no longer needs the favour. Wakes those who may go on."""
        self.used -= count
        if self._favoured is owner:
            self._favoured = None
        for _ in range(len(self._waiting)):
            if self._favoured is not None and self.used >= self.limit:
                break
            self._turn, wake = self._waiting.popleft()
            wake()
            self._turn = None

    def forget(self, owner: object, held: int) -> None:
        """The owner is gone: its bytes and its place in the queue too."""
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not owner)
        self.give(held, owner)
