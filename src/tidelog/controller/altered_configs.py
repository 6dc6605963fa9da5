"""AlterConfigs and IncrementalAlterConfigs: the shared steps from a decision to the response.

Owns how a change is performed and its response is made. Which change a request means is the
handler's; whether it is allowed: see ``decisions.configuration``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.configuration import (
    Altered,
    Resource,
    cost_of_change,
    repeated_resources,
)
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.serving import reached_in_time
from tidelog.controller.slices import perform_in_slices
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

Setting = TypeVar("Setting")
Request = TypeVar(
    "Request", "messages.AlterConfigsRequest", "messages.IncrementalAlterConfigsRequest"
)
Response = TypeVar(
    "Response", "messages.AlterConfigsResponse", "messages.IncrementalAlterConfigsResponse"
)

Decide = Callable[
    [ClusterState, Sequence[tuple[Resource, Sequence[Setting]]], bool, Collection[Resource]],
    Decision[list[Altered]],
]


async def alter(
    controller: Controller,
    asked: Sequence[tuple[Resource, Sequence[Setting]]],
    decide: Decide[Setting],
    response: type[Response],
    validate_only: bool,
    context: RequestContext,
) -> Response:
    """Perform the change, and respond for each resource once every live broker has been sent it."""
    repeated = repeated_resources(asked)
    answers, revision = await perform_in_slices(
        controller,
        asked,
        cost_of_change,
        lambda cluster, part: decide(cluster, part, validate_only, repeated),
    )
    if not validate_only:
        controller.changed(ControllerEvent.ALTERED)
        # The request has no time-out; a broker that gets the change later applies it by itself.
        limit_ms = controller.configs.request_timeout_ms
        await reached_in_time(controller, revision, limit_ms, context)
    result = response.AlterConfigsResourceResponse
    return response(
        responses=[
            result(0, None, resource.kind, resource.name)
            if refusal is None
            else result(refusal.error, refusal.sentence, resource.kind, resource.name)
            for resource, refusal in answers
        ]
    )
