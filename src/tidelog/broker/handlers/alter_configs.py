"""AlterConfigs v0-2: forwarded to the controller.

- Replaces the whole dynamic set of each resource; incremental changes are safer.
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
    response = messages.AlterConfigsResponse
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


HANDLER = forwarded(ApiKey.ALTER_CONFIGS, range(3), refuse)
