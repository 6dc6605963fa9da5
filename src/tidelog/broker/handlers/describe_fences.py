"""DescribeFences v0: fences and seals of partitions, by resize epoch (KIP-253; API 10004).

- Of partitions that this broker leads, those below the high watermark: a fence above it may be lost
  with its leader. NOT_LEADER_OR_FOLLOWER elsewhere.
- Count, resize epoch and partition epoch go together: INVALID_REQUEST for some of them. Another
  incarnation, or a newer resize epoch, is NOT_LEADER_OR_FOLLOWER: this broker has not caught up. An
  older one is answered: gates of readers that lag ask for it.
- ``include_former``: also where the incarnations of removed partitions ended, which the controller
  knows. Without its response the request is answered with none, and REQUEST_TIMED_OUT for each
  partition that it names: a reader must not take a removed partition for one that never was.
- ``closes``: the controller is about to remove the partition, so this leader refuses markers for
  it from now on, if it is retired and nothing is open in it; ``closed_end`` is where its log ends
  (decision 0144). Only for a connection that has proved the cluster secret.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tidelog.broker.control_plane.controller_search import ControllerUnreachable
from tidelog.broker.control_plane.envelopes import ForwardingRefused
from tidelog.broker.partitions.resize_checks import named_by
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import codec, messages
from tidelog.protocol.refusals import refused
from tidelog.replication.resize_rules import ABSENT, NOT_NAMED

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partitions.partition import HostedPartition

FENCE_BYTES, FORMER_BYTES, PARTITION_BYTES, TOPIC_BYTES = 150, 150, 200, 150
"""Memory of each of these, and of a topic, in a response under construction."""

_Response = messages.DescribeFencesResponse
_Topic = messages.DescribeFencesResponse.Topic
_Partition = messages.DescribeFencesResponse.Partition
_Fence = messages.DescribeFencesResponse.Fence
_Asked = messages.DescribeFencesRequest.Topic


def handle(broker: Broker, request: messages.DescribeFencesRequest, context: RequestContext) -> Any:
    """Look up each partition in the fences of its log, in steps."""
    if not request.include_former:
        return _described(broker, request, may_close=context.connection.is_trusted)
    return asyncio.ensure_future(_with_former(broker, request, context))


def _described(
    broker: Broker, request: messages.DescribeFencesRequest, *, may_close: bool = False
) -> Work[Any]:
    response = _Response()
    for topic in request.topics:
        answer = _Topic(topic.topic)
        response.topics.append(answer)
        yield TOPIC_BYTES
        for one in topic.partitions:
            closes = one.closes and may_close
            answer.partitions.append(described := _partition(broker, topic, one, closes=closes))
            yield PARTITION_BYTES + FENCE_BYTES * len(described.fences)
    return response


def _partition(
    broker: Broker,
    topic: _Asked,
    asked: messages.DescribeFencesRequest.Partition,
    *,
    closes: bool,
) -> Any:
    index = asked.partition
    partition = broker.partitions.get(topic.topic, index)
    if partition is None:
        return _Partition(index, broker.leader_hints.why_not_here(topic.topic, index))
    error = partition.why_not_serving() or _why_other(partition, topic, asked.partition_epoch)
    if error:
        return _Partition(index, error)
    log = partition.log
    fences = [
        _Fence(entry.resize_epoch, entry.undeleted_count, entry.offset, entry.kind, entry.data_end)
        for entry in log.fences.below(log.high_watermark).entries
    ]
    closed_end = broker.markers.writer.close(partition) if closes else -1
    return _Partition(index, 0, partition.leader_epoch, fences, closed_end)


def _why_other(partition: HostedPartition, topic: _Asked, partition_epoch: int) -> ErrorCode:
    """Return why the numbers of a request do not fit a partition, or NONE."""
    named = named_by(topic.undeleted_partition_count, topic.resize_epoch, partition_epoch)
    if named is NOT_NAMED:
        return ErrorCode.NONE
    if ABSENT in named:
        return ErrorCode.INVALID_REQUEST
    state = partition.state
    is_newer = named.resize_epoch > state.resize_epoch and not state.sealed
    if is_newer or named.partition_epoch != partition.partition_epoch:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


async def _with_former(
    broker: Broker, request: messages.DescribeFencesRequest, context: RequestContext
) -> Any:
    """Ask the controller for former incarnations, and describe the partitions of this broker."""
    ask = messages.DescribeFencesRequest
    asked = ask(include_former=True, topics=[ask.Topic(topic.topic) for topic in request.topics])
    api, timeout_ms = ApiKey.DESCRIBE_FENCES, broker.configs.request_timeout_ms
    inner = b"".join(codec.encode_request(api, 0, 0, None, asked))[4:]
    try:
        answer = await broker.session.forward(inner, context.requester, timeout_ms)
        _, response = codec.decode_response(api, 0, memoryview(answer))
    except (ControllerUnreachable, ForwardingRefused, ClientError, codec.DecodeError):
        return refused(ApiKey.DESCRIBE_FENCES, 0, request, ErrorCode.REQUEST_TIMED_OUT)
    return _joined(broker, request, {topic.topic: topic.former for topic in response.topics})


def _joined(
    broker: Broker, request: messages.DescribeFencesRequest, former: dict[str, Any]
) -> Work[Any]:
    """Describe the partitions of this broker; ``former`` goes to the first mention of each topic.

    A small request may name a topic thousands of times, and a topic have thousands of them.
    """
    response = yield from _described(broker, request)
    for topic in response.topics:
        topic.former = former.pop(topic.topic, [])
        yield FORMER_BYTES * len(topic.former)
    return response


HANDLER = Handler(ApiKey.DESCRIBE_FENCES, Scope.CLIENT, handle, most_elements=20_000)
