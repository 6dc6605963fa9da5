"""Heartbeat v0-4: keeps a member's session alive, and says when it must rejoin.

- REBALANCE_IN_PROGRESS makes the member rejoin; its session continues.
- While the group is loading the response has no error, as Kafka's: its sessions begin when it is
  loaded, and kafka-python stops its heartbeats at COORDINATOR_LOAD_IN_PROGRESS.
- v3+ (KIP-345): static members; FENCED_INSTANCE_ID stops a second member with an instance id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import Heartbeat, StatusResult
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def handle(broker: Broker, request: messages.HeartbeatRequest, _context: RequestContext) -> Any:
    """The response is always sent at once."""
    pending_response = PendingResponse()
    event = Heartbeat(
        pending_response, request.member_id, request.group_instance_id, request.generation_id
    )
    broker.coordinator.decide(request.group_id, event)
    return pending_response.answer(_respond)


def _respond(result: StatusResult) -> Any:
    is_loading = result.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return messages.HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else result.error)


HANDLER = Handler(ApiKey.HEARTBEAT, Scope.CLIENT, handle)
