"""Requests for very many partitions that are refused as a whole: the refusal is made in steps.

At once, that of 20,000 topics takes 50 to 80 ms of the loop.
"""

from __future__ import annotations

import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.handlers import (
    describe_topic_partitions,
    fetch,
    list_offsets,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.refusals import refused

MANY = 500
NAMES = [f"t{number}" for number in range(MANY)]
REPLICA = 7
"""A replica id that the connection has not proved."""

_Fetch = messages.FetchRequest
_Offsets = messages.ListOffsetsRequest
_Epochs = messages.OffsetForLeaderEpochRequest
_Pages = messages.DescribeTopicPartitionsRequest
_Committed = messages.OffsetFetchRequest
_Produce = messages.ProduceRequest

CASES = [
    (
        produce,
        0,
        _Produce(acks=1, topic_data=[_Produce.TopicProduceData(name=x) for x in NAMES]),
        MANY,
        ErrorCode.UNSUPPORTED_VERSION,
    ),
    (
        fetch,
        4,
        _Fetch(
            replica_id=REPLICA,
            topics=[_Fetch.FetchTopic(x, partitions=[_Fetch.FetchPartition(0)]) for x in NAMES],
        ),
        2 * MANY,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ),
    (
        list_offsets,
        1,
        _Offsets(
            replica_id=REPLICA,
            topics=[
                _Offsets.ListOffsetsTopic(x, [_Offsets.ListOffsetsPartition(0)]) for x in NAMES
            ],
        ),
        2 * MANY,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ),
    (
        offset_for_leader_epoch,
        3,
        _Epochs(
            replica_id=REPLICA,
            topics=[
                _Epochs.OffsetForLeaderTopic(x, partitions=[_Epochs.OffsetForLeaderPartition(0)])
                for x in NAMES
            ],
        ),
        2 * MANY,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ),
    (
        describe_topic_partitions,
        0,
        _Pages(topics=[_Pages.TopicRequest(x) for x in NAMES], cursor=_Pages.Cursor("t", -1)),
        MANY,
        ErrorCode.INVALID_REQUEST,
    ),
    (
        offset_fetch,
        1,
        _Committed(
            group_id="g", topics=[_Committed.OffsetFetchRequestTopic(x, [0]) for x in NAMES]
        ),
        2 * MANY,
        ErrorCode.NOT_COORDINATOR,
    ),
]


@pytest.mark.parametrize(
    ("handler", "version", "request_", "elements", "error"),
    CASES,
    ids=[case[0].__name__.rpartition(".")[2] for case in CASES],
)
def test_a_request_for_very_many_is_refused_in_steps(
    handler: ModuleType, version: int, request_: Any, elements: int, error: ErrorCode
) -> None:
    api_key = handler.HANDLER.api_key
    context: Any = SimpleNamespace(version=version, may_name_replica=lambda *_: False)
    broker: Any = SimpleNamespace(coordinator=SimpleNamespace(table_of=lambda _: error))
    steps = handler.handle(broker, request_, context)
    assert inspect.isgenerator(steps)
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert end.value == refused(api_key, version, request_, error)
            break
        turns += 1
    assert turns == elements
