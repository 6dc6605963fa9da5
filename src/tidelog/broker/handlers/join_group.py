"""JoinGroup v0-9: a member joins or rejoins; the response waits for the rebalance.

- v0 has no rebalance timeout: the session timeout is used.
- v4+ (KIP-394): a first join without a member id gets one, with MEMBER_ID_REQUIRED.
- v5+ (KIP-345): static members. v7+ (KIP-559): the response has the protocol type.
- v8+ (KIP-800): a reason, for the log. v9 (KIP-814): a returning static leader may skip assigning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import Join, JoinResult
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

REBALANCE_TIMEOUT_SINCE = 1
MEMBER_ID_REQUIRED_SINCE = 4
NULL_NAME_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9

_Response = messages.JoinGroupResponse
_Member = messages.JoinGroupResponse.JoinGroupResponseMember


def handle(broker: Broker, request: messages.JoinGroupRequest, context: RequestContext) -> Any:
    """Pass the join to the group; copies the subscriptions out of the receive buffer."""
    version = context.version
    pending_response = PendingResponse()
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < REBALANCE_TIMEOUT_SINCE:
        rebalance_timeout_ms = request.session_timeout_ms
    event = Join(
        pending_response,
        request.member_id,
        request.group_instance_id,
        context.client_id or "",
        "/" + context.client_host,
        request.session_timeout_ms,
        rebalance_timeout_ms,
        request.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        member_id_required=version >= MEMBER_ID_REQUIRED_SINCE,
        can_skip_assignment=version >= SKIP_ASSIGNMENT_SINCE,
        reason=request.reason or "",
    )
    broker.coordinator.decide(request.group_id, event)
    return pending_response.answer(lambda result: _respond(result, version))


def _respond(result: JoinResult, version: int) -> Any:
    name = result.protocol_name
    return _Response(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name="" if name is None and version < NULL_NAME_SINCE else name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            _Member(member.member_id, member.instance_id, member.subscription)
            for member in result.members
        ],
    )


HANDLER = Handler(ApiKey.JOIN_GROUP, Scope.CLIENT, handle, most_elements=1_000)
