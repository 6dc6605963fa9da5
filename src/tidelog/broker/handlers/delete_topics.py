"""DeleteTopics v1-6: forwarded to the controller.

- v6+ names topics or their ids (KIP-516).
- The response is sent when the deletion is durable; replicas are removed after that.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages


def refuse(request: messages.DeleteTopicsRequest, error: ErrorCode, message: str) -> Any:
    """Return one error for every topic."""
    response = messages.DeleteTopicsResponse
    result = response.DeletableTopicResult
    named = [
        result(name=name, error_code=error, error_message=message) for name in request.topic_names
    ]
    by_name_or_id = [
        result(name=t.name, topic_id=t.topic_id, error_code=error, error_message=message)
        for t in request.topics
    ]
    return response(responses=named + by_name_or_id)


HANDLER = forwarded(ApiKey.DELETE_TOPICS, range(1, 7), Scope.CLIENT, refuse)
