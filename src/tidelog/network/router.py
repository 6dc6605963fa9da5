"""API key and version -> handler: the registry of a broker or a controller.

Owns the ``Handler`` that every handler file exports, its input beside the request
(``RequestContext``), its authorization (``Scope``), and the list of ApiVersions. Does no I/O. Not
the calls of handlers: see `requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from types import GeneratorType
from typing import Any, Protocol

import msgspec

from tidelog.model.api_keys import ApiKey, spoken
from tidelog.model.errors import ErrorCode
from tidelog.model.principals import Principal
from tidelog.model.work import Work
from tidelog.network.limits import Account
from tidelog.network.requester import Requester
from tidelog.network.served_versions import listed, served
from tidelog.network.tally import Tally
from tidelog.protocol import codec, messages
from tidelog.protocol.compiler import STEP
from tidelog.protocol.refusals import refused
from tidelog.protocol.secret_exchange import Exchange


class Scope(Enum):
    """The senders that a handler serves. On a connection that may not act as a process of the
    cluster (``Peer.is_trusted``) all but ``CLIENT`` is refused with
    CLUSTER_AUTHORIZATION_FAILED."""

    CLIENT = "client"
    """Any client that may connect."""

    BROKER = "broker"
    """A broker, or an operator with the cluster secret."""

    CONTROLLER = "controller"
    """The active controller: OpenControlChannel with the channel key, and the commands that are
    accepted only on the control channel that it opened."""


FOLLOWERS = frozenset((ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH))
"""Requests of followers for all their partitions, which clients send, too."""


class CloseConnection(Exception):
    """Raised by a handler whose response cannot refuse (Produce with acks=0): one log line."""


class Peer(Protocol):
    """The connection that a request came in by, as handlers see it. Peers are hashable: they
    identify the sender for as long as it is connected. That of a request in an Envelope is no
    connection: see ``forwarded_client``."""

    principal: Principal
    client_host: str
    listener_name: str
    router: Router
    is_trusted: bool
    is_tidelog: bool
    exchange: Exchange | None

    @property
    def trusts_all(self) -> bool:
        """Whether this server requires a proof of the cluster secret from no connection."""

    @property
    def account(self) -> Account:
        """Return the account that counts the memory of this connection."""

    @property
    def is_closing(self) -> bool:
        """Whether no further request of this connection will be served."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the connection has ended, whichever side ended it."""

    def close(self, reason: str | None) -> None:
        """Serve no further request and close; ``reason`` goes into one log line."""

    def trust(self) -> None:
        """Serve later requests as those of a process of the cluster."""

    def refused(self, api_key: ApiKey, why: str, client: Peer | None = None) -> None:
        """Count a refused request and write it to the audit log, as one of ``client`` where it is
        not this connection's own."""

    def answer_budget(self) -> int:
        """Return how many bytes of records a response may have now."""

    def can_send_files(self) -> bool:
        """Whether responses may have parts of files among their chunks."""


class RequestContext(msgspec.Struct):
    """The input of a handler beside the request message.

    Unlike a message it is tracked by the garbage collector: it is part of the cycle from a
    connection through its pending responses, and untracked it would keep the server in memory.
    """

    connection: Peer
    version: int
    correlation_id: int
    client_id: str | None
    principal: Principal
    carrier: Peer | None = None
    """The connection of the broker that forwarded it in an Envelope, for one of its clients. It
    gives the request no rights: ``connection`` is the client's (``forwarded_client``)."""

    @property
    def forwarded(self) -> bool:
        """Whether a broker forwarded it in an Envelope."""
        return self.carrier is not None

    @property
    def requester(self) -> Requester:
        """In whose name it is forwarded."""
        return Requester(self.principal, self.client_host)

    @property
    def client_host(self) -> str:
        """The peer's address as text, without a port."""
        return self.connection.client_host

    @property
    def listener_name(self) -> str:
        """The listener of the request's connection."""
        return self.connection.listener_name

    @property
    def router(self) -> Router:
        """The registry that this request was found in."""
        return self.connection.router

    def may_name_replica(self, replica_id: int, api_key: ApiKey) -> bool:
        """Whether a request may say so: a replica (0 or more) only on a trusted connection.

        -1 is a consumer, -2 a debugging consumer. A refusal is written to the audit log.
        """
        if replica_id < 0 or self.connection.is_trusted:
            return True
        self.connection.refused(api_key, f"it names replica {replica_id} {WITHOUT_PROOF}")
        return False

    def answer_budget(self) -> int:
        """Return how many bytes of records this response may have before clients must read
        others."""
        return self.connection.answer_budget()


