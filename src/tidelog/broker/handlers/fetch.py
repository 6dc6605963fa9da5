"""Fetch v4-12: reads record batches, for consumers from leaders and for followers.

- Waits up to ``max_wait_ms`` until ``min_bytes`` can be read, without polling; any refusal of a
  partition ends the wait.
- At most ``max_bytes`` (and ``fetch.max.bytes``) in all and ``partition_max_bytes`` of a partition,
  but the first batch of the first partition that has any is sent whole (KIP-74).
- v7+: sessions (KIP-227); partitions that were answered with records are read last next time, so
  that none starves. v9+: leader epochs are checked (KIP-320). v12: ``last_fetched_epoch`` is
  answered with where the logs part (KIP-595).
- v11+: a consumer that names its rack is sent to the replica there, and may read from a follower
  (KIP-392): ``replica.selector.class``.
- Large reads are sent from the file without passing through memory (``storage.region``).
- Batches reach beyond the asked offset at both ends: clients skip what they did not ask for.
- A request with a replica id is a follower's: it reads to the log's end and waits for it. Its
  offsets count as held when topic id and leader epoch are this leader's and the logs do not part
  below them; another topic id answers INCONSISTENT_TOPIC_ID (KIP-516). Its sessions are ``feeds``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.fetch_reading import Reading, is_news, note_follower, refusal, respond
from tidelog.broker.fetch_sessions import Plan, Wanted
from tidelog.broker.parked import DelayedFetch
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition

FIRST_VERSION_WITH_SESSIONS = 7

_Response = messages.FetchResponse
_Topic = messages.FetchResponse.FetchableTopicResponse


def handle(broker: Broker, request: messages.FetchRequest, context: RequestContext) -> Any:
    """Read; answer now, or when enough has come."""
    if request.replica_id >= 0:
        answer = broker.feeds.handle(request, context)
        if answer is not None:
            return answer
    plan = broker.fetch_sessions.plan(request, broker.clock.monotonic_ms())
    if isinstance(plan, ErrorCode):
        return _Response(error_code=plan)
    if request.replica_id >= 0:
        _note_follower(broker, request, plan)
    answering = _Answer(broker, request, context, plan)
    reading = answering.reading
    found = answering.read()
    missing = request.min_bytes - reading.size
    if missing <= 0 or reading.is_last or reading.urgent or reading.full or not plan.wanted:
        return answering.told(found)
    waiters: Any = [
        each.waiting.followers if reading.follower else each.waiting.readers
        for each in answering.hosted
    ]
    return DelayedFetch(waiters, missing, request.max_wait_ms, answering.finish).future


class _Answer:
    """The answer to one request that says, or whose session knows, all that it wants."""

    __slots__ = ("_broker", "_plan", "hosted", "reading")

    def __init__(
        self,
        broker: Broker,
        request: messages.FetchRequest,
        context: RequestContext,
        plan: Plan,
    ) -> None:
        self._broker = broker
        self._plan = plan
        self.reading = Reading(broker, request, context)
        self.hosted: list[HostedPartition] = []

    def read(self) -> list[tuple[Wanted, Any]]:
        """Read all partitions once; what need not be answered is left out."""
        self.hosted.clear()
        broker, reading, full = self._broker, self.reading, self._plan.full
        reading.begin()
        by_topic = broker.partitions.by_topic
        found = []
        for wanted in self._plan.wanted:
            topic = by_topic.get(wanted.topic)
            partition = None if topic is None else topic.get(wanted.index)
            if partition is None:
                reading.urgent = True
                error = broker.why_not_here(wanted.topic, wanted.index)
                found.append((wanted, refusal(wanted.index, error)))
                continue
            self.hosted.append(partition)
            answer = reading.read(wanted, partition)
            if full or is_news(wanted, answer):
                found.append((wanted, answer))
        return found

    def told(self, found: list[tuple[Wanted, Any]]) -> Any:
        """Make the response, and note in the session what it tells."""
        session = self._plan.session
        if self._plan.superseded:
            return _Response(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session is None:
            return respond(0, found)
        for wanted, part in found:
            if len(part.records):
                session.move_last(wanted)
        return respond(session.id, found)

    def finish(self) -> Any:
        """Read again after the wait and answer whatever there is."""
        self.reading.is_last = True
        return self.told(self.read())


def _note_follower(broker: Broker, request: messages.FetchRequest, plan: Plan) -> None:
    """Take the offsets of a follower without a session as what it holds. O(what it asks)."""
    now_ms = broker.clock.monotonic_ms()
    for wanted in plan.wanted:
        partition = broker.partitions.get(wanted.topic, wanted.index)
        if partition is not None:
            life = request.replica_broker_epoch
            note_follower(broker, wanted, partition, request.replica_id, life, now_ms)


def _refuse_all(request: Any, error: ErrorCode, version: int) -> Any:
    if version >= FIRST_VERSION_WITH_SESSIONS:
        return _Response(error_code=int(error))
    topics = [
        _Topic(topic.topic, [refusal(asked.partition, error) for asked in topic.partitions])
        for topic in request.topics
    ]
    return _Response(responses=topics)


HANDLER = Handler(ApiKey.FETCH, range(4, 13), handle, large_answer=True, refuse=_refuse_all)
