"""DescribeAcls v1-3: SECURITY_DISABLED, as of a Kafka broker without an authorizer."""

from __future__ import annotations

from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

NO_RULES = "there are no access rules: this version has no authorizer"


def handle(_: object, _request: messages.DescribeAclsRequest, _context: RequestContext) -> Any:
    """Return the error that says why there are none."""
    return messages.DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_RULES
    )


HANDLER = Handler(ApiKey.DESCRIBE_ACLS, Scope.CLIENT, handle)
