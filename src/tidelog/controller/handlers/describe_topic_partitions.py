"""DescribeTopicPartitions v0 of a controller: which partitions of the named topics exist.

- Brokers forward it when a client names a partition that they do not know: the controller is the
  first to know it.
- As of a broker: sorted, a page of at most ``response_partition_limit`` and ``MOST_PARTITIONS``
  partitions from the cursor on, and no cursor in the response at the end.
- Partitions of a growth that is not published do not exist yet, as in UpdateMetadata.
- No leaders, replicas or operations: brokers know them. A request must name its topics.
"""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.shown_topics import shown_topic
from tidelog.controller.serving import served_for_brokers
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID

MOST_PARTITIONS = 2_000
"""Limit of one page, as a broker's."""

Answer = messages.DescribeTopicPartitionsResponse
_Topic = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


async def handle(
    controller: Controller,
    request: messages.DescribeTopicPartitionsRequest,
    _context: RequestContext,
) -> messages.DescribeTopicPartitionsResponse:
    cluster, cursor, answer = controller.cluster, request.cursor, Answer()
    room = max(1, min(request.response_partition_limit, MOST_PARTITIONS))
    first_name = "" if cursor is None else cursor.topic_name
    for name in sorted({topic.name for topic in request.topics}):
        if name < first_name:
            continue
        node = cluster.topics.get(name)
        if node is None:
            answer.topics.append(_Topic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, NO_UUID))
            continue
        if not room:
            answer.next_cursor = Answer.Cursor(name, 0)
            break
        first = cursor.partition_index if cursor is not None and name == first_name else 0
        shown = shown_topic(node, cluster.topic_histories.get(name))
        numbers = sorted(
            index for index in node.partitions if index >= first and shown.shows(index)
        )
        page = [_Partition(partition_index=index, leader_id=-1) for index in numbers[:room]]
        answer.topics.append(_Topic(ErrorCode.NONE, name, NO_UUID, partitions=page))
        if len(page) < len(numbers):
            answer.next_cursor = Answer.Cursor(name, numbers[len(page)])
            break
        room -= len(page)
    return answer


HANDLER = served_for_brokers(ApiKey.DESCRIBE_TOPIC_PARTITIONS, handle)
