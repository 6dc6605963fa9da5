"""One connection of a server: bytes -> requests -> handlers -> responses in order.

Owns the receive buffer, and when to stop reading. Not pending responses: see `answering`. Frames
are parsed in place; record bytes in a request are views of the buffer until the handler has
returned. No request is served while ``_blocked`` has any of these reasons; bytes that arrive then
stay in the buffer, and reading stops when it is full.

    HANDLER   the response of a handler that is not pipelined is pending (as in Kafka)
    DEPTH     too many pipelined responses are pending, or responses wait for an earlier one
    CLIENT    the client does not read its responses (the transport's buffer is above its mark)
    FILES     part of a file is being sent to the client (``sending``)
    ANSWERS   a request waits until other clients have read their responses
    TURN      the connection waits for its turn of the loop (``turns``)
    WORK      a request is served in steps, in several turns of the loop
    STOPPING  the server stops; pending responses are still sent
    CLOSED    closing
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.network import api_versions, frames, proving
from tidelog.network.answering import Answering
from tidelog.network.buffer import ReceiveBuffer
from tidelog.network.outgoing import CLOSED, WRITE_HIGH_BYTES
from tidelog.network.router import CloseConnection, RequestContext, Route, Router, Steps, begun
from tidelog.protocol import codec
from tidelog.protocol.codec import DecodeError
from tidelog.protocol.primitives import TooManyElements

if TYPE_CHECKING:
    from tidelog.network.open_connections import OpenConnections
    from tidelog.protocol.secret_exchange import Exchange

logger = logging.getLogger(__name__)

REQUESTS_PER_TURN = 64
"""Requests of one connection before others have their turn: under 1 ms of the loop."""

NS_PER_MS = 1_000_000

PARSED_AT_ONCE_BYTES = 65_536
"""A longer request is parsed in steps, unless most of it is records (``Route.long_records``)."""

TURN, STOPPING = 16, 32


class Connection(Answering, asyncio.BufferedProtocol):
    """The server's side of one client connection."""

    def __init__(self, server: OpenConnections, listener_name: str) -> None:
        self.server = server
        self.listener_name = listener_name
        self.router: Router = server.router
        self.is_trusted = server.trusts_all
        """Whether this connection may act as a process of the cluster."""
        self.is_tidelog = False
        """Whether the client said in ApiVersions that it is one of this project."""
        self.exchange: Exchange | None = None
        self._proof_steps = proving.STEPS
        self._routes = server.router.routes_for(self.is_trusted)
        self.principal = "User:ANONYMOUS"
        self.client_host = ""
        self.last_active = server.loop.time()
        self._context = server.context
        Answering.__init__(self)
        self._in = ReceiveBuffer(server.memory, self, self._room_again)
        self._is_new = True
        self._frame_begun = False
        self._blocked = 0
        self._reading = True
        self.is_starved = False
        """Whether it waits for memory, and is not read until there is room."""
        self._first_request_left_s = 0.0
        self._in_turn = False
        self._on_close: list[Callable[[], None]] = []
        self.closing_since: float | None = None
        """When it began to close: its client has still to read what is written."""

    def __str__(self) -> str:
        return f"the connection from {self.client_host} on {self.listener_name}"

    def trust(self) -> None:
        """Serve later requests as those of a process of the cluster."""
        self.is_trusted = True
        self._takes_turns = False
        self._routes = self.router.routes_for(True)
        self.server.places.left(self)
        outside = self.server.outside
        self._in.leave_account(outside)
        self._leave_account(outside)

    def refused(self, api_key: ApiKey, why: str) -> None:
        """Count a refused request and write it to the audit log."""
        self.server.audit.refused(self, api_key, why)

    @property
    def trusts_all(self) -> bool:
        """Whether the server requires a proof of the cluster secret from no connection."""
        return self.server.trusts_all

    @property
    def is_closing(self) -> bool:
        """Whether no further request of this connection will be served."""
        return bool(self._blocked & CLOSED)

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        refused = self.server.opened(self)
        if refused is not None:
            self.close(refused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._blocked |= CLOSED
        self._in.drop()
        self._forget_answers()
        if self.server.answer_queue.left(self) and self._work is not None:
            # Its steps are closed.
            self._in_another_turn()
        self._pending.clear()
        for future in list(self._futures):
            # A task finishes what it began; a future only waited for this client.
            if not isinstance(future, asyncio.Task):
                future.cancel()
        self._transport = None
        self.server.closed(self)
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._in.free()

    def buffer_updated(self, nbytes: int) -> None:
        received = self._in
        received.end += nbytes
        server = self.server
        server.bytes_in += nbytes
        self.last_active = server.loop.time()
        if self._blocked:
            if received.end == received.capacity:
                self._pause_reading()
            return
        turns = server.turns
        turns.left -= 1
        if turns.left < 0 and self._takes_turns and turns.is_over and not self._proves():
            self._wait_for_turn()
            return
        self._run()

    # -- frames

    def _run(self) -> None:
        """Serve complete frames until there is none, or something blocks."""
        self._in_turn = True
        received = self._in
        view, start, end = received.view, received.start, received.end
        turns = REQUESTS_PER_TURN
        now_ns = self._now_ns
        self._began_ns = now_ns()
        received.need = 0
        turn_ends_ns = 0
        while not self._blocked and end - start >= 4:
            (size,) = frames.size_at(view, start)
            if size < frames.MIN_REQUEST_BYTES or size > self._limits.max_request_bytes:
                if self._is_new and frames.is_http(size):
                    self._out.append(frames.NOT_HTTP)
                self.close(frames.why_size(size, self._limits.max_request_bytes))
                break
            stop = start + 4 + size
            if stop > end:
                received.need = size + 4
                if received.need > received.largest:
                    received.largest = received.need
                break
            if not self._take(view[start + 4 : stop]):
                break
            start = stop
            turns -= 1
            if end - start >= 4 and not self._blocked:
                # There is more; otherwise the turn is over in any case.
                if not turn_ends_ns:
                    takes = self._takes_turns
                    ends_ms = self.server.turns.end_ms() if takes else self._turn_ends_ms()
                    turn_ends_ns = ends_ms * NS_PER_MS
                if not turns or now_ns() >= turn_ends_ns:
                    self._blocked |= TURN
                    self._in_another_turn()
        self._in_turn = False
        if self._out:
            self._flush()
        if self._blocked & CLOSED:
            return
        served, received.start = start != received.start, start
        self._make_room()
        if self._is_new and (served or self._blocked):
            # Blocked: a whole request is here, and waits.
            self._is_new = False
            received.accept()
            self.server.awaited.pop(self, None)
        if start != end and not self._blocked and not self.is_starved:
            if (served or not self._frame_begun) and not self._is_new:
                self._frame_begun = True
                self.server.await_frame(self, self._limits.frame_s)
        elif self._frame_begun:
            self._frame_begun = False
            self.server.awaited.pop(self, None)

    def _make_room(self) -> None:
        received = self._in
        if self._blocked and received.start != received.end:
            # A whole frame may be complete; the bytes after it wait in the kernel.
            if received.end == received.capacity:
                self._pause_reading()
        elif received.make_room():
            self.is_starved = False
        else:
            self.is_starved = True
            self._pause_reading()
            if self._is_new:
                # Its time stops while others have the memory that its request needs.
                self._first_request_left_s = self.server.time_left_s(self)
            self.server.reclaim()

    def _wait_for_turn(self) -> None:
        self._blocked |= TURN
        self._in_another_turn()
        if self._in.end == self._in.capacity:
            self._pause_reading()

    def _proves(self) -> bool:
        """Whether the next request is a step of a proof: it does not wait, whatever the load."""
        received = self._in
        if not self._proof_steps or received.end - received.start < frames.MIN_REQUEST_BYTES:
            return False
        if frames.key_at(received.view, received.start + 4)[0] not in proving.KEYS:
            return False
        self._proof_steps -= 1
        return True

    def take_turn(self) -> None:
        """See ``turns.TurnWaiter``."""
        if self._blocked & TURN:
            self._blocked &= ~TURN
            self._serve()
        else:
            self._work_on()

    def _go_on(self) -> None:
        if self._blocked or self._in_turn or self._transport is None:
            return
        received = self._in
        if not received.end and not received.held and self._reading:
            # No byte has arrived meanwhile, as nearly always when a client waits for one response.
            return
        pending = received.end - received.start
        if pending >= 4 and self._takes_turns and self.server.turns.is_over:
            self._wait_for_turn()
            return
        self._serve()

    def _serve(self) -> None:
        if self._blocked or self._transport is None:
            return
        self._run()
        if not self._blocked and not self.is_starved and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def _room_again(self) -> None:
        self.is_starved = False
        self.last_active = self.server.loop.time()
        if self._is_new and not self.is_closing:
            self.server.await_frame(self, self._first_request_left_s)
        self._go_on()

    def release_idle_buffer(self) -> None:
        """Give back what is empty of the buffer, called for idle connections and while memory is
        short; the next bytes get a new one."""
        if not self._in_turn:
            self._in.give_back()
            self._drop_kept_sender()

    # -- requests

    def _take(self, frame: memoryview) -> bool:
        """Serve one request; return False when it must be served again later (or never)."""
        try:
            header = frames.header_at(frame)
            api_key, version, correlation_id, length = header
            route = self._routes.get(api_key << 16 | version)
            if route is None:
                route = self.router.route(api_key, version, self.is_trusted)
            if route is None:
                return self._refuse_version(header)
            if (
                self.account.answers >= self._limits.unsent_answer_bytes
                and api_key not in proving.KEYS
                and not self._room_for_answer(route)
            ):
                return False
            route.tally.requests += 1
            self._taken = len(frame)
            if route.direct is not None and (position := frames.message_at(length, route, frame)):
                try:
                    answer = route.direct(
                        self._context, frame, position, version, correlation_id, self
                    )
                except Exception:
                    # Not an unreadable request: this is a bug of the handler.
                    self._failed(route, None)
                    return False
                if answer is not None:
                    if answer.__class__ is not bytes:
                        return self._answer(route, None, correlation_id, answer)
                    route.tally.took(self._now_ns() - self._began_ns)
                    if self._pending:
                        self._wait_for_earlier([answer])
                    else:
                        self._out.append(answer)
                    return True
            client_id, position = frames.read_rest(header, route, frame)
            if len(frame) > PARSED_AT_ONCE_BYTES and not route.long_records:
                context = RequestContext(self, version, correlation_id, client_id, self.principal)
                steps = self._parsed_in_steps(route, frame, position, context)
                return self._begin(route, None, correlation_id, len(frame), steps)
            request, stop = route.decode(frame, position)
            if stop != len(frame):
                _check_rest(route, frame, stop)
        except TooManyElements as error:
            assert route is not None, "it was found before anything was parsed"
            try:
                return self._answer(route, None, correlation_id, self._refused(route, error))
            except CloseConnection as reason:
                self.close(str(reason))
                return False
        except frames.UNREADABLE as error:
            self.close(f"it sent bytes that are no request: {error}")
            return False
        context = RequestContext(self, route.version, header[2], client_id, self.principal)
        try:
            result = begun(route.handle(self._context, request, context))
        except CloseConnection as error:
            self.close(str(error))
            return False
        except Exception:
            result = self._failed(route, request)
            if result is None:
                return False
        if result is None:
            route.tally.took(self._now_ns() - self._began_ns)
            return True
        if result.__class__ is GeneratorType:
            return self._begin(route, request, header[2], len(frame), result)
        return self._answer(route, request, header[2], result)

    def _parsed_in_steps(
        self, route: Route, frame: memoryview, position: int, context: RequestContext
    ) -> Steps:
        """Parse a long request and serve it."""
        try:
            request, stop = yield from route.decode_in_steps(frame, position)
            if stop != len(frame):
                _check_rest(route, frame, stop)
        except TooManyElements as error:
            return self._refused(route, error)
        except frames.UNREADABLE as error:
            raise CloseConnection(f"it sent bytes that are no request: {error}") from None
        if self._work is not None:
            # From now on a failure has a response.
            self._work.request = request
        result = route.handle(self._context, request, context)
        if isinstance(result, GeneratorType):
            return (yield from result)
        return result

    def _refused(self, route: Route, error: TooManyElements) -> Any:
        """Return the response to a request of too many elements. CloseConnection if there is
        none."""
        why = f"it sent a request that is too long: {error}; ask in parts"
        answer = route.too_many(why)
        if answer is None:
            raise CloseConnection(why)
        if self.server.may_say():
            name = route.handler.name
            logger.warning("%s gets INVALID_REQUEST for its %s: %s", self, name, error)
        return answer

    def _served(self, size: int) -> None:
        received = self._in
        received.start += 4 + size
        if self._blocked and received.held:
            # Its response is pending: others may have the memory and the favour meanwhile.
            self._make_room()

    def _refuse_version(self, header: tuple[int, int, int, int]) -> bool:
        api_key, version, correlation_id, _ = header
        if api_key == ApiKey.API_VERSIONS and version >= 0:
            answer = api_versions.unsupported(self.router, self.is_trusted)
            chunks = codec.encode_response(api_key, 0, correlation_id, answer)
            if self._pending:
                self._wait_for_earlier(chunks)
            else:
                self._out += chunks
            return True
        self.close(f"API {api_key} version {version} is not served here")
        return False

    # -- ends

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the connection has ended, whichever side ended it."""
        self._on_close.append(callback)

    def close(self, reason: str | None) -> None:
        """Serve no further request and close once written responses are sent; the client has
        ``Limits.frame_s`` to read them.

        ``reason`` goes into one log line; None says nothing.
        """
        if self._blocked & CLOSED:
            return
        self._blocked |= CLOSED
        self.closing_since = self.server.loop.time()
        if reason is not None:
            self.server.say_closed(self, reason)
        if self._out:
            self._flush()
        if self._sender is not None:
            self._sender.close()
        self._drop_kept_sender()
        if self._transport is not None:
            self._transport.close()

    def frame_is_late(self) -> None:
        """Close: the awaited frame is not complete in its time."""
        if self._blocked & TURN:
            # It waits for its turn; the peer is not late.
            self.server.await_frame(self, self._limits.first_request_s)
            return
        if not self._is_new:
            self.close(f"a request was not whole {self._limits.frame_s:g} s after its first byte")
        elif self._in.end:
            limit_s = self._limits.first_request_s
            self.close(f"its first request was not whole {limit_s:g} s after it connected")
        else:
            self.close(None)
        self.abort()

    def stop_taking(self) -> None:
        """Serve no further request; pending responses are still sent."""
        self._blocked |= STOPPING
        self._pause_reading()

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""
        self._blocked |= CLOSED
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_holding(self) -> bool:
        """Whether it holds memory that others may wait for and that cannot just be given back."""
        return bool(self._charged or (self._in.held and self._in.end))


def _check_rest(route: Route, frame: memoryview, stop: int) -> None:
    """Refuse bytes after a message. librdkafka (2.16) writes some after its Metadata requests;
    see the codec."""
    if route.api_key != ApiKey.METADATA:
        raise DecodeError(f"{len(frame) - stop} bytes are left after the message")
