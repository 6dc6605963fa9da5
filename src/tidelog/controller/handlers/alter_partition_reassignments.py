"""AlterPartitionReassignments v0: starts, changes or cancels moves of partitions (KIP-455).

- Null replicas cancel the move of one partition, null partitions those of a topic, null topics all;
  NO_REASSIGNMENT_IN_PROGRESS where there is none: for a topic in a row of partition -1, for all of
  them at the top.
- Each partition by itself, with a sentence: INVALID_REPLICA_ASSIGNMENT,
  UNKNOWN_TOPIC_OR_PARTITION; the others go on.
- Responds once the targets are durable: a move goes on by itself, also under another controller.
- Decided in slices of whole topics or of ``AT_ONCE`` partitions (docs/decisions/0036).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, RequestRefusal
from tidelog.controller.decisions.moves import AT_ONCE
from tidelog.controller.decisions.reassignments import (
    Answered,
    Asked,
    cost_of_moves,
    moves_of,
    reassign,
    repeated_places,
)
from tidelog.controller.serving import MOST_MOVED, served
from tidelog.controller.slices import perform_in_slices
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, by_topic
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages
from tidelog.runtime.turns import at_once, in_turns

ALL = -1
"""The partition of a row that is about a whole topic."""

PREPARED_AT_ONCE = 250
"""Partitions that are read from the request, or written to the response, in one step."""


async def serve(
    controller: Controller,
    request: messages.AlterPartitionReassignmentsRequest,
    context: RequestContext,
) -> messages.AlterPartitionReassignmentsResponse:
    clock = controller.seams.clock
    asked, without = await in_turns(_asked(controller.cluster, request), clock)
    if request.topics is None and not asked:
        error, sentence = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition is being reassigned."
        return messages.AlterPartitionReassignmentsResponse(
            error_code=error, error_message=sentence
        )
    elements = await in_turns(_elements(asked), clock)
    repeated = repeated_places(asked)

    def decide(cluster: ClusterState, part: Sequence[Sequence[Asked]]) -> Decision[list[Answered]]:
        return reassign(cluster, [one for element in part for one in element], repeated)

    answers, _ = await perform_in_slices(
        controller,
        elements,
        lambda element: cost_of_moves(controller.cluster, element),
        decide,
    )
    return await in_turns(_response([*answers, *without]), clock)


def _asked(
    cluster: ClusterState, request: messages.AlterPartitionReassignmentsRequest
) -> Generator[None, None, tuple[list[Asked], list[Answered]]]:
    """Return what a request asks for each partition, and the results of topics without a move."""
    if request.topics is None:
        return [Asked(where, None) for where in moves_of(cluster)], []
    asked: list[Asked] = []
    without: list[Answered] = []
    moving = (
        by_topic(moves_of(cluster)) if any(x.partitions is None for x in request.topics) else {}
    )
    for number, topic in enumerate(request.topics):
        if number % PREPARED_AT_ONCE == 0:
            yield
        if topic.partitions is None:
            found = moving.get(topic.name, [])
            asked += [Asked(where, None) for where in found]
            if not found:
                without.append((TopicPartition(topic.name, ALL), _why_none(cluster, topic.name)))
            continue
        for at, one in enumerate(topic.partitions):
            if at % PREPARED_AT_ONCE == PREPARED_AT_ONCE - 1:
                yield
            targets = None if one.replicas is None else tuple(one.replicas)
            asked.append(Asked(TopicPartition(topic.name, one.partition_index), targets))
    return asked, without


def _why_none(cluster: ClusterState, topic: str) -> RequestRefusal:
    if topic not in cluster.topics or topic in cluster.marked:
        sentence = f"There is no topic {topic}."
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
    sentence = f"No partition of {topic} is being reassigned."
    return RequestRefusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence)


def _elements(asked: Sequence[Asked]) -> Generator[None, None, list[list[Asked]]]:
    """Return lists of partitions of one topic each, in an order that writes each topic seldom."""
    by_name: dict[str, list[Asked]] = {}
    for at, one in enumerate(asked):
        if at % PREPARED_AT_ONCE == 0:
            yield
        by_name.setdefault(one.where.topic, []).append(one)
    return [
        of_topic[start : start + AT_ONCE]
        for of_topic in by_name.values()
        for start in range(0, len(of_topic), AT_ONCE)
    ]


def _response(
    answers: Sequence[Answered],
) -> Generator[None, None, messages.AlterPartitionReassignmentsResponse]:
    response = messages.AlterPartitionReassignmentsResponse
    topics: dict[str, messages.AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = {}
    for at, (where, refusal) in enumerate(answers):
        if at % PREPARED_AT_ONCE == 0:
            yield
        topic = topics.get(where.topic)
        if topic is None:
            topic = topics[where.topic] = response.ReassignableTopicResponse(where.topic)
        row = response.ReassignablePartitionResponse(where.partition, error_message=None)
        if refusal is not None:
            row.error_code, row.error_message = refusal.error, refusal.sentence
        topic.partitions.append(row)
    return response(error_message=None, responses=list(topics.values()))


def refuse_all(
    request: messages.AlterPartitionReassignmentsRequest, error: ErrorCode, sentence: str
) -> messages.AlterPartitionReassignmentsResponse:
    """Respond with one error for every partition named, and at the top."""
    refusal = RequestRefusal(error, sentence)
    named = [
        (TopicPartition(topic.name, one.partition_index), refusal)
        for topic in request.topics or ()
        for one in topic.partitions or ()
    ]
    made = at_once(_response(named))
    made.error_code, made.error_message = error, sentence
    return made


HANDLER = served(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    range(1),
    Scope.CLIENT,
    serve,
    refuse_all,
    most=MOST_MOVED,
)
