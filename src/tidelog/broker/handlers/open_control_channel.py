"""OpenControlChannel v0 (ours): opens the one control channel of a controller to this broker.

- Closes a channel with a smaller (controller epoch, channel number), and discards unread requests.
- CLUSTER_AUTHORIZATION_FAILED unless it has the channel key of this broker's registration. Waits
  for a registration under way: the controller may connect before the response has arrived.
- The response says that complete requests may leave out topics that they name as unreadable
  (docs/decisions/0111).
- STALE_BROKER_EPOCH for another broker epoch, STALE_CONTROLLER_EPOCH for an older channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def handle(
    broker: Broker, request: messages.OpenControlChannelRequest, context: RequestContext
) -> Any:
    """Open the channel on this connection."""
    await broker.session.registration_settled()
    error = await broker.channel.open(request, context.connection)
    return messages.OpenControlChannelResponse(error_code=error, leaves_unreadable=True)


HANDLER = Handler(ApiKey.OPEN_CONTROL_CHANNEL, Scope.CONTROLLER, handle)
