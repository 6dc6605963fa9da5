"""LeaveGroup v0-5: members leave, and the others rebalance at once.

- v0-2: one member; its error is that of the response.
- v3+ (KIP-345): any number, each with an error; an instance id alone removes a static member.
- v5 (KIP-800): reasons, for the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import Leave, Leaver, LeaveResult
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

BATCHED_SINCE = 3

_Response = messages.LeaveGroupResponse
_Member = messages.LeaveGroupResponse.MemberResponse


def handle(broker: Broker, request: messages.LeaveGroupRequest, context: RequestContext) -> Any:
    """The response waits until the departure of the last member is committed."""
    version = context.version
    if version >= BATCHED_SINCE:
        leavers = tuple(
            Leaver(member.member_id, member.group_instance_id, member.reason or "")
            for member in request.members
        )
    else:
        leavers = (Leaver(request.member_id),)
    pending_response = PendingResponse()
    broker.coordinator.decide(request.group_id, Leave(pending_response, leavers))
    return pending_response.answer(lambda result: _respond(result, version))


def _respond(result: LeaveResult, version: int) -> Any:
    if version >= BATCHED_SINCE:
        members = [
            _Member(leaver.member_id, leaver.instance_id, error) for leaver, error in result.members
        ]
        return _Response(error_code=result.error, members=members)
    of_member = result.members[0][1] if result.members else ErrorCode.NONE
    return _Response(error_code=result.error or of_member)


HANDLER = Handler(ApiKey.LEAVE_GROUP, Scope.CLIENT, handle, most_elements=2_000)
