"""What the responses of one connection hold of the memory account, and whether they may hold more.

Owns the charge of responses that are made, wait, or are not read, and of requests with a pending
response. Not the account of all connections: see `limits`; not the receive buffer: see `buffer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.network.connection_state import CLIENT, ConnectionState, Owner
from tidelog.network.limits import ALL_ANSWERS

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections
    from tidelog.network.router import Route

PENDING_FACTOR = 16
"""Memory of a request while it is parsed in steps or its response is pending, for each of its
bytes: an element of a few bytes is an object of a hundred."""

PENDING_FREE_BYTES = 4096
"""Requests up to this size are not charged for it."""


class ResponseMemory:
    """The charge of one connection for its responses."""

    __slots__ = (
        "_limits",
        "_outside",
        "_owner",
        "_requests",
        "_state",
        "_unmade",
        "account",
        "building",
        "charged",
        "queued",
    )

    def __init__(self, server: OpenConnections, owner: Owner, state: ConnectionState) -> None:
        self._limits = server.limits
        self._outside = server.outside
        self._owner = owner
        self._state = state
        self.account = server.memory
        self.queued = 0
        """Bytes of responses that wait for an earlier one."""
        self.building = 0
        """Bytes of the response that is being made."""
        self._requests = 0
        """Memory of requests with pending responses."""
        self.charged = 0
        """What the account counts of it."""
        self._unmade = 0
        """The part of that which the account counts as unmade."""

    def count(self) -> None:
        """Charge the account with the present memory of this client."""
        unmade = self.building + self._requests
        held = self.queued + unmade
        state = self._state
        if state.blocked & CLIENT and state.transport is not None:
            held += state.transport.get_write_buffer_size()
        if unmade != self._unmade:
            self._note_unmade(unmade)
        if held != self.charged:
            change, self.charged = held - self.charged, held
            self.account.charge(change, self._owner)

    def _note_unmade(self, size: int) -> None:
        change, self._unmade = size - self._unmade, size
        self.account.note_unmade(change, self._owner)

    def hold_request(self, route: Route, size: int) -> int:
        """Charge the memory of a request with a pending response; return how much it is."""
        if size <= PENDING_FREE_BYTES or route.long_records:
            # Records are not copied: they are in the receive buffer.
            return 0
        held = size * PENDING_FACTOR
        self._requests += held
        self.count()
        return held

    def let_go(self, held: int) -> None:
        """Uncount what ``hold_request`` returned."""
        if held:
            self._requests -= held
            self.count()

    def leave_account(self) -> None:
        """Count with the processes of the cluster from now on. No response is being made yet."""
        self.account.charge(-self.charged, self._owner)
        self.account = self._outside
        self.account.charge(self.charged, self._owner)

    def forget(self) -> None:
        """Uncount everything: the connection has ended."""
        self.queued = self.building = self._requests = 0
        self._note_unmade(0)
        charged, self.charged = self.charged, 0
        self.account.charge(-charged, self._owner)

    # -- room for more

    def budget(self) -> int:
        """Return how many bytes of records a response may have before clients must read others."""
        return max(0, self._limits.unsent_answer_bytes - self.account.answers)

    def may_answer(self, route: Route) -> bool:
        """Whether there is room for the response to another request."""
        account = self.account
        much = self._limits.unsent_answer_bytes
        if account.answers < (much if route.large_answer else much * ALL_ANSWERS):
            return True
        return account is self._outside or account.in_share(self._owner, 0)

    def may_finish(self) -> bool:
        """Whether this response may grow without room: if unread responses are not the reason."""
        account = self.account
        unread = account.answers - account.unmade
        return unread < self._limits.unsent_answer_bytes and account.may_finish(self._owner)
