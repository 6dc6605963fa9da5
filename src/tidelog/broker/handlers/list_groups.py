"""ListGroups v0-5: the groups that this broker coordinates.

- COORDINATOR_LOAD_IN_PROGRESS while some groups are loading: an incomplete list would mislead.
- v4+ filters by state (KIP-518), v5 by type (KIP-848), ignoring case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

GROUP_BYTES = 200
"""Memory of a group in a response under construction, without its name."""

_Response = messages.ListGroupsResponse


def handle(
    broker: Broker, request: messages.ListGroupsRequest, _context: RequestContext
) -> Work[Any]:
    """List the groups in steps: any client can create very many of them. O(groups)."""
    if broker.coordinator.is_loading:
        return _Response(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    groups = []
    for table in list(broker.coordinator.tables()):
        for group in table.list_groups(request.states_filter, request.types_filter):
            if group is None:
                yield None
                continue
            groups.append(
                _Response.ListedGroup(
                    group.group_id, group.protocol_type, group.state, group.group_type
                )
            )
            yield GROUP_BYTES + len(group.group_id)
    return _Response(groups=groups)


HANDLER = Handler(ApiKey.LIST_GROUPS, Scope.CLIENT, handle, most_elements=1_000)
