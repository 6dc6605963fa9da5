"""The step from a handler's function to a ``Handler``, and its response while inactive.

Owns the refusals that every handler shares: NOT_CONTROLLER, and a store that has gone back in time
or is contested; the first change of a new cluster waits here (``founding``).
The handlers are one file per API: see ``handlers``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidelog.controller.controller import Controller
from tidelog.controller.performing import NotActive
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.forwarded import FORWARDED, MOST_FORWARDED
from tidelog.network.router import MOST_ELEMENTS, Handler, RequestContext, Scope
from tidelog.protocol.refusals import refused
from tidelog.runtime import pace

Request = TypeVar("Request")

Handle = Callable[[Controller, Request, RequestContext], Awaitable[Any] | Work[Any]]
"""See ``network.router.Handle``; one that is pipelined returns ``Work``, too."""

MAX_WAIT_FOR_BROKERS_MS = 4_000
"""How long a request on a broker's session may wait: responses leave in the order of requests, and
the heartbeats after it need theirs well within ``broker.session.timeout.ms``."""


def served(
    api_key: ApiKey,
    scope: Scope,
    handle: Handle[Request],
    pipelined: bool = False,
    most: int | None = None,
    numbers_in_one: int = 1,
) -> Handler:
    """Make a handler that responds NOT_CONTROLLER while its controller is not active.

    For a forwarded request it raises NotActive instead: the error belongs on the envelope.
    """
    is_change = api_key in FORWARDED and FORWARDED[api_key].is_change

    async def if_active(controller: Controller, request: Request, context: RequestContext) -> Any:
        try:
            if controller.active:
                if is_change or api_key is ApiKey.ALLOCATE_PRODUCER_IDS:
                    await controller.founding.settled()
                why = _why_no_change(controller) if is_change else None
                if why is not None:
                    return refused(
                        api_key, context.version, request, ErrorCode.POLICY_VIOLATION, why
                    )
                if controller.active:
                    answer = handle(controller, request, context)
                    return await pace.response(answer, controller.seams.clock)
        except NotActive:
            pass
        if context.forwarded:
            raise NotActive
        sentence = "This is not the active controller."
        return refused(api_key, context.version, request, ErrorCode.NOT_CONTROLLER, sentence)

    if most is None:
        most = MOST_FORWARDED if scope is Scope.CLIENT else MOST_ELEMENTS
    return Handler(
        api_key,
        scope,
        if_active,
        pipelined=pipelined,
        failure="The controller failed: see its log.",
        most_elements=most,
        numbers_in_one=numbers_in_one,
    )


def served_for_brokers(api_key: ApiKey, handle: Handle[Request]) -> Handler:
    """Do as ``served`` with an API that brokers forward."""
    row = FORWARDED[api_key]
    return served(
        api_key,
        row.scope,
        handle,
        most=row.most,
        numbers_in_one=row.numbers_in_one,
    )


def _why_no_change(controller: Controller) -> str | None:
    """Return why this store takes no changes of users, or None."""
    return controller.cluster.went_back or controller.founding.why_contested


async def reached_in_time(
    controller: Controller, revision: int, timeout_ms: int, context: RequestContext
) -> bool:
    """Wait until every live broker has been sent a revision, as long as the request may take."""
    return await controller.reached(revision, patience_ms(controller, timeout_ms, context))


def patience_ms(controller: Controller, timeout_ms: int, context: RequestContext) -> int:
    """Return the longest time that a request may wait for brokers."""
    if controller.session_watch.is_session(context.carrier or context.connection):
        return min(timeout_ms, MAX_WAIT_FOR_BROKERS_MS)
    return timeout_ms
