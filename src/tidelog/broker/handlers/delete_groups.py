"""DeleteGroups v0-2: removes groups without members, and their offsets (KIP-229).

- NON_EMPTY_GROUP for a group with members, GROUP_ID_NOT_FOUND for one that does not exist.
- The response is sent when all removals are committed.
- A group with more than 250 positions is removed in parts (``groups.removals``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import DeleteGroup
from tidelog.model.api_keys import ApiKey
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

RESULT_BYTES = 60
"""Memory of a group in a response under construction, without its name."""

_Response = messages.DeleteGroupsResponse
_Result = messages.DeleteGroupsResponse.DeletableGroupResult


def handle(
    broker: Broker, request: messages.DeleteGroupsRequest, _context: RequestContext
) -> Work[Any]:
    """Remove each group once, however often it is named; yields between groups."""
    pending_responses: dict[str, PendingResponse] = {}
    for name in request.groups_names:
        if name not in pending_responses:
            pending_responses[name] = PendingResponse()
            broker.coordinator.decide(name, DeleteGroup(pending_responses[name]))
            yield RESULT_BYTES + len(name)
    return _answered(pending_responses)


async def _answered(pending_responses: dict[str, PendingResponse]) -> Any:
    results = await asyncio.gather(
        *(pending_response.result() for pending_response in pending_responses.values())
    )
    return _Response(
        results=[
            _Result(name, result.error)
            for name, result in zip(pending_responses, results, strict=True)
        ]
    )


HANDLER = Handler(ApiKey.DELETE_GROUPS, Scope.CLIENT, handle, most_elements=2_000)
