"""DescribeTopicPartitions v0: topics with their partitions, a page at a time (KIP-966).

- No topics asked for means all. Topics come in the order of their names, partitions in that of
  their numbers; a page begins at the request's cursor.
- A page has at most ``response_partition_limit`` partitions, and no more than ``MOST_PARTITIONS``;
  where there are more, the answer's cursor names the first of them. A cursor of a negative
  partition answers INVALID_REQUEST for each topic that is asked for.
- A topic that is not known answers UNKNOWN_TOPIC_OR_PARTITION, a name that none can have
  INVALID_TOPIC_EXCEPTION, where it was asked for by name. Nothing is created.
- Leaders are named as Metadata names them, with the same waits. No replica is eligible outside of
  the ISR (KIP-966's ELR): both lists are empty.
- The operations that the client may do on a topic are always told, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.allowed_operations import NOT_ASKED, OF_TOPIC
from tidelog.broker.metadata.cache import TopicMetadata
from tidelog.broker.metadata.cluster_view import ClusterView
from tidelog.broker.metadata.first_metadata import after_first_metadata
from tidelog.broker.metadata.lost_leaders import until_known
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, why_invalid
from tidelog.network.router import Handler, RequestContext, Scope, Steps
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

MOST_PARTITIONS = 2_000
"""Of one page: Kafka's ``max.request.partition.size.limit``."""

AT_ONCE = 200
"""Partitions that are told between two looks at the clock."""

TOPIC_BYTES, PARTITION_BYTES = 200, 250
"""What a topic, and a partition, take in an answer being made."""

Answer = messages.DescribeTopicPartitionsResponse
Topic = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Answer a page from the cache, in steps, or as soon as one knows that its leaders are alive.

    A page costs what it shows, and the names of all topics to be put in order.
    """
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        return _refuse(request, ErrorCode.INVALID_REQUEST, context.version)
    if not broker.followers.has_sources:
        return _page(broker, request, context)
    return _when_leaders_are_known(broker, request, context)


async def _when_leaders_are_known(broker: Broker, request: Any, context: RequestContext) -> Any:
    await until_known(broker, lambda: _leaders(broker, request))
    return _page(broker, request, context)


def _leaders(broker: Broker, request: Any) -> Iterable[int]:
    """Return the leaders that the page would name: it waits for no other's proof of life."""
    room = _room(request)
    for name in _names(broker, request):
        found = broker.metadata.topic(name)
        if found is None:
            continue
        if not room:
            return
        shown = _numbers(request, found)[:room]
        yield from (found.partitions[number].leader for number in shown)
        room -= len(shown)


def _room(request: Any) -> int:
    """Return how many partitions a page may have."""
    limit: int = request.response_partition_limit
    return max(1, min(limit, MOST_PARTITIONS))


def _numbers(request: Any, topic: TopicMetadata) -> list[int]:
    """Return a topic's partitions in order, from the cursor's on."""
    cursor, first = request.cursor, 0
    if cursor is not None and cursor.topic_name == topic.name:
        first = cursor.partition_index
    return sorted(number for number in topic.partitions if number >= first)


def _names(broker: Broker, request: Any) -> list[str]:
    """Return the names to go through, in order, from the cursor's on."""
    asked = {topic.name for topic in request.topics}
    first = "" if request.cursor is None else request.cursor.topic_name
    return sorted(name for name in asked or broker.metadata.topics if name >= first)


def _page(broker: Broker, request: Any, context: RequestContext) -> Steps:
    view = ClusterView.of(broker, context.listener_name)
    room = _room(request)
    answer = Answer()
    for name in _names(broker, request):
        found = broker.metadata.topic(name)
        if found is None:
            # One of all topics may have been deleted since; what was asked for by name is told.
            if request.topics:
                answer.topics.append(_unknown(name))
                yield TOPIC_BYTES
            continue
        if not room:
            answer.next_cursor = Answer.Cursor(name, 0)
            break
        numbers = _numbers(request, found)
        topic = _topic(found)
        answer.topics.append(topic)
        shown = numbers[:room]
        for at in range(0, len(shown), AT_ONCE):
            part = [
                _partition(view, found, number)
                for number in shown[at : at + AT_ONCE]
                if number in found.partitions
            ]
            topic.partitions += part
            yield TOPIC_BYTES + PARTITION_BYTES * len(part)
        if len(shown) < len(numbers):
            answer.next_cursor = Answer.Cursor(name, numbers[len(shown)])
            break
        room -= len(shown)
    return answer


def _topic(found: TopicMetadata) -> Any:
    return Topic(
        name=found.name,
        topic_id=found.topic_id,
        is_internal=found.name in INTERNAL_TOPICS,
        topic_authorized_operations=OF_TOPIC,
    )


def _partition(view: ClusterView, topic: TopicMetadata, number: int) -> Any:
    partition = topic.partitions[number]
    visible = view.visible(partition)
    return Partition(
        error_code=visible.error,
        partition_index=number,
        leader_id=visible.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=list(visible.offline),
    )


def _unknown(name: str) -> Any:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if why_invalid(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return Topic(name=name, error_code=code, is_internal=name in INTERNAL_TOPICS)


def _refuse(request: Any, error: ErrorCode, _version: int) -> Any:
    return Answer(
        topics=[
            Topic(name=topic.name, error_code=error, topic_authorized_operations=NOT_ASKED)
            for topic in request.topics
        ]
    )


HANDLER = Handler(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    range(1),
    Scope.CLIENT,
    after_first_metadata(handle),
    refuse=_refuse,
    most_elements=20_000,
)
