"""AlterPartitionReassignments v0: forwarded to the controller (KIP-455).

- Starts, changes or cancels moves of partitions; a response for each partition, and one at the top.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.control_plane.forwarding import MOST_MOVED, forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages


def refuse(
    request: messages.AlterPartitionReassignmentsRequest, error: ErrorCode, message: str
) -> Any:
    """Return one error for every named partition, and at the top: null lists name none."""
    response = messages.AlterPartitionReassignmentsResponse
    return response(
        error_code=error,
        error_message=message,
        responses=[
            response.ReassignableTopicResponse(
                topic.name,
                [
                    response.ReassignablePartitionResponse(item.partition_index, error, message)
                    for item in topic.partitions or ()
                ],
            )
            for topic in request.topics or ()
        ],
    )


HANDLER = forwarded(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, range(1), Scope.CLIENT, refuse, MOST_MOVED
)
