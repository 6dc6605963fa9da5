"""Produce v3-13: appends record batches to partitions that this broker leads.

- Versions 0-2 are advertised for older librdkafka (which otherwise sends uncompressed batches), and
  refused with UNSUPPORTED_VERSION (KAFKA-18659).
- acks 0: no response; an error closes the connection. acks 1: the response follows the append.
  acks -1: it is sent when every partition is committed or no longer led here, or after
  ``timeout_ms``.
- Each partition has its own error; from v8 with a message, and the invalid records if only some are
  (KIP-467): the whole batch fails, and clients report the error for these records only.
- Several requests of one connection may wait at once (``pipelined``). A batch that a thread must
  inspect (``broker.inspected_appends``) makes its request a task, and the next request of the
  connection starts after its response.
- INVALID_REQUEST for the second entry of a partition.
- v9+, with the tags of counts (KIP-253): the table of ``replication.resize_rules``. Before the
  response refuses a batch of an older resize epoch it waits until this broker's metadata show the
  newer one, 1 s at most; the other batches of the request are appended meanwhile. A producer
  without the tags is refused by a retired partition, and with ``unaware.producers=refuse``; it gets
  NOT_LEADER_OR_FOLLOWER for a partition whose growth this broker's metadata do not show yet.
- Control batches of clients are refused, but for ancestor tombstones: ``ancestor_tombstones``.
- v12 is v11: part 2 of KIP-890 is not finalized. v13: topics by id (KIP-516);
  UNKNOWN_TOPIC_ID where no topic here has that id.
- v10+: NOT_LEADER_OR_FOLLOWER names the current leader and its address (KIP-951).
- While transactions are refused (``Broker.refused_transactions``) transactional ids get
  CLUSTER_AUTHORIZATION_FAILED: clients do not retry it. Otherwise batches of transactions are
  taken in a request with an id, after the coordinator has confirmed them (KIP-890):
  ``verification``. An empty id is INVALID_REQUEST. More than one producer in the batches of
  transactions of a request is INVALID_PRODUCER_ID_MAPPING for all of it, and such a batch without
  an id TRANSACTIONAL_ID_AUTHORIZATION_FAILED, for its partition: Kafka refuses the whole request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.metadata.cluster_level import NO_TRANSACTIONS
from tidelog.broker.metadata.leader_hints import FIRST_PRODUCE_VERSION
from tidelog.broker.partitions import produce_fast_path
from tidelog.broker.partitions.admission import (
    ALL_IN_SYNC,
    NOT_HERE,
    SEVERAL_BATCHES,
    TOO_FEW,
    why_not_admitted,
)
from tidelog.broker.partitions.ancestor_tombstones import append_tombstone, is_control
from tidelog.broker.partitions.delayed_produce import DelayedProduce, refuse
from tidelog.broker.partitions.in_sync import why_too_few
from tidelog.broker.partitions.joining import Joining
from tidelog.broker.partitions.produce_lists import BY_ID_SINCE
from tidelog.broker.partitions.resize_checks import (
    is_aware,
    named_by,
    why_not_taken,
)
from tidelog.broker.partitions.transactional_append import append_in_transaction, producer_of
from tidelog.broker.partitions.unaware_writers import is_to_note
from tidelog.broker.partitions.verification import Claim
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.model.work import Work
from tidelog.network.router import CloseConnection, Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.refusals import refused_in_steps
from tidelog.records.batch import OUTSIDE, Rejected
from tidelog.replication.resize_rules import NOT_NAMED
from tidelog.storage.log.inspecting import UNINSPECTED, InspectionAllowance
from tidelog.storage.log.producers import RESUMES
from tidelog.storage.log.results import Appended

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.replication.resize_rules import Named
    from tidelog.transactions.state import IdAndEpoch

_Waiting = tuple["HostedPartition", int, Any]
"""A partition, the last offset appended, its part of the response."""

_Uninspected = tuple["HostedPartition", list[Any], int, "asyncio.Future[Appended | Rejected]"]
"""A partition, the responses of its topic, the index of its own, and the result of the append."""

FIRST_SERVED_VERSION = 3
INTERNAL = "clients must not write to an internal topic"
_ONE_BATCH = Rejected(
    ErrorCode.INVALID_RECORD, "a produce request must have exactly one batch for each partition"
)
_NAMED_TWICE = Rejected(
    ErrorCode.INVALID_REQUEST, "a produce request must name each partition once"
)
_WITHOUT_ID = Rejected(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "a batch of a transaction needs a transactional id in its request",
)
_EMPTY_ID = "the transactional id is empty"
_SEVERAL_PRODUCERS = "the batches of transactions of one request must have one producer and epoch"
ANSWER_BYTES = 200
"""Memory of a partition in a response under construction."""

_Response = messages.ProduceResponse
_Topic = messages.ProduceResponse.TopicProduceResponse
_Partition = messages.ProduceResponse.PartitionProduceResponse
_RecordError = messages.ProduceResponse.BatchIndexAndErrorMessage


def handle(broker: Broker, request: messages.ProduceRequest, context: RequestContext) -> Any:
    """Append; respond now, or when the records are committed."""
    acks = request.acks
    if acks not in (ALL_IN_SYNC, 0, 1):
        reason = f"acks must be -1, 0 or 1, not {acks}"
        return _refused(context.version, request, ErrorCode.INVALID_REQUIRED_ACKS, reason)
    if context.version < FIRST_SERVED_VERSION:
        return _refused(context.version, request, ErrorCode.UNSUPPORTED_VERSION, None)
    if request.transactional_id is not None:
        return _with_id(broker, request, context)
    return _Appending(broker, request, context, _append).serve()


def _with_id(broker: Broker, request: messages.ProduceRequest, context: RequestContext) -> Any:
    version, transactional_id = context.version, request.transactional_id
    if broker.refused_transactions:
        broker.cluster_level.refused(context.client_id, context.client_host)
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _refused(version, request, error, NO_TRANSACTIONS)
    if not transactional_id:
        return _refused(version, request, ErrorCode.INVALID_REQUEST, _EMPTY_ID)
    return _in_transaction(broker, request, context, transactional_id)


def _in_transaction(
    broker: Broker,
    request: messages.ProduceRequest,
    context: RequestContext,
    transactional_id: str,
) -> Work[Any]:
    producers: set[IdAndEpoch | None] = set()
    for topic in request.topic_data:
        for data in topic.partition_data:
            if producers:  # a request for one partition is as good as a call
                yield 0
            records: Any = data.records or b""
            producers.add(producer_of(records))
    if len(producers - {None}) > 1:
        error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return (yield from _refused(context.version, request, error, _SEVERAL_PRODUCERS))
    join = partial(_join, broker, transactional_id, context.version)
    return (yield from _Appending(broker, request, context, _append_with_id, join).serve())


_Append = Callable[..., "Appended | Rejected"]
_Join = Callable[["HostedPartition", Any], "Joining | None"]


@dataclass(slots=True)
class _Appending:
    """One request, and what its response waits for."""

    broker: Broker
    request: messages.ProduceRequest
    context: RequestContext
    append: _Append
    join: _Join | None = None
    """Where it has a transactional id: returns what a batch of a transaction waits for."""
    waiting: list[_Waiting] = field(default_factory=list)
    uninspected: list[_Uninspected] = field(default_factory=list)
    """The batches that are not appended yet."""
    older: dict[str, int] = field(default_factory=dict)
    """Topics with a batch of an older resize epoch, and the partition's."""

    def _appended(self, response: messages.ProduceResponse) -> Any:
        if self.uninspected:
            return self.broker.loop.create_task(self._when_inspected(response))
        return self._answer(response, self.request.timeout_ms)

    def _rejected(self, index: int, refusal: Rejected, partition: HostedPartition) -> Any:
        """Return the response of a partition that refused its batch: one of an older resize epoch
        waits for this broker's metadata."""
        if refusal is OUTSIDE and self.broker.offered_transactions:
            refusal = _WITHOUT_ID
        if refusal.error is ErrorCode.INVALID_PARTITION_METADATA:
            epoch = partition.state.resize_epoch
            self.older[partition.topic] = max(epoch, self.older.get(partition.topic, epoch))
        return _rejected(index, refusal, partition)

    def _note(self, partition: HostedPartition, records: Any, now_ms: int) -> None:
        """Note a batch that came without a count, if that is due."""
        is_due = is_to_note(partition, now_ms)
        if is_due or partition.state.resize_epoch:
            client_id = (self.context.client_id or "") if is_due else None
            self.broker.unaware_writers.note(partition, NOT_NAMED, records, now_ms, client_id)

    def _answer(self, response: messages.ProduceResponse, timeout_ms: int) -> Any:
        if not self.request.acks:
            return _unanswered(response)
        hints, listener = self.broker.leader_hints, self.context.listener_name
        named = self.context.version >= FIRST_PRODUCE_VERSION
        unseen = [self.broker.unseen_epochs.of(*older) for older in self.older.items()]
        still_unseen = [epoch for epoch in unseen if epoch is not None]
        if not (self.waiting or still_unseen):
            if named:
                hints.name_leaders(response, listener)
            return response
        finish = partial(hints.name_leaders, listener_name=listener) if named else None
        return DelayedProduce(response, self.waiting, timeout_ms, finish, still_unseen).future

    async def _when_inspected(self, response: messages.ProduceResponse) -> Any:
        """Respond when the inspected batches are appended or refused, and committed."""
        loop, request = self.broker.loop, self.request
        end = loop.time() + request.timeout_ms / 1000
        for partition, answers, place, outcome in self.uninspected:
            result = await outcome
            index = answers[place].index
            if isinstance(result, Rejected):
                answers[place] = self._rejected(index, result, partition)
                continue
            answers[place] = answer = _appended(index, result)
            if request.acks == ALL_IN_SYNC and result.last_offset >= partition.log.high_watermark:
                self.waiting.append((partition, result.last_offset, answer))
        answer = self._answer(response, int((end - loop.time()) * 1000))
        return await answer if isinstance(answer, asyncio.Future) else answer

    def serve(self) -> Work[Any]:
        """Append to each partition; return the response or an awaitable of it."""
        broker, request, context = self.broker, self.request, self.context
        now_ms, allowance = broker.clock.wall_ms(), InspectionAllowance()
        by_topic, resuming = broker.partitions.by_topic, broker.resuming_producers
        seen: set[HostedPartition] = set()
        topics: list[Any] = []
        names = broker.metadata.names if context.version >= BY_ID_SINCE else None
        for topic in request.topic_data:
            if topics:  # some 50,000 topics without a partition fit into a request
                yield ANSWER_BYTES
            name = topic.name if names is None else names.get(topic.topic_id)
            hosted = by_topic.get(name)
            answers: list[Any] = []
            topics.append(_Topic(name, topic.topic_id, answers))
            count, epoch = topic.undeleted_partition_count, topic.resize_epoch
            for data in topic.partition_data:
                if answers:  # a request for one is as good as a call
                    yield ANSWER_BYTES
                index, named = data.index, named_by(count, epoch, data.partition_epoch)
                partition = None if hosted is None else hosted.get(index)
                if names is not None and not (
                    name and (partition is None or partition.topic_id == topic.topic_id)
                ):
                    answers.append(_unknown_id(index, topic.topic_id))
                    continue
                records: Any = data.records or b""
                refusal = why_not_admitted(partition, name, records, request.acks)
                if partition is None or refusal is NOT_HERE:
                    answers.append(_not_here(broker, name, index, partition))
                    continue
                if partition in seen:
                    answers.append(_rejected(index, _NAMED_TWICE, partition))
                    continue
                seen.add(partition)
                if refusal is TOO_FEW or refusal is SEVERAL_BATCHES:
                    refused = _why_not_admitted(refusal is TOO_FEW, partition)
                    answers.append(_rejected(index, refused, partition))
                    resuming.note_refusal(partition, records, refused.error)
                    continue
                result = self.append(broker, partition, named, records, now_ms, allowance)
                if result is UNINSPECTED:
                    outcome = broker.inspected_appends.add(
                        partition,
                        records,
                        allowance,
                        context.connection,
                        named=named,
                        client_id=context.client_id or "",
                        joining=None if self.join is None else self.join(partition, records),
                        in_sync=request.acks < 0,
                        timeout_ms=request.timeout_ms,
                    )
                    self.uninspected.append((partition, answers, len(answers), outcome))
                    answers.append(_Partition(index))
                    continue
                if isinstance(result, Rejected):
                    answers.append(self._rejected(index, result, partition))
                    broker.unaware_writers.note_refused(partition, named)
                    resuming.note_refusal(partition, records, result.error)
                    continue
                answer = _appended(index, result)
                answers.append(answer)
                if named is NOT_NAMED and not result.duplicate:
                    self._note(partition, records, now_ms)
                if request.acks < 0 and result.last_offset >= partition.log.high_watermark:
                    self.waiting.append((partition, result.last_offset, answer))
        return self._appended(_Response(topics))


