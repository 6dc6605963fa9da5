"""DescribeUserScramCredentials v0: no user has credentials, because this version has none.

- Null users, or an empty list, mean all: an empty response.
- RESOURCE_NOT_FOUND for each named user, DUPLICATE_RESOURCE for one that is named twice, as in
  Kafka.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

MOST_USERS = 5_000


def handle(
    _: object, request: messages.DescribeUserScramCredentialsRequest, _context: RequestContext
) -> Any:
    """Return an error for each named user."""
    response = messages.DescribeUserScramCredentialsResponse
    named = Counter(user.name for user in request.users or ())
    return response(
        error_message=None,
        results=[
            response.DescribeUserScramCredentialsResult(name, *_why_none(name, times), [])
            for name, times in named.items()
        ],
    )


def _why_none(name: str, times: int) -> tuple[ErrorCode, str]:
    if times > 1:
        return ErrorCode.DUPLICATE_RESOURCE, f"user {name!r} is named {times} times: name it once"
    return ErrorCode.RESOURCE_NOT_FOUND, f"user {name!r} has no SCRAM credentials"


HANDLER = Handler(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, Scope.CLIENT, handle, most_elements=MOST_USERS
)
