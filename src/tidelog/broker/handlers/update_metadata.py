"""UpdateMetadata v0-8: updates the metadata cache of this broker, on the control channel.

- The first one on a channel is complete; later ones change the partitions that they name. A
  partition with leader -2 is removed.
- v7, tag 10000: topics that it cannot speak of; what is known of them stays (docs/decisions/0111).
- v7: topic ids (KIP-516); v8: counts, resize and partition epochs (KIP-253).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def handle(broker: Broker, request: messages.UpdateMetadataRequest, context: RequestContext) -> Any:
    """Apply the update to the cache."""
    response = messages.UpdateMetadataResponse
    error = broker.channel.check(request, context.connection)
    if error is not ErrorCode.NONE:
        return response(error_code=error)
    channel = broker.channel.present
    assert channel is not None
    broker.metadata.apply(request, complete=not channel.had_metadata)
    channel.had_metadata = True
    return response()


HANDLER = Handler(ApiKey.UPDATE_METADATA, Scope.CONTROLLER, handle)