def _append(
    broker: Broker,
    partition: HostedPartition,
    named: Named,
    records: Any,
    now_ms: int,
    allowance: InspectionAllowance,
) -> Appended | Rejected:
    """Append one batch, if its count and that of the partition allow it."""
    refused = why_not_taken(partition, named, records, broker.metadata)
    if refused is not None:
        return refused
    if (
        named is NOT_NAMED
        and is_to_note(partition, now_ms)
        and not broker.unaware_writers.may_append(partition, named, now_ms)
    ):
        return UNINSPECTED
    if is_control(records):
        metadata = broker.metadata.topic(partition.topic)
        if metadata is not None and is_aware(partition, named):
            appended = append_tombstone(partition, metadata, records, now_ms)
            if appended is not None:
                return appended
    result = partition.append(records, now_ms, allowance=allowance)
    if result is RESUMES:
        again = partial(partition.append, records, now_ms, allowance=allowance, resumes=True)
        return broker.resuming_producers.append(partition, records, again)
    return result


def _append_with_id(
    broker: Broker,
    partition: HostedPartition,
    named: Named,
    records: Any,
    now_ms: int,
    allowance: InspectionAllowance,
) -> Appended | Rejected:
    """Append one batch of a request with a transactional id, as ``_append`` does the others."""
    if producer_of(records) is None:
        return _append(broker, partition, named, records, now_ms, allowance)
    refused = why_not_taken(partition, named, records, broker.metadata)
    if refused is not None:
        return refused
    at_once = not (
        named is NOT_NAMED
        and is_to_note(partition, now_ms)
        and not broker.unaware_writers.may_append(partition, named, now_ms)
    )
    queues = broker.inspected_appends
    return append_in_transaction(partition, records, now_ms, queues, at_once=at_once)


