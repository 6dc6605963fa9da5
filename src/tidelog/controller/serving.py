"""How a controller's handler is made: what it answers while this controller is not active.

Owns the step from a plain coroutine to a ``Handler``; the handlers are one file per API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import MOST_ELEMENTS, Handler, RequestContext, Scope

if TYPE_CHECKING:
    from tidelog.controller.process import Controller


class NotActive(Exception):
    """This controller is not the active one: the request was not carried out, or may have been."""


Serve = Callable[["Controller", Any, RequestContext], Awaitable[Any]]
RefuseAll = Callable[[Any, ErrorCode, str], Any]
"""(request, error, sentence) -> a response that says it of everything asked."""

MAX_WAIT_FOR_BROKERS_MS = 4_000
"""How long a request on a broker's session may wait: answers leave in order, and heartbeats behind
it must be answered well within ``broker.session.timeout.ms``."""


MOST_ASKED = 5_000
"""Elements of one request that a client sends to the controller's own listener, as many as brokers
forward (``broker.forwarding``)."""


CHANGES = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)
"""What users ask for and brokers would have to be told: a store that has gone back in time commands
none, so it is refused at once, with the sentence that says what to do."""


def served(
    api_key: ApiKey,
    versions: range,
    scope: Scope,
    serve: Serve,
    refuse_all: RefuseAll,
    pipelined: bool = False,
) -> Handler:
    """Make a handler that answers NOT_CONTROLLER while its controller is not active.

    A forwarded request raises NotActive instead: the answer is the envelope's.
    """

    async def handle(controller: Controller, request: Any, context: RequestContext) -> Any:
        try:
            if controller.active:
                went_back = controller.cluster.went_back if api_key in CHANGES else None
                if went_back is not None:
                    return refuse_all(request, ErrorCode.POLICY_VIOLATION, went_back)
                return await serve(controller, request, context)
        except NotActive:
            pass
        if context.forwarded:
            raise NotActive
        sentence = "This is not the active controller."
        return refuse_all(request, ErrorCode.NOT_CONTROLLER, sentence)

    def failed(request: Any, error: ErrorCode, _version: int) -> Any:
        return refuse_all(request, error, "The controller failed: see its log.")

    most = MOST_ASKED if scope is Scope.CLIENT else MOST_ELEMENTS
    return Handler(
        api_key, versions, scope, handle, pipelined=pipelined, refuse=failed, most_elements=most
    )


async def told_in_time(
    controller: Controller, revision: int, timeout_ms: int, context: RequestContext
) -> bool:
    """Wait until live brokers know of a revision, as long as the request may take."""
    return await controller.reached(revision, patience_ms(controller, timeout_ms, context))


def patience_ms(controller: Controller, timeout_ms: int, context: RequestContext) -> int:
    """Return how long a request may wait for brokers in all."""
    if controller.session_watch.is_session(context.connection):
        return min(timeout_ms, MAX_WAIT_FOR_BROKERS_MS)
    return timeout_ms
