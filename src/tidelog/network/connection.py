"""One connection of a server: bytes -> requests -> handlers -> answers in order.

Owns the receive buffer, the order of answers and when to stop reading. Frames are parsed in place;
record bytes in a request are views of the buffer until the handler has returned. Requests are not
taken while any of the reasons in ``_blocked`` stands; bytes that arrive then stay in the buffer,
and reading stops when it is full.

    HANDLER   a handler that is not pipelined has not answered yet (as in Kafka)
    DEPTH     too many pipelined requests are unanswered
    CLIENT    the client does not read its answers (the transport's buffer is above its mark)
    FILES     part of a file is on its way to the client (``sending``)
    ANSWERS   a request with a large answer waits until other clients have read theirs
    TURN      the connection had its turn of the loop; it goes on in the next
    STOPPING  the server stops; answers that are pending still go out
    CLOSED    closing
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidelog.model.api_keys import ApiKey
from tidelog.network import api_versions, frames
from tidelog.network.buffer import ReceiveBuffer
from tidelog.network.router import CloseConnection, RequestContext, Route, Router
from tidelog.network.sending import FileSender, as_buffer, can_send_files, sender_for
from tidelog.protocol import codec
from tidelog.protocol.codec import DecodeError
from tidelog.protocol.primitives import Buffer

if TYPE_CHECKING:
    from tidelog.network.limits import Account
    from tidelog.network.server import Server

logger = logging.getLogger(__name__)

WRITE_HIGH_BYTES = 1_048_576
"""Unsent bytes of one connection above which it is not served: one large Fetch answer."""

REQUESTS_PER_TURN = 64
"""Requests of one connection before others have their turn: under 1 ms of the loop."""

ANSWERS_RETRY_S = 0.02
"""How soon a request with a large answer asks again for room: only under pressure."""

HANDLER, DEPTH, CLIENT, ANSWERS, TURN, STOPPING, CLOSED, FILES = 1, 2, 4, 8, 16, 32, 64, 128

_BUFFERS = (bytes, bytearray, memoryview)


class _Slot:
    # The place of one answer in the order of answers.
    __slots__ = ("chunks", "done")

    def __init__(self, chunks: list[Buffer] | None = None) -> None:
        self.done = chunks is not None
        self.chunks = chunks


class Connection(asyncio.BufferedProtocol):
    """The server's side of one client connection."""

    def __init__(self, server: Server, listener_name: str) -> None:
        self.server = server
        self.listener_name = listener_name
        self.router: Router = server.router
        self._routes = server.router.routes
        self.answers: Account = server.unsent
        self.principal = "User:ANONYMOUS"
        self.client_host = ""
        self.opened_at = self.last_active = server.loop.time()
        self._context = server.context
        self._limits = server.limits
        self._transport: Any = None
        self._in = ReceiveBuffer(server.requests, self, self._room_again)
        self._unsent = 0
        self._blocked = 0
        self._reading = True
        self._starved = False
        self._depth = 0
        self._pending: deque[_Slot] = deque()
        self._futures: dict[asyncio.Future[Any], None] = {}
        self._out: list[Any] = []
        self._sender: FileSender | None = None
        self._sends_files: bool | None = None
        self._in_turn = False
        self._on_close: list[Callable[[], None]] = []

    def __str__(self) -> str:
        return f"the connection from {self.client_host} on {self.listener_name}"

    @property
    def is_closing(self) -> bool:
        """Whether no further request of this connection will be served."""
        return bool(self._blocked & CLOSED)

    @property
    def is_sending(self) -> bool:
        """Whether part of a file is on its way."""
        return bool(self._blocked & FILES)

    @property
    def unanswered(self) -> int:
        """Requests whose answer is still to come."""
        return self._depth

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
        if self._sender is not None:
            self._sender.close()
        self.server.unsent.forget(self, self._unsent)
        self._unsent = 0
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

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._blocked |= CLIENT
        self._unsent = self._transport.get_write_buffer_size()
        self.server.unsent.used += self._unsent

    def resume_writing(self) -> None:
        self._blocked &= ~CLIENT
        self.last_active = self.server.loop.time()
        count, self._unsent = self._unsent, 0
        self.server.unsent.give(count, self)
        self._go_on()

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
        self._run()

    # -- frames

    def _run(self) -> None:
        """Serve complete frames until there is none, or something blocks."""
        self._in_turn = True
        received = self._in
        view, start, end = received.view, received.start, received.end
        turns = REQUESTS_PER_TURN
        received.need = 0
        while not self._blocked and end - start >= 4:
            (size,) = frames.size_at(view, start)
            if size < frames.MIN_REQUEST_BYTES or size > self._limits.max_request_bytes:
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
            if not turns:
                self._blocked |= TURN
                self.server.loop.call_soon(self._next_turn)
        self._in_turn = False
        if self._out:
            self._flush()
        if self._blocked & CLOSED:
            return
        served, received.start = start != received.start, start
        if served and received.held and self.server.requests.contended:
            self.server.requests.give(0, self)
        self._make_room()

    def _make_room(self) -> None:
        received = self._in
        if self._blocked and received.start != received.end:
            # A whole frame may already be here; what is behind it waits outside.
            if received.end == received.capacity:
                self._pause_reading()
        elif not received.make_room():
            self._starved = True
            self._pause_reading()
            self.server.reclaim()

    def _next_turn(self) -> None:
        self._blocked &= ~TURN
        self._go_on()

    def _go_on(self) -> None:
        if self._blocked or self._in_turn or self._transport is None:
            return
        self._run()
        if not self._blocked and not self._starved and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def _room_again(self) -> None:
        self._starved = False
        self.last_active = self.server.loop.time()
        self._go_on()

    def release_idle_buffer(self) -> None:
        """Give an empty buffer back; the next bytes get a new one. Called for idle connections."""
        if not self._in_turn:
            self._in.drop_if_empty()

    # -- requests

    def _take(self, frame: memoryview) -> bool:
        """Serve one request; False when it must be taken again later (or never)."""
        try:
            header = frames.header_at(frame)
            api_key, version, correlation_id, length = header
            route = self._routes.get(api_key << 16 | version) or self.router.route(api_key, version)
            if route is None:
                return self._refuse_version(header)
            if route.large_answer and not self._room_for_answer():
                return False
            route.tally.requests += 1
            if route.direct is not None and (position := frames.message_at(length, route, frame)):
                try:
                    answer = route.direct(self._context, frame, position, version, correlation_id)
                except Exception:
                    # Not to be taken for a request that cannot be read: this is a bug of ours.
                    self._failed(route, None)
                    return False
                if answer is not None:
                    if answer.__class__ is not bytes:
                        self._park(route, None, correlation_id, answer)
                    elif self._pending:
                        self._pending.append(_Slot([answer]))
                    else:
                        self._out.append(answer)
                    return True
            client_id, position = frames.read_rest(header, route, frame)
            request, stop = route.decode(frame, position)
            # librdkafka (2.16) writes bytes behind its Metadata requests; see the codec.
            if stop != len(frame) and route.api_key != ApiKey.METADATA:
                raise DecodeError(f"{len(frame) - stop} bytes are left behind the message")
        except frames.UNREADABLE as error:
            self.close(f"it sent bytes that are no request: {error}")
            return False
        context = RequestContext(self, route.version, header[2], client_id, self.principal)
        try:
            result = route.handle(self._context, request, context)
        except CloseConnection as error:
            self.close(str(error))
            return False
        except Exception:
            result = self._failed(route, request)
            if result is None:
                return False
        if isinstance(result, msgspec.Struct):
            chunks = self._encoded(route, header[2], result)
            if chunks is None:
                return False
            if self._pending:
                self._pending.append(_Slot(chunks))
            else:
                self._out += chunks
        elif result is not None:
            self._park(route, request, header[2], result)
        return True

    def _room_for_answer(self) -> bool:
        if self.server.unsent.left:
            return True
        self._blocked |= ANSWERS
        self.server.loop.call_later(ANSWERS_RETRY_S, self._answers_read)
        return False

    def _answers_read(self) -> None:
        self._blocked &= ~ANSWERS
        self._go_on()

    def _refuse_version(self, header: tuple[int, int, int, int]) -> bool:
        api_key, version, correlation_id, _ = header
        if api_key == ApiKey.API_VERSIONS and version >= 0:
            answer = api_versions.unsupported(self.router)
            chunks = codec.encode_response(api_key, 0, correlation_id, answer)
            if self._pending:
                self._pending.append(_Slot(chunks))
            else:
                self._out += chunks
            return True
        self.close(f"API {api_key} version {version} is not served here")
        return False

    def _failed(self, route: Route, request: Any) -> Any | None:
        """Log the exception being handled; return an answer, or None after closing."""
        route.tally.failures += 1
        if self.server.may_say():
            logger.exception("%s failed for %s", route.handler.api_key.name, self)
        answer = None if request is None else route.failure(request)
        if answer is None:
            self.close(f"the answer of {route.handler.api_key.name} has no room for an error")
        return answer

    def _park(self, route: Route, request: Any, correlation_id: int, result: Any) -> None:
        """Wait for a handler's answer."""
        future = asyncio.ensure_future(result, loop=self.server.loop)
        slot = _Slot()
        self._pending.append(slot)
        self._depth += 1
        route.tally.parked += 1
        if not route.pipelined:
            self._blocked |= HANDLER
        elif self._depth >= self._limits.max_pipelined:
            self._blocked |= DEPTH
        self._futures[future] = None
        future.add_done_callback(partial(self._unpark, slot, route, request, correlation_id))

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
        route.tally.parked -= 1
        if self._transport is None or self._blocked & CLOSED:
            if not future.cancelled() and future.exception() is not None:
                logger.error("%s failed", route.handler.api_key.name, exc_info=future.exception())
            return
        try:
            answer = future.result()
        except asyncio.CancelledError:
            self.close("its request was given up")
            return
        except CloseConnection as error:
            self.close(str(error))
            return
        except Exception:
            answer = self._failed(route, request)
            if answer is None:
                return
        slot.done = True
        if answer is not None:
            slot.chunks = self._encoded(route, correlation_id, answer)
            if slot.chunks is None:
                return
        if not route.pipelined:
            self._blocked &= ~HANDLER
        self._blocked &= ~DEPTH
        self._release_in_order()
        if self._out and not self._in_turn:
            self._flush()
        self._go_on()

    # -- answers

    def _encoded(self, route: Route, correlation_id: int, answer: Any) -> list[Buffer] | None:
        """Return the answer's frame; None, after closing, when it cannot be written."""
        try:
            return frames.encode_answer(route, correlation_id, answer)
        except frames.UNWRITABLE:
            name = route.handler.api_key.name
            logger.exception("an answer of %s version %d cannot be written", name, route.version)
            self.close("its answer cannot be written")
            return None

    def _release_in_order(self) -> None:
        pending = self._pending
        while pending and pending[0].done:
            chunks = pending.popleft().chunks
            if chunks is not None:
                self._out += chunks

    def _flush(self) -> None:
        if self._transport is None or self._sender is not None:
            return
        chunks, self._out = self._out, []
        self.server.bytes_out += sum(map(len, chunks))
        if self._sends_files and not all(isinstance(chunk, _BUFFERS) for chunk in chunks):
            self._send_files(chunks)
        elif len(chunks) == 1:
            self._transport.write(chunks[0])
        else:
            self._transport.writelines(chunks)

    def can_send_files(self) -> bool:
        """Whether answers may have parts of files (``sending.FilePart``) among their chunks."""
        if self._sends_files is None and self._transport is not None:
            self._sends_files = can_send_files(self._transport)
        return bool(self._sends_files)

    def _send_files(self, chunks: list[Any]) -> None:
        sender = None
        # While the transport has still to write, nothing may overtake that.
        if not self._transport.get_write_buffer_size():
            sender = sender_for(self.server.loop, self._transport, self._files_sent, self.abort)
        if sender is None:
            self._transport.writelines([as_buffer(chunk) for chunk in chunks])
        elif sender.send(chunks):
            sender.close()
        else:
            self._sender = sender
            self._blocked |= FILES

    def _files_sent(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        self._blocked &= ~FILES
        self.last_active = self.server.loop.time()
        if self._out:
            self._flush()
        self._go_on()

    # -- ends

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the connection has ended, whoever ended it."""
        self._on_close.append(callback)

    def close(self, reason: str | None) -> None:
        """Serve no further request and close once written answers are out.

        ``reason`` goes into one log line; None says nothing.
        """
        if self._blocked & CLOSED:
            return
        self._blocked |= CLOSED
        if reason is not None:
            self.server.say_closed(self, reason)
        if self._out:
            self._flush()
        if self._sender is not None:
            self._sender.close()
        if self._transport is not None:
            self._transport.close()

    def stop_taking(self) -> None:
        """Serve no further request, but let the answers that are pending go out."""
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
        return bool(self._unsent or (self._in.held and self._in.end))
