"""AddPartitionsToTxn v0-4: adds partitions to a transaction (KIP-98), or verifies them (KIP-890).

- The response follows when the record with the partitions is committed.
- Where a partition is not known here, nothing is added: UNKNOWN_TOPIC_OR_PARTITION for it, and
  OPERATION_NOT_ATTEMPTED for the others. Partitions of ``__transaction_state`` get
  TOPIC_AUTHORIZATION_FAILED: no transaction writes there.
- v2+: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
- v4, between brokers: many transactions in one request. With ``verify_only`` nothing changes; see
  ``transactions.verifying``. Each partition has its error, also where the whole id is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TRANSACTIONS_TOPIC, TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.transactions.answers import error_in
from tidelog.transactions.events import AddPartitions, TransactionResult
from tidelog.transactions.state import IdAndEpoch
from tidelog.transactions.verifying import verified

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

BETWEEN_BROKERS = range(4, 5)
MOST_PARTITIONS = 10_000
"""Most elements of a request of a client: it is served without steps."""

PARTITION_BYTES = 150
"""Memory of a partition in a response under construction."""

_Request = messages.AddPartitionsToTxnRequest
_Response = messages.AddPartitionsToTxnResponse
_Topic = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_TopicResult = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionResult = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_Transaction = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Result = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnResult

Errors = Mapping[TopicPartition, ErrorCode]


def handle(
    broker: Broker, request: messages.AddPartitionsToTxnRequest, context: RequestContext
) -> Any:
    """The response is sent now or later."""
    if context.version in BETWEEN_BROKERS:
        return _of_brokers(broker, request.transactions, context.version)
    topics = request.v3_and_below_topics
    producer = IdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    pending_response = PendingResponse()
    refused = _add(
        broker, request.v3_and_below_transactional_id, producer, topics, pending_response
    )
    respond = partial(_of_client, topics, context.version)
    return respond(refused) if refused else pending_response.answer(respond)


def _add(
    broker: Broker,
    transactional_id: str,
    producer: IdAndEpoch,
    topics: Iterable[_Topic],
    pending_response: PendingResponse,
) -> Errors:
    """Decide about partitions that may be added; otherwise return the errors of all."""
    asked = tuple(_partitions(topics))
    refused = {each: error for each in asked if (error := _why_not(broker, each))}
    if refused:
        return dict.fromkeys(asked, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
    event = AddPartitions(pending_response, producer, asked)
    broker.transactions.coordinator.decide(transactional_id, event)
    return {}


def _why_not(broker: Broker, asked: TopicPartition) -> ErrorCode:
    if asked.topic == TRANSACTIONS_TOPIC:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if broker.metadata.partition(*asked) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _partitions(topics: Iterable[_Topic]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _of_client(
    topics: list[_Topic], version: int, result: TransactionResult | Errors
) -> messages.AddPartitionsToTxnResponse:
    return _Response(results_by_topic_v3_and_below=_results(topics, version, result))


def _results(
    topics: list[_Topic], version: int, result: TransactionResult | Errors
) -> list[_TopicResult]:
    """Return the error of each partition, in the order of the request."""
    if isinstance(result, TransactionResult):
        one = error_in(ApiKey.ADD_PARTITIONS_TO_TXN, version, result.error)
        errors: Errors = {}
    else:
        one, errors = ErrorCode.NONE, result
    return [
        _TopicResult(
            topic.name,
            [
                _PartitionResult(index, errors.get(TopicPartition(topic.name, index), one))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


# Between brokers -------------------------------------------------------------------------------


def _of_brokers(broker: Broker, transactions: list[_Transaction], version: int) -> Work[Any]:
    """Answer for each transaction; a response that adds waits for all records."""
    results = []
    waiting: list[tuple[_Result, _Transaction, PendingResponse]] = []
    for asked in transactions:
        producer = IdAndEpoch(asked.producer_id, asked.producer_epoch)
        result = _Result(asked.transactional_id)
        results.append(result)
        if asked.verify_only:
            errors = _verified(broker, asked.transactional_id, producer, asked.topics)
            result.topic_results = _results(asked.topics, version, errors)
        else:
            pending_response = PendingResponse()
            given = asked.transactional_id, producer, asked.topics
            if refused := _add(broker, *given, pending_response):
                result.topic_results = _results(asked.topics, version, refused)
            else:
                waiting.append((result, asked, pending_response))
        yield PARTITION_BYTES * sum(len(topic.partitions) for topic in asked.topics)
    response = _Response(results_by_transaction=results)
    return _when_added(response, waiting, version) if waiting else response


async def _when_added(
    response: messages.AddPartitionsToTxnResponse,
    waiting: list[tuple[_Result, _Transaction, PendingResponse]],
    version: int,
) -> messages.AddPartitionsToTxnResponse:
    for result, asked, pending_response in waiting:
        result.topic_results = _results(asked.topics, version, await pending_response.result())
    return response


def _verified(
    broker: Broker, transactional_id: str, producer: IdAndEpoch, topics: list[_Topic]
) -> Errors:
    partitions = tuple(_partitions(topics))
    table = broker.transactions.coordinator.table_of(transactional_id)
    if not transactional_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
    if isinstance(table, ErrorCode):
        return dict.fromkeys(partitions, table)
    errors = verified(table.get(transactional_id), producer, partitions)
    return dict(zip(partitions, errors, strict=True))


HANDLER = Handler(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    Scope.CLIENT,
    handle,
    with_transactions=range(5),
    between_brokers=BETWEEN_BROKERS,
    most_elements=MOST_PARTITIONS,
)
