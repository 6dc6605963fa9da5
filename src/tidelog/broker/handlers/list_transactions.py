"""ListTransactions v0-1: no transactions, because this version has none (KIP-664).

- Filters by states that do not exist are returned, as in Kafka.
- v2 has a filter by a pattern of ids and is not served until there are transactions.
"""

from __future__ import annotations

from typing import Any

from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

STATES = frozenset(
    (
        *("Empty", "Ongoing", "Dead", "PrepareEpochFence"),
        *("PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
    )
)
"""The states of a transaction in Kafka."""


def handle(_: object, request: messages.ListTransactionsRequest, _context: RequestContext) -> Any:
    """Return none, and the filters that name no state."""
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES]
    return messages.ListTransactionsResponse(unknown_state_filters=unknown)


HANDLER = Handler(ApiKey.LIST_TRANSACTIONS, Scope.CLIENT, handle, versions=range(2))