WITHOUT_PROOF = "without a proof of the cluster secret"
"""The reason in an audit line of a request out of scope."""


def begun(steps: Any) -> Any:
    """Run steps up to their first ``yield``; return the result if they have ended, or the rest.

    What a handler has returned without steps is returned as it is.
    """
    if steps.__class__ is not GeneratorType:
        return steps
    try:
        grown = next(steps)
    except StopIteration as end:
        return end.value
    return _rest(grown, steps)


def _rest(grown: int, steps: Work[Any]) -> Work[Any]:
    yield grown
    return (yield from steps)


ELEMENT_BYTES = 220
"""Memory of an element of a parsed Produce: a topic, or a partition without its records."""

MOST_ELEMENTS = 50_000
"""Elements of one request (of arrays, and tagged fields) on a connection without a proof."""

MOST_MOVED = 100_000
"""The same of a request about reassignments, which is parsed and served in steps: Kafka's tool
sends a whole plan in one, and one of 50,000 partitions with three replicas has 90,000."""

NUMBERS_OF_MOVES = 4
"""So many broker ids or partition indexes of it count as one element: each takes four bytes of the
request and 40 of memory, an element with fields at least six and 140."""

Handle = Callable[[Any, Any, RequestContext], Any]
"""(server context, request, request context) -> response, None for no response, an awaitable, or a
generator (``Work``) that returns one of these."""

FAILED = "the broker failed: see its log"
"""The sentence of a response to an exception."""

Direct = Callable[[Any, memoryview, int, int, int, Peer], Any]
"""(server context, frame, position of the message, version, correlation id, connection) -> the
whole frame of the response, as bytes or as a list of the chunks to send, a future of the frame or
of the message, or None without any effect: then the request is decoded."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One API as a server serves it. Each handler file exports one as ``HANDLER``.

    ``handle`` returns a response, None (no response: acks=0), a coroutine (run to its end even if
    the client goes away), a future (cancelled when the client goes away), or ``Work`` (closed
    when the client goes away). Record bytes in the request are memoryviews of the receive buffer,
    valid until ``handle`` returns, or until its steps end; a coroutine has not begun by then, so a
    handler that reads record bytes is a plain ``def``. One that processes many items runs in
    steps, or its requests have fewer ``most_elements``.

    While the response of a handler is pending its connection is not served, as in Kafka, unless the
    handler is ``pipelined`` and has not returned a task of its own: that one holds a copy of the
    request. A ``large_answer`` waits while too many responses are unread.
    """

    api_key: ApiKey
    scope: Scope
    handle: Handle
    pipelined: bool = False
    large_answer: bool = False
    failure: str | None = None
    """The sentence of the response to an exception in ``handle``. It has an error for everything in
    the request; where the schema has no place for one (`refusals`) the connection is closed."""
    is_answered: Callable[[Any], bool] = lambda _: True
    """Whether a request gets a response."""
    most_elements: int = MOST_ELEMENTS
    """Most elements of one request on a connection without a proof; more is INVALID_REQUEST, or
    closes the connection where the response has no error code at its top."""
    numbers_in_one: int = 1
    """How many numbers of an array count as one element."""
    long_records: bool = False
    """Whether most bytes of long requests are records, which no response copies: then not their
    bytes are charged, but ``ELEMENT_BYTES`` for each element that is parsed in steps."""
    direct: Direct | None = None
    """The fast path of the hottest requests; ``handle`` serves those that it returns None for."""
    versions: range = range(0)
    """All of the schema, unless some are named: those of an older server."""
    with_transactions: range = range(0)
    """The versions, first or last, that are served while transactions are offered, or may be."""
    between_brokers: range = range(0)
    """The versions in broker scope of an API whose other versions clients use."""

    def __post_init__(self) -> None:
        if not self.versions:
            object.__setattr__(self, "versions", codec.api_of(self.api_key).all_versions())

    def scope_of(self, version: int) -> Scope:
        """Return the scope of one version."""
        return Scope.BROKER if version in self.between_brokers else self.scope

    @property
    def name(self) -> str:
        """The API's name in sentences."""
        return spoken(self.api_key)


