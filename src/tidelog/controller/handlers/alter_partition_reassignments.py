"""AlterPartitionReassignments v0: starts, changes or cancels moves of partitions (KIP-455).

- Null replicas cancel the move of one partition, null partitions those of a topic, null topics all;
  NO_REASSIGNMENT_IN_PROGRESS where there is none: for a topic in a row of partition -1, for all of
  them at the top.
- Each partition by itself, with a sentence: INVALID_REPLICA_ASSIGNMENT,
  UNKNOWN_TOPIC_OR_PARTITION; the others go on.
- Responds once the targets are durable: a move goes on by itself, also under another controller.
- REQUEST_TIMED_OUT for each partition whose targets are not durable when the time of the request is
  over; the others keep their results. A slice that has not begun by then never begins.
- Decided in slices of whole topics or of ``AT_ONCE`` partitions (docs/decisions/0036).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, RequestRefusal
from tidelog.controller.decisions.moves import AT_ONCE
from tidelog.controller.decisions.reassignments import (
    Answered,
    Asked,
    cost_of_moves,
    known_brokers,
    moves_by_topic,
    reassign,
    repeated_places,
)
from tidelog.controller.serving import patience_ms, served_for_brokers
from tidelog.controller.slices import perform_in_slices
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

ALL = -1
"""The partition of a row that is about a whole topic."""


def handle(
    controller: Controller,
    request: messages.AlterPartitionReassignmentsRequest,
    context: RequestContext,
) -> Work[Any]:
    clock = controller.seams.clock
    begun_ms = clock.monotonic_ms()
    asked, without = yield from _asked(controller.cluster, request)
    if request.topics is None and not asked:
        error, sentence = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition is being reassigned."
        return messages.AlterPartitionReassignmentsResponse(
            error_code=error, error_message=sentence
        )
    elements = yield from _elements(asked)
    left_ms = begun_ms + patience_ms(controller, request.timeout_ms, context) - clock.monotonic_ms()
    return _Moves(controller, asked).started_within(elements, left_ms, without)


class _Moves:
    """The moves of one request while their slices are decided."""

    def __init__(self, controller: Controller, asked: Sequence[Asked]) -> None:
        self._controller = controller
        self._repeated = repeated_places(asked)
        self._known = cache(lambda: known_brokers(controller.cluster))
        self._answers: list[Answered] = []
        self._begun = 0
        """Partitions of the slices that were decided."""
        self._is_over = False

    async def started_within(
        self, elements: Sequence[Sequence[Asked]], limit_ms: float, without: Sequence[str]
    ) -> Work[messages.AlterPartitionReassignmentsResponse]:
        """Start the moves; respond with the result of each by then, at the latest after
        ``limit_ms``, and with the topics ``without`` a move."""
        try:
            if limit_ms > 0:
                async with asyncio.timeout(limit_ms / 1000):
                    await perform_in_slices(
                        self._controller,
                        elements,
                        lambda element: cost_of_moves(self._controller.cluster, element),
                        self._decide,
                        self._applied,
                    )
        except TimeoutError:
            self._is_over = True
        # A slice that was decided by then may end now, in the background.
        cluster = self._controller.cluster
        # Refused one by one as the response is made: 100,000 refusals took a quarter of its memory.
        refused = ((TopicPartition(name, ALL), _why_none(cluster, name)) for name in without)
        return _response(elements, list(self._answers), self._begun, refused)

    def _decide(
        self, cluster: ClusterState, part: Sequence[Sequence[Asked]]
    ) -> Decision[list[Answered]]:
        if self._is_over:
            # It waited for its turn; its request has got the response.
            return Decision([])
        asked = [one for element in part for one in element]
        self._begun = len(self._answers) + len(asked)
        return reassign(cluster, asked, self._repeated, self._known)

    def _applied(self, answers: Sequence[Answered]) -> None:
        self._answers += answers


def _late(elements: Sequence[Sequence[Asked]], done: int, begun: int) -> Work[list[Answered]]:
    """Return the refusals of the partitions after ``done``; those below ``begun`` were decided."""
    late: list[Answered] = []
    for position, one in enumerate(one for element in elements for one in element):
        yield None
        if position >= done:
            how = (
                "nothing was changed"
                if position >= begun
                else "its outcome is unknown: list the moves"
            )
            sentence = f"The time was over before the change of {one.where} was stored; {how}."
            late.append((one.where, RequestRefusal(ErrorCode.REQUEST_TIMED_OUT, sentence)))
    return late


def _asked(
    cluster: ClusterState, request: messages.AlterPartitionReassignmentsRequest
) -> Work[tuple[list[Asked], list[str]]]:
    """Return what a request asks for each partition, and the topics without a move."""
    asked: list[Asked] = []
    without: list[str] = []
    moving: dict[str, list[TopicPartition]] = {}
    if request.topics is None or any(x.partitions is None for x in request.topics):
        moving = yield from moves_by_topic(cluster)
    if request.topics is None:
        return [Asked(tp, None) for places in moving.values() for tp in places], []
    for topic in request.topics:
        yield None
        if topic.partitions is None:
            places = moving.get(topic.name, [])
            asked += [Asked(tp, None) for tp in places]
            if not places:
                without.append(topic.name)
            continue
        for one in topic.partitions:
            yield None
            targets = None if one.replicas is None else tuple(one.replicas)
            asked.append(Asked(TopicPartition(topic.name, one.partition_index), targets))
    return asked, without


def _why_none(cluster: ClusterState, topic: str) -> RequestRefusal:
    if topic not in cluster.topics or topic in cluster.marked:
        sentence = f"There is no topic {topic}."
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
    sentence = f"No partition of {topic} is being reassigned."
    return RequestRefusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence)


def _elements(asked: Sequence[Asked]) -> Work[list[list[Asked]]]:
    """Return lists of partitions of one topic each, in an order that writes each topic seldom."""
    by_name: dict[str, list[Asked]] = {}
    for one in asked:
        yield None
        by_name.setdefault(one.where.topic, []).append(one)
    return [
        of_topic[start : start + AT_ONCE]
        for of_topic in by_name.values()
        for start in range(0, len(of_topic), AT_ONCE)
    ]


def _response(
    elements: Sequence[Sequence[Asked]],
    answers: list[Answered],
    begun: int,
    refused: Iterable[Answered],
) -> Work[messages.AlterPartitionReassignmentsResponse]:
    response = messages.AlterPartitionReassignmentsResponse
    late = yield from _late(elements, len(answers), begun)
    topics: dict[str, messages.AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = {}
    for tp, refusal in chain(answers, late, refused):
        yield None
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = response.ReassignableTopicResponse(tp.topic)
        row = response.ReassignablePartitionResponse(tp.partition, error_message=None)
        if refusal is not None:
            row.error_code, row.error_message = refusal.error, refusal.sentence
        topic.partitions.append(row)
    return response(error_message=None, responses=list(topics.values()))


HANDLER = served_for_brokers(ApiKey.ALTER_PARTITION_REASSIGNMENTS, handle)
