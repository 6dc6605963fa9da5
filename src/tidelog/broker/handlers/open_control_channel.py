"""OpenControlChannel v0 (ours): begins the one control channel of a controller to this broker.

- Closes every channel with a smaller (controller epoch, channel number), unread bytes and all.
- CLUSTER_AUTHORIZATION_FAILED unless it repeats the channel key of this broker's registration; one
  that is on its way is waited for, since the controller may be here before its answer.
- STALE_BROKER_EPOCH for another life of this broker, STALE_CONTROLLER_EPOCH for an older channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Open the channel on this connection."""
    await broker.session.registration_settled()
    error = await broker.control.open(request, context.connection)
    return messages.OpenControlChannelResponse(error_code=error)


HANDLER = Handler(ApiKey.OPEN_CONTROL_CHANNEL, range(1), Scope.CONTROLLER, handle)
