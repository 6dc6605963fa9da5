"""Requests that only the controller can do: sent on in an Envelope by whichever broker gets them.

Owns what a client is told when there is no controller: NOT_CONTROLLER when nothing was sent (the
client may try again), REQUEST_TIMED_OUT when the outcome is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidelog.broker.session import ControllerUnreachable, ForwardingRefused
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

logger = logging.getLogger(__name__)

SLACK_MS = 2_000
"""What the controller's answer may need beyond the client's own time-out."""

Refuse = Callable[[Any, ErrorCode, str], Any]
"""(request, error, sentence) -> a response that says it of everything asked."""


def forwarded(api_key: ApiKey, versions: range, refuse: Refuse) -> Handler:
    """Make the handler of an API that the controller serves."""

    def handle(broker: Broker, request: Any, context: RequestContext) -> Awaitable[Any]:
        return forward(broker, api_key, context.version, request, context.client_host, refuse)

    def refuse_all(request: Any, error: ErrorCode, _version: int) -> Any:
        return refuse(request, error, "the broker failed: see its log")

    return Handler(api_key, versions, handle, refuse=refuse_all)


async def forward(
    broker: Broker, api_key: int, version: int, request: Any, client_host: str, refuse: Refuse
) -> Any:
    """Send ``request`` to the controller and return its answer, or a refusal."""
    asked_ms = getattr(request, "timeout_ms", 0) or 0
    limit_ms = max(asked_ms, broker.configs.request_timeout_ms) + SLACK_MS
    try:
        return await broker.session.forward(api_key, version, request, client_host, limit_ms)
    except ControllerUnreachable as error:
        return refuse(request, ErrorCode.NOT_CONTROLLER, str(error))
    except ForwardingRefused as error:
        return refuse(request, error.code, str(error))
    except ClientError as error:
        logger.warning("the outcome of a forwarded %s is unknown: %s", ApiKey(api_key).name, error)
        sentence = f"the connection to the controller broke, the outcome is unknown: {error}"
        return refuse(request, ErrorCode.REQUEST_TIMED_OUT, sentence)


def refuse_resources(response: Any) -> Refuse:
    """Make the function that answers every resource of a change of configurations with one error.

    ``response`` is AlterConfigsResponse or IncrementalAlterConfigsResponse: both have one form.
    """
    result = response.AlterConfigsResourceResponse

    def refuse(request: Any, error: ErrorCode, sentence: str) -> Any:
        return response(
            responses=[
                result(error, sentence, r.resource_type, r.resource_name) for r in request.resources
            ]
        )

    return refuse
