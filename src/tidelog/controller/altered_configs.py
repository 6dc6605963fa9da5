"""What AlterConfigs and IncrementalAlterConfigs share: carrying a change out, and its answers.

Owns the step from a decision to an answer; which change is meant is the handler's, and what is
allowed is ``decisions.configuration``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.controller.decisions.cluster import Cluster, Decision
from tidelog.controller.decisions.configuration import (
    Altered,
    Resource,
    cost_of_change,
    repeated_resources,
)
from tidelog.controller.serving import RefuseAll, told_in_time
from tidelog.controller.slices import perform_in_slices
from tidelog.network.router import RequestContext

if TYPE_CHECKING:
    from tidelog.controller.process import Controller


Change = tuple[Resource, Sequence[Any]]
"""What is asked of one resource."""


async def alter(
    controller: Controller,
    asked: Sequence[Change],
    decide: Callable[[Cluster, Sequence[Any], bool, Collection[Resource]], Decision[list[Altered]]],
    response: Any,
    validate_only: bool,
    context: RequestContext,
) -> Any:
    """Perform the change, and answer each resource once every live broker has been told."""
    repeated = repeated_resources(asked)
    answers, revision = await perform_in_slices(
        controller,
        asked,
        cost_of_change,
        lambda cluster, part: decide(cluster, part, validate_only, repeated),
    )
    if not validate_only:
        # The request has no time-out; a broker that hears of it late does so by itself.
        limit_ms = controller.configs.request_timeout_ms
        await told_in_time(controller, revision, limit_ms, context)
    result = response.AlterConfigsResourceResponse
    return response(
        responses=[
            result(0, None, resource.kind, resource.name)
            if refusal is None
            else result(refusal.error, refusal.sentence, resource.kind, resource.name)
            for resource, refusal in answers
        ]
    )


def refuse_resources(response: Any) -> RefuseAll:
    """Make the function that answers every resource with one error."""
    result = response.AlterConfigsResourceResponse

    def refuse_all(request: Any, error: Any, sentence: str) -> Any:
        return response(
            responses=[
                result(error, sentence, x.resource_type, x.resource_name) for x in request.resources
            ]
        )

    return refuse_all
