"""Pending responses of a connection, in the order of its requests.

Owns the slots of responses, which are sent in the order of the requests, and the futures of
requests that wait for a handler. Not work in steps: see `stepping`; not bytes and files on their
way out: see `outgoing`; not the requests: see `requests`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import msgspec

from tidelog.network import frames
from tidelog.network.connection_state import DEPTH, HANDLER, ConnectionState, Owner
from tidelog.network.open_request import OpenRequest, Slot
from tidelog.network.outgoing import WRITE_HIGH_BYTES, Outgoing, bytes_of
from tidelog.network.router import CloseConnection, Route, begun
from tidelog.protocol.primitives import Buffer

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections
    from tidelog.network.response_memory import ResponseMemory

logger = logging.getLogger(__name__)

QUEUED_HIGH_BYTES = 1_048_576
"""Bytes of responses that may wait for an earlier one; above it the connection is not served."""


class Responses:
    """The queue of one connection's responses."""

    __slots__ = (
        "_futures",
        "_limits",
        "_memory",
        "_now_ns",
        "_outgoing",
        "_owner",
        "_pending",
        "_server",
        "_state",
        "waiting",
    )

    def __init__(
        self,
        server: OpenConnections,
        owner: Owner,
        state: ConnectionState,
        memory: ResponseMemory,
        outgoing: Outgoing,
    ) -> None:
        self._server = server
        self._owner = owner
        self._state = state
        self._memory = memory
        self._outgoing = outgoing
        self._limits = server.limits
        self._now_ns = server.clock.monotonic_ns
        self._pending: deque[Slot] = deque()
        self._futures: dict[asyncio.Future[Any], None] = {}
        self.waiting = 0
        """Requests that wait for their handler."""

    def send(self, chunks: list[Buffer]) -> None:
        """Send a response after those before it."""
        if self._pending:
            self._pending.append(Slot(chunks))
            self._hold(chunks)
        else:
            self._outgoing.chunks += chunks

    def answer(self, asked: OpenRequest, result: Any, *, in_steps: bool = False) -> bool:
        """Send the result of a handler in its order, or wait for it; return False after closing.

        A pending result is later encoded ``in_steps``.
        """
        if isinstance(result, msgspec.Struct) or result.__class__ is list:
            chunks = self._encoded(asked, result)
            if chunks is None:
                return False
            asked.route.tally.took(self._now_ns() - asked.began_ns)
            self.send(chunks)
        else:
            self._park(asked, result, in_steps=in_steps)
        return True

    def failed(self, route: Route, request: Any) -> Any | None:
        """Log the exception being handled; return a response, or None after closing."""
        route.tally.failures += 1
        if self._server.sweep.may_say():
            logger.exception("%s failed for %s", route.handler.name, self._owner)
        answer = None if request is None else route.failure(request)
        if answer is None:
            self._owner.close(f"the response of {route.handler.name} has no field for an error")
        return answer

    def forget(self) -> None:
        """Wait for nothing any more: the connection has ended."""
        self._pending.clear()
        for future in list(self._futures):
            # A task finishes what it began; a future only waited for this client.
            if not isinstance(future, asyncio.Task):
                future.cancel()

    def _park(self, asked: OpenRequest, result: Any, *, in_steps: bool) -> None:
        """Keep a slot for a handler's pending response."""
        route = asked.route
        slot = Slot(in_steps=in_steps)
        self._pending.append(slot)
        slot.held = self._memory.hold_request(route, asked.size)
        future = result
        if not isinstance(result, asyncio.Future):
            future = asyncio.ensure_future(result, loop=self._server.loop)
        self.waiting += 1
        route.tally.pending += 1
        self._futures[future] = None
        future.add_done_callback(partial(self._unpark, slot, asked))
        slot.blocks = not route.pipelined or isinstance(result, asyncio.Task)
        if slot.blocks:
            self._state.blocked |= HANDLER
        elif self.waiting >= self._limits.max_pipelined:
            self._state.blocked |= DEPTH

    def _unpark(self, slot: Slot, asked: OpenRequest, future: asyncio.Future[Any]) -> None:
        route = asked.route
        self._futures.pop(future, None)
        self.waiting -= 1
        route.tally.pending -= 1
        if self._state.is_over:
            error = None if future.cancelled() else future.exception()
            # The client has closed what the handler wanted to close.
            if error is not None and not isinstance(error, CloseConnection):
                logger.error("%s failed", route.handler.name, exc_info=error)
            return
        try:
            answer = begun(future.result())
        except asyncio.CancelledError:
            self._owner.close("its request was cancelled")
            return
        except CloseConnection as error:
            self._owner.close(str(error))
            return
        except Exception:
            answer = self.failed(route, asked.request)
            if answer is None:
                return
        if slot.in_steps and slot.blocks and isinstance(answer, msgspec.Struct):
            answer = route.encode_in_steps(asked.correlation_id, answer)
        if isinstance(answer, GeneratorType):
            # The wait is over; the rest is served in steps, in the same slot.
            assert slot.blocks, "one request at a time has steps"
            self._owner.go_on_in_steps(asked, slot, answer)
            return
        if not self.fill(slot, asked, answer):
            return
        if self._outgoing.chunks and not self._state.in_turn:
            self._outgoing.flush()
        self._owner.go_on()

    def fill(self, slot: Slot, asked: OpenRequest, answer: Any) -> bool:
        """Fill a slot, and send the responses that are next; return False after closing."""
        slot.done = True
        if slot.blocks:
            self._state.blocked &= ~HANDLER
        self._memory.let_go(slot.held)
        if answer is not None:
            slot.chunks = self._encoded(asked, answer)
            if slot.chunks is None:
                return False
            asked.route.tally.took(self._now_ns() - asked.began_ns)
            if self._pending[0] is not slot:
                self._hold(slot.chunks)
        self._release_in_order()
        return True

    def _hold(self, chunks: list[Buffer]) -> None:
        """Count a response that waits for an earlier one."""
        memory = self._memory
        memory.queued += bytes_of(chunks)
        if memory.queued > WRITE_HIGH_BYTES:
            memory.count()
        if memory.queued > QUEUED_HIGH_BYTES or len(self._pending) >= self._limits.max_pipelined:
            self._state.blocked |= DEPTH

    def _encoded(self, asked: OpenRequest, answer: Any) -> list[Buffer] | None:
        """Return the response's frame; None, after closing, when it cannot be encoded."""
        route = asked.route
        try:
            return frames.encode_answer(route, asked.correlation_id, answer)
        except frames.UNWRITABLE:
            name = route.handler.name
            logger.exception("a response of %s version %d cannot be encoded", name, route.version)
            self._owner.close("its response cannot be encoded")
            return None

    def _release_in_order(self) -> None:
        memory, pending, released = self._memory, self._pending, 0
        while pending and pending[0].done:
            chunks = pending.popleft().chunks
            released += 1
            if chunks is not None:
                self._outgoing.chunks += chunks
                if released > 1:
                    # The first one is new; the ones after it have waited.
                    memory.queued -= bytes_of(chunks)
        if memory.charged:
            memory.count()
        if len(pending) < self._limits.max_pipelined and memory.queued <= QUEUED_HIGH_BYTES:
            self._state.blocked &= ~DEPTH
