"""DescribeTopicPartitions v0: topics with their partitions, in pages (KIP-966).

- A request without topics means all. Topics are sorted by name, partitions by number; a page starts
  at the request's cursor.
- A page has at most ``response_partition_limit`` and ``MOST_PARTITIONS`` partitions; if there are
  further ones, the cursor of the response names the next. INVALID_REQUEST for each named topic if
  the cursor has a negative partition.
- For topics requested by name: UNKNOWN_TOPIC_OR_PARTITION if unknown, INVALID_TOPIC_EXCEPTION if
  the name is invalid. No topic is created.
- Leaders are the same as in Metadata, with the same waits. There are no eligible leader replicas
  outside the ISR (KIP-966's ELR): both lists are empty.
- The operations that the client may perform on a topic are always included, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.allowed_operations import OF_TOPIC
from tidelog.broker.metadata.cache import TopicMetadata
from tidelog.broker.metadata.cluster_view import ClusterView
from tidelog.broker.metadata.first_metadata import after_first_metadata
from tidelog.broker.metadata.lost_leaders import until_known
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, why_invalid
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.refusals import refused_in_steps

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

MOST_PARTITIONS = 2_000
"""Limit of one page: Kafka's ``max.request.partition.size.limit``."""

TOPIC_BYTES, PARTITION_BYTES = 200, 250
"""Memory of a topic and of a partition in a response under construction."""

Answer = messages.DescribeTopicPartitionsResponse
Topic = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


def handle(
    broker: Broker, request: messages.DescribeTopicPartitionsRequest, context: RequestContext
) -> Any:
    """Return a page from the cache, in steps, once its leaders are known to be alive.

    Costs O(partitions of the page), and a sort of the names of all topics.
    """
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        return refused_in_steps(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, context.version, request, ErrorCode.INVALID_REQUEST
        )
    if not broker.followers.has_sources:
        return _page(broker, request, context)
    return _when_leaders_are_known(broker, request, context)


async def _when_leaders_are_known(
    broker: Broker, request: messages.DescribeTopicPartitionsRequest, context: RequestContext
) -> Any:
    sources, clock = broker.followers, broker.clock
    await until_known(
        broker.metadata,
        sources,
        clock,
        lambda: _leaders(broker, request),
        of_all=not request.topics,
    )
    return _page(broker, request, context)


def _leaders(broker: Broker, request: messages.DescribeTopicPartitionsRequest) -> Iterable[int]:
    """Return the leaders that the page would name and that can be replaced: the response waits for
    no other."""
    room = _room(request)
    for name in _names(broker, request):
        topic = broker.metadata.topic(name)
        if topic is None:
            continue
        if not room:
            return
        shown = _numbers(request, topic)[:room]
        partitions = (topic.partitions[number] for number in shown)
        yield from (partition.leader for partition in partitions if partition.is_replaceable)
        room -= len(shown)


def _room(request: messages.DescribeTopicPartitionsRequest) -> int:
    """Return how many partitions a page may have."""
    limit: int = request.response_partition_limit
    return max(1, min(limit, MOST_PARTITIONS))


def _numbers(request: messages.DescribeTopicPartitionsRequest, topic: TopicMetadata) -> list[int]:
    """Return a topic's partition numbers in order, from the cursor's on."""
    cursor, first = request.cursor, 0
    if cursor is not None and cursor.topic_name == topic.name:
        first = cursor.partition_index
    return sorted(number for number in topic.partitions if number >= first)


def _names(broker: Broker, request: messages.DescribeTopicPartitionsRequest) -> list[str]:
    """Return the topic names in order, from the cursor's on."""
    asked = {topic.name for topic in request.topics}
    first = "" if request.cursor is None else request.cursor.topic_name
    return sorted(name for name in asked or broker.metadata.topics if name >= first)


def _page(
    broker: Broker, request: messages.DescribeTopicPartitionsRequest, context: RequestContext
) -> Work[Any]:
    room = _room(request)
    answer = Answer()
    for name in _names(broker, request):
        metadata = broker.metadata.topic(name)
        if metadata is None:
            # A topic deleted meanwhile is skipped, unless the request names it.
            if request.topics:
                answer.topics.append(_unknown(name, broker.metadata.unreadable))
                yield TOPIC_BYTES
            continue
        if not room:
            answer.next_cursor = Answer.Cursor(name, 0)
            break
        numbers = _numbers(request, metadata)
        topic = _topic(metadata)
        answer.topics.append(topic)
        shown = numbers[:room]
        yield TOPIC_BYTES
        view = ClusterView.of(broker.metadata, broker.followers.has_lost, context.listener_name)
        for number in shown:
            if number in metadata.partitions:
                topic.partitions.append(_partition(view, metadata, number))
            yield PARTITION_BYTES
        if len(shown) < len(numbers):
            answer.next_cursor = Answer.Cursor(name, numbers[len(shown)])
            break
        room -= len(shown)
    return answer


def _topic(topic: TopicMetadata) -> Any:
    return Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
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


def _unknown(name: str, unreadable: frozenset[str]) -> Any:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name in unreadable:
        # It may exist (docs/decisions/0111).
        code = ErrorCode.LEADER_NOT_AVAILABLE
    if why_invalid(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return Topic(name=name, error_code=code, is_internal=name in INTERNAL_TOPICS)


HANDLER = Handler(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    Scope.CLIENT,
    after_first_metadata(handle),
    most_elements=20_000,
)
