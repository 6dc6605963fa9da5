"""One connection to a broker or controller: requests, and their responses strictly in order.

Owns correlation ids, the negotiated versions, deadlines, and the limit of requests in flight. Not
leaders: see ``cluster``. Never sends a request twice.

States: open -> closed, once. When a connection closes, for whatever reason, every request in flight
fails with the same ``ConnectionLost``. Responses arrive in order, so a request that misses its
deadline also closes the connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tidelog.client.connecting.frames import MAX_FRAME_BYTES, FrameReader, OversizedFrame
from tidelog.client.connecting.proving import prove
from tidelog.client.errors import (
    ConnectionLost,
    InvalidAnswer,
    RequestTimedOut,
    VersionUnsupported,
    error_code,
)
from tidelog.model.api_keys import ApiKey, spoken
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages, schema
from tidelog.version import __version__

if TYPE_CHECKING:
    from tidelog.runtime.cluster_secret import ClusterSecret
    from tidelog.runtime.tls_files import TlsFiles

CONNECT_TIMEOUT_MS = 10_000
"""Kafka's socket.connection.setup.timeout.ms."""

REQUEST_TIMEOUT_MS = 30_000
"""Kafka's request.timeout.ms of clients."""

MAX_IN_FLIGHT = 5
"""Kafka's max.in.flight.requests.per.connection."""

_FORGET_UNSENT = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: the end of the socket is a reset."""

SOFTWARE_NAME = "tidelog"

HIGHEST_USED = {
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}
"""APIs whose later versions this client does not use: they name topics by id, and its requests name
them by name. (Followers have tags of ours in Fetch 12 alone.)"""


WHAT_TO_CHECK = (
    ": check that it is a broker's listener for clients, without TLS, and no controller's port; "
    "that the cluster.secret.file, if one was given, is the servers'; and that server's log"
)
"""The advice for a connection that its peer closed before any response but the greeting's."""


class _Pending(NamedTuple):
    """A request in flight."""

    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[Any]
    deadline: asyncio.TimerHandle


@cache
def _api_of_class(name: str) -> schema.Api:
    return schema.load(schema.file_name_of(name.removesuffix("Request")))


def api_of_request(request: Any) -> schema.Api:
    """Return the API that a request message belongs to."""
    return _api_of_class(type(request).__name__)


async def connect(
    host: str,
    port: int,
    *,
    client_id: str = SOFTWARE_NAME,
    negotiate: bool = True,
    max_in_flight: int = MAX_IN_FLIGHT,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    greeting_timeout_ms: int | None = None,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    on_closed: Callable[[ConnectionLost], None] | None = None,
    secret: ClusterSecret | None = None,
    tls: TlsFiles | None = None,
) -> ClientConnection:
    """Open a connection on the running loop and negotiate versions with the peer.

    With a ``secret`` both ends prove it first, as processes of a cluster do; this may raise
    ProofFailed. With ``tls`` all of that is encrypted, and the peer shows a certificate.

    ``negotiate=False`` sends no ApiVersions (control channels have fixed versions). ``on_closed``
    is called once, with the reason, when the connection ends. Raises ConnectionLost when the
    address does not accept within ``connect_timeout_ms``, RequestTimedOut when proof and
    negotiation together take longer than ``greeting_timeout_ms`` (None: the same).
    """
    loop = asyncio.get_running_loop()
    connection = ClientConnection(loop, f"{host}:{port}", client_id, max_in_flight, max_frame_bytes)
    try:
        # Not wait_for: in Python 3.11 it swallows a cancellation that races with the result.
        async with asyncio.timeout(connect_timeout_ms / 1000):
            if tls is None:
                await loop.create_connection(lambda: connection._protocol, host, port)
            else:
                # Here: a client without TLS imports none of it.
                from tidelog.client.connecting.tls import open_tls

                await open_tls(loop, lambda: connection._protocol, host, port, tls)
    except TimeoutError:
        raise ConnectionLost(
            f"{host}:{port} did not accept a connection within {connect_timeout_ms} ms"
        ) from None
    except OSError as error:
        raise ConnectionLost(f"{host}:{port} cannot be reached: {_why(error)}") from None
    connection._on_closed = on_closed
    limit_ms = connect_timeout_ms if greeting_timeout_ms is None else greeting_timeout_ms
    connection._greeting_ms = limit_ms
    end = loop.time() + limit_ms / 1000

    def left_ms() -> int:
        return max(1, int((end - loop.time()) * 1000))

    try:
        if secret is not None:
            if secret.optional:
                await connection._negotiate(left_ms())
            await prove(connection, secret, left_ms)
        # After the proof: the peer lists more APIs then.
        if negotiate:
            await connection._negotiate(left_ms())
        else:
            connection._peer_versions = None
    except BaseException:
        connection.close("the attempt to connect was given up")
        raise
    connection._greeting_ms = None
    return connection


def _why(error: OSError) -> str:
    # asyncio prefixes the system's message with its own; the number gives the plain message.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


