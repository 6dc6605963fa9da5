"""AlterReplicaLogDirs v1-2: moves replicas of this broker to other log directories (KIP-113).

- The copy is made in the background: success means that it has begun, that it was under way, or
  that the replica is there. A directory other than that of a copy under way replaces the copy; the
  replica's own directory ends it. DescribeLogDirs shows it (``is_future_key``).
- LOG_DIR_NOT_FOUND for a path that is none of ``log.dirs``; KAFKA_STORAGE_ERROR for a failed one,
  or a replica out of service; INVALID_TOPIC_EXCEPTION for a name that no copy can have;
  INVALID_REPLICA_ASSIGNMENT for a cordoned directory (KIP-1066).
- REPLICA_NOT_AVAILABLE for a partition that this broker does not host: if it is created here, it
  will be in this directory. Kafka's tool repeats its request until it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

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
    for directory in request.dirs:
        for topic in directory.topics:
            result = _Topic(topic.name, [])
            answer.results.append(result)
            for index in topic.partitions:
                key = TopicPartition(topic.name, index)
                error = broker.future_replicas.alter(key, directory.path)
                result.partitions.append(_Partition(index, int(error)))
                yield PARTITION_BYTES
    return answer


HANDLER = Handler(ApiKey.ALTER_REPLICA_LOG_DIRS, Scope.CLIENT, handle, most_elements=20_000)
