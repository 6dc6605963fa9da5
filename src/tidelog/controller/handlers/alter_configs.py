"""AlterConfigs v0-2: replaces the whole dynamic configuration of topics and brokers (KIP-133).

- What is not named falls back to its default. A null value is INVALID_CONFIG.
- Answers when every live broker has been told: the change has taken effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.controller.decisions.configuration import Altered, Resource, replace_configs
from tidelog.controller.serving import served, told_in_time
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.controller.process import Controller


async def serve(
    controller: Controller, request: messages.AlterConfigsRequest, context: RequestContext
) -> messages.AlterConfigsResponse:
    asked = [
        (
            Resource(resource.resource_type, resource.resource_name),
            [(config.name, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    answers, revision = await controller.perform(
        lambda cluster: replace_configs(cluster, asked, request.validate_only)
    )
    if not request.validate_only:
        # The request has no time-out; a broker that hears of it late does so by itself.
        limit_ms = controller.configs.request_timeout_ms
        await told_in_time(controller, revision, limit_ms, context)
    return messages.AlterConfigsResponse(responses=[_result(answer) for answer in answers])


def _result(answer: Altered) -> messages.AlterConfigsResponse.AlterConfigsResourceResponse:
    resource, refusal = answer
    result = messages.AlterConfigsResponse.AlterConfigsResourceResponse
    if refusal is None:
        return result(0, None, resource.kind, resource.name)
    return result(refusal.error, refusal.sentence, resource.kind, resource.name)


def refuse_all(
    request: messages.AlterConfigsRequest, error: ErrorCode, sentence: str
) -> messages.AlterConfigsResponse:
    """Answer every resource with one error."""
    result = messages.AlterConfigsResponse.AlterConfigsResourceResponse
    return messages.AlterConfigsResponse(
        responses=[
            result(error, sentence, x.resource_type, x.resource_name) for x in request.resources
        ]
    )


HANDLER = served(ApiKey.ALTER_CONFIGS, range(3), serve, refuse_all)
