"""Forwarding of clients' requests to the controller, each in an Envelope.

Owns the error that a client gets without a controller: NOT_CONTROLLER when no request was sent (the
client may retry), REQUEST_TIMED_OUT when the outcome is unknown. The controller's response goes to
the client undecoded, in the client's version: it may be large.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.broker.control_plane.session import ControllerUnreachable, ForwardingRefused
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network import frames
from tidelog.network.router import Handler, RequestContext, Scope

if TYPE_CHECKING:
    from tidelog.broker.control_plane.session import ControllerSession
    from tidelog.model.configs.server import ServerConfigs

logger = logging.getLogger(__name__)

SLACK_MS = 2_000
"""Time that the controller's response may take beyond the client's own timeout."""

Refuse = Callable[[Any, ErrorCode, str], Any]
"""(request, error, message) -> a response with this error for every element of the request."""


MOST_FORWARDED = 5_000
"""Most elements of a forwarded request: this broker decodes all of them in one turn."""


MOST_SETTINGS = 10_000
"""The same for requests that name a topic with settings: 2,000 topics with two are 6,000."""


MOST_MOVED = 50_000
"""The same for reassignments, as many as any client's request may have: Kafka's tool sends a whole
plan in one request, and 10,000 partitions with three replicas are 40,000 elements. Long requests
are parsed in steps, here and by the controller; to write one again takes 5 ms for this plan."""


class Forwards(Protocol):
    """A broker that sends requests on to the controller."""

    @property
    def session(self) -> ControllerSession: ...

    @property
    def configs(self) -> ServerConfigs: ...


def forwarded(
    api_key: ApiKey, versions: range, scope: Scope, refuse: Refuse, most: int = MOST_FORWARDED
) -> Handler:
    """Return the handler of an API that the controller serves."""

    def handle(broker: Forwards, request: Any, context: RequestContext) -> Awaitable[Any]:
        return forward(broker, api_key, request, context, refuse)

    def refuse_all(request: Any, error: ErrorCode, _version: int) -> Any:
        return refuse(request, error, "the broker failed: see its log")

    return Handler(api_key, versions, scope, handle, refuse=refuse_all, most_elements=most)


async def forward(
    broker: Forwards, api_key: int, request: Any, context: RequestContext, refuse: Refuse
) -> Any:
    """Send ``request`` to the controller; return the frame of its response, or a refusal."""
    asked_ms = getattr(request, "timeout_ms", 0) or 0
    limit_ms = max(asked_ms, broker.configs.request_timeout_ms) + SLACK_MS
    try:
        answer = await broker.session.forward(
            api_key, context.version, request, context.client_host, limit_ms
        )
        return frames.answer_of(context.correlation_id, answer)
    except ControllerUnreachable as error:
        return refuse(request, ErrorCode.NOT_CONTROLLER, str(error))
    except ForwardingRefused as error:
        return refuse(request, error.code, str(error))
    except ClientError as error:
        logger.warning(
            "outcome of a forwarded %(request)s unknown: %(error)s",
            {"request": ApiKey(api_key).name, "error": error},
        )
        message = f"the connection to the controller broke, the outcome is unknown: {error}"
        return refuse(request, ErrorCode.REQUEST_TIMED_OUT, message)


def refuse_resources(response: Any) -> Refuse:
    """Return the function that refuses every resource of a request that alters configurations.

    ``response`` is AlterConfigsResponse or IncrementalAlterConfigsResponse: both have these fields.
    """
    result = response.AlterConfigsResourceResponse

    def refuse(request: Any, error: ErrorCode, message: str) -> Any:
        return response(
            responses=[
                result(error, message, r.resource_type, r.resource_name) for r in request.resources
            ]
        )

    return refuse
