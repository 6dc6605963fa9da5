"""CreatePartitions v0-3: forwarded to the controller.

- Below level 1.5 growth works as in Kafka, and a smaller count is refused. At level 1.5 any other
  count is a resize (KIP-253); tag 10000 forces a shrink.
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
