"""ListOffsets v1-7: offsets by time, and the special ones.

- -1: the end as the asker may read it (the high watermark; a follower: the log's), -2: the log's
  start, -3 (v7): the record with the greatest timestamp (KIP-734). Other negative ones belong to
  versions that are not served: UNSUPPORTED_VERSION.
- By time: the first committed record that is not older; offset -1 when there is none.
- v2+: isolation (the last stable offset is the high watermark until transactions come);
  v4+: the leader epoch is checked and answered (KIP-320).
- A new leader that does not know the high watermark yet answers OFFSET_NOT_AVAILABLE (v5+, before
  it LEADER_NOT_AVAILABLE): the end never steps back (KIP-207).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages
from tidelog.records.batch import Rejected

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition

LATEST, EARLIEST, GREATEST_TIMESTAMP = -1, -2, -3
UNKNOWN_OFFSET = -1
FIRST_VERSION_WITH_NOT_AVAILABLE = 5

_Response = messages.ListOffsetsResponse
_Topic = messages.ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = messages.ListOffsetsResponse.ListOffsetsPartitionResponse


def handle(broker: Broker, request: messages.ListOffsetsRequest, context: RequestContext) -> Any:
    """Look each partition up. A look-up by time reads one batch."""
    follower = request.replica_id >= 0
    uncertain = (
        ErrorCode.OFFSET_NOT_AVAILABLE
        if context.version >= FIRST_VERSION_WITH_NOT_AVAILABLE
        else ErrorCode.LEADER_NOT_AVAILABLE
    )
    return _Response(
        topics=[
            _Topic(
                topic.name,
                [_answer(broker, topic.name, p, follower, uncertain) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _answer(broker: Broker, topic: str, asked: Any, follower: bool, uncertain: ErrorCode) -> Any:
    index = asked.partition_index
    partition = broker.partitions.get(topic, index)
    if partition is None:
        return _Partition(index, broker.why_not_here(topic, index))
    error = partition.why_not_serving(asked.current_leader_epoch)
    if error is not ErrorCode.NONE:
        return _Partition(index, error)
    if not (follower or asked.timestamp == EARLIEST or partition.watermark_is_certain):
        return _Partition(index, uncertain)
    return _look_up(partition, index, asked.timestamp, follower)


def _look_up(partition: HostedPartition, index: int, timestamp: int, follower: bool) -> Any:
    log = partition.log
    if timestamp == LATEST:
        offset = log.end_offset if follower else log.high_watermark
        return _Partition(index, 0, -1, offset, partition.leader_epoch)
    if timestamp == EARLIEST:
        epoch = log.epochs.epoch_at(log.start_offset)
        return _Partition(index, 0, -1, log.start_offset, epoch)
    if timestamp < GREATEST_TIMESTAMP:
        return _Partition(index, ErrorCode.UNSUPPORTED_VERSION)
    if timestamp == GREATEST_TIMESTAMP:
        found = log.newest_record(log.high_watermark)
    else:
        found = log.offset_for_time(timestamp)
    if isinstance(found, Rejected):
        return _Partition(index, found.error)
    if found is None or found.offset >= log.high_watermark:
        return _Partition(index, 0, -1, UNKNOWN_OFFSET, -1)
    return _Partition(index, 0, found.timestamp, found.offset, found.leader_epoch)


def _refuse_all(request: Any, error: ErrorCode, _version: int) -> Any:
    return _Response(
        topics=[
            _Topic(t.name, [_Partition(p.partition_index, error) for p in t.partitions])
            for t in request.topics
        ]
    )


HANDLER = Handler(ApiKey.LIST_OFFSETS, range(1, 8), handle, refuse=_refuse_all)
