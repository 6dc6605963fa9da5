"""Fetch v4-12: reads committed record batches from partitions that this broker leads.

- Waits up to ``max_wait_ms`` until ``min_bytes`` can be read, without polling; any refusal of a
  partition ends the wait.
- At most ``max_bytes`` (and ``fetch.max.bytes``) in all and ``partition_max_bytes`` of a partition,
  but the first batch of the first partition that has any is sent whole (KIP-74).
- v7+: sessions (KIP-227); partitions that were answered with records are read last next time, so
  that none starves. v9+: leader epochs are checked (KIP-320). v12: ``last_fetched_epoch`` is
  answered with where the logs part (KIP-595).
- Large reads are sent from the file without passing through memory (``storage.region``).
- Batches reach beyond the asked offset at both ends: clients skip what they did not ask for.
- A request with a replica id is a follower's: it reads to the log's end and waits for it. Its
  offsets count as held when topic id and leader epoch are this leader's and the logs do not part
  below them; another topic id answers INCONSISTENT_TOPIC_ID (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.fetch_sessions import Plan, Wanted
from tidelog.broker.parked import DelayedFetch
from tidelog.broker.partition import SMALL_READ_BYTES
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.batch import Rejected
from tidelog.storage.region import LEAST_BYTES, find_region

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition

READ_COMMITTED = 1
FIRST_VERSION_WITH_SESSIONS = 7

_Response = messages.FetchResponse
_Topic = messages.FetchResponse.FetchableTopicResponse
_Partition = messages.FetchResponse.PartitionData


class _Reading:
    """One request being answered: may be read twice, at once and after a wait."""

    __slots__ = ("broker", "context", "follower", "hosted", "plan", "request", "size", "urgent")

    def __init__(
        self,
        broker: Broker,
        request: messages.FetchRequest,
        context: RequestContext,
        plan: Plan,
    ) -> None:
        self.broker = broker
        self.request = request
        self.context = context
        self.plan = plan
        self.follower = request.replica_id >= 0
        self.hosted: list[HostedPartition] = []
        self.size = 0
        self.urgent = False

    def read(self) -> list[tuple[Wanted, Any]]:
        """Read all partitions once; what need not be answered is left out."""
        self.hosted.clear()
        self.size = 0
        request, broker = self.request, self.broker
        limit = max(1, min(request.max_bytes, broker.configs.fetch_max_bytes))
        # Nothing at all while other clients leave too much unread: the next request waits.
        limit = min(limit, self.context.answer_budget())
        full = self.plan.full
        by_topic = broker.partitions.by_topic
        found = []
        for wanted in self.plan.wanted:
            topic = by_topic.get(wanted.topic)
            partition = None if topic is None else topic.get(wanted.index)
            if partition is None:
                self.urgent = True
                error = broker.why_not_here(wanted.topic, wanted.index)
                found.append((wanted, _refusal(wanted.index, error)))
                continue
            self.hosted.append(partition)
            answer = self._read_one(wanted, partition, limit - self.size)
            if full or answer.error_code or len(answer.records) or _is_news(wanted, answer):
                found.append((wanted, answer))
        return found

    def _read_one(self, wanted: Wanted, partition: HostedPartition, room: int) -> Any:
        index = wanted.index
        error = partition.why_not_serving(wanted.leader_epoch)
        if error is ErrorCode.NONE and self.follower:
            error = _why_not_fed(wanted, partition, self.request.replica_id)
        if error is not ErrorCode.NONE:
            self.urgent = True
            return _refusal(index, error)
        log = partition.log
        offset = wanted.fetch_offset
        answer = _Partition(index, 0, log.high_watermark, log.high_watermark, log.start_offset)
        answer.aborted_transactions = [] if self.request.isolation_level == READ_COMMITTED else None
        if self.follower:
            answer.aborted_transactions = None
        if wanted.last_fetched_epoch >= 0 and self._diverges(wanted, partition, answer):
            return answer
        limit = log.end_offset if self.follower else log.high_watermark
        if room <= 0 or offset == limit:
            return answer
        if room >= LEAST_BYTES and self.context.connection.can_send_files():
            region = find_region(log, offset, min(room, wanted.max_bytes))
            if region is not None:
                parts: Any = [region]
                answer.records = parts
                self.size += region.size
                partition.bytes_out += region.size
                return answer
        records = partition.read(
            offset,
            min(room, wanted.max_bytes),
            committed=not self.follower,
            at_least_one=not self.size,
        )
        if isinstance(records, Rejected):
            self.urgent = True
            refused = _refusal(index, records.error)
            if records.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                refused.high_watermark = refused.last_stable_offset = log.high_watermark
                refused.log_start_offset = log.start_offset
            return refused
        self.size += len(records)
        answer.records = records
        if len(records) < SMALL_READ_BYTES and offset < log.segments[-1].base_offset:
            rest = min(room, wanted.max_bytes)
            answer.records = partition.read_on(records, rest, committed=not self.follower)
            self.size += sum(map(len, answer.records)) - len(records)
        return answer

    def _diverges(self, wanted: Wanted, partition: HostedPartition, answer: Any) -> bool:
        epoch, end = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if epoch < 0:
            self.urgent = True
            answer.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
            return True
        if epoch == wanted.last_fetched_epoch and end >= wanted.fetch_offset:
            return False
        self.urgent = True
        answer.diverging_epoch = _EpochEndOffset(epoch, end)
        return True

    def answer(self, found: list[tuple[Wanted, Any]]) -> Any:
        """Make the response, and note in the session what it tells."""
        session = self.plan.session
        if self.plan.superseded:
            return _Response(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        topics: dict[str, Any] = {}
        for wanted, part in found:
            topic = topics.get(wanted.topic)
            if topic is None:
                topic = topics[wanted.topic] = _Topic(wanted.topic, [])
            topic.partitions.append(part)
            if session is not None:
                wanted.sent_watermark = -2 if part.error_code else part.high_watermark
                wanted.sent_start = part.log_start_offset
                if len(part.records):
                    session.move_last(wanted)
        return _Response(
            session_id=0 if session is None else session.id, responses=list(topics.values())
        )

    def finish(self) -> Any:
        """Read again after the wait and answer whatever there is."""
        return self.answer(self.read())


_EpochEndOffset = messages.FetchResponse.EpochEndOffset


def handle(broker: Broker, request: messages.FetchRequest, context: RequestContext) -> Any:
    """Read; answer now, or when enough has come."""
    plan = broker.fetch_sessions.plan(request, broker.clock.monotonic_ms())
    if isinstance(plan, ErrorCode):
        return _Response(error_code=plan)
    reading = _Reading(broker, request, context, plan)
    if reading.follower:
        _note_follower(broker, request, plan)
    found = reading.read()
    missing = request.min_bytes - reading.size
    if missing <= 0 or request.max_wait_ms <= 0 or reading.urgent or not plan.wanted:
        return reading.answer(found)
    hosted = reading.hosted
    waiters = [each.end_waiters if reading.follower else each.waiters for each in hosted]
    return DelayedFetch(waiters, missing, request.max_wait_ms, reading.finish).future


def _note_follower(broker: Broker, request: messages.FetchRequest, plan: Plan) -> None:
    """Take a follower's offsets as what it holds, before reading: the watermark may move.

    Grows with the partitions of the session, as the reading does.
    """
    node_id, life = request.replica_id, request.replica_broker_epoch
    now_ms = broker.clock.monotonic_ms()
    for wanted in plan.wanted:
        partition = broker.partitions.get(wanted.topic, wanted.index)
        if (
            partition is None
            or wanted.leader_epoch != partition.leader_epoch
            or _why_not_fed(wanted, partition, node_id) is not ErrorCode.NONE
        ):
            continue
        log = partition.log
        offset = wanted.fetch_offset
        if not log.start_offset <= offset <= log.end_offset:
            continue
        if wanted.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(wanted.last_fetched_epoch)
            if epoch != wanted.last_fetched_epoch or end < offset:
                continue
        partition.follower_fetched(node_id, offset, life, now_ms)
        broker.isr_changes.fetched(partition, node_id)


def _why_not_fed(wanted: Wanted, partition: HostedPartition, node_id: int) -> ErrorCode:
    """Return why a follower is not fed from this leader: another topic's life, or no replica."""
    if wanted.topic_id != NO_UUID and wanted.topic_id != partition.topic_id:
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if node_id not in partition.state.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


def _is_news(wanted: Wanted, answer: Any) -> bool:
    return bool(
        answer.high_watermark != wanted.sent_watermark
        or answer.log_start_offset != wanted.sent_start
        or answer.diverging_epoch is not None
    )


def _refusal(index: int, error: ErrorCode) -> Any:
    return _Partition(index, int(error), -1, -1, -1)


def _refuse_all(request: Any, error: ErrorCode, version: int) -> Any:
    if version >= FIRST_VERSION_WITH_SESSIONS:
        return _Response(error_code=int(error))
    topics = [
        _Topic(topic.topic, [_refusal(asked.partition, error) for asked in topic.partitions])
        for topic in request.topics
    ]
    return _Response(responses=topics)


HANDLER = Handler(ApiKey.FETCH, range(4, 13), handle, large_answer=True, refuse=_refuse_all)
