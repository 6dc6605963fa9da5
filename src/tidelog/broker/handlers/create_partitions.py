"""CreatePartitions v0-3: forwarded to the controller.

- Growth works as in Kafka; a smaller count is refused below level 1.5 (KIP-253).
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages


def refuse(request: messages.CreatePartitionsRequest, error: ErrorCode, message: str) -> Any:
    """Return one error for every topic."""
    response = messages.CreatePartitionsResponse
    result = response.CreatePartitionsTopicResult
    return response(
        results=[
            result(name=t.name, error_code=error, error_message=message) for t in request.topics
        ]
    )


HANDLER = forwarded(ApiKey.CREATE_PARTITIONS, range(4), Scope.CLIENT, refuse)
