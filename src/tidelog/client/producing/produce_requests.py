"""The Produce request to one leader, and the result of each partition in its response. Pure.

Owns the fields of both. Not which batches are sent, and what follows: see ``sender``.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.client.errors import Refused, error_code
from tidelog.client.producing.send_queue import BatchResult
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.replication.resize_rules import Named

MOST_SLACK_MS = 3_000
SLACK_SHARE = 4
"""The response has a quarter of the request's timeout, and at most 3 s, to arrive."""


def produce_request(
    batches: Iterable[tuple[TopicPartition, Named, bytes]],
    acks: int,
    request_timeout_ms: int,
    transactional_id: str | None = None,
) -> messages.ProduceRequest:
    """Return the request with these batches, one per partition; grows with them.

    All batches of one topic have the same count and resize epoch.
    """
    topics: dict[str, messages.ProduceRequest.TopicProduceData] = {}
    for (name, index), (count, resize_epoch, partition_epoch), data in batches:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = messages.ProduceRequest.TopicProduceData(
                name=name,
                undeleted_partition_count=count,
                resize_epoch=resize_epoch,
                partition_data=[],
            )
        topic.partition_data.append(
            messages.ProduceRequest.PartitionProduceData(
                index=index, records=data, partition_epoch=partition_epoch
            )
        )
    return messages.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=wait_for_replicas_ms(request_timeout_ms),
        topic_data=list(topics.values()),
    )


def wait_for_replicas_ms(request_timeout_ms: int) -> int:
    """Return how long a leader may wait for its replicas, so that its response arrives in time.

    If it waited as long as this client, one slow partition would close the connection, and the
    results of all other partitions in the request would be lost.
    """
    slack_ms = min(MOST_SLACK_MS, request_timeout_ms // SLACK_SHARE)
    return max(1, request_timeout_ms - slack_ms)


def read_answer(
    response: messages.ProduceResponse, node_id: int
) -> dict[TopicPartition, BatchResult]:
    """Return the result of each partition's batch, from a broker's response."""
    results: dict[TopicPartition, BatchResult] = {}
    for topic in response.responses:
        for item in topic.partition_responses:
            tp = TopicPartition(topic.name, item.index)
            error = None
            if item.error_code:
                reasons = [item.error_message or ""]
                reasons += [record.batch_index_error_message or "" for record in item.record_errors]
                text = "; ".join(reason for reason in reasons if reason)
                error = Refused(error_code(item.error_code), str(tp), text)
            results[tp] = BatchResult(error, item.base_offset, item.log_append_time_ms, node_id)
    return results
