"""CreatePartitions v0-3: forwarded to the controller.

- Growing works as Kafka's; a smaller count is refused until level 1.5 (KIP-253).
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages


def refuse(request: Any, error: ErrorCode, sentence: str) -> Any:
    """Answer every topic with one error."""
    response = messages.CreatePartitionsResponse
    result = response.CreatePartitionsTopicResult
    return response(
        results=[
            result(name=t.name, error_code=error, error_message=sentence) for t in request.topics
        ]
    )


HANDLER = forwarded(ApiKey.CREATE_PARTITIONS, range(4), Scope.CLIENT, refuse)
