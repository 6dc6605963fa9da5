"""AlterReplicaLogDirs v1-2: moves replicas of this broker to other log directories (KIP-113).

- The copy is made in the background: success means that it has begun, that it was under way, or
  that the replica is there. A directory other than that of a copy under way replaces the copy; the
  replica's own directory ends it. DescribeLogDirs shows it (``is_future_key``).
- The name of the ``-future`` directory is durable before the response, so that no crash forgets the
  move: KAFKA_STORAGE_ERROR where it cannot be made, REQUEST_TIMED_OUT where that takes more than
  ``MADE_S`` (the move goes on).
- LOG_DIR_NOT_FOUND for a path that is none of ``log.dirs``; KAFKA_STORAGE_ERROR for a failed one,
  or a replica out of service; INVALID_TOPIC_EXCEPTION for a name that no copy can have;
  INVALID_REPLICA_ASSIGNMENT for a cordoned directory (KIP-1066).
- REPLICA_NOT_AVAILABLE for a partition that this broker does not host: if it is created here, it
  will be in this directory. Kafka's tool repeats its request until it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.future_places import Made

MADE_S = 20.0
"""How long a response waits for the directories of its copies: 10,000 took 6 s. Less than the
``request.timeout.ms`` of clients, 30 s."""

PARTITION_BYTES = 60
"""Memory of a partition in a response under construction."""

_Response = messages.AlterReplicaLogDirsResponse
_Topic = _Response.AlterReplicaLogDirTopicResult
_Partition = _Response.AlterReplicaLogDirPartitionResult


def handle(
    broker: Broker, request: messages.AlterReplicaLogDirsRequest, context: RequestContext
) -> Work[Any]:
    """Begin the moves, in steps."""
    answer = _Response(results=[])
    waiting: list[tuple[_Partition, Sequence[Made]]] = []
    for directory in request.dirs:
        for topic in directory.topics:
            result = _Topic(topic.name, [])
            answer.results.append(result)
            for index in topic.partitions:
                key = TopicPartition(topic.name, index)
                error = broker.future_replicas.alter(key, directory.path)
                result.partitions.append(_Partition(index, int(error)))
                beginnings = broker.future_replicas.beginnings(key)
                if error is ErrorCode.NONE and beginnings:
                    waiting.append((result.partitions[-1], beginnings))
                yield PARTITION_BYTES
    return _until_made(answer, waiting) if waiting else answer


async def _until_made(answer: _Response, waiting: list[tuple[_Partition, Sequence[Made]]]) -> Any:
    """Wait for the directories of the copies that begin, and of those that these replace."""
    await asyncio.wait([made for _, each in waiting for made in each], timeout=MADE_S)
    for partition, each in waiting:
        if not all(made.done() and not made.cancelled() for made in each):
            partition.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
        elif each[-1].result() is not None:
            partition.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    return answer


HANDLER = Handler(ApiKey.ALTER_REPLICA_LOG_DIRS, Scope.CLIENT, handle, most_elements=20_000)
