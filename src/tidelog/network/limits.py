"""Memory limits of a server's connections, and the queue of those that wait for room.

Owns the limits and the account of memory (bytes being received; responses that are being made or
not yet sent; fetch sessions). Not sockets: a connection takes, waits, and is called back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

ALL_ANSWERS = 4 / 3
"""No request is served while responses take this many times ``unsent_answer_bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server. Sizes in bytes, times in seconds; -1 is no limit where noted."""

    max_request_bytes: int = 104_857_600
    """``socket.request.max.bytes``: a larger request closes its connection."""

    queued_request_bytes: int = 268_435_456
    """``queued.max.request.bytes``: memory of all connections without a proof of the secret:
    requests being received, responses being made and not yet sent, fetch sessions; -1 no limit."""

    unsent_answer_bytes: int = 100_663_296
    """The part of it that responses may take before no Fetch is served until some were read;
    requests with small responses are served until it is ``ALL_ANSWERS`` times as much."""

    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1

    max_idle_s: float = 600.0
    """``connections.max.idle.ms`` in seconds; -1 is never."""

    max_stall_s: float = 10.0
    """How long a peer may neither send nor read while others wait for the memory it holds."""

    first_request_s: float = 10.0
    """How long a new connection may take to send its first whole request (promise 30); time in
    which the loop is blocked does not count, nor does it for ``frame_s``."""

    frame_s: float = 30.0
    """``request.timeout.ms`` in seconds: how long a later request may take, from its first byte
    to its last; time in which the server does not read it does not count."""

    max_pipelined: int = 256
    """Most pending responses of one connection, and most responses that wait for an earlier one;
    then it is not read."""

    backlog: int = 50
    """``socket.listen.backlog.size``."""


class Holder(Protocol):
    """A connection that holds memory."""

    client_host: str


class AccountHolder(Holder, Protocol):
    """A connection with the account in which it counts."""

    @property
    def account(self) -> Account: ...


class Account:
    """Bytes in use against a limit, and a queue of connections that wait for room, in order.

    The first in the queue may exceed the limit, alone, and keeps that favour until it has given
    back what it took by it: so two half-received requests can never wait for each other. Nor can
    half-made responses: one at a time is made to its end (``may_finish``). An address may always
    have its share, the limit divided by the addresses that hold memory: it waits only for itself,
    and the others used more only while no other address wanted it. The queue holds at most one
    entry for each connection.

    So ``used`` less ``answers`` is, for one address, at most the limit plus one request; for ``n``
    at most ``1 + 1/2 + ... + 1/n`` times the limit plus one request. Proof: order the addresses
    that took from their share since the limit was reached by their last take. When the k-th took,
    the k - 1 before it held memory, and so did one that had filled the account; so it had at most
    the (k + 1)-th part of the limit.

    Responses are charged without waiting, for a finished one cannot wait for room: they are added
    to what was taken before them. Above ``ALL_ANSWERS`` times ``unsent_answer_bytes`` there are
    only those of addresses within their share and of requests that were being served by then: one
    of each connection, or ``max_pipelined`` short ones.
    """

    __slots__ = (
        "_favoured",
        "_finishing",
        "_held",
        "_passed",
        "_turn",
        "_waiting",
        "answers",
        "limit",
        "unmade",
        "used",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit if limit >= 0 else 2**63
        self.used = 0
        self.answers = 0
        """The part of it that is responses: being made, or not yet sent."""
        self.unmade = 0
        """The part of these that no reader can free: responses being made, and their requests."""
        self._held: dict[str, int] = {}
        """By address; only those that hold something."""
        self._waiting: OrderedDict[Holder, Callable[[], None]] = OrderedDict()
        self._finishing: Holder | None = None
        self._favoured: Holder | None = None
        self._passed = 0
        """The bytes that the favoured one has taken above the limit and not given back."""
        self._turn: Holder | None = None

    @property
    def contended(self) -> bool:
        """Whether a connection waits, or exceeds the limit by favour."""
        return bool(self._waiting) or self._favoured is not None

    def is_short_of(self, count: int) -> bool:
        """Whether a take of ``count`` bytes should be limited to the need."""
        return self.contended or self.used + count > self.limit

    def take(self, count: int, owner: Holder, when_room: Callable[[], None]) -> bool:
        """Take ``count`` bytes for ``owner``; or return False and call ``when_room`` once later.

        The caller then tries again: no bytes were taken for it.
        """
        fits = self.used + count <= self.limit
        first = self._turn is owner or not self._waiting
        if first and self._favoured is None and not fits:
            self._favoured = owner
        if self._favoured is owner or (first and fits) or self.in_share(owner, count):
            if self._favoured is owner and not fits:
                self._passed += count
            self._add(count, owner)
            return True
        self._waiting.setdefault(owner, when_room)
        return False

    def take_now(self, count: int, owner: Holder) -> bool:
        """Take ``count`` bytes if there is room and no connection waits; otherwise return False,
        without a call back: for memory that is optional."""
        if self.contended or self.used + count > self.limit:
            return False
        self._add(count, owner)
        return True

    def put_back(self, count: int, owner: Holder) -> None:
        """Give back what ``take_now`` took, while a request is being served. It wakes no waiting
        connection; the next ``give`` does, and the one that has the favour will call it."""
        self._add(-count, owner)

    @property
    def finishing(self) -> Holder | None:
        """The connection that has the favour of ``may_finish``."""
        return self._finishing

    def in_share(self, owner: Holder, count: int) -> bool:
        """Whether the owner's address, with ``count`` bytes more, has at most its share; False
        while no other address holds anything."""
        held = self._held.get(owner.client_host)
        addresses = len(self._held) + (held is None)
        return addresses > 1 and (held or 0) + count <= self.limit // addresses

    def charge(self, count: int, owner: Holder) -> None:
        """Count bytes of finished responses; uncount if negative."""
        self.answers += count
        self._add(count, owner)
        if count < 0 and self._waiting:
            self._wake()

    def note_unmade(self, count: int, owner: Holder) -> None:
        """Note that this many bytes more of the owner's charge are no finished response; fewer if
        negative: then it no longer needs the favour of ``may_finish``."""
        self.unmade += count
        if count < 0 and self._finishing is owner:
            self._finishing = None

    def may_finish(self, owner: Holder) -> bool:
        """Whether the owner's response may be made to its end, whatever is in use.

        One at a time: responses that are being made can never all wait for each other.
        """
        if self._finishing is None:
            self._finishing = owner
        return self._finishing is owner

    def give(self, count: int, owner: Holder) -> None:
        """Give bytes back; the owner no longer needs the favour, and loses it unless it still has
        what it took by it: the next one would exceed the limit as well. Wakes waiting connections.
        """
        self._add(-count, owner)
        if self._favoured is owner:
            self._passed = max(0, self._passed - count)
            if not self._passed or self.used - self.answers <= self.limit:
                self._lose_favour()
        self._wake()

    def forget(self, owner: Holder, held: int) -> None:
        """Remove an owner that has ended, with its bytes and its place in the queue."""
        self._waiting.pop(owner, None)
        self._add(-held, owner)
        if self._favoured is owner:
            self._lose_favour()
        self._wake()

    def _lose_favour(self) -> None:
        self._favoured = None
        self._passed = 0

    def _add(self, count: int, owner: Holder) -> None:
        self.used += count
        host = owner.client_host
        held = self._held.get(host, 0) + count
        if held:
            self._held[host] = held
        else:
            self._held.pop(host, None)

    def _wake(self) -> None:
        for _ in range(len(self._waiting)):
            if self._favoured is not None and self.used >= self.limit:
                break
            self._turn, wake = self._waiting.popitem(last=False)
            wake()
            self._turn = None
