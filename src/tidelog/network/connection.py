"""One connection of a server: bytes -> requests -> handlers -> responses in order.

Owns what a connection is (its peer, what it may do, its end) and puts its parts together. Each part
knows those that its constructor names, the shared `connection_state`, and the whole as ``Owner``.

| part | what it does |
|---|---|
| `receiving` | the receive buffer, frames, when reading stops |
| `requests` | one frame -> its handler -> its result |
| `stepping` | the request that is served in steps |
| `answering` | responses in the order of requests |
| `response_memory` | what responses are charged |
| `outgoing` | bytes and parts of files on their way out |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.principals import ANONYMOUS, PROCESS, Principal
from tidelog.model.work import Work
from tidelog.network.answering import Responses
from tidelog.network.connection_state import CLOSED, FILES, STOPPING, TURN, ConnectionState
from tidelog.network.limits import Account
from tidelog.network.open_request import OpenRequest, Slot
from tidelog.network.outgoing import WRITE_HIGH_BYTES, Outgoing
from tidelog.network.receiving import Receiver
from tidelog.network.requests import Requests
from tidelog.network.response_memory import ResponseMemory
from tidelog.network.router import Peer, Router
from tidelog.network.stepping import Stepping
from tidelog.network.turns import Turns, TurnsOfProcesses

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections
    from tidelog.protocol.secret_exchange import Exchange


class Connection(asyncio.BufferedProtocol):
    """The server's side of one client connection."""

    def __init__(
        self, server: OpenConnections, listener_name: str, principal: Principal = ANONYMOUS
    ) -> None:
        """``principal``: that of its client, as the listener has found it."""
        self.server = server
        self.listener_name = listener_name
        self.router: Router = server.router
        self.is_trusted = server.trusts_all
        """Whether this connection may act as a process of the cluster."""
        self.principal = PROCESS if server.trusts_all else principal
        self.is_tidelog = False
        """Whether the client said in ApiVersions that it is one of this project."""
        self.exchange: Exchange | None = None
        self.client_host = ""
        self.turns: Turns = server.turns
        """Those of clients, until it has proved the cluster secret."""
        self.closing_since: float | None = None
        """When it began to close: its client has still to read what is written."""
        self._on_close: list[Callable[[], None]] = []
        self.state = state = ConnectionState(server.loop.time())
        self.memory = memory = ResponseMemory(server, self, state)
        self.outgoing = outgoing = Outgoing(server, self, state, memory)
        self._responses = responses = Responses(server, self, state, memory, outgoing)
        self._stepping = Stepping(server, self, state, memory, responses, outgoing)
        self.requests = Requests(server, self, memory, responses, self._stepping)
        self.receiver = Receiver(server, self, state, self.requests, outgoing)

    def __str__(self) -> str:
        return f"the connection from {self.client_host} on {self.listener_name}"

    def trust(self) -> None:
        """Serve later requests as those of a process of the cluster."""
        self.is_trusted = True
        self.principal = PROCESS
        self.turns = TurnsOfProcesses(self.server.loop, self.server.clock)
        self.requests.choose_routes()
        self.server.places.left(self)
        self.receiver.buffer.leave_account(self.server.outside)
        self.memory.leave_account()

    def refused(self, api_key: ApiKey, why: str, client: Peer | None = None) -> None:
        """Count a refused request and write it to the audit log."""
        self.server.audit.refused(client or self, api_key, why)

    @property
    def trusts_all(self) -> bool:
        """Whether the server requires a proof of the cluster secret from no connection."""
        return self.server.trusts_all

    @property
    def account(self) -> Account:
        """The account that counts the memory of this connection."""
        return self.memory.account

    @property
    def is_closing(self) -> bool:
        """Whether no further request of this connection will be served."""
        return bool(self.state.blocked & CLOSED)

    @property
    def is_sending(self) -> bool:
        """Whether part of a file is on its way."""
        return bool(self.state.blocked & FILES)

    @property
    def is_starved(self) -> bool:
        """Whether it waits for memory, and is not read until there is room."""
        return self.receiver.is_starved

    @property
    def is_holding(self) -> bool:
        """Whether it holds memory that others may wait for and that cannot just be given back."""
        buffer = self.receiver.buffer
        return bool(self.memory.charged or (buffer.held and buffer.end))

    @property
    def unanswered(self) -> int:
        """Requests with a pending response."""
        return self._responses.waiting + self._stepping.is_busy

    @property
    def last_active(self) -> float:
        """When it last received or sent something, or had a reason not to."""
        return self.state.last_active

    def answer_budget(self) -> int:
        """Return how many bytes of records a response may have before clients must read others."""
        return self.memory.budget()

    def can_send_files(self) -> bool:
        """Whether responses may have parts of files (``sending.FilePart``) among their chunks."""
        return self.outgoing.can_send_files()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.state.transport = transport
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self.state.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        refused = self.server.opened(self)
        if refused is not None:
            self.close(refused)

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.blocked |= CLOSED
        self.receiver.buffer.drop()
        self.outgoing.close()
        self.memory.forget()
        if self.server.answer_queue.left(self) and self._stepping.is_busy:
            # Its steps are closed.
            self.turns.wait(self)
        self._responses.forget()
        self.state.transport = None
        self.server.closed(self)
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receiver.buffer.free()

    def buffer_updated(self, nbytes: int) -> None:
        server = self.server
        server.counts.bytes_in += nbytes
        self.state.last_active = server.loop.time()
        self.receiver.received(nbytes)

    def pause_writing(self) -> None:
        self.outgoing.pause()

    def resume_writing(self) -> None:
        self.outgoing.resume()

    # -- called by its parts and by its server

    def go_on(self) -> None:
        """Serve further requests, unless there is a reason not to."""
        self.receiver.go_on()

    def served(self, size: int) -> None:
        """Drop the frame of ``size`` bytes that was served in steps."""
        self.receiver.served(size)

    def go_on_in_steps(self, asked: OpenRequest, slot: Slot, steps: Work[Any]) -> None:
        """Do the rest of a request that has waited, in steps; its response is for ``slot``."""
        self._stepping.begin_after_wait(asked, slot, steps)

    def take_turn(self) -> None:
        """See ``turns.TurnWaiter``."""
        if self.state.blocked & TURN:
            self.receiver.take_turn()
        else:
            self._stepping.work_on()

    def may_answer_now(self) -> bool:
        """See ``answer_queue.ResponseWaiter``."""
        return self._stepping.may_answer_now()

    def answer_now(self) -> None:
        """See ``answer_queue.ResponseWaiter``."""
        self._stepping.answer_now()

    def frame_is_late(self) -> None:
        """Close: the awaited frame is not complete in its time."""
        self.receiver.frame_is_late()

    def stay_active(self, now_s: float) -> None:
        """Not count as idle: others are the reason that nothing happens."""
        self.state.last_active = now_s

    def release_idle_buffer(self) -> None:
        """Give back what is empty of the buffer, called for idle connections and while memory is
        short; the next bytes get a new one."""
        if not self.state.in_turn:
            self.receiver.buffer.give_back()
            self.outgoing.drop_kept_sender()

    # -- ends

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the connection has ended, whichever side ended it."""
        self._on_close.append(callback)

    def close(self, reason: str | None) -> None:
        """Serve no further request and close once written responses are sent; the client has
        ``Limits.frame_s`` to read them.

        ``reason`` goes into one log line; None says nothing.
        """
        if self.is_closing:
            return
        self.state.blocked |= CLOSED
        self.closing_since = self.server.loop.time()
        if reason is not None:
            self.server.sweep.say_closed(self, reason)
        if self.outgoing.chunks:
            self.outgoing.flush()
        self.outgoing.close()
        if self.state.transport is not None:
            self.state.transport.close()

    def stop_taking(self) -> None:
        """Serve no further request; pending responses are still sent."""
        self.state.blocked |= STOPPING
        self.receiver.pause_reading()

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""
        self.state.blocked |= CLOSED
        if self.state.transport is not None:
            self.state.transport.abort()
