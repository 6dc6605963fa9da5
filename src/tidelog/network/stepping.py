"""The request of a connection that is served in steps, or waits until responses are read.

Owns the driver of requests: a handler may be a generator, which runs in turns of the loop
(`turns`). Each ``yield n`` says that the response has grown by ``n`` bytes; they are charged while
it is made. Not the order of responses: see `answering`; not other work: see `runtime.pace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tidelog.model.work import Work
from tidelog.network.answering import Responses
from tidelog.network.connection_state import ANSWERS, CLOSED, WORK, ConnectionState, Owner
from tidelog.network.open_request import OpenRequest, Slot
from tidelog.network.router import CloseConnection, Route

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections
    from tidelog.network.outgoing import Outgoing
    from tidelog.network.response_memory import ResponseMemory

ENCODED_AT_ONCE_BYTES = 65_536
"""A response that grew by more, in memory, is encoded in steps."""


class _Work:
    # A request that is served in steps. Its frame is still in the buffer; if it waited before,
    # ``slot`` is that of its response, and its frame is dropped. ``held`` is its charge.
    __slots__ = ("asked", "held", "slot", "steps")

    def __init__(self, asked: OpenRequest, steps: Work[Any], slot: Slot | None = None) -> None:
        self.asked = asked
        self.steps = steps
        self.slot = slot
        self.held = 0

    def encodes(self, result: Any) -> bool:
        """Whether the next steps encode the result; otherwise it is no response, or encoded."""
        if isinstance(result, msgspec.Struct):
            asked = self.asked
            self.steps = asked.route.encode_in_steps(asked.correlation_id, result)
            return True
        return False


class Stepping:
    """The work in steps of one connection, at most one request at a time."""

    __slots__ = (
        "_awaited",
        "_memory",
        "_most_bytes",
        "_outgoing",
        "_owner",
        "_responses",
        "_server",
        "_state",
        "_work",
    )

    def __init__(
        self,
        server: OpenConnections,
        owner: Owner,
        state: ConnectionState,
        memory: ResponseMemory,
        responses: Responses,
        outgoing: Outgoing,
    ) -> None:
        self._server = server
        self._owner = owner
        self._state = state
        self._memory = memory
        self._responses = responses
        self._outgoing = outgoing
        self._most_bytes = server.limits.max_request_bytes
        self._work: _Work | None = None
        self._awaited: Route | None = None
        """The route of the request that waits for room."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is being served in steps."""
        return self._work is not None

    # -- room for a response

    def room_for_answer(self, route: Route) -> bool:
        """Whether a request may be served while many responses are unread; otherwise it waits."""
        if self._memory.may_answer(route):
            return True
        self._state.blocked |= ANSWERS
        self._wait_for_readers(route)
        return False

    def _wait_for_readers(self, route: Route) -> None:
        self._awaited = route
        need = 2 * self.is_busy + route.large_answer
        self._server.answer_queue.wait(self._owner, need)

    def may_answer_now(self) -> bool:
        """See ``answer_queue.ResponseWaiter``."""
        if self._state.is_over or self._awaited is None:
            return True
        memory = self._memory
        return memory.may_answer(self._awaited) or (self.is_busy and memory.may_finish())

    def answer_now(self) -> None:
        """See ``answer_queue.ResponseWaiter``."""
        # A connection that waits for other readers is not idle.
        self._state.last_active = self._server.loop.time()
        self._awaited = None
        if self._work is not None:
            self._owner.turns.wait(self._owner)
        else:
            self._state.blocked &= ~ANSWERS
            self._owner.go_on()

    # -- work in steps

    def begin(self, asked: OpenRequest, steps: Work[Any]) -> bool:
        """Serve a request; False while steps remain, and its frame stays."""
        self._work = work = _Work(asked, steps)
        if self._advance(work):
            self._work = None
            return not self._state.blocked & CLOSED
        # Not earlier: most requests that are served in steps end in one turn.
        work.held = self._memory.hold_request(asked.route, asked.size)
        self._state.blocked |= WORK
        self._owner.turns.wait(self._owner)
        return False

    def begin_after_wait(self, asked: OpenRequest, slot: Slot, steps: Work[Any]) -> None:
        """Do the rest of a request whose response has its slot already."""
        assert self._work is None, "one request at a time has steps"
        self._work = _Work(asked, steps, slot)
        self._state.blocked |= WORK
        self.work_on()

    def work_on(self) -> None:
        """Continue for a turn."""
        work = self._work
        if work is None:
            return
        memory = self._memory
        if self._state.is_over:
            self._work = None
            work.steps.close()
            memory.building = 0
            memory.count()
            return
        route = work.asked.route
        if memory.building and not (memory.may_answer(route) or memory.may_finish()):
            # Too many responses are unread: this one grows further when clients have read some.
            self._wait_for_readers(route)
            return
        self._state.in_turn = True
        ended = self._advance(work)
        self._state.in_turn = False
        if not ended:
            self._owner.turns.wait(self._owner)
            return
        self._work = None
        memory.let_go(work.held)
        self._state.blocked &= ~WORK
        if work.slot is None:
            self._owner.served(work.asked.size)
        if self._outgoing.chunks:
            self._outgoing.flush()
        memory.count()
        self._owner.go_on()

    def _advance(self, work: _Work) -> bool:
        """Run steps for a turn; return whether the work has ended, with or without a response."""
        clock, memory, asked = self._server.clock, self._memory, work.asked
        end_ms = 0  # asked at the first yield
        try:
            while True:
                grown: Any = next(work.steps)  # a request's work has no call for a thread
                memory.building += grown or 0
                if memory.building > (most := self._most_bytes):
                    raise CloseConnection(f"its response has more than {most} bytes: ask in parts")
                if clock.monotonic_ms() >= (end_ms := end_ms or self._owner.turns.end_ms()):
                    memory.count()
                    return False
        except StopIteration as end:
            result = end.value
            if memory.building > ENCODED_AT_ONCE_BYTES and work.encodes(result):
                return self._advance(work)
        except CloseConnection as error:
            memory.building = 0
            self._owner.close(str(error))
            return True
        except Exception:
            result = self._responses.failed(asked.route, asked.request)
        memory.building = 0
        if self._state.blocked & CLOSED:
            return True
        if work.slot is not None:
            self._responses.fill(work.slot, asked, result)
        elif result is not None:
            # A long request may have a long response, however its result was made.
            self._responses.answer(asked, result, in_steps=True)
        return True
