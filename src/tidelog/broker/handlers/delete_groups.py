"""DeleteGroups v0-2: removes groups without members, and their positions (KIP-229).

- NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND for one that is not there.
- Each group is answered when its removal is committed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator_ticket import Ticket
from tidelog.groups.events import DeleteGroup
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_Response = messages.DeleteGroupsResponse
_Result = messages.DeleteGroupsResponse.DeletableGroupResult


async def handle(broker: Broker, request: Any, _context: RequestContext) -> Any:
    """Remove each group once, however often it is named."""
    tickets = {name: Ticket() for name in request.groups_names}
    for name, ticket in tickets.items():
        broker.coordinator.decide(name, DeleteGroup(ticket))
    results = await asyncio.gather(*(ticket.result() for ticket in tickets.values()))
    return _Response(
        results=[_Result(name, result.error) for name, result in zip(tickets, results, strict=True)]
    )


def _refuse(request: Any, error: ErrorCode, _version: int) -> Any:
    return _Response(results=[_Result(name, error) for name in request.groups_names])


HANDLER = Handler(
    ApiKey.DELETE_GROUPS, range(3), Scope.CLIENT, handle, refuse=_refuse, most_elements=2_000
)
