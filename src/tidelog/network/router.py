"""API key and version -> handler: the registry that a broker or a controller serves from.

Owns the ``Handler`` that every handler file exports, what a handler is told (``RequestContext``),
and the list that ApiVersions answers. Does no I/O; the connection calls the handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages

if TYPE_CHECKING:
    from tidelog.network.connection import Connection


class CloseConnection(Exception):
    """Raised by a handler that has no other way to refuse (Produce with acks=0): one log line."""


class RequestContext(msgspec.Struct):
    """What a handler knows of a request beside its message.

    The collector must know it, unlike a message: it is on the circle from a connection over its
    parked answers and back, and unseen it would keep the whole server in memory.
    """

    connection: Connection
    version: int
    correlation_id: int
    client_id: str | None
    principal: str
    forwarded: bool = False
    """Whether a broker sent it on in an Envelope, for a client of its own."""

    @property
    def client_host(self) -> str:
        """The peer's address as text, without a port."""
        return self.connection.client_host

    @property
    def listener_name(self) -> str:
        """The listener that the request came in by."""
        return self.connection.listener_name

    @property
    def router(self) -> Router:
        """The registry that this request was found in."""
        return self.connection.router

    def answer_budget(self) -> int:
        """How many bytes of records this answer may have before clients must read others first."""
        return self.connection.answers.left


Handle = Callable[[Any, Any, RequestContext], Any]
"""(server context, request, request context) -> response, None for no answer, or an awaitable."""

Refuse = Callable[[Any, ErrorCode, int], Any]
"""(request, error code, version) -> a response that carries it for everything asked."""


Direct = Callable[[Any, memoryview, int, int, int], Any]
"""(server context, frame, position of the message, version, correlation id) -> the answer's whole
frame as bytes, a future of the frame or of the message, or None, with nothing done: decode it."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One API as a server serves it. Each handler file exports one as ``HANDLER``.

    ``handle`` returns a response, None (no answer: acks=0), a coroutine (run to its end even if
    the client goes away), or a future (cancelled when the client goes away). Record bytes in the
    request are memoryviews of the receive buffer, valid until ``handle`` returns; a coroutine has
    not begun by then, so a handler that reads record bytes is a plain ``def``.

    While the answer of a handler is pending its connection is not served, as in Kafka, unless the
    handler is ``pipelined``. A ``large_answer`` waits while too many answers are unread.
    """

    api_key: ApiKey
    versions: range
    handle: Handle
    pipelined: bool = False
    large_answer: bool = False
    refuse: Refuse | None = None
    """How an exception in ``handle`` is answered; without it an ``error_code`` at the top of the
    response is set, and where there is none the connection is closed."""
    direct: Direct | None = None
    """A shorter way for the requests that matter most; what it does not answer ``handle`` gets."""


@dataclass(slots=True)
class Tally:
    """What one API has seen since the start."""

    requests: int = 0
    failures: int = 0
    """Exceptions in the handler (bugs), not refusals."""
    parked: int = 0
    """Requests whose answer is pending now."""


class Route:
    """A handler in one version, with what the connection needs at hand for each request."""

    __slots__ = (
        "api_key",
        "decode",
        "direct",
        "encode",
        "flexible",
        "flexible_answer",
        "handle",
        "handler",
        "large_answer",
        "pipelined",
        "tally",
        "version",
    )

    def __init__(self, handler: Handler, version: int, tally: Tally) -> None:
        key = int(handler.api_key)
        self.handler = handler
        self.api_key = key
        self.version = version
        self.tally = tally
        self.handle = handler.handle
        self.direct = handler.direct
        self.pipelined = handler.pipelined
        self.large_answer = handler.large_answer
        self.decode = codec.request_decoder(key, version)
        self.encode = codec.response_encoder(key, version)
        self.flexible = codec.is_flexible(key, version)
        # The answer to ApiVersions has the old header always: the client knows no version yet.
        self.flexible_answer = self.flexible and key != ApiKey.API_VERSIONS

    def failure(self, request: Any) -> Any | None:
        """Return a response with UNKNOWN_SERVER_ERROR, or None if there is no room for one."""
        return refusal(self.handler, request, ErrorCode.UNKNOWN_SERVER_ERROR, self.version)


class Router:
    """The handlers of one process: ``Router([produce.HANDLER, fetch.HANDLER, …])``.

    ApiVersions is served without being named. ValueError for two handlers of one API, or for a
    version that the protocol's schema does not have.
    """

    def __init__(self, handlers: Iterable[Handler]) -> None:
        from tidelog.network import api_versions

        self._handlers: dict[int, Handler] = {}
        self.routes: dict[int, Route] = {}
        """Those asked for so far, by API key << 16 | version."""
        self.tallies: dict[ApiKey, Tally] = {}
        for handler in (api_versions.HANDLER, *handlers):
            self._add(handler)

    def _add(self, handler: Handler) -> None:
        key = handler.api_key
        if key in self._handlers:
            raise ValueError(f"two handlers of {key.name}")
        known = codec.api_of(key).versions
        if handler.versions.start not in known or handler.versions.stop - 1 not in known:
            raise ValueError(f"{key.name} has no versions {handler.versions}")
        self._handlers[key] = handler
        self.tallies[key] = Tally()

    def route(self, api_key: int, version: int) -> Route | None:
        """Return who serves an API in a version, or None."""
        found = self.routes.get(api_key << 16 | version)
        if found is None:
            handler = self._handlers.get(api_key)
            if handler is None or version not in handler.versions:
                return None
            found = Route(handler, version, self.tallies[handler.api_key])
            self.routes[api_key << 16 | version] = found
        return found

    def handler(self, api_key: int) -> Handler | None:
        """Return the handler of an API, in any version (Envelope unpacks requests with it)."""
        return self._handlers.get(api_key)

    def api_versions(self) -> list[Any]:
        """Return the entries of an ApiVersions response, by key."""
        entry = messages.ApiVersionsResponse.ApiVersion
        return [
            entry(int(key), handler.versions.start, handler.versions.stop - 1)
            for key, handler in sorted(self._handlers.items())
        ]


def refusal(handler: Handler, request: Any, error: ErrorCode, version: int) -> Any | None:
    """Return a response of this API that says ``error``, or None if there is no room for it."""
    if handler.refuse is not None:
        return handler.refuse(request, error, version)
    response_class = messages.classes_of(codec.api_of(handler.api_key).response)[""]
    response = response_class()
    if not hasattr(response, "error_code"):
        return None
    response.error_code = int(error)
    return response