class ClientConnection:
    """An open connection; made by ``connect``. Belongs to the loop it was made on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peer: str,
        client_id: str,
        max_in_flight: int,
        max_frame_bytes: int,
    ) -> None:
        self.peer = peer
        self.client_id = client_id
        self._loop = loop
        self._protocol = _Protocol(self, FrameReader(max_frame_bytes))
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._limit = max_in_flight
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granted = 0
        """Places of waiting requests that are not written yet: no later request takes one."""
        self._unwritten: list[tuple[asyncio.Future[Any], asyncio.TimerHandle]] = []
        """Requests without a response that were written while the peer took no bytes."""
        self._next_id = 0
        self._paused = False
        self._reason: ConnectionLost | None = None
        self._closed: asyncio.Future[None] = loop.create_future()
        self._on_closed: Callable[[ConnectionLost], None] | None = None
        self._peer_versions: dict[int, tuple[int, int]] | None = None
        self._greeting_ms: int | None = None
        """The limit of proof and negotiation together; None when they are done."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended; it never opens again."""
        return self._reason is not None

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return len(self._pending)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of requests that the operating system has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_receiving(self) -> bool:
        """Whether a part of a response has arrived, but not all of it."""
        return self._protocol.has_begun

    def speaks(self, api_key: int) -> bool:
        """Return whether the peer and this client share a version of an API."""
        try:
            self.version_of(api_key)
        except VersionUnsupported:
            return False
        return True

    def version_of(self, api_key: int, limit: int | None = None) -> int:
        """Return the highest common version of an API, at most ``limit``.

        Raises VersionUnsupported. Without negotiation: the highest this client knows.
        """
        ours = codec.api_of(api_key).all_versions()
        lowest, highest = ours[0], HIGHEST_USED.get(ApiKey(api_key), ours[-1])
        if limit is not None:
            highest = min(highest, limit)
        if self._peer_versions is not None:
            theirs = self._peer_versions.get(api_key)
            name = spoken(api_key)
            if theirs is None:
                raise VersionUnsupported(f"{self.peer} does not serve {name}")
            if theirs[0] > highest or theirs[1] < lowest:
                raise VersionUnsupported(
                    f"{self.peer} serves {name} {theirs[0]}-{theirs[1]}, "
                    f"this client speaks {lowest}-{highest}"
                )
            highest = min(highest, theirs[1])
        return highest

    async def send(
        self, request: Any, version: int | None = None, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> Any:
        """Send a request and return its decoded response.

        ``request`` is a message, or a ``codec.EncodedRequest``, which has its version. Waits while
        ``max_in_flight`` requests are in flight (in order of calls). ``version`` None means the
        highest common one. ``timeout_ms`` counts from the writing.
        Raises ConnectionLost (RequestTimedOut, InvalidAnswer among them), VersionUnsupported.
        """
        taken = len(self._pending) + self._granted
        # After those that wait, even if a place is free: they are given theirs first.
        if self._reason is None and (self._paused or self._waiting or taken >= self._limit):
            place = self._loop.create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                # The place may have been granted just now: pass it on.
                self._granted -= place.done() and not place.cancelled()
                self._give_places()
                raise
            self._granted -= 1
        try:
            answer = self.submit(request, version, timeout_ms)
        except Exception:
            # A request that cannot be written keeps no place.
            self._give_places()
            raise
        return await answer

    def submit(
        self,
        request: Any,
        version: int | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        *,
        answered: bool = True,
    ) -> asyncio.Future[Any]:
        """Write a request at once and return the future of its response.

        For callers with their own limit that depend on the order of writing. ``answered=False``
        (Produce with acks=0): the future is done with None as soon as the peer takes bytes, at once
        while it does, or when the connection ends: what has arrived then is not known.
        Raises VersionUnsupported, EncodeError; a closed connection fails the future.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._reason is not None:
            answer.set_exception(self._reason)
            return answer
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        correlation_id = self._next_id
        if isinstance(request, codec.EncodedRequest):
            api_key, version = request.api_key, request.version
            chunks = codec.frame_request(request, correlation_id, self.client_id)
        else:
            api_key = api_of_request(request).key
            if version is None:
                version = self.version_of(api_key)
            chunks = codec.encode_request(api_key, version, correlation_id, self.client_id, request)
        assert self._transport is not None
        self._transport.writelines(chunks)
        if not answered and not self._paused:
            answer.set_result(None)
            return answer
        deadline = self._loop.call_later(
            timeout_ms / 1000, self._give_up, correlation_id, api_key, timeout_ms
        )
        if not answered:
            self._unwritten.append((answer, deadline))
            return answer
        self._pending.append(_Pending(correlation_id, api_key, version, answer, deadline))
        return answer

    def close(self, reason: str = "the connection was closed by this client") -> None:
        """End the connection now; requests in flight fail. A second call does nothing."""
        self._end(ConnectionLost(f"{self.peer}: {reason}"))

    def forget_at_end(self) -> None:
        """Let the operating system forget, at the end of this connection, what it has not
        delivered: otherwise it goes on to send that for minutes, and the peer may serve a request
        that was given up long ago."""
        if self._transport is not None and self._reason is None:
            opened = self._transport.get_extra_info("socket")
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET_UNSENT)

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._closed)

    async def _negotiate(self, timeout_ms: int) -> None:
        request = messages.ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=__version__
        )
        answer = await self.submit(request, None, timeout_ms)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # The peer is older: it responds in version 0 and lists the versions it serves.
            theirs = {key.api_key: key.max_version for key in answer.api_keys}
            version = min(theirs.get(ApiKey.API_VERSIONS, 0), self.version_of(ApiKey.API_VERSIONS))
            answer = await self.submit(request, version, timeout_ms)
        if answer.error_code != ErrorCode.NONE:
            code = error_code(answer.error_code).name
            raise VersionUnsupported(f"{self.peer} refused ApiVersions: {code}")
        self._peer_versions = {
            key.api_key: (key.min_version, key.max_version) for key in answer.api_keys
        }

    def _give_up(self, correlation_id: int, api_key: int, timeout_ms: int) -> None:
        name = spoken(api_key)
        why = f"did not respond to {name} within {timeout_ms} ms"
        if self._greeting_ms is not None:
            # The time that was left for this request alone is meaningless to a user.
            limit = f"within {self._greeting_ms} ms"
            why = f"did not complete the handshake {limit}: no response to {name}"
        # All of it: responses come in order, so each later one would wait for this one.
        self._end(RequestTimedOut(f"{self.peer} {why}"))

    def _answered(self, frame: memoryview) -> None:
        if not self._pending:
            raise InvalidAnswer(f"{self.peer} sent a response with no request outstanding")
        request = self._pending[0]
        version = request.version
        if request.api_key == ApiKey.API_VERSIONS and _says_unsupported(frame):
            version = 0
        correlation_id, answer = codec.decode_response(request.api_key, version, frame)
        if correlation_id != request.correlation_id:
            raise InvalidAnswer(
                f"{self.peer} sent a response with correlation id {correlation_id}, "
                f"expected {request.correlation_id}"
            )
        self._pending.popleft()
        request.deadline.cancel()
        if not request.answer.done():
            request.answer.set_result(answer)
        self._give_places()

    def _give_places(self) -> None:
        while self._waiting and not self._paused:
            if len(self._pending) + self._granted >= self._limit:
                return
            self._grant(self._waiting.popleft())

    def _grant(self, place: asyncio.Future[None]) -> None:
        if not place.done():
            self._granted += 1
            place.set_result(None)

    def _written(self) -> None:
        """Let requests go on that were written without awaiting a response."""
        unwritten, self._unwritten = self._unwritten, []
        for answer, deadline in unwritten:
            deadline.cancel()
            if not answer.done():
                answer.set_result(None)

    def _end(self, reason: ConnectionLost) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._written()
        if self._transport is not None:
            self._transport.abort()
        self._protocol.release()
        for request in self._pending:
            request.deadline.cancel()
            if not request.answer.done():
                request.answer.set_exception(reason)
                # Retrieved, so that the loop does not warn when the caller is gone.
                request.answer.exception()
        self._pending.clear()
        while self._waiting:
            self._grant(self._waiting.popleft())
        self._closed.set_result(None)
        if self._on_closed is not None:
            self._on_closed(reason)


def _says_unsupported(frame: memoryview) -> bool:
    unsupported = int(ErrorCode.UNSUPPORTED_VERSION)
    return int.from_bytes(frame[4:6], "big", signed=True) == unsupported


class _Protocol(asyncio.BufferedProtocol):
    """The loop's side of a connection."""

    def __init__(self, connection: ClientConnection, reader: FrameReader) -> None:
        self._connection = connection
        self._reader = reader
        self._has_served = False
        """Whether a response came after those of the greeting."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.received(nbytes):
                self._connection._answered(frame)
                self._has_served |= self._connection._greeting_ms is None
        except OversizedFrame as error:
            self._end(InvalidAnswer(f"{self._connection.peer} does not speak Kafka: {error}"))
        except codec.DecodeError as error:
            self._end(
                InvalidAnswer(f"{self._connection.peer} sent an unreadable response: {error}")
            )
        except InvalidAnswer as error:
            self._end(error)

    def eof_received(self) -> None:
        advice = "" if self._has_served else WHAT_TO_CHECK
        self._end(ConnectionLost(f"{self._connection.peer} closed the connection{advice}"))

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"was lost: {exc}" if exc is not None else "was closed by the peer"
        self._end(ConnectionLost(f"the connection to {self._connection.peer} {why}"))

    @property
    def has_begun(self) -> bool:
        return self._reader.has_begun

    def release(self) -> None:
        """Release the buffer: the connection has ended."""
        self._reader.release()

    def pause_writing(self) -> None:
        self._connection._paused = True

    def resume_writing(self) -> None:
        self._connection._paused = False
        self._connection._written()
        self._connection._give_places()

    def _end(self, reason: ConnectionLost) -> None:
        self._connection._end(reason)
