"""DescribeTransactions v0: state, producer and partitions of transactional ids (KIP-664).

- TRANSACTIONAL_ID_NOT_FOUND for an id that its coordinator does not know; INVALID_REQUEST for an
  empty one. NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS are those of the id.
- What is shown is committed: a record in flight changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import by_topic
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.transactions.state import NO_PRODUCER_ID, NO_TIME_MS

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

ID_BYTES, PARTITION_BYTES = 300, 40
"""Memory of an id and of a partition in a response under construction."""

_Response = messages.DescribeTransactionsResponse
_State = messages.DescribeTransactionsResponse.TransactionState
_Topic = messages.DescribeTransactionsResponse.TopicData


def handle(
    broker: Broker, request: messages.DescribeTransactionsRequest, _context: RequestContext
) -> Work[Any]:
    """Describe each id once, however often it is named. O(ids and partitions)."""
    described = []
    for name in dict.fromkeys(request.transactional_ids):
        state = _describe(broker, name)
        described.append(state)
        yield (
            ID_BYTES
            + len(name)
            + sum(PARTITION_BYTES * len(topic.partitions) for topic in state.topics)
        )
    return _Response(transaction_states=described)


def _describe(broker: Broker, transactional_id: str) -> Any:
    if not transactional_id:
        return _refusal(transactional_id, ErrorCode.INVALID_REQUEST)
    table = broker.transactions.coordinator.table_of(transactional_id)
    if isinstance(table, ErrorCode):
        return _refusal(transactional_id, table)
    entry = table.get(transactional_id)
    if entry is None or entry.known is None:
        return _refusal(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    now = entry.known.transaction
    return _State(
        transactional_id=transactional_id,
        transaction_state=now.state.spoken,
        transaction_timeout_ms=now.timeout_ms,
        transaction_start_time_ms=now.started_ms,
        producer_id=now.producer_id,
        producer_epoch=now.producer_epoch,
        topics=[
            _Topic(name, [each.partition for each in some])
            for name, some in by_topic(now.partitions).items()
        ],
    )


def _refusal(transactional_id: str, error: ErrorCode) -> Any:
    return _State(
        error_code=error,
        transactional_id=transactional_id,
        transaction_start_time_ms=NO_TIME_MS,
        producer_id=NO_PRODUCER_ID,
    )


HANDLER = Handler(
    ApiKey.DESCRIBE_TRANSACTIONS,
    Scope.CLIENT,
    handle,
    with_transactions=range(1),
    most_elements=10_000,
)
