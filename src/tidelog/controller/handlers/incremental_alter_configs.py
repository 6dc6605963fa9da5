"""IncrementalAlterConfigs v0-1: sets, deletes, appends and subtracts configurations (KIP-339).

- What is not named stays. Appending and subtracting is for lists; a repeated name is
  INVALID_REQUEST.
- Answers when every live broker has been told: the change has taken effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.controller.decisions.configuration import (
    Alteration,
    Altered,
    Resource,
    alter_configs,
)
from tidelog.controller.serving import served, told_in_time
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.controller.process import Controller


async def serve(
    controller: Controller,
    request: messages.IncrementalAlterConfigsRequest,
    context: RequestContext,
) -> messages.IncrementalAlterConfigsResponse:
    asked = [
        (
            Resource(resource.resource_type, resource.resource_name),
            [Alteration(x.name, x.config_operation, x.value) for x in resource.configs],
        )
        for resource in request.resources
    ]
    answers, revision = await controller.perform(
        lambda cluster: alter_configs(cluster, asked, request.validate_only)
    )
    if not request.validate_only:
        # The request has no time-out; a broker that hears of it late does so by itself.
        limit_ms = controller.configs.request_timeout_ms
        await told_in_time(controller, revision, limit_ms, context)
    return messages.IncrementalAlterConfigsResponse(
        responses=[_result(answer) for answer in answers]
    )


def _result(
    answer: Altered,
) -> messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse:
    resource, refusal = answer
    result = messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    if refusal is None:
        return result(0, None, resource.kind, resource.name)
    return result(refusal.error, refusal.sentence, resource.kind, resource.name)


def refuse_all(
    request: messages.IncrementalAlterConfigsRequest, error: ErrorCode, sentence: str
) -> messages.IncrementalAlterConfigsResponse:
    """Answer every resource with one error."""
    result = messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return messages.IncrementalAlterConfigsResponse(
        responses=[
            result(error, sentence, x.resource_type, x.resource_name) for x in request.resources
        ]
    )


HANDLER = served(ApiKey.INCREMENTAL_ALTER_CONFIGS, range(2), serve, refuse_all)