class Route:
    """A handler in one version, with the attributes that a connection reads for each request."""

    __slots__ = (
        "api_key",
        "decode",
        "decode_in_steps",
        "direct",
        "encode",
        "encode_in_steps",
        "flexible",
        "flexible_answer",
        "handle",
        "handler",
        "large_answer",
        "long_records",
        "pipelined",
        "tally",
        "version",
    )

    def __init__(
        self, handler: Handler, version: int, tally: Tally, most: int | None = None
    ) -> None:
        """``most``: elements of one request; None is the bound of the codec."""
        key = int(handler.api_key)
        self.handler = handler
        self.api_key = key
        self.version = version
        self.tally = tally
        self.handle = handler.handle
        self.direct = handler.direct
        self.pipelined = handler.pipelined
        self.large_answer = handler.large_answer
        self.long_records = handler.long_records
        numbers = handler.numbers_in_one
        self.decode = codec.request_decoder(key, version, most, numbers)
        self.encode = codec.response_encoder(key, version)
        self.decode_in_steps: Callable[..., Work[Any]] = partial(
            codec.decode_request, key, version, most=most, numbers=numbers
        )
        if handler.long_records:
            self.decode_in_steps = partial(_charged, self.decode_in_steps)
        self.encode_in_steps = partial(codec.encode_response_in_steps, key, version)
        self.flexible = codec.is_flexible(key, version)
        # An ApiVersions response always has the old header: the client knows no version yet.
        self.flexible_answer = self.flexible and key != ApiKey.API_VERSIONS

    def refuse_always(self, response_class: Any) -> None:
        """Refuse all requests with CLUSTER_AUTHORIZATION_FAILED, without parsing them."""
        key, scope = self.handler.api_key, self.handler.scope_of(self.version)

        def refuse(_: Any, __: Any, context: RequestContext) -> Any:
            context.connection.refused(
                key, f"it is for {scope.value}s, and was asked {WITHOUT_PROOF}"
            )
            return response_class(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        self.handle = refuse
        self.direct = None
        self.large_answer = False
        self.decode = lambda frame, _: (None, len(frame))
        self.decode_in_steps = _unread

    def too_many(self, why: str) -> Any | None:
        """Return a response with INVALID_REQUEST, for a request of too many elements, or None: only
        the top of the response can have it, for the items were not parsed."""
        key = self.handler.api_key
        if not _has_at_top(key, "error_code", self.version):
            return None
        answer = _response_class(key)(error_code=ErrorCode.INVALID_REQUEST)
        if _has_at_top(key, "error_message", self.version):
            answer.error_message = why
        return answer

    def failure(self, request: Any) -> Any | None:
        """Return a response with UNKNOWN_SERVER_ERROR, or None if it has no field for one."""
        return refusal(self.handler, request, ErrorCode.UNKNOWN_SERVER_ERROR, self.version)


class Router:
    """The handlers of one process: ``Router([api_versions.HANDLER, produce.HANDLER, …])``.

    ``offers_transactions``: whether versions for which that counts are served now; None while that
    is not known: see ``served_versions``.
    ValueError for two handlers of one API, or for one out of client scope whose response has no
    error code at its top: it could not be refused.
    """

    def __init__(
        self,
        handlers: Iterable[Handler],
        offers_transactions: Callable[[], bool | None] = lambda: False,
    ) -> None:
        self._offers_transactions = offers_transactions
        self._handlers: dict[int, Handler] = {}
        self.routes: dict[int, Route] = {}
        """Those requested so far, by API key << 16 | version, for trusted connections."""
        self.client_routes: dict[int, Route] = {}
        """The same for connections without a proof: routes out of their scope refuse."""
        self._of_transactions: dict[tuple[int, int, bool], Route] = {}
        """Routes that are not always served; the others are found without that question."""
        self._shown: dict[tuple[bool, bool | None], list[Any]] = {}
        """Entries of ApiVersions: whether a connection is trusted, and transactions are offered."""
        self.tallies: dict[ApiKey, Tally] = {}
        for handler in handlers:
            self._add(handler)

    def add(self, handlers: Iterable[Handler]) -> None:
        """Serve these, too; APIs that are served already stay as they are."""
        for handler in handlers:
            if handler.api_key not in self._handlers:
                self._add(handler)

    def _add(self, handler: Handler) -> None:
        key = handler.api_key
        if key in self._handlers:
            raise ValueError(f"two handlers of {spoken(key)}")
        if not all(
            _has_at_top(key, "error_code", version)
            for version in handler.versions
            if handler.scope_of(version) is not Scope.CLIENT
        ):
            raise ValueError(f"{spoken(key)} cannot be refused: its response has no error code")
        self._handlers[key] = handler
        self._shown.clear()
        self.tallies[key] = Tally()

    def routes_for(self, trusted: bool) -> dict[int, Route]:
        """Return the routes of a connection: chosen once, not for each request."""
        return self.routes if trusted else self.client_routes

    def route(self, api_key: int, version: int, trusted: bool = True) -> Route | None:
        """Return the route of an API in a version on such a connection, or None."""
        routes = self.routes_for(trusted)
        found = routes.get(api_key << 16 | version)
        if found is None:
            handler = self._handlers.get(api_key)
            if handler is None or version not in self._versions(served, handler):
                return None
            if version in handler.with_transactions:
                return self._route_of_transactions(handler, version, trusted)
            found = routes[api_key << 16 | version] = self._made(handler, version, trusted)
        return found

    def _made(self, handler: Handler, version: int, trusted: bool) -> Route:
        scope = handler.scope_of(version)
        most: int | None = handler.most_elements
        if scope is not Scope.CLIENT or (trusted and handler.api_key in FOLLOWERS):
            most = None
        made = Route(handler, version, self.tallies[handler.api_key], most)
        if not (trusted or scope is Scope.CLIENT):
            made.refuse_always(_response_class(handler.api_key))
        return made

    def _route_of_transactions(self, handler: Handler, version: int, trusted: bool) -> Route:
        key = handler.api_key, version, trusted
        if key not in self._of_transactions:
            self._of_transactions[key] = self._made(handler, version, trusted)
        return self._of_transactions[key]

    def _versions(self, rule: Callable[[range, range, bool | None], range], of: Handler) -> range:
        return rule(of.versions, of.with_transactions, self._offers_transactions())

    def handler(self, api_key: int) -> Handler | None:
        """Return the handler of an API, in any version (Envelope unpacks requests with it)."""
        return self._handlers.get(api_key)

    def api_versions(self, trusted: bool = True) -> list[Any]:
        """Return the entries of an ApiVersions response by key: the APIs that it may use. They are
        made once: each connection asks for them."""
        kind = trusted, self._offers_transactions()
        if kind not in self._shown:
            self._shown[kind] = self._shown_to(trusted)
        return self._shown[kind]

    def _shown_to(self, trusted: bool) -> list[Any]:
        entry = messages.ApiVersionsResponse.ApiVersion
        shown = []
        for key, handler in sorted(self._handlers.items()):
            versions = [
                version
                for version in self._versions(listed, handler)
                if trusted or handler.scope_of(version) is Scope.CLIENT
            ]
            if versions:
                shown.append(entry(int(key), versions[0], versions[-1]))
        return shown


def handlers_of(package: str, path: Iterable[str]) -> Iterator[Handler]:
    """Yield the ``HANDLER`` of each module of a package: its directory is the list of APIs."""
    for entry in iter_modules(path):
        found: Handler = import_module(f"{package}.{entry.name}").HANDLER
        yield found


def _charged(decode: Callable[..., Work[Any]], frame: memoryview, position: int) -> Work[Any]:
    """Parse a request in steps that say how much memory its elements take."""
    steps = decode(frame, position)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        yield STEP * ELEMENT_BYTES


def _unread(*_: Any) -> Work[None]:
    """Parse no bytes of a request."""
    return
    yield None


def refusal(handler: Handler, request: Any, error: ErrorCode, version: int) -> Any | None:
    """Return a response of this API with ``error``, or None if it has no field for it."""
    if not handler.is_answered(request):
        return None
    return refused(handler.api_key, version, request, error, handler.failure)


def _has_at_top(api_key: ApiKey, name: str, version: int) -> bool:
    """Whether the response of an API has this field, not in an element of it, in a version."""
    fields = codec.api_of(api_key).response.fields
    return any(each.name == name and version in each.versions for each in fields)


def _response_class(api_key: ApiKey) -> Any:
    return messages.classes_of(codec.api_of(api_key).response)[""]
