"""UpdateConfigs v0 (ours): configurations of topics and brokers, on the control channel.

- The first one on a channel is complete, later ones replace the sets that they name.
- Request tag 10000: the ``min.insync.replicas`` of the controller's file; a lower one of this
  broker's own does not count.
- The configuration of a name that no topic can have is left out, with a line in the log.
- What it says takes effect before it is answered, in turns where it concerns many partitions, and
  the store revision is kept on disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.configurations import EntityType
from tidelog.model.api_keys import ApiKey
from tidelog.model.epochs import leaves_room
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import why_invalid
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

logger = logging.getLogger(__name__)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Take over the configurations."""
    response = messages.UpdateConfigsResponse
    error = broker.control.check(request, context.connection)
    if error is not ErrorCode.NONE:
        return response(error_code=error)
    if not leaves_room(request.controller_epoch, request.store_revision):
        logger.error(
            "UpdateConfigs refused: revision %(revision)d leaves no room",
            {"revision": request.store_revision},
        )
        return response(error_code=ErrorCode.INVALID_REQUEST)
    await broker.control.note(request.controller_epoch, request.store_revision)
    # A newer channel may have been opened while the disk was waited for.
    error = broker.control.check(request, context.connection)
    if error is not ErrorCode.NONE:
        return response(error_code=error)
    channel = broker.control.channel
    assert channel is not None
    goes_by = broker.topic_configs.controller_goes_by(request.min_insync_replicas)
    complete = not channel.had_configs
    channel.had_configs = True
    pieces = broker.topic_configs.apply(
        (
            (
                entity.entity_type,
                entity.entity_name,
                {c.name: c.value for c in entity.configs if c.value is not None},
            )
            for entity in request.entities
            if _is_sound(entity.entity_type, entity.entity_name)
        ),
        complete=complete,
    )
    # All that is told holds at once; whom it concerns takes it over in turns.
    for first in (goes_by, pieces):
        next(first, None)
    for rest in (goes_by, pieces):
        for _ in rest:
            await asyncio.sleep(0)
    return response()


def _is_sound(kind: int, name: str) -> bool:
    """Return whether a topic may have this name; a broker goes on without what cannot be one."""
    why = why_invalid(name) if kind == EntityType.TOPIC else None
    if why is not None:
        logger.error(
            "UpdateConfigs: the configuration of topic %(topic)s is left out: %(why)s",
            {"topic": name, "why": why},
        )
    return why is None


HANDLER = Handler(ApiKey.UPDATE_CONFIGS, range(1), Scope.CONTROLLER, handle)
