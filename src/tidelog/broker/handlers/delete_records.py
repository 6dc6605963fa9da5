"""DeleteRecords v0-2: raises the log start offset of partitions that this broker leads.

- Offset -1 means the high watermark; above it answers OFFSET_OUT_OF_RANGE; below the present start
  nothing happens. Answers the low watermark, which is the log start while followers keep up.
- A topic that is only compacted answers POLICY_VIOLATION, an internal one INVALID_TOPIC_EXCEPTION.
- Segments that are wholly below go with the next look at retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

HIGH_WATERMARK = -1

_Response = messages.DeleteRecordsResponse
_Topic = messages.DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = messages.DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(broker: Broker, request: messages.DeleteRecordsRequest, context: RequestContext) -> Any:
    """Delete from each partition; durable with the next checkpoint, which is asked for."""
    topics = [
        _Topic(t.name, [_delete(broker, t.name, p) for p in t.partitions]) for t in request.topics
    ]
    broker.maintenance.checkpoint_soon()
    return _Response(topics=topics)


def _delete(broker: Broker, topic: str, asked: Any) -> Any:
    index = asked.partition_index
    partition = broker.partitions.get(topic, index)
    if topic in INTERNAL_TOPICS:
        return _refused(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if partition is None:
        return _refused(index, broker.why_not_here(topic, index))
    error = partition.why_not_serving()
    if error is not ErrorCode.NONE:
        return _refused(index, error)
    log = partition.log
    if not log.configs.expires:
        return _refused(index, ErrorCode.POLICY_VIOLATION)
    offset = log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
    if offset < 0:
        return _refused(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    refused = log.advance_start(offset)
    if refused is not None:
        return _refused(index, refused.error)
    return _Partition(index, log.start_offset, 0)


def _refused(index: int, error: ErrorCode) -> Any:
    return _Partition(index, -1, error)


def _refuse_all(request: Any, error: ErrorCode, _version: int) -> Any:
    return _Response(
        topics=[
            _Topic(t.name, [_refused(p.partition_index, error) for p in t.partitions])
            for t in request.topics
        ]
    )


HANDLER = Handler(ApiKey.DELETE_RECORDS, range(3), handle, refuse=_refuse_all)
