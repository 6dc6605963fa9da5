"""SyncGroup v0-5: the leader sends the assignment, each member gets its part of it.

- The response waits for the leader's assignment, and for its record to be committed.
- While the group is loading: REBALANCE_IN_PROGRESS, as Kafka's. The rebalance that the member is in
  was not stored, so it joins again; kafka-python takes COORDINATOR_LOAD_IN_PROGRESS for a bug.
- v3+ (KIP-345): static members.
- v5 (KIP-559): protocol type and name are required and must match the group's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import Sync, SyncResult
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

PROTOCOL_REQUIRED_SINCE = 5


def handle(broker: Broker, request: messages.SyncGroupRequest, context: RequestContext) -> Any:
    """Pass the sync to the group; copies the assignments out of the receive buffer."""
    if context.version >= PROTOCOL_REQUIRED_SINCE and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return messages.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    pending_response = PendingResponse()
    event = Sync(
        pending_response,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
    )
    broker.coordinator.decide(request.group_id, event)
    return pending_response.answer(_respond)


def _respond(result: SyncResult) -> Any:
    is_loading = result.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return messages.SyncGroupResponse(
        error_code=ErrorCode.REBALANCE_IN_PROGRESS if is_loading else result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


HANDLER = Handler(ApiKey.SYNC_GROUP, Scope.CLIENT, handle, most_elements=10_000)
