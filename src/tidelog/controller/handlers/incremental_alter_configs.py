"""IncrementalAlterConfigs v0-1: sets, deletes, appends and subtracts configurations (KIP-339).

- A configuration that is not named stays. APPEND and SUBTRACT are for lists; a repeated name, or a
  null value with SET, is INVALID_REQUEST.
- Responds once every live broker has been sent the change: it has taken effect.
"""

from __future__ import annotations

from tidelog.controller.altered_configs import alter
from tidelog.controller.controller import Controller
from tidelog.controller.decisions.configuration import Alteration, Resource, alter_configs
from tidelog.controller.serving import served_for_brokers
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import RequestContext
from tidelog.protocol import messages


async def handle(
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
    return await alter(
        controller,
        asked,
        alter_configs,
        messages.IncrementalAlterConfigsResponse,
        request.validate_only,
        context,
    )


HANDLER = served_for_brokers(ApiKey.INCREMENTAL_ALTER_CONFIGS, handle)
