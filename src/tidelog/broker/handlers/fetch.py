"""Fetch v4-17: reads record batches for consumers, and for followers of partitions led here.

- Waits up to ``max_wait_ms`` until ``min_bytes`` can be read, without polling; an error of any
  partition ends the wait.
- At most ``max_bytes`` (and ``fetch.max.bytes``) in all and ``partition_max_bytes`` per partition,
  but the first batch of the first partition with records is sent whole (KIP-74).
- v7+: sessions (KIP-227); partitions whose records were sent move to the end of the session, so
  that none starves. v9+: leader epochs are checked (KIP-320). v12: with ``last_fetched_epoch`` the
  response has the offset where the logs diverge (KIP-595).
- v11+: a consumer with a rack id is directed to the replica in its rack, and may read from a
  follower (KIP-392): ``replica.selector.class``.
- v13+: topics by id (KIP-516): see ``fetching.topic_ids``. UNKNOWN_TOPIC_ID for each partition of
  an id without a topic here.
- v15+: the replica is in a tag (KIP-903). Followers fetch with v12, whose tags are ours: a request
  of a replica in v13 or newer gets UNSUPPORTED_VERSION.
- v16+: a refusal names the current leader and its address (KIP-951).
- v12+, with the tags of counts (KIP-253): the table of ``replication.resize_rules``, for each
  partition of a session, too. A read that stands at a fence of a newer resize epoch waits as at the
  log's end, and is answered when this broker's metadata show that epoch.
- Isolation level read_committed (KIP-98): records up to the last stable offset, with the aborted
  transactions among them; a read of too many of these ends earlier. Only bytes below the last
  stable offset count for ``min_bytes``. See ``fetching.aborted_reads``.
- Large reads are sent from the file without a copy in memory (``storage.log.region``).
- Plain requests with something to read have a fast path: ``fetching.fetch_fast_path``.
- Batches may begin before the requested offset: clients skip the records that they did not request.
- A request with a replica id is a follower's: it reads up to the log end, and waits for new records
  there. Its fetch offsets count for the ISR if topic id and leader epoch are this leader's and the
  logs do not diverge below them; INCONSISTENT_TOPIC_ID for another topic id (KIP-516). Its sessions
  are in ``fetching.follower_sessions``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.broker.fetching import fetch_fast_path
from tidelog.broker.fetching.aborted_reads import ENTRY_MEMORY
from tidelog.broker.fetching.client_sessions import FetchPlan, Wanted, due
from tidelog.broker.fetching.delayed_requests import DelayedFetch
from tidelog.broker.fetching.partition_reads import (
    Reading,
    has_changed,
    note_follower,
    put_into,
    refusal,
)
from tidelog.broker.fetching.read_positions import ReadPosition, arrived_since, read_position
from tidelog.broker.fetching.topic_ids import BY_ID_SINCE, add_names, find_by_id
from tidelog.broker.metadata.leader_hints import FIRST_FETCH_VERSION
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.refusals import refused_in_steps
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.partition import HostedPartition

FIRST_VERSION_WITH_SESSIONS = 7

SESSION_AT_ONCE = 1024
"""Most partitions of a session that are compared, and joined for a wait, in one step: 0.2 ms."""

ANSWER_BYTES = 300
"""Memory of a partition in a response under construction, without its records."""

_Response = messages.FetchResponse
_Topic = messages.FetchResponse.FetchableTopicResponse


def handle(broker: Broker, request: messages.FetchRequest, context: RequestContext) -> Any:
    """Read; respond now, or once there are enough records."""
    if request.replica_state is not None:
        request.replica_id = request.replica_state.replica_id
    if request.replica_id >= 0:
        if not context.may_name_replica(request.replica_id, ApiKey.FETCH):
            return refused_in_steps(
                ApiKey.FETCH, context.version, request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            )
        if context.version >= BY_ID_SINCE:
            return refused_in_steps(
                ApiKey.FETCH, context.version, request, ErrorCode.UNSUPPORTED_VERSION
            )
        answer = broker.follower_sessions.handle(request, context)
        if answer is not None:
            return answer
    if context.version >= BY_ID_SINCE:
        add_names(request, broker.metadata.names)
    return _serve(broker, request, context)


def _serve(broker: Broker, request: messages.FetchRequest, context: RequestContext) -> Work[Any]:
    now_ms = broker.clock.monotonic_ms()
    by_id = context.version >= BY_ID_SINCE
    sessions = broker.fetch_sessions
    plan = yield from sessions.plan(request, now_ms, context.connection, by_id=by_id)
    if isinstance(plan, ErrorCode):
        return _Response(error_code=plan)
    if request.replica_id >= 0:
        yield from _note_follower(broker, request, plan)
    answering = _FetchResponse(broker, request, context, plan)
    try:
        found = yield from answering.read()
    except BaseException:
        # The client disconnected between two steps: the cold reads are not needed.
        answering.reading.forget_cold()
        raise
    if answering.reading.cold:
        return answering.warmed()
    if not answering.is_due():
        return (yield from answering.later())
    return (yield from answering.respond(found))


class _FetchResponse:
    """The response to one request whose partitions are known, from itself or its session."""

    __slots__ = ("_broker", "_hosted", "_plan", "_positions", "_request", "reading")

    def __init__(
        self,
        broker: Broker,
        request: messages.FetchRequest,
        context: RequestContext,
        plan: FetchPlan,
    ) -> None:
        self._broker = broker
        self._request = request
        self._plan = plan
        self.reading = Reading(broker.reader, request, context)
        self._hosted: list[HostedPartition] = []
        """The partitions that were read last."""
        self._positions: list[ReadPosition] = []
        """The state of each when it was read, after a read in steps that is followed by a wait."""

    def read(self) -> Work[Any]:
        """Read all partitions once; unchanged ones of a session are left out."""
        found: list[tuple[Wanted, Any]] = []
        self._hosted, self._positions = [], []
        reading = self.reading
        reading.begin()
        wanted = self._plan.wanted
        if not (
            reading.follower or self._plan.full or reading.rack or len(wanted) > SESSION_AT_ONCE
        ):
            awake = due(wanted, self._hosted)
            if len(awake) <= pace.PART:
                wanted = awake
            else:
                self._hosted.clear()
        many = len(wanted) > pace.PART
        done = self.read_some(wanted[: pace.PART] if many else wanted, found)
        if done == len(wanted):
            return found  # nearly always
        before = noted = 0
        while done < len(wanted):
            if not self.is_due():
                # Before the yield: an append from now on is noticed by ``later``.
                self._positions += [self._position(each) for each in self._hosted[noted:]]
                noted = len(self._hosted)
            part = wanted[done : done + pace.PART]
            held = reading.size + reading.aborted * ENTRY_MEMORY
            yield ANSWER_BYTES * len(part) + held - before
            before = held
            done += self.read_some(part, found)
        if not self.is_due():
            self._positions += [self._position(each) for each in self._hosted[noted:]]
        return found

    def _position(self, partition: HostedPartition) -> ReadPosition:
        return read_position(partition, **self._isolation())

    def _isolation(self) -> dict[str, bool]:
        reading = self.reading
        return {"committed": not reading.follower, "stable": reading.only_committed}

    def read_some(self, part: Sequence[Wanted], found: list[tuple[Wanted, Any]]) -> int:
        """Read some partitions once, and add what is to be in the response; return how many: all of
        them, or as many as should be read in one turn."""
        broker, reading, full = self._broker, self.reading, self._plan.full
        by_topic = broker.partitions.by_topic
        reading.looked_up = False
        for wanted in part:
            partition: HostedPartition | ErrorCode | None
            if wanted.by_id:
                partition = find_by_id(wanted, by_topic, broker.metadata.names, broker.leader_hints)
            else:
                topic = by_topic.get(wanted.topic)
                partition = None if topic is None else topic.get(wanted.index)
            if partition is None:
                partition = broker.leader_hints.why_not_here(wanted.topic, wanted.index)
            if isinstance(partition, ErrorCode):
                reading.urgent = True
                found.append((wanted, refusal(wanted.index, partition)))
                continue
            self._hosted.append(partition)
            answer = reading.read(wanted, partition)
            if full or has_changed(wanted, answer):
                found.append((wanted, answer))
            else:
                wanted.rest(partition)
            if reading.looked_up:
                return part.index(wanted) + 1
        return len(part)

    def is_due(self) -> bool:
        """Whether to respond now, without a wait for more records."""
        reading = self.reading
        if reading.size >= self._request.min_bytes or reading.is_last:
            return True
        return reading.urgent or reading.full or not self._plan.wanted

    def later(self) -> Work[Any]:
        """Wait for the partitions; return a future of the response, or of steps to build it."""
        request, follower = self._request, self.reading.follower
        only_committed, isolation = self.reading.only_committed, self._isolation()
        missing = request.min_bytes - self.reading.size
        departures = self._broker.departures
        delayed = DelayedFetch(missing, request.max_wait_ms, self._finish, departures)
        # Copies: the response may read again before all partitions are joined.
        hosted, positions, fenced = self._hosted, self._positions, dict(self.reading.fenced)
        try:
            # What was read in one turn is joined in this one, and needs no positions.
            parts: Iterable[tuple[Sequence[HostedPartition], Sequence[ReadPosition]]] = (
                zip(pace.parts(hosted), pace.parts(positions), strict=True)
                if positions
                else ((hosted, ()),)
            )
            for number, (part, at_read) in enumerate(parts):
                if number:
                    yield 0
                if delayed.is_woken:
                    break
                places: list[Any] = (
                    [each.waiting.followers if follower else each.waiting.readers for each in part]
                    if not (fenced or only_committed)
                    else [place for each in part for place in self._places(each, fenced)]
                )
                delayed.join(places)
                for each, before in zip(part, at_read, strict=False):
                    arrived = arrived_since(before, each, **isolation)
                    if arrived is not None and not (arrived and each in fenced):
                        delayed.more(arrived)
            for each, epoch in fenced.items():
                if self._broker.reader.shown.of(each.topic) > epoch:
                    delayed.more(0)
        except BaseException:
            # The client disconnected between two steps.
            delayed.future.cancel()
            raise
        return delayed.future

    def _places(
        self, partition: HostedPartition, fenced: Mapping[HostedPartition, int]
    ) -> tuple[Any, ...]:
        """Return where a consumer waits for a partition: at a fence, its appends do not matter;
        above the last stable offset, its commits do not (KIP-98)."""
        if partition in fenced:
            shown = self._broker.reader.shown
            return partition.waiting.fenced, shown.waiters(partition.topic)
        waiting = partition.waiting
        if self.reading.only_committed:
            return (waiting.stable.of(partition.log),)
        return (waiting.readers,)

    def _finish(self) -> Work[Any]:
        """Read again after the wait and respond with the records that there are."""
        self.reading.again()
        return (yield from self.respond((yield from self.read())))

    async def warmed(self) -> Any:
        """Respond after a thread has read the parts that are not in the page cache."""
        clock = self._broker.clock
        found: list[tuple[Wanted, Any]] = []
        while self.reading.cold:
            await self.reading.warm_up()
            found = await pace.run(self.read(), clock)
        if self.is_due():
            return self.respond(found)
        return await pace.response(self.later(), clock)

    def respond(self, found: list[tuple[Wanted, Any]]) -> Work[Any]:
        """Build the response, and update the session with what it contains."""
        plan, session = self._plan, self._plan.session
        topics: dict[str | bytes, Any] = {}
        superseded = plan.superseded
        for seen, (wanted, answer) in enumerate(found):
            if seen and not seen % pace.PART:
                yield 0
                superseded = plan.superseded
            if superseded:
                break
            if session is not None and len(answer.records):
                session.move_last(wanted)
            put_into(topics, wanted, answer)
        if superseded:
            return _Response(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session_id = 0 if session is None else session.id
        response = _Response(session_id=session_id, responses=list(topics.values()))
        return self._with_leaders(response)

    def _with_leaders(self, response: Any) -> Any:
        """Name the current leaders of refused partitions, where the version has a place for it."""
        context = self.reading.context
        if context.version < FIRST_FETCH_VERSION:
            return response
        return self._broker.leader_hints.name_leaders_of_fetch(response, context.listener_name)


def _note_follower(broker: Broker, request: messages.FetchRequest, plan: FetchPlan) -> Work[Any]:
    """Note the fetch offsets of a follower without a session. O(partitions of the request)."""
    now_ms = broker.clock.monotonic_ms()
    for at, wanted in enumerate(plan.wanted):
        if at and not at % pace.PART:
            yield 0
        partition = broker.partitions.get(wanted.topic, wanted.index)
        if partition is not None:
            broker_epoch = request.replica_broker_epoch
            note_follower(
                broker.reader, wanted, partition, request.replica_id, broker_epoch, now_ms
            )


HANDLER = Handler(
    ApiKey.FETCH, Scope.CLIENT, handle, large_answer=True, direct=fetch_fast_path.answer
)
