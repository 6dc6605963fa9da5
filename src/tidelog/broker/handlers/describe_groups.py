"""DescribeGroups v0-6: state, assignor and members of groups.

- An unknown group is ``Dead``: without an error below v6, with GROUP_ID_NOT_FOUND and a message
  from v6 on (KIP-1043). Subscriptions are shown only for a Stable group, assignments also while it
  rebalances, as in Kafka 4: members read their partitions meanwhile.
- v3+: the operations that the client may perform; without an authorizer all operations on groups.
- v4+: instance ids (KIP-345).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.allowed_operations import NOT_ASKED, OF_GROUP
from tidelog.groups.group import GroupState
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

GROUP_BYTES, MEMBER_BYTES = 200, 300
"""Memory of a group and of a member in a response under construction, without their own bytes."""

NOT_FOUND_SINCE = 6
NAMED_CHARACTERS = 300
"""Longest id in an error message, where a character may be written as ten."""

DEAD = GroupState.DEAD.value

_Response = messages.DescribeGroupsResponse
_Group = messages.DescribeGroupsResponse.DescribedGroup
_Member = messages.DescribeGroupsResponse.DescribedGroupMember


def handle(
    broker: Broker, request: messages.DescribeGroupsRequest, context: RequestContext
) -> Work[Any]:
    """Describe each group once, however often it is named. O(groups and members)."""
    operations = OF_GROUP if request.include_authorized_operations else NOT_ASKED
    groups = []
    for name in dict.fromkeys(request.groups):
        group = _describe(broker, name, operations)
        if group.group_state == DEAD and context.version >= NOT_FOUND_SINCE:
            group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            group.error_message = f"group {name[:NAMED_CHARACTERS]!r} not found"
        groups.append(group)
        yield GROUP_BYTES + sum(
            MEMBER_BYTES + len(member.member_metadata) + len(member.member_assignment)
            for member in group.members
        )
    return _Response(groups=groups)


def _describe(broker: Broker, group_id: str, operations: int) -> Any:
    table = broker.coordinator.table_of(group_id)
    if isinstance(table, ErrorCode):
        return _Group(error_code=table, group_id=group_id)
    described = table.describe(group_id)
    return _Group(
        group_id=group_id,
        group_state=described.state,
        protocol_type=described.protocol_type,
        protocol_data=described.protocol_name,
        members=[
            _Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.subscription,
                member.assignment,
            )
            for member in described.members
        ],
        authorized_operations=operations,
    )


HANDLER = Handler(ApiKey.DESCRIBE_GROUPS, Scope.CLIENT, handle)
