"""ListPartitionReassignments v0: the moves of partitions that are running (KIP-455).

- Null topics list all, null partitions all of a topic. A partition that does not move is left out,
  as in Kafka.
- ``replicas`` are the targets and then the other replicas, ``adding_replicas`` the targets that the
  partition did not have before its first change, ``removing_replicas`` those it loses: as Kafka's
  tools expect them.
"""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.reassignments import listed, moves_of
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import by_topic
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages


async def serve(
    controller: Controller,
    request: messages.ListPartitionReassignmentsRequest,
    context: RequestContext,
) -> messages.ListPartitionReassignmentsResponse:
    response = messages.ListPartitionReassignmentsResponse
    cluster = controller.cluster
    if request.topics is None:
        found = moves_of(cluster)
    else:
        # A partition that is named twice is listed once.
        wanted: dict[str, set[int] | None] = {}
        for topic in request.topics:
            named = wanted.setdefault(topic.name, set())
            if named is None or topic.partition_indexes is None:
                wanted[topic.name] = None
            else:
                named.update(topic.partition_indexes)
        found = [
            where
            for where in moves_of(cluster)
            if where.topic in wanted
            and ((indexes := wanted[where.topic]) is None or where.partition in indexes)
        ]
    topics = []
    for name, places in by_topic(found).items():
        rows = [
            response.OngoingPartitionReassignment(
                one.where.partition, one.replicas, one.adding, one.removing
            )
            for one in (listed(cluster, where) for where in places)
        ]
        topics.append(response.OngoingTopicReassignment(name, rows))
    return response(error_message=None, topics=topics)


def refuse_all(
    _request: object, error: ErrorCode, sentence: str
) -> messages.ListPartitionReassignmentsResponse:
    """Respond with one error."""
    return messages.ListPartitionReassignmentsResponse(error_code=error, error_message=sentence)


HANDLER = served(ApiKey.LIST_PARTITION_REASSIGNMENTS, range(1), Scope.CLIENT, serve, refuse_all)
