"""ListConfigResources v0-1: the resources that can have configurations.

- v0 lists client metrics subscriptions (type 16), of which there are none.
- v1+: optional types; without one topics (2) and brokers (4). There are no broker loggers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.configurations import EntityType
from tidelog.model.api_keys import ApiKey
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

NAME_BYTES = 150
"""Memory of a name in a response under construction, without its characters."""


def handle(
    broker: Broker, request: messages.ListConfigResourcesRequest, context: RequestContext
) -> Work[Any]:
    """List the names of topics and brokers, in steps: there may be very many topics."""
    response = messages.ListConfigResourcesResponse
    if context.version == 0:
        return response()
    wanted = set(request.resource_types) or {int(EntityType.TOPIC), int(EntityType.BROKER)}
    named: list[tuple[str, int]] = []
    if EntityType.TOPIC in wanted:
        named += [(name, int(EntityType.TOPIC)) for name in sorted(broker.metadata.topics)]
    if EntityType.BROKER in wanted:
        named += [(str(node), int(EntityType.BROKER)) for node in sorted(broker.metadata.brokers)]
    resources = []
    for name, kind in named:
        resources.append(response.ConfigResource(name, kind))
        yield NAME_BYTES + len(name)
    return response(config_resources=resources)


HANDLER = Handler(ApiKey.LIST_CONFIG_RESOURCES, Scope.CLIENT, handle, most_elements=1_000)
