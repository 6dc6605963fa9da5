"""Produce v3-11: appends record batches to partitions that this broker leads.

- Versions 0-2 are advertised for older librdkafka (which else sends uncompressed), and refused
  with UNSUPPORTED_VERSION (KAFKA-18659).
- acks 0: no answer; a refusal closes the connection. acks 1: answered when appended. acks -1:
  answered when every partition is committed, has moved away, or ``timeout_ms`` is over.
- Each partition is judged alone; from v8 a refusal carries a sentence, and the records that are to
  blame where only some are (KIP-467): clients fail those with the error, the others as bystanders.
- Several requests of one connection may wait at once (``pipelined``).
- v10+: NOT_LEADER_OR_FOLLOWER names the current leader and its address (KIP-951).
- Transactional ids are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED: clients do not retry it.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker import current_leaders, produce_directly
from tidelog.broker.parked import DelayedProduce, refuse
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.network.router import CloseConnection, Handler, RequestContext
from tidelog.protocol import messages
from tidelog.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, Rejected

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition

FIRST_SERVED_VERSION = 3
ALL_IN_SYNC = -1
NO_TRANSACTIONS = "this version has no transactions: send without a transactional.id"
INTERNAL = "clients must not write to an internal topic"
ADMIN_CLIENT_ID = "__admin_client"
"""Kafka's own tools may write to internal topics under this client id."""

_ONE_BATCH = Rejected(
    ErrorCode.INVALID_RECORD, "a produce request must have exactly one batch for each partition"
)
_length_at = struct.Struct(">i").unpack_from

_Response = messages.ProduceResponse
_Topic = messages.ProduceResponse.TopicProduceResponse
_Partition = messages.ProduceResponse.PartitionProduceResponse
_RecordError = messages.ProduceResponse.BatchIndexAndErrorMessage


def handle(broker: Broker, request: messages.ProduceRequest, context: RequestContext) -> Any:
    """Append; answer now, or when it is committed."""
    acks = request.acks
    if acks not in (ALL_IN_SYNC, 0, 1):
        reason = f"acks must be -1, 0 or 1, not {acks}"
        return _refused(request, ErrorCode.INVALID_REQUIRED_ACKS, reason)
    if context.version < FIRST_SERVED_VERSION:
        return _refused(request, ErrorCode.UNSUPPORTED_VERSION, None)
    if request.transactional_id is not None:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _refused(request, error, NO_TRANSACTIONS)
    waiting: list[tuple[HostedPartition, int, Any]] = []
    response = _append_all(broker, request, context, waiting)
    if not acks:
        return _unanswered(response)
    named = context.version >= current_leaders.FIRST_PRODUCE_VERSION
    if not waiting:
        if named:
            current_leaders.name_leaders(broker, response, context.listener_name)
        return response
    name = partial(current_leaders.name_leaders, broker, listener_name=context.listener_name)
    finish = name if named else None
    return DelayedProduce(response, waiting, request.timeout_ms, finish).future


def _append_all(
    broker: Broker,
    request: messages.ProduceRequest,
    context: RequestContext,
    waiting: list[tuple[HostedPartition, int, Any]],
) -> messages.ProduceResponse:
    """Append to each partition; ``waiting`` gets those that are not committed yet."""
    now_ms = broker.clock.wall_ms()
    by_topic = broker.partitions.by_topic
    committed = request.acks == ALL_IN_SYNC
    topics = []
    for topic in request.topic_data:
        name = topic.name
        hosted = by_topic.get(name)
        internal = name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID
        answers: list[Any] = []
        topics.append(_Topic(name, answers))
        for data in topic.partition_data:
            index = data.index
            partition = None if hosted is None else hosted.get(index)
            if partition is None or not partition.is_leader or internal:
                answers.append(_not_here(broker, name, index, partition, internal))
                continue
            if committed and len(partition.state.isr) < partition.required_in_sync:
                too_few = Rejected(ErrorCode.NOT_ENOUGH_REPLICAS, partition.why_too_few())
                answers.append(_rejected(index, too_few))
                continue
            records: Any = data.records or b""
            if (
                len(records) > HEADER_SIZE
                and _length_at(records, 8)[0] < len(records) - LENGTH_OVERHEAD
            ):
                answers.append(_rejected(index, _ONE_BATCH))
                continue
            result = partition.append(records, now_ms)
            if isinstance(result, Rejected):
                answers.append(_rejected(index, result))
                continue
            first, last, append_time_ms, start, _ = result
            answer = _Partition(index, 0, first, append_time_ms, start)
            answers.append(answer)
            if committed and last >= partition.log.high_watermark:
                waiting.append((partition, last, answer))
    return _Response(topics)


def _not_here(broker: Broker, topic: str, index: int, partition: Any, internal: bool) -> Any:
    answer = _Partition(index)
    if internal:
        refuse(answer, ErrorCode.INVALID_TOPIC_EXCEPTION, INTERNAL)
    elif partition is not None and partition.offline_reason is not None:
        refuse(answer, ErrorCode.KAFKA_STORAGE_ERROR, partition.offline_reason)
    else:
        error = broker.why_not_here(topic, index)
        refuse(answer, error, f"this broker does not lead {topic}-{index}")
    return answer


def _rejected(index: int, result: Rejected) -> Any:
    answer = _Partition(index)
    refuse(answer, result.error, result.reason)
    answer.record_errors = [_RecordError(each, result.reason) for each in result.records]
    return answer


def _unanswered(response: Any) -> None:
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                error = ErrorCode(answer.error_code).name
                raise CloseConnection(
                    f"a Produce with acks=0 to {topic.name}-{answer.index} was refused: {error}"
                )


def _refused(request: messages.ProduceRequest, error: ErrorCode, reason: str | None) -> Any:
    topics = []
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            answer = _Partition(data.index)
            refuse(answer, error, reason)
            answers.append(answer)
        topics.append(_Topic(topic.name, answers))
    response = _Response(topics)
    return response if request.acks else _unanswered(response)


def _refuse_all(request: Any, error: ErrorCode, _version: int) -> Any:
    return _refused(request, error, None) if request.acks else None


HANDLER = Handler(
    ApiKey.PRODUCE,
    range(12),
    handle,
    pipelined=True,
    refuse=_refuse_all,
    direct=produce_directly.answer,
)
