"""DescribeProducers v0: the idempotent producers that replicas here remember (KIP-664).

- A producer is remembered from its first batch until ``producer.id.expiration.ms`` after its last.
- A follower responds by its own log, as in Kafka: Kafka's tool asks one broker for all replicas
  that it has. NOT_LEADER_OR_FOLLOWER from a broker without a replica, or while there is no leader;
  each partition has its own error.
- The coordinator epoch is that of the last marker, and the first offset that of the transaction
  that is open; -1 without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

PARTITION_BYTES, PRODUCER_BYTES = 200, 200
"""Memory of a partition and of a producer in a response under construction."""

NONE = -1

_Response = messages.DescribeProducersResponse
_Partition = messages.DescribeProducersResponse.PartitionResponse
_Producer = messages.DescribeProducersResponse.ProducerState


def handle(
    broker: Broker, request: messages.DescribeProducersRequest, _context: RequestContext
) -> Work[Any]:
    """List them, in steps: a partition may have very many. A partition named twice is listed
    once."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in wanted.items():
        of_topic = _Response.TopicResponse(name)
        topics.append(of_topic)
        for index in indexes:
            of_topic.partitions.append((yield from _partition(broker, name, index)))
    return _Response(topics=topics)


def _partition(broker: Broker, topic: str, index: int) -> Work[Any]:
    answer = _Partition(index)
    yield PARTITION_BYTES
    partition = broker.partitions.get(topic, index)
    if partition is None:
        error = broker.leader_hints.why_not_here(topic, index)
    elif partition.is_following:
        error = ErrorCode.NONE
    else:
        error = partition.why_not_serving(NONE)
    if partition is None or error is not ErrorCode.NONE:
        answer.error_code = error
        answer.error_message = f"no producers of {topic}-{index} from this broker: {error.name}"
        return answer
    for entry in list(partition.log.producers.entries.values()):
        answer.active_producers.append(
            _Producer(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_ms,
                entry.coordinator_epoch,
                entry.open_since,
            )
        )
        yield PRODUCER_BYTES
    return answer


HANDLER = Handler(ApiKey.DESCRIBE_PRODUCERS, Scope.CLIENT, handle, most_elements=20_000)
