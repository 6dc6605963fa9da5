"""AlterConfigs v0-2: replaces the whole dynamic configuration of topics and brokers (KIP-133).

- A configuration that is not named falls back to its default. A null value, or a repeated name, is
  INVALID_REQUEST.
- Responds once every live broker has been sent the change: it has taken effect.
"""

from __future__ import annotations

from tidelog.controller.altered_configs import alter
from tidelog.controller.controller import Controller
from tidelog.controller.decisions.configuration import Resource, replace_configs
from tidelog.controller.serving import served_for_brokers
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import RequestContext
from tidelog.protocol import messages


async def handle(
    controller: Controller, request: messages.AlterConfigsRequest, context: RequestContext
) -> messages.AlterConfigsResponse:
    asked = [
        (
            Resource(resource.resource_type, resource.resource_name),
            [(config.name, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    return await alter(
        controller,
        asked,
        replace_configs,
        messages.AlterConfigsResponse,
        request.validate_only,
        context,
    )


HANDLER = served_for_brokers(ApiKey.ALTER_CONFIGS, handle)
