"""ListPartitionReassignments v0: forwarded to the controller (KIP-455).

- Lists the running moves of some partitions, of topics, or (null) all.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import MOST_MOVED, NUMBERS_OF_MOVES, Scope
from tidelog.protocol import messages


def refuse(_request: object, error: ErrorCode, message: str) -> Any:
    """Return one error."""
    return messages.ListPartitionReassignmentsResponse(error_code=error, error_message=message)


HANDLER = forwarded(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    range(1),
    Scope.CLIENT,
    refuse,
    MOST_MOVED,
    NUMBERS_OF_MOVES,
)
