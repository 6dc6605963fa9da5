"""UpdateConfigs v0 (ours): configurations of topics and brokers, on the control channel.

- The first one on a channel is complete, later ones replace the sets that they name.
- What it says takes effect before it is answered, and the store revision is kept on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Take over the configurations."""
    response = messages.UpdateConfigsResponse
    error = broker.control.check(request, context.connection)
    if error is not ErrorCode.NONE:
        return response(error_code=error)
    channel = broker.control.channel
    assert channel is not None
    broker.control.note(request.controller_epoch, request.store_revision)
    broker.topic_configs.apply(
        (
            (
                entity.entity_type,
                entity.entity_name,
                {c.name: c.value for c in entity.configs if c.value is not None},
            )
            for entity in request.entities
        ),
        complete=not channel.had_configs,
    )
    channel.had_configs = True
    return response()


HANDLER = Handler(ApiKey.UPDATE_CONFIGS, range(1), handle)
