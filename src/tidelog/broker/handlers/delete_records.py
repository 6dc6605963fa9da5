"""DeleteRecords v0-2: raises the log start offset of partitions that this broker leads.

- Offset -1 means the high watermark; OFFSET_OUT_OF_RANGE above it; below the current log start
  offset the request has no effect.
- The response has the low watermark, the lowest log start offset of the leader and its live
  followers, and is sent when that has reached the offset. Followers receive the new start at once.
  REQUEST_TIMED_OUT after ``timeout_ms``; NOT_LEADER_OR_FOLLOWER when the leadership ends.
- POLICY_VIOLATION for a topic that is only compacted, INVALID_TOPIC_EXCEPTION for an internal one.
- The next check of retention removes segments that are wholly below.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.partition import HostedPartition

HIGH_WATERMARK = -1

_Response = messages.DeleteRecordsResponse
_Topic = messages.DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = messages.DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(broker: Broker, request: messages.DeleteRecordsRequest, context: RequestContext) -> Any:
    """Delete from each partition; requests a checkpoint, which makes the result durable."""
    waiting: list[_Waiting] = []
    topics = [
        _Topic(t.name, [_delete(broker, t.name, p, waiting) for p in t.partitions])
        for t in request.topics
    ]
    broker.maintenance.checkpoint_soon()
    response = _Response(topics=topics)
    if not waiting:
        return response
    return _until_deleted(broker, response, waiting, max(0, request.timeout_ms))


def _delete(
    broker: Broker,
    topic: str,
    asked: messages.DeleteRecordsRequest.DeleteRecordsPartition,
    waiting: list[_Waiting],
) -> Any:
    index = asked.partition_index
    partition = broker.partitions.get(topic, index)
    if topic in INTERNAL_TOPICS:
        return _refused(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if partition is None:
        return _refused(index, broker.leader_hints.why_not_here(topic, index))
    error = partition.why_not_serving()
    if error is not ErrorCode.NONE:
        return _refused(index, error)
    log = partition.log
    if not log.configs.expires:
        return _refused(index, ErrorCode.POLICY_VIOLATION)
    offset = log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
    if offset < 0:
        return _refused(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    before = log.start_offset
    refused = log.advance_start(offset)
    if refused is not None:
        return _refused(index, refused.error)
    if log.start_offset > before:
        partition.waiting.start_moved()
    answer = _Partition(index, low_watermark(partition, broker.metadata.brokers), 0)
    if answer.low_watermark < offset:
        waiting.append(_Waiting(partition, partition.leader_epoch, offset, answer))
    return answer


def low_watermark(partition: HostedPartition, alive: Any) -> int:
    """Return the lowest log start of the leader and its live followers; -1: one is unknown.

    ``alive`` contains the live brokers by node id. O(hosts).
    """
    starts = [partition.start_offset]
    for node_id in partition.state.hosts:
        if node_id != partition.state.leader and node_id in alive:
            follower = partition.followers.get(node_id)
            starts.append(-1 if follower is None else follower.start_offset)
    return min(starts)


class _Waiting:
    """One partition whose live followers have not yet reached the new log start."""

    def __init__(
        self, partition: HostedPartition, leader_epoch: int, offset: int, answer: Any
    ) -> None:
        self.partition = partition
        self.answer = answer
        self._leader_epoch = leader_epoch
        self._offset = offset

    def is_over(self, broker: Broker) -> bool:
        """Update ``answer``; return whether it is final."""
        partition, answer = self.partition, self.answer
        error = partition.why_not_answering(self._leader_epoch)
        if error is not ErrorCode.NONE:
            answer.low_watermark = -1
            answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return True
        answer.low_watermark = low_watermark(partition, broker.metadata.brokers)
        return bool(answer.low_watermark >= self._offset)

    def give_up(self) -> None:
        """Set REQUEST_TIMED_OUT."""
        self.answer.low_watermark = -1
        self.answer.error_code = int(ErrorCode.REQUEST_TIMED_OUT)


class _StartWaiter:
    """Wakes the request when the log start of a follower, or the leadership, has changed."""

    def __init__(self) -> None:
        self.again = asyncio.Event()

    def more(self, size: int) -> None:
        """See ``partitions.waiters.Waiter``."""
        self.again.set()


async def _until_deleted(
    broker: Broker, response: Any, waiting: list[_Waiting], timeout_ms: int
) -> Any:
    """Wait for the followers, or for a change of the live brokers."""
    waiter = _StartWaiter()
    for one in waiting:
        one.partition.waiting.deletions[waiter] = None
    partitions = [one.partition for one in waiting]
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while waiting := [one for one in waiting if not one.is_over(broker)]:
                await _until_changed(broker, waiter)
    except TimeoutError:
        for one in waiting:
            one.give_up()
    finally:
        for partition in partitions:
            partition.waiting.deletions.pop(waiter, None)
    return response


async def _until_changed(broker: Broker, waiter: _StartWaiter) -> None:
    waiter.again.clear()
    moved = asyncio.ensure_future(waiter.again.wait())
    changed = broker.metadata.changed()
    try:
        await asyncio.wait((moved, changed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        moved.cancel()
        changed.cancel()


def _refused(index: int, error: ErrorCode) -> Any:
    return _Partition(index, -1, error)


HANDLER = Handler(ApiKey.DELETE_RECORDS, Scope.CLIENT, handle, most_elements=10_000)
