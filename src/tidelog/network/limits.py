"""How much the connections of one process may hold, and who waits when that is used up.

Owns the limits and the account of memory (bytes being received; answers that are made or not yet
sent; fetch sessions). Does not know sockets: a connection asks, waits and is called back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

ALL_ANSWERS = 4 / 3
"""No request at all is served while answers take so many times ``unsent_answer_bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server allows. Sizes in bytes, times in seconds; -1 is no limit where it says so."""

    max_request_bytes: int = 104_857_600
    """``socket.request.max.bytes``: a larger request closes its connection."""

    queued_request_bytes: int = 268_435_456
    """``queued.max.request.bytes``: memory of all connections that have proved nothing: requests
    being received, answers being made and not yet sent, fetch sessions; -1 none."""

    unsent_answer_bytes: int = 100_663_296
    """What of it answers may take before no Fetch is served until some were read: requests that
    answer little go on, until answers take ``ALL_ANSWERS`` times as much."""

    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1

    max_idle_s: float = 600.0
    """``connections.max.idle.ms`` in seconds; -1 is never."""

    max_stall_s: float = 10.0
    """How long a peer may neither send nor read while others wait for the memory it holds."""

    first_request_s: float = 10.0
    """How long a new connection may take to send its first whole request (promise 30); time in
    which the loop stands still does not count, nor does it for ``frame_s``."""

    frame_s: float = 30.0
    """``request.timeout.ms`` in seconds: how long a later request may take to come, from its first
    byte to its last; time in which the server does not read it does not count."""

    max_pipelined: int = 256
    """Most unanswered requests of one connection, and most answers that wait for an earlier one;
    then it is not read."""

    backlog: int = 50
    """``socket.listen.backlog.size``."""


class Holder(Protocol):
    """Who holds memory: a connection."""

    client_host: str


class AccountHolder(Holder, Protocol):
    """A holder that knows in which account it counts: a connection."""

    @property
    def account(self) -> Account: ...


class Account:
    """Bytes in use against a limit, and those who wait for room, first come first served.

    The first in the queue may pass the limit, alone, and keeps that favour until it has given back
    what it took by it: so two half-received requests can never wait for each other. Nor can
    half-made answers: one at a time is made to its end (``may_finish``). An address may always have
    its share, the limit divided by the addresses that hold memory: it waits only for itself, and
    the others' use was theirs while nobody else asked. The queue holds at most one entry per
    connection.

    What is taken (``used`` less ``answers``) is therefore, from one address, at most the limit
    plus one request; from ``n`` at most ``1 + 1/2 + ... + 1/n`` times the limit plus one request.
    For order the addresses that took of their share since the limit was reached by their last
    taking: when the k-th took, the k - 1 before it held something, and so did one that had filled
    the account; so it had at most the (k + 1)-th part of the limit.

    Answers are charged, for one that is there cannot wait for room: they come on top of what was
    taken before them. Above ``ALL_ANSWERS`` times ``unsent_answer_bytes`` there are only those of
    addresses within their share and of requests that were being served by then, of each connection
    one, or ``max_pipelined`` short ones.
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
        """What of it are answers: made, or not yet sent."""
        self.unmade = 0
        """What of these no reader can free: answers being made, and requests that wait for one."""
        self._held: dict[str, int] = {}
        """By address; only those that hold something."""
        self._waiting: OrderedDict[Holder, Callable[[], None]] = OrderedDict()
        self._finishing: Holder | None = None
        self._favoured: Holder | None = None
        self._passed = 0
        """What the favoured one has taken beyond the limit, and not given back."""
        self._turn: Holder | None = None

    @property
    def contended(self) -> bool:
        """Whether anyone waits, or passes the limit by favour."""
        return bool(self._waiting) or self._favoured is not None

    def is_short_of(self, count: int) -> bool:
        """Whether who takes ``count`` bytes now should take no more than it needs."""
        return self.contended or self.used + count > self.limit

    def take(self, count: int, owner: Holder, when_room: Callable[[], None]) -> bool:
        """Take ``count`` bytes for ``owner``; else False, and ``when_room`` is called once later.

        The caller then asks again: nothing was taken on its behalf.
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
        """Take ``count`` bytes where there is room and nobody waits for any; else False, and nobody
        is called back: for what can be done without."""
        if self.contended or self.used + count > self.limit:
            return False
        self._add(count, owner)
        return True

    def put_back(self, count: int, owner: Holder) -> None:
        """Give back what ``take_now`` took, while a request is being served: who waits is woken
        when somebody gives. There is always one who will, the one that has the favour."""
        self._add(-count, owner)

    @property
    def finishing(self) -> Holder | None:
        """Who has the favour of ``may_finish``."""
        return self._finishing

    def in_share(self, owner: Holder, count: int) -> bool:
        """Whether the owner's address, with ``count`` bytes more, has at most its share; False
        while no other address holds anything."""
        held = self._held.get(owner.client_host)
        addresses = len(self._held) + (held is None)
        return addresses > 1 and (held or 0) + count <= self.limit // addresses

    def charge(self, count: int, owner: Holder) -> None:
        """Count bytes of answers that are there already; fewer again if negative."""
        self.answers += count
        self._add(count, owner)
        if count < 0 and self._waiting:
            self._wake()

    def note_unmade(self, count: int, owner: Holder) -> None:
        """Note that so much more of what the owner is charged is no answer yet; less if negative:
        then it needs the favour of ``may_finish`` no more."""
        self.unmade += count
        if count < 0 and self._finishing is owner:
            self._finishing = None

    def may_finish(self, owner: Holder) -> bool:
        """Whether the owner is the one whose answer may be made to its end, whatever is in use.

        One at a time: those that are being made can never all wait for each other.
        """
        if self._finishing is None:
            self._finishing = owner
        return self._finishing is owner

    def give(self, count: int, owner: Holder) -> None:
        """Give bytes back; the owner no longer needs the favour, and loses it unless it still has
        what it took by it: the next one would pass the limit beside it. Wakes those who may go on.
        """
        self._add(-count, owner)
        if self._favoured is owner:
            self._passed = max(0, self._passed - count)
            if not self._passed or self.used - self.answers <= self.limit:
                self._lose_favour()
        self._wake()

    def forget(self, owner: Holder, held: int) -> None:
        """The owner is gone: its bytes and its place in the queue too."""
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
