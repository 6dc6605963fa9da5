"""IncrementalAlterConfigs v0-1: forwarded to the controller.

- Operations SET, DELETE, APPEND, SUBTRACT on single configurations (KIP-339).
- Topics and brokers (the name "" is all brokers); a change takes effect at once.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages


def refuse(request: Any, error: ErrorCode, sentence: str) -> Any:
    """Answer every resource with one error."""
    response = messages.IncrementalAlterConfigsResponse
    return response(
        responses=[
            response.AlterConfigsResourceResponse(
                error_code=error,
                error_message=sentence,
                resource_type=r.resource_type,
                resource_name=r.resource_name,
            )
            for r in request.resources
        ]
    )


HANDLER = forwarded(ApiKey.INCREMENTAL_ALTER_CONFIGS, range(2), refuse)
