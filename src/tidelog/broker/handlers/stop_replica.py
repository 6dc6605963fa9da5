"""StopReplica v0-4: replicas to stop or to delete, on the control channel.

- v3: leader epoch and delete flag per partition; older epochs are fenced (KIP-570).
- v4: the topic id must match, and the partition epoch unless it is -1 (KIP-516, KIP-253); the
  response has topic ids.
- A replica that does not exist here is confirmed: a repeated request must succeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def handle(
    broker: Broker, request: messages.StopReplicaRequest, context: RequestContext
) -> Any:
    """Apply the command of every partition, each with its own error."""
    response = messages.StopReplicaResponse
    results = await broker.control.apply_stop_replica(request, context.version, context.connection)
    if isinstance(results, ErrorCode):
        return response(error_code=results)
    one = response.StopReplicaPartitionError
    return response(
        partition_errors=[
            one(topic_name=topic, topic_id=topic_id, partition_index=index, error_code=code)
            for topic, topic_id, index, code in results
        ]
    )


HANDLER = Handler(ApiKey.STOP_REPLICA, Scope.CONTROLLER, handle)
