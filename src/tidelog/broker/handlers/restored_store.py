"""RestoredStore v0 (ours): forwarded to the controller; any broker accepts it.

- The controller makes the response: see its handler.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.control_plane.forwarding import forwarded
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages


def refuse(_request: object, error: ErrorCode, message: str) -> Any:
    """Return a response with one error."""
    return messages.RestoredStoreResponse(error_code=error, error_message=message, report="{}")


HANDLER = forwarded(ApiKey.RESTORED_STORE, range(1), Scope.BROKER, refuse)
