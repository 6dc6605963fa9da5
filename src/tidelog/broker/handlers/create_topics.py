"""CreateTopics v2-7: forwarded to the controller.

- v4+: -1 partitions or replicas take the broker's defaults; v5+ answers the configurations, v7+ the
  topic id.
- Answers when the brokers know the topic, or at the request's time-out.
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
    response = messages.CreateTopicsResponse
    return response(
        topics=[
            response.CreatableTopicResult(name=t.name, error_code=error, error_message=sentence)
            for t in request.topics
        ]
    )


HANDLER = forwarded(ApiKey.CREATE_TOPICS, range(2, 8), Scope.CLIENT, refuse)