def _join(
    broker: Broker, transactional_id: str, version: int, partition: HostedPartition, records: Any
) -> Joining | None:
    producer = producer_of(records)
    if producer is None:
        return None
    return Joining(
        broker.inspected_appends.verifier, partition, Claim(transactional_id, *producer), version
    )


def _appended(index: int, result: Appended) -> Any:
    first, _, append_time_ms, start, _ = result
    return _Partition(index, 0, first, append_time_ms, start)


def _not_here(broker: Broker, topic: str, index: int, partition: HostedPartition | None) -> Any:
    answer = _Partition(index)
    if topic in INTERNAL_TOPICS:
        refuse(answer, ErrorCode.INVALID_TOPIC_EXCEPTION, INTERNAL)
    elif partition is not None and partition.offline_reason is not None:
        partition.counts.append_refused(ErrorCode.KAFKA_STORAGE_ERROR)
        refuse(answer, ErrorCode.KAFKA_STORAGE_ERROR, partition.offline_reason)
    else:
        error = broker.leader_hints.why_not_here(topic, index)
        refuse(answer, error, f"this broker does not lead {topic}-{index}")
    return answer


def _why_not_admitted(too_few: bool, partition: HostedPartition) -> Rejected:
    if too_few:
        return Rejected(ErrorCode.NOT_ENOUGH_REPLICAS, why_too_few(partition))
    return _ONE_BATCH


def _unknown_id(index: int, topic_id: UUID) -> Any:
    answer = _Partition(index)
    refuse(answer, ErrorCode.UNKNOWN_TOPIC_ID, f"no topic here has the id {topic_id}")
    return answer


def _rejected(index: int, result: Rejected, partition: HostedPartition) -> Any:
    partition.counts.append_refused(result.error)
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


def _refused(
    version: int, request: messages.ProduceRequest, error: ErrorCode, reason: str | None
) -> Work[Any]:
    # Of 20,000 topics: at once it would take three times as long as their names to parse.
    response = yield from refused_in_steps(ApiKey.PRODUCE, version, request, error, reason)
    return response if request.acks else _unanswered(response)


HANDLER = Handler(
    ApiKey.PRODUCE,
    Scope.CLIENT,
    handle,
    pipelined=True,
    most_elements=20_000,
    long_records=True,
    is_answered=lambda request: bool(request.acks),
    direct=produce_fast_path.answer,
)
