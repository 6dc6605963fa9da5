"""AlterPartitionReassignments v0: forwarded to the controller (KIP-455).

- Starts, changes or cancels moves of partitions; a response for each partition, and one at the top.
- REQUEST_TIMED_OUT for each, if no controller was active, or answered, in the request's time.
"""

from __future__ import annotations

from collections.abc import Generator

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import MOST_MOVED, NUMBERS_OF_MOVES, Scope
from tidelog.protocol import messages

REFUSED_AT_ONCE = 250
"""Partitions of one step: a plan may name 50,000."""


def refuse(
    request: messages.AlterPartitionReassignmentsRequest, error: ErrorCode, message: str
) -> Generator[None, None, messages.AlterPartitionReassignmentsResponse]:
    """Make one error for every named partition, and at the top: null lists name none."""
    response = messages.AlterPartitionReassignmentsResponse
    made = response(error_code=error, error_message=message)
    for topic in request.topics or ():
        rows = response.ReassignableTopicResponse(topic.name)
        made.responses.append(rows)
        for at, item in enumerate(topic.partitions or ()):
            if at % REFUSED_AT_ONCE == 0:
                yield
            rows.partitions.append(
                response.ReassignablePartitionResponse(item.partition_index, error, message)
            )
    return made


HANDLER = forwarded(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    range(1),
    Scope.CLIENT,
    refuse,
    MOST_MOVED,
    NUMBERS_OF_MOVES,
)
