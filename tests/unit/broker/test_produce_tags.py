"""The bytes in which an aware producer's numbers end a Produce request."""

from __future__ import annotations

import pytest

from tidelog.broker.partitions.partition import LeaderAndIsrState
from tidelog.broker.partitions.produce_tags import MOST_TAG_BYTES, NO_TAGS, tags_of
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import codec, messages

Request = messages.ProduceRequest


def end_of(count: int, epoch: int, partition_epoch: int) -> bytes:
    """What the codec writes after the records."""
    records = b"records"
    part = Request.PartitionProduceData(0, records, partition_epoch=partition_epoch)
    topic = Request.TopicProduceData(
        "t",
        undeleted_partition_count=count,
        resize_epoch=epoch,
        partition_data=[part],
    )
    request = Request(acks=1, timeout_ms=1, topic_data=[topic])
    whole = b"".join(codec.encode_request(ApiKey.PRODUCE, 11, 1, "c", request))
    return whole[whole.index(records) + len(records) :]


@pytest.mark.parametrize("numbers", [(0, 0, 0), (8, 3, 20), (50_000, 2**31 - 1, 2**31 - 1)])
def test_the_bytes_of_the_codec(numbers: tuple[int, int, int]) -> None:
    assert tags_of(*numbers) == end_of(*numbers)
    assert len(tags_of(*numbers)) < MOST_TAG_BYTES, "bytes after them are seen"


def test_without_numbers_the_bytes_are_those_of_no_tags() -> None:
    assert end_of(-1, -1, -1) == NO_TAGS


@pytest.mark.parametrize(
    ("count", "partition_epoch", "expected"),
    [(8, 5, tags_of(8, 3, 5)), (-1, 5, NO_TAGS), (8, -1, NO_TAGS)],
)
def test_a_partition_without_all_numbers_has_no_aware_producers(
    count: int, partition_epoch: int, expected: bytes
) -> None:
    state = LeaderAndIsrState(
        undeleted_count=count, resize_epoch=3, partition_epoch=partition_epoch
    )
    assert state.produce_tags == expected
