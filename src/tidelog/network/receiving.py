"""The receiving part of a connection: bytes -> frames, and when the connection is read.

Owns the receive buffer, when reading stops, the time in which a begun frame must be whole, and how
many requests are served before others have their turn. Not what a frame says: see `requests`. No
request is served while anything blocks: see ``connection_state.Blocked``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.network import frames, proving
from tidelog.network.buffer import ReceiveBuffer
from tidelog.network.connection_state import CLOSED, TURN, ConnectionState, Owner

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections
    from tidelog.network.outgoing import Outgoing
    from tidelog.network.requests import Requests

REQUESTS_PER_TURN = 64
"""Requests of one connection before others have their turn: under 1 ms of the loop."""

NS_PER_MS = 1_000_000


class Receiver:
    """What one connection has received."""

    __slots__ = (
        "_first_request_left_s",
        "_frame_begun",
        "_is_new",
        "_limits",
        "_now_ns",
        "_outgoing",
        "_owner",
        "_proof_steps",
        "_reading",
        "_requests",
        "_server",
        "_state",
        "buffer",
        "is_starved",
    )

    def __init__(
        self,
        server: OpenConnections,
        owner: Owner,
        state: ConnectionState,
        requests: Requests,
        outgoing: Outgoing,
    ) -> None:
        self._server = server
        self._owner = owner
        self._state = state
        self._requests = requests
        self._outgoing = outgoing
        self._limits = server.limits
        self._now_ns = server.clock.monotonic_ns
        self.buffer = ReceiveBuffer(server.memory, owner, self._room_again)
        self.is_starved = False
        """Whether it waits for memory, and is not read until there is room."""
        self._is_new = True
        self._frame_begun = False
        self._reading = True
        self._first_request_left_s = 0.0
        self._proof_steps = proving.STEPS

    def received(self, count: int) -> None:
        """Serve what has arrived, unless something blocks: ``count`` bytes more in the buffer."""
        buffer = self.buffer
        buffer.end += count
        if self._state.blocked:
            if buffer.end == buffer.capacity:
                self.pause_reading()
            return
        turns = self._server.turns
        turns.left -= 1
        if turns.left < 0 and self._owner.turns.is_over and not self._proves():
            self._wait_for_turn()
            return
        self._run()

    def _run(self) -> None:
        """Serve complete frames until there is none, or something blocks."""
        state, requests, buffer = self._state, self._requests, self.buffer
        state.in_turn = True
        view, start, end = buffer.view, buffer.start, buffer.end
        turns = REQUESTS_PER_TURN
        now_ns = self._now_ns
        began_ns = now_ns()
        buffer.need = 0
        turn_ends_ns = 0
        most = self._limits.max_request_bytes
        while not state.blocked and end - start >= 4:
            (size,) = frames.size_at(view, start)
            if size < frames.MIN_REQUEST_BYTES or size > most:
                if self._is_new and frames.is_http(size):
                    self._outgoing.chunks.append(frames.NOT_HTTP)
                self._owner.close(frames.why_size(size, most))
                break
            stop = start + 4 + size
            if stop > end:
                buffer.need = size + 4
                if buffer.need > buffer.largest:
                    buffer.largest = buffer.need
                break
            if not requests.take(view[start + 4 : stop], began_ns):
                break
            start = stop
            turns -= 1
            if end - start >= 4 and not state.blocked:
                # There is more; otherwise the turn is over in any case.
                turn_ends_ns = turn_ends_ns or self._owner.turns.end_ms() * NS_PER_MS
                if not turns or now_ns() >= turn_ends_ns:
                    state.blocked |= TURN
                    self._owner.turns.wait(self._owner)
        state.in_turn = False
        if self._outgoing.chunks:
            self._outgoing.flush()
        if state.blocked & CLOSED:
            return
        served, buffer.start = start != buffer.start, start
        self._make_room()
        if self._is_new and (served or state.blocked):
            # Blocked: a whole request is here, and waits.
            self._is_new = False
            buffer.accept()
            self._server.frame_times.end(self._owner)
        if start != end and not state.blocked and not self.is_starved:
            if (served or not self._frame_begun) and not self._is_new:
                self._frame_begun = True
                self._server.frame_times.begin(self._owner, self._limits.frame_s)
        elif self._frame_begun:
            self._frame_begun = False
            self._server.frame_times.end(self._owner)

    def _make_room(self) -> None:
        buffer = self.buffer
        if self._state.blocked and buffer.start != buffer.end:
            # A whole frame may be complete; the bytes after it wait in the kernel.
            if buffer.end == buffer.capacity:
                self.pause_reading()
        elif buffer.make_room():
            self.is_starved = False
        else:
            self.is_starved = True
            self.pause_reading()
            if self._is_new:
                # Its time stops while others have the memory that its request needs.
                self._first_request_left_s = self._server.frame_times.end(self._owner)
            self._server.sweep.reclaim()

    def _wait_for_turn(self) -> None:
        self._state.blocked |= TURN
        self._owner.turns.wait(self._owner)
        if self.buffer.end == self.buffer.capacity:
            self.pause_reading()

    def _proves(self) -> bool:
        """Whether the next request is a step of a proof: it does not wait, whatever the load."""
        buffer = self.buffer
        if not self._proof_steps or buffer.end - buffer.start < frames.MIN_REQUEST_BYTES:
            return False
        if frames.key_at(buffer.view, buffer.start + 4)[0] not in proving.KEYS:
            return False
        self._proof_steps -= 1
        return True

    def take_turn(self) -> None:
        """Serve requests that waited for a turn of the loop."""
        self._state.blocked &= ~TURN
        self._serve()

    def go_on(self) -> None:
        """Serve requests that wait in the buffer, unless there is a reason not to."""
        state, buffer = self._state, self.buffer
        if state.blocked or state.in_turn or state.transport is None:
            return
        if not buffer.end and not buffer.held and self._reading:
            # No byte has arrived meanwhile, as nearly always when a client waits for one response.
            return
        if buffer.end - buffer.start >= 4 and self._owner.turns.is_over:
            self._wait_for_turn()
            return
        self._serve()

    def _serve(self) -> None:
        state = self._state
        if state.blocked or state.transport is None:
            return
        self._run()
        if not state.blocked and not self.is_starved and not self._reading:
            self._reading = True
            state.transport.resume_reading()

    def pause_reading(self) -> None:
        """Leave further bytes in the kernel."""
        if self._reading and self._state.transport is not None:
            self._reading = False
            self._state.transport.pause_reading()

    def _room_again(self) -> None:
        self.is_starved = False
        self._state.last_active = self._server.loop.time()
        if self._is_new and not self._owner.is_closing:
            self._server.frame_times.begin(self._owner, self._first_request_left_s)
        self.go_on()

    def served(self, size: int) -> None:
        """Drop the frame of ``size`` bytes that was served in steps."""
        buffer = self.buffer
        buffer.start += 4 + size
        if self._state.blocked and buffer.held:
            # Its response is pending: others may have the memory and the favour meanwhile.
            self._make_room()

    def frame_is_late(self) -> None:
        """Close: the awaited frame is not complete in its time."""
        limits = self._limits
        if self._state.blocked & TURN:
            # It waits for its turn; the peer is not late.
            self._server.frame_times.begin(self._owner, limits.first_request_s)
            return
        why = None
        if not self._is_new:
            why = f"a request was not whole {limits.frame_s:g} s after its first byte"
        elif self.buffer.end:
            why = f"its first request was not whole {limits.first_request_s:g} s after it connected"
        self._owner.close(why)
        self._owner.abort()
