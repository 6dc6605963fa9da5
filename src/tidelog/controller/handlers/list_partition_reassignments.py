"""ListPartitionReassignments v0: the moves of partitions that are running (KIP-455).

- Null topics list all, null partitions all of a topic. A partition that does not move is left out,
  as in Kafka.
- ``replicas`` are the targets and then the other replicas, ``adding_replicas`` the targets that the
  partition did not have before its first change, ``removing_replicas`` those it loses: as Kafka's
  tools expect them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.reassignments import is_moving, listed, moves_by_topic
from tidelog.controller.serving import served_for_brokers
from tidelog.model.api_keys import ApiKey
from tidelog.model.work import Work
from tidelog.network.router import RequestContext
from tidelog.protocol import messages


def handle(
    controller: Controller,
    request: messages.ListPartitionReassignmentsRequest,
    _context: RequestContext,
) -> Work[messages.ListPartitionReassignmentsResponse]:
    """Build the response in steps; a move that ends meanwhile is left out."""
    response, cluster = messages.ListPartitionReassignmentsResponse, controller.cluster
    by_topic = yield from moves_by_topic(cluster)
    wanted = None if request.topics is None else (yield from _wanted(request.topics))
    topics: list[messages.ListPartitionReassignmentsResponse.OngoingTopicReassignment] = []
    for name, places in by_topic.items():
        indexes: set[int] | None = None if wanted is None else wanted.get(name, set())
        topic = response.OngoingTopicReassignment(name)
        for tp in places:
            yield None
            if (indexes is None or tp.partition in indexes) and is_moving(cluster, tp):
                one = listed(cluster, tp)
                topic.partitions.append(
                    response.OngoingPartitionReassignment(
                        tp.partition, one.replicas, one.adding, one.removing
                    )
                )
        if topic.partitions:
            topics.append(topic)
    return response(error_message=None, topics=topics)


def _wanted(
    topics: Sequence[messages.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics],
) -> Work[dict[str, set[int] | None]]:
    """Return the partitions asked for by topic, None for all: one named twice is listed once."""
    wanted: dict[str, set[int] | None] = {}
    for topic in topics:
        yield None
        named = wanted.setdefault(topic.name, set())
        if named is None or topic.partition_indexes is None:
            wanted[topic.name] = None
        else:
            named.update(topic.partition_indexes)
    return wanted


HANDLER = served_for_brokers(ApiKey.LIST_PARTITION_REASSIGNMENTS, handle)
