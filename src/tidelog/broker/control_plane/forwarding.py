"""Requests that only the controller can do: sent on in an Envelope by whichever broker gets them.

Owns what a client is told when there is no controller: NOT_CONTROLLER when nothing was sent (the
client may try again), REQUEST_TIMED_OUT when the outcome is unknown. The controller's answer is
passed on as it came, in the version that the client asked in: it may be large.
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
"""What the controller's answer may need beyond the client's own time-out."""

Refuse = Callable[[Any, ErrorCode, str], Any]
"""(request, error, sentence) -> a response that says it of everything asked."""


MOST_FORWARDED = 5_000
"""Elements of one request that the controller decides: its broker reads all of them at once."""


MOST_SETTINGS = 10_000
"""The same where a topic is named with its settings: two of 2,000 topics are 6,000 elements."""


class Forwards(Protocol):
    """A broker that sends requests on to the controller."""

    @property
    def session(self) -> ControllerSession: ...

    @property
    def configs(self) -> ServerConfigs: ...


def forwarded(
    api_key: ApiKey, versions: range, scope: Scope, refuse: Refuse, most: int = MOST_FORWARDED
) -> Handler:
    """Make the handler of an API that the controller serves."""

    def handle(broker: Forwards, request: Any, context: RequestContext) -> Awaitable[Any]:
        return forward(broker, api_key, request, context, refuse)

    def refuse_all(request: Any, error: ErrorCode, _version: int) -> Any:
        return refuse(request, error, "the broker failed: see its log")

    return Handler(api_key, versions, scope, handle, refuse=refuse_all, most_elements=most)


async def forward(
    broker: Forwards, api_key: int, request: Any, context: RequestContext, refuse: Refuse
) -> Any:
    """Send ``request`` to the controller and return its answer's whole frame, or a refusal."""
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
            "the outcome of a forwarded %(request)s is unknown: %(error)s",
            {"request": ApiKey(api_key).name, "error": error},
        )
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
