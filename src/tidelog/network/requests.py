"""One frame of a connection -> its handler -> what becomes of the result.

Owns the routes of one connection, and what is refused before a handler sees it. Frames are parsed
in place; record bytes in a request are views of the receive buffer until the handler has returned.
Not where frames begin and end: see `receiving`; not pending responses: see `answering`.
"""

from __future__ import annotations

import logging
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.work import Work
from tidelog.network import api_versions, frames, proving
from tidelog.network.answering import Responses
from tidelog.network.open_request import OpenRequest
from tidelog.network.router import CloseConnection, RequestContext, Route, begun
from tidelog.protocol import codec
from tidelog.protocol.primitives import TooManyElements

if TYPE_CHECKING:
    from tidelog.network.connection_state import Owner
    from tidelog.network.open_connections import OpenConnections
    from tidelog.network.response_memory import ResponseMemory
    from tidelog.network.stepping import Stepping

logger = logging.getLogger(__name__)

PARSED_AT_ONCE_BYTES = 65_536
"""A longer request is parsed in steps: 1 MB of a Produce may name 20,000 topics."""


class Requests:
    """Serves the requests of one connection, one at a time."""

    __slots__ = (
        "_context",
        "_memory",
        "_now_ns",
        "_owner",
        "_responses",
        "_routes",
        "_server",
        "_stepping",
        "_unsent_bytes",
    )

    def __init__(
        self,
        server: OpenConnections,
        owner: Owner,
        memory: ResponseMemory,
        responses: Responses,
        stepping: Stepping,
    ) -> None:
        self._server = server
        self._owner = owner
        self._memory = memory
        self._responses = responses
        self._stepping = stepping
        self._unsent_bytes = server.limits.unsent_answer_bytes
        self._now_ns = server.clock.monotonic_ns
        self._context = server.context
        self.choose_routes()

    def choose_routes(self) -> None:
        """Choose the routes again: the connection may act as a process now, or not."""
        self._routes = self._owner.router.routes_for(self._owner.is_trusted)

    def take(self, frame: memoryview, began_ns: int) -> bool:
        """Serve one request; return False when it must be served again later (or never)."""
        owner, responses = self._owner, self._responses
        try:
            header = frames.header_at(frame)
            api_key, version, correlation_id, length = header
            route = self._routes.get(api_key << 16 | version)
            if route is None:
                route = owner.router.route(api_key, version, owner.is_trusted)
            if route is None:
                return self._refuse_version(header)
            if (
                self._memory.account.answers >= self._unsent_bytes
                and api_key not in proving.KEYS
                and not self._stepping.room_for_answer(route)
            ):
                return False
            route.tally.requests += 1
            if route.direct is not None and (position := frames.message_at(length, route, frame)):
                try:
                    answer = route.direct(
                        self._context, frame, position, version, correlation_id, owner
                    )
                except Exception:
                    # Not an unreadable request: this is a bug of the handler.
                    responses.failed(route, None)
                    return False
                if answer is not None:
                    if answer.__class__ is not bytes:
                        asked = OpenRequest(route, None, correlation_id, len(frame), began_ns)
                        return responses.answer(asked, answer)
                    route.tally.took(self._now_ns() - began_ns)
                    responses.send([answer])
                    return True
            client_id, position = frames.read_rest(header, route, frame)
            asked = OpenRequest(route, None, correlation_id, len(frame), began_ns)
            context = RequestContext(owner, version, correlation_id, client_id, owner.principal)
            if asked.size > PARSED_AT_ONCE_BYTES:
                return self._stepping.begin(
                    asked, self._parsed_in_steps(asked, frame, position, context)
                )
            request, stop = route.decode(frame, position)
            if stop != len(frame):
                codec.check_end(route.api_key, frame, stop)
        except TooManyElements as error:
            assert route is not None, "it was found before anything was parsed"
            try:
                return responses.answer(asked, self._refused(route, error))
            except CloseConnection as reason:
                owner.close(str(reason))
                return False
        except frames.UNREADABLE as error:
            owner.close(f"it sent bytes that are no request: {error}")
            return False
        return self._handle(asked, request, context)

    def _handle(self, asked: OpenRequest, request: Any, context: RequestContext) -> bool:
        route = asked.route
        asked.request = request
        try:
            result = begun(route.handle(self._context, request, context))
        except CloseConnection as error:
            self._owner.close(str(error))
            return False
        except Exception:
            result = self._responses.failed(route, request)
            if result is None:
                return False
        if result is None:
            route.tally.took(self._now_ns() - asked.began_ns)
            return True
        if result.__class__ is GeneratorType:
            return self._stepping.begin(asked, result)
        return self._responses.answer(asked, result)

    def _parsed_in_steps(
        self, asked: OpenRequest, frame: memoryview, position: int, context: RequestContext
    ) -> Work[Any]:
        """Parse a long request and serve it."""
        route = asked.route
        try:
            request = yield from route.decode_in_steps(frame, position)
        except TooManyElements as error:
            return self._refused(route, error)
        except frames.UNREADABLE as error:
            raise CloseConnection(f"it sent bytes that are no request: {error}") from None
        # From now on a failure has a response.
        asked.request = request
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
        if self._server.sweep.may_say():
            name = route.handler.name
            logger.warning("%s gets INVALID_REQUEST for its %s: %s", self._owner, name, error)
        return answer

    def _refuse_version(self, header: frames.Header) -> bool:
        api_key, version, correlation_id, _ = header
        owner = self._owner
        if api_key == ApiKey.API_VERSIONS and version >= 0:
            answer = api_versions.unsupported(owner.router, owner.is_trusted)
            self._responses.send(codec.encode_response(api_key, 0, correlation_id, answer))
            return True
        owner.close(f"API {api_key} version {version} is not served here")
        return False
