"""LeaderAndIsr v0-6: makes this broker leader or follower of partitions; on the control channel.

- v3: target replicas (KIP-455); v4: the unclean flag (KIP-704).
- v5: topic ids and the type; a partition that a FULL does not name is stale (KIP-516).
- v5, tag 10005: topics that a FULL cannot speak of; their replicas stay as they are
  (docs/decisions/0111).
- The response to a FULL also names, with KAFKA_STORAGE_ERROR, replicas that a failing disk kept.
- The response has topic ids in v5+, topic names in older versions.
- v6: counts, partition epochs, births and seals (KIP-253). A leader appends its fence or seal as
  the first record of its epoch; the response waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.control_plane.commands import kind_of
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.replication.command_rules import LeaderAndIsrType

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

BY_TOPIC_ID = 5


async def handle(
    broker: Broker, request: messages.LeaderAndIsrRequest, context: RequestContext
) -> Any:
    """Apply the command of every partition, each with its own error."""
    response = messages.LeaderAndIsrResponse
    results = await broker.control.apply_leader_and_isr(request, context.connection)
    if isinstance(results, ErrorCode):
        return response(error_code=results)
    if kind_of(request) is LeaderAndIsrType.FULL:
        # It begins a control channel: perhaps of another controller, which knows no reports.
        broker.fence_reports.again()
    one = response.LeaderAndIsrPartitionError
    if context.version < BY_TOPIC_ID:
        return response(
            partition_errors=[
                one(topic_name=topic, partition_index=index, error_code=code)
                for topic, _, index, code in results
            ]
        )
    by_id: dict[UUID, list[Any]] = {}
    for _, topic_id, index, code in results:
        by_id.setdefault(topic_id, []).append(one(partition_index=index, error_code=code))
    topic = response.LeaderAndIsrTopicError
    return response(topics=[topic(topic_id, errors) for topic_id, errors in by_id.items()])


HANDLER = Handler(ApiKey.LEADER_AND_ISR, Scope.CONTROLLER, handle)
