"""ListTransactions v0-1: the transactional ids that this broker coordinates (KIP-664).

- None while transactions are refused.
- COORDINATOR_LOAD_IN_PROGRESS while some ids are loading, and before the level of the cluster is
  known: an incomplete list would mislead.
- Filters by state and by producer id; those by states that do not exist are returned, as in Kafka.
- v1: only transactions that began longer ago than a duration.
- v1, asked by tag 10000: the partitions that it lists, with their leader epochs, without those with
  ids in doubt. A leader that finds none of a producer must know that each coordinator has answered
  (decision 0139).
- v2 has a filter by a pattern of ids and is not served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.transactions.state import Transaction, TransactionState

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

STATES = frozenset(("PrepareEpochFence", *(state.spoken for state in TransactionState)))
"""The states of a transaction in Kafka."""

ID_BYTES = 250
"""Memory of an id in a response under construction."""

AT_ONCE = 64
"""Ids that are checked in one step."""

_Response = messages.ListTransactionsResponse


def handle(
    broker: Broker, request: messages.ListTransactionsRequest, _context: RequestContext
) -> Work[Any]:
    """List them in steps: there may be very many. O(ids)."""
    coordinator = broker.transactions.coordinator
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES]
    listed: list[Any] = []
    if broker.refused_transactions:
        return _Response(unknown_state_filters=unknown)
    if coordinator.is_loading or not broker.offered_transactions:
        return _Response(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    is_asked_for = _filter(request, broker.clock.wall_ms())
    loaded = [(led, led.hosted.leader_epoch) for led in coordinator.led() if not led.error]
    for led, _ in loaded:
        table = led.table
        for number, name in enumerate(list(table)):
            entry, size = table.get(name), 0
            if entry is not None and entry.known is not None:
                now = entry.known.transaction
                if is_asked_for(now):
                    state = now.state.spoken
                    listed.append(_Response.TransactionState(name, now.producer_id, state))
                    size = ID_BYTES + len(name)
            if size or number % AT_ONCE == 0:
                yield size
    response = _Response(unknown_state_filters=unknown, transaction_states=listed)
    if request.include_covered:
        # What is led no longer was perhaps listed in part. An id in doubt has perhaps a transaction
        # that its log does not show.
        response.covered = [
            _Response.Covered(led.hosted.partition, epoch)
            for led, epoch in loaded
            if not led.error and not led.table.doubtful
        ]
    return response


def _filter(
    request: messages.ListTransactionsRequest, wall_ms: int
) -> Callable[[Transaction], bool]:
    states, producers = frozenset(request.state_filters), frozenset(request.producer_id_filters)
    duration_ms = request.duration_filter

    def is_asked_for(now: Transaction) -> bool:
        return (
            now.state is not TransactionState.DEAD
            and (not states or now.state.spoken in states)
            and (not producers or now.producer_id in producers)
            and (duration_ms < 0 or wall_ms - now.started_ms > duration_ms)
        )

    return is_asked_for


HANDLER = Handler(ApiKey.LIST_TRANSACTIONS, Scope.CLIENT, handle, versions=range(2))
