"""ListConfigResources v0-1: the resources that can have configurations.

- v0 asks for client metrics subscriptions (type 16), of which there are none.
- v1+: types wanted; none named means topics (2), brokers (4) and broker loggers' none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.config_cache import EntityType
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Answer the names of topics and brokers."""
    response = messages.ListConfigResourcesResponse
    if context.version == 0:
        return response()
    wanted = set(request.resource_types) or {int(EntityType.TOPIC), int(EntityType.BROKER)}
    found: list[tuple[str, int]] = []
    if EntityType.TOPIC in wanted:
        found += [(name, int(EntityType.TOPIC)) for name in sorted(broker.metadata.topics)]
    if EntityType.BROKER in wanted:
        found += [(str(node), int(EntityType.BROKER)) for node in sorted(broker.metadata.brokers)]
    return response(config_resources=[response.ConfigResource(n, t) for n, t in found])


HANDLER = Handler(ApiKey.LIST_CONFIG_RESOURCES, range(2), Scope.CLIENT, handle, most_elements=1_000)
