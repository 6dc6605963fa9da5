"""ApiVersions v0-4: the APIs and versions of this server, derived from its handlers.

- The response header is always v0 (by the codec).
- The response to a later version has a v0 body, error 35 and the list, so that the client can send
  a version that is served (``unsupported``; KIP-511).
- The list has the APIs that the connection may use: those between processes only if it may act as a
  process of the cluster.
- v3+: INVALID_REQUEST for a name or version of the client's software that KIP-511 does not permit.
- A connection of this project's own client is noted: versions of it that do not ask for the tags of
  Metadata need them (docs/decisions/0089).
- No finalized features are named.
"""

from __future__ import annotations

import re
from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Router, Scope
from tidelog.protocol import messages

NAMES_SOFTWARE_SINCE = 3
TIDELOG = "tidelog"
"""The name by which the client of this project calls itself."""

_is_permitted = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?").fullmatch


def handle(_: object, request: messages.ApiVersionsRequest, context: RequestContext) -> Any:
    """Return the list."""
    if context.version >= NAMES_SOFTWARE_SINCE:
        name = request.client_software_name
        if not (_is_permitted(name) and _is_permitted(request.client_software_version)):
            return messages.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.is_tidelog = name == TIDELOG
    shown = context.router.api_versions(context.connection.is_trusted)
    return messages.ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=shown)


def unsupported(router: Router, trusted: bool) -> Any:
    """Return the v0 response to a version that this server does not have."""
    return messages.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=router.api_versions(trusted)
    )


HANDLER = Handler(ApiKey.API_VERSIONS, Scope.CLIENT, handle)
