"""Pending responses of a connection, in the order of its requests.

Owns the slots of responses (they are sent in the order of the requests), requests that wait for a
handler, and work in steps: a handler may be a generator, which runs in turns of the loop
(`turns`). Each ``yield n`` says that the response has grown by ``n`` bytes; they are charged while
it is made. Not bytes and files on their way out: see `outgoing`; not the requests: see
`connection`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import msgspec

from tidelog.network import frames
from tidelog.network.limits import ALL_ANSWERS
from tidelog.network.outgoing import CLOSED, WRITE_HIGH_BYTES, Outgoing, bytes_of
from tidelog.network.router import CloseConnection, Route, Steps, begun
from tidelog.protocol.primitives import Buffer
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections

logger = logging.getLogger(__name__)

PENDING_FACTOR = 16
"""Memory of a request while it is parsed in steps or its response is pending, for each of its
bytes: an element of a few bytes is an object of a hundred."""

PENDING_FREE_BYTES = 4096
"""Requests up to this size are not charged for it."""

ENCODED_AT_ONCE_BYTES = 65_536
"""A response that grew by more, in memory, is encoded in steps."""

QUEUED_HIGH_BYTES = 1_048_576
"""Bytes of responses that may wait for an earlier one; above it the connection is not served."""

HANDLER, DEPTH, ANSWERS, WORK = 1, 2, 8, 256
"""Reasons of ``Connection`` not to serve that are set here."""


class _Slot:
    # The slot of one response in the order of responses; ``held`` is the charge of its request,
    # ``blocks`` whether no further request is served before it is done; one that blocks and is
    # written ``in_steps`` may be long.
    __slots__ = ("began_ns", "blocks", "chunks", "done", "held", "in_steps")

    def __init__(self, chunks: list[Buffer] | None = None, *, in_steps: bool = False) -> None:
        self.done = chunks is not None
        self.chunks = chunks
        self.held = 0
        self.began_ns = 0
        self.blocks = False
        self.in_steps = in_steps


class _Work:
    # A request that is served in steps. ``size`` is that of its frame, which is still in the
    # buffer; if it waited before, ``slot`` is that of its response, and its frame is dropped.
    # ``held`` is its charge.
    __slots__ = ("began_ns", "correlation_id", "held", "request", "route", "size", "slot", "steps")

    def __init__(
        self,
        route: Route,
        request: Any,
        correlation_id: int,
        steps: Steps,
        *,
        size: int = 0,
        slot: _Slot | None = None,
    ) -> None:
        self.route = route
        self.request = request
        self.correlation_id = correlation_id
        self.steps = steps
        self.size = size
        self.slot = slot
        self.held = 0
        self.began_ns = 0

    def encodes(self, result: Any) -> bool:
        """Whether the next steps encode the result; otherwise it is no response, or encoded."""
        if isinstance(result, msgspec.Struct):
            self.steps = frames.encode_in_steps(self.route, self.correlation_id, result)
            return True
        return False


class Answering(Outgoing):
    """The response half of a connection."""

    server: OpenConnections
    _in_turn: bool

    def __init__(self) -> None:
        super().__init__()
        self._limits = self.server.limits
        self._takes_turns = True
        """Whether it waits for its turn, as all do that have not proved the cluster secret."""
        self._depth = 0
        self._pending: deque[_Slot] = deque()
        self._futures: dict[asyncio.Future[Any], None] = {}
        self._work: _Work | None = None
        self._awaited: Route | None = None
        """The route of the request that waits for room."""
        self._now_ns = self.server.clock.monotonic_ns
        self._began_ns = 0
        """When the server began the present run of requests."""
        self._taken = 0
        """Size of the request that is being served."""

    @property
    def unanswered(self) -> int:
        """Requests with a pending response."""
        return self._depth + (self._work is not None)

    def answer_budget(self) -> int:
        """Return how many bytes of records a response may have before clients must read others."""
        return max(0, self._limits.unsent_answer_bytes - self.account.answers)

    def _room_for_answer(self, route: Route) -> bool:
        """Whether a request may be served while many responses are unread; otherwise it waits."""
        if self._may_answer(route):
            return True
        self._blocked |= ANSWERS
        self._wait_for_readers(route)
        return False

    def _wait_for_readers(self, route: Route) -> None:
        self._awaited = route
        need = 2 * (self._work is not None) + route.large_answer
        self.server.answer_queue.wait(self, need)

    def may_answer_now(self) -> bool:
        """See ``answer_queue.ResponseWaiter``."""
        if self._transport is None or self._blocked & CLOSED or self._awaited is None:
            return True
        return self._may_answer(self._awaited) or (self._work is not None and self._may_finish())

    def answer_now(self) -> None:
        """See ``answer_queue.ResponseWaiter``."""
        # A connection that waits for other readers is not idle.
        self.last_active = self.server.loop.time()
        self._awaited = None
        if self._work is not None:
            self._in_another_turn()
        else:
            self._blocked &= ~ANSWERS
            self._go_on()

    def _may_answer(self, route: Route) -> bool:
        account = self.account
        much = self._limits.unsent_answer_bytes
        if account.answers < (much if route.large_answer else much * ALL_ANSWERS):
            return True
        return account is self.server.outside or account.in_share(self, 0)

    # -- work in steps

    def _begin(
        self, route: Route, request: Any, correlation_id: int, size: int, steps: Steps
    ) -> bool:
        """Serve a request of ``size`` bytes; False while steps remain, and its frame stays."""
        self._work = work = _Work(route, request, correlation_id, steps, size=size)
        work.began_ns = self._began_ns
        if self._advance(work):
            self._work = None
            return not self._blocked & CLOSED
        # Not earlier: most requests that are served in steps end in one turn.
        work.held = self._hold_request(route, size)
        self._blocked |= WORK
        self._in_another_turn()
        return False

    def _in_another_turn(self) -> None:
        """Have ``take_turn`` called."""
        if self._takes_turns:
            self.server.turns.wait(self)
        else:
            self.server.loop.call_soon(self.take_turn)

    def _turn_ends_ms(self) -> int:
        if self._takes_turns:
            return self.server.turns.end_ms()
        return self.server.clock.monotonic_ms() + pace.REQUESTS_MS

    @abstractmethod
    def take_turn(self) -> None:
        """Continue the work in steps, or serve the requests in the buffer."""

    def _work_on(self) -> None:
        work = self._work
        if work is None:
            return
        if self._transport is None or self._blocked & CLOSED:
            self._work = None
            work.steps.close()
            self._building = 0
            self._count()
            return
        if self._building and not (self._may_answer(work.route) or self._may_finish()):
            # Too many responses are unread: this one grows further when clients have read some.
            self._wait_for_readers(work.route)
            return
        self._in_turn = True
        ended = self._advance(work)
        self._in_turn = False
        if not ended:
            self._in_another_turn()
            return
        self._work = None
        self._let_go(work.held)
        self._blocked &= ~WORK
        if work.slot is None:
            self._served(work.size)
        if self._out:
            self._flush()
        self._count()
        self._go_on()

    def _may_finish(self) -> bool:
        """Whether this response may grow without room: if unread responses are not the reason."""
        account = self.account
        unread = account.answers - account.unmade
        return unread < self._limits.unsent_answer_bytes and account.may_finish(self)

    def _advance(self, work: _Work) -> bool:
        """Run steps for a turn; return whether the work has ended, with or without a response."""
        clock = self.server.clock
        most = self._limits.max_request_bytes
        end_ms = 0  # asked at the first yield
        try:
            while True:
                self._building += next(work.steps)
                if self._building > most:
                    raise CloseConnection(f"its response has more than {most} bytes: ask in parts")
                if clock.monotonic_ms() >= (end_ms := end_ms or self._turn_ends_ms()):
                    self._count()
                    return False
        except StopIteration as end:
            result = end.value
            if self._building > ENCODED_AT_ONCE_BYTES and work.encodes(result):
                return self._advance(work)
        except CloseConnection as error:
            self._building = 0
            self.close(str(error))
            return True
        except Exception:
            result = self._failed(work.route, work.request)
        self._building = 0
        if self._blocked & CLOSED:
            return True
        if work.slot is not None:
            self._fill(work.slot, work.route, work.correlation_id, result)
        elif result is not None:
            self._began_ns = work.began_ns
            # A long request may have a long response, however its result was made.
            self._answer(work.route, work.request, work.correlation_id, result, in_steps=True)
        return True

    @abstractmethod
    def _served(self, size: int) -> None:
        """Drop the frame of ``size`` bytes that was served in steps."""

    @abstractmethod
    def close(self, reason: str | None) -> None:
        """Serve no further request."""

    # -- the order of responses

    def _answer(
        self,
        route: Route,
        request: Any,
        correlation_id: int,
        result: Any,
        *,
        in_steps: bool = False,
    ) -> bool:
        """Send the result of a handler in its order, or wait for it; return False after closing.

        A pending result is later encoded ``in_steps``.
        """
        if isinstance(result, msgspec.Struct) or result.__class__ is list:
            chunks = self._encoded(route, correlation_id, result)
            if chunks is None:
                return False
            route.tally.took(self._now_ns() - self._began_ns)
            if self._pending:
                self._wait_for_earlier(chunks)
            else:
                self._out += chunks
        else:
            self._park(route, request, correlation_id, result, in_steps=in_steps)
        return True

    def _failed(self, route: Route, request: Any) -> Any | None:
        """Log the exception being handled; return a response, or None after closing."""
        route.tally.failures += 1
        if self.server.may_say():
            logger.exception("%s failed for %s", route.handler.name, self)
        answer = None if request is None else route.failure(request)
        if answer is None:
            self.close(f"the response of {route.handler.name} has no field for an error")
        return answer

    def _hold_request(self, route: Route, size: int) -> int:
        """Charge the memory of a request with a pending response; return how much it is."""
        if size <= PENDING_FREE_BYTES or route.long_records:
            # Records are not copied: they are in the receive buffer.
            return 0
        held = size * PENDING_FACTOR
        self._pending_bytes += held
        self._count()
        return held

    def _let_go(self, held: int) -> None:
        if held:
            self._pending_bytes -= held
            self._count()

    def _park(
        self,
        route: Route,
        request: Any,
        correlation_id: int,
        result: Any,
        *,
        in_steps: bool = False,
    ) -> None:
        """Keep a slot for a handler's pending response."""
        slot = _Slot(in_steps=in_steps)
        slot.began_ns = self._began_ns
        self._pending.append(slot)
        slot.held = self._hold_request(route, self._taken)
        future = result
        if not isinstance(result, asyncio.Future):
            future = asyncio.ensure_future(result, loop=self.server.loop)
        self._depth += 1
        route.tally.pending += 1
        self._futures[future] = None
        done = partial(self._unpark, slot, route, request, correlation_id)
        future.add_done_callback(done)
        slot.blocks = not route.pipelined or isinstance(result, asyncio.Task)
        if slot.blocks:
            self._blocked |= HANDLER
        elif self._depth >= self._limits.max_pipelined:
            self._blocked |= DEPTH

    def _unpark(
        self,
        slot: _Slot,
        route: Route,
        request: Any,
        correlation_id: int,
        future: asyncio.Future[Any],
    ) -> None:
        self._futures.pop(future, None)
        self._depth -= 1
        route.tally.pending -= 1
        if self._transport is None or self._blocked & CLOSED:
            if not future.cancelled() and future.exception() is not None:
                logger.error("%s failed", route.handler.name, exc_info=future.exception())
            return
        try:
            answer = begun(future.result())
        except asyncio.CancelledError:
            self.close("its request was cancelled")
            return
        except CloseConnection as error:
            self.close(str(error))
            return
        except Exception:
            answer = self._failed(route, request)
            if answer is None:
                return
        if slot.in_steps and slot.blocks and isinstance(answer, msgspec.Struct):
            answer = frames.encode_in_steps(route, correlation_id, answer)
        if isinstance(answer, GeneratorType):
            # The wait is over; the rest is served in steps, in the same slot.
            assert slot.blocks and self._work is None, "one request at a time has steps"
            self._work = _Work(route, request, correlation_id, answer, slot=slot)
            self._blocked |= WORK
            self._work_on()
            return
        if not self._fill(slot, route, correlation_id, answer):
            return
        if self._out and not self._in_turn:
            self._flush()
        self._go_on()

    def _fill(self, slot: _Slot, route: Route, correlation_id: int, answer: Any) -> bool:
        """Fill a slot, and send the responses that are next; return False after closing."""
        slot.done = True
        if slot.blocks:
            self._blocked &= ~HANDLER
        self._let_go(slot.held)
        if answer is not None:
            slot.chunks = self._encoded(route, correlation_id, answer)
            if slot.chunks is None:
                return False
            route.tally.took(self._now_ns() - slot.began_ns)
            if self._pending[0] is not slot:
                self._hold(slot.chunks)
        self._release_in_order()
        return True

    def _wait_for_earlier(self, chunks: list[Buffer]) -> None:
        self._pending.append(_Slot(chunks))
        self._hold(chunks)

    def _hold(self, chunks: list[Buffer]) -> None:
        """Count a response that waits for an earlier one."""
        self._queued += bytes_of(chunks)
        if self._queued > WRITE_HIGH_BYTES:
            self._count()
        if self._queued > QUEUED_HIGH_BYTES or len(self._pending) >= self._limits.max_pipelined:
            self._blocked |= DEPTH

    def _encoded(self, route: Route, correlation_id: int, answer: Any) -> list[Buffer] | None:
        """Return the response's frame; None, after closing, when it cannot be encoded."""
        try:
            return frames.encode_answer(route, correlation_id, answer)
        except frames.UNWRITABLE:
            name = route.handler.name
            logger.exception("a response of %s version %d cannot be encoded", name, route.version)
            self.close("its response cannot be encoded")
            return None

    def _release_in_order(self) -> None:
        pending, released = self._pending, 0
        while pending and pending[0].done:
            chunks = pending.popleft().chunks
            released += 1
            if chunks is not None:
                self._out += chunks
                if released > 1:
                    # The first one is new; the ones after it have waited.
                    self._queued -= bytes_of(chunks)
        if self._charged:
            self._count()
        if len(pending) < self._limits.max_pipelined and self._queued <= QUEUED_HIGH_BYTES:
            self._blocked &= ~DEPTH
