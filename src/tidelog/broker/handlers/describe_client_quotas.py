"""DescribeClientQuotas v0-1: no quotas, because this version has none."""

from __future__ import annotations

from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages


def handle(
    _: object, _request: messages.DescribeClientQuotasRequest, _context: RequestContext
) -> Any:
    """Return no entries."""
    return messages.DescribeClientQuotasResponse(error_message=None, entries=[])


HANDLER = Handler(ApiKey.DESCRIBE_CLIENT_QUOTAS, Scope.CLIENT, handle)
