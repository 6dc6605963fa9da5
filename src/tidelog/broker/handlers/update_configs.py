"""UpdateConfigs v0 (ours): configurations of topics and brokers, on the control channel.

- The first one on a channel is complete; later ones replace the entities that they name.
- Request tag 10000: the ``min.insync.replicas`` of the controller's file; this broker's own value
  has no effect if it is lower.
- Request tag 10001: the controller's level, by which this broker offers transactions
  (``metadata.cluster_level``); without it they are not offered.
- The configuration of an invalid topic name is skipped, with a line in the log.
- The store revision is durable and the change has taken effect before the response; a change for
  many partitions is applied in several turns of the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.configurations import EntityType
from tidelog.model.api_keys import ApiKey
from tidelog.model.epochs import leaves_room
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import why_invalid
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

logger = logging.getLogger(__name__)


async def handle(
    broker: Broker, request: messages.UpdateConfigsRequest, context: RequestContext
) -> Any:
    """Apply the configurations."""
    response = messages.UpdateConfigsResponse
    error = broker.channel.check(request, context.connection)
    if error is not ErrorCode.NONE:
        return response(error_code=error)
    if not leaves_room(request.controller_epoch, request.store_revision):
        logger.error(
            "UpdateConfigs refused: store revision %(revision)d leaves no room for later ones",
            {"revision": request.store_revision},
        )
        return response(error_code=ErrorCode.INVALID_REQUEST)
    await broker.channel.note(request.controller_epoch, request.store_revision)
    # A newer channel may have been opened during the write.
    error = broker.channel.check(request, context.connection)
    if error is not ErrorCode.NONE:
        return response(error_code=error)
    channel = broker.channel.present
    assert channel is not None
    goes_by = broker.topic_configs.controller_goes_by(request.min_insync_replicas)
    complete = not channel.had_configs
    channel.had_configs = True
    following = broker.topic_configs.apply(
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
    # The values have changed; the partitions apply them in several turns.
    for rest in (goes_by, following):
        await pace.run(rest, broker.clock)
    # A newer channel may have said another level in these turns.
    error = broker.channel.check(request, context.connection)
    if error is ErrorCode.NONE:
        broker.cluster_level.take(request.level)
    return response(error_code=error)


def _is_sound(kind: int, name: str) -> bool:
    """Return whether an entity's name is valid; the configuration of an invalid one is skipped."""
    why = why_invalid(name) if kind == EntityType.TOPIC else None
    if why is not None:
        logger.error(
            "UpdateConfigs: the configuration of topic %(topic)s is skipped: %(why)s",
            {"topic": name, "why": why},
        )
    return why is None


HANDLER = Handler(ApiKey.UPDATE_CONFIGS, Scope.CONTROLLER, handle)
