"""DescribeCondition v0 (ours): forwarded to the controller, so that any broker may be asked.

- ``subjects`` are the controller's matter: see its handler.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages


def refuse(_request: Any, error: ErrorCode, sentence: str) -> Any:
    """Answer with one error."""
    return messages.DescribeConditionResponse(
        error_code=error, error_message=sentence, condition=""
    )


HANDLER = forwarded(ApiKey.DESCRIBE_CONDITION, range(1), Scope.CLIENT, refuse)
