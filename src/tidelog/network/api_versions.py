"""ApiVersions v0-4: which APIs and versions this server speaks, derived from its handlers.

- The answer's header is always v0 (the codec knows).
- A version above ours is answered with a v0 body, error 35 and the list, so that the client can
  ask again with a version of ours (``unsupported``; KIP-511).
- A connection is shown what it may use: only one that may act as a process of the cluster sees the
  APIs between processes.
- No finalized features are named.
"""

from __future__ import annotations

from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Router, Scope
from tidelog.protocol import messages


def handle(_: Any, request: Any, context: RequestContext) -> Any:
    """Answer the list."""
    shown = context.router.api_versions(context.connection.is_trusted)
    return messages.ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=shown)


def unsupported(router: Router, trusted: bool) -> Any:
    """Return the v0 answer to a version that this server does not speak."""
    return messages.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=router.api_versions(trusted)
    )


HANDLER = Handler(ApiKey.API_VERSIONS, range(5), Scope.CLIENT, handle)
