"""Produce on the short way answers byte for byte what the long way answers, or leaves it alone."""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer
from tests.support.resized import OLDER, OWN, count_in, fence, put
from tidelog.broker.partitions import produce_fast_path
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.replication.resize_rules import NOT_NAMED, Named

CORRELATION = 77
NOBODY: Any = None
"""The connection: Produce asks it nothing."""


def batch(value: bytes = b"v", producer: Producer | None = None) -> bytes:
    records = [NewRecord(int(time.time() * 1000), None, value)]
    return build_batch(records) if producer is None else build_batch(records, producer=producer)


def request(records: Any, topic: str = "t", index: int = 0, acks: int = 1, **more: Any) -> Any:
    kind = messages.ProduceRequest
    part = kind.PartitionProduceData(index=index, records=records)
    topic_id = uuid.uuid5(uuid.NAMESPACE_OID, topic)
    data = kind.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[part])
    return kind(acks=acks, timeout_ms=1000, topic_data=[data], **more)


def framed(whole: Any, version: int) -> memoryview:
    """A request as in a connection's buffer, which an append may write to."""
    chunks = codec.encode_request(ApiKey.PRODUCE, version, CORRELATION, "c", whole)
    return memoryview(bytearray().join(chunks))[4:]


def directly(lone: LoneBroker, whole: Any, version: int) -> Any:
    frame = framed(whole, version)
    body = codec.decode_request_header(frame).body
    return produce_fast_path.answer(lone.broker, frame, body, version, CORRELATION, NOBODY)


async def start(folder: Path, topic: str = "t") -> LoneBroker:
    lone = LoneBroker(folder)
    await lone.start()
    lone.lead(topic, 2)
    return lone


@pytest.mark.parametrize("version", range(9, 14))
@pytest.mark.parametrize("topic", ["t", "x" * 126, "x" * 127, "x" * 200])
@pytest.mark.parametrize("size", [1, 100, 20_000])
def test_the_same_bytes_as_the_long_way(
    tmp_path: Path, version: int, topic: str, size: int
) -> None:
    async def main() -> None:
        lone = await start(tmp_path, topic)
        for expected, acks in enumerate((1, -1)):
            found = directly(lone, request(batch(b"x" * size), topic, 1, acks), version)
            if len(topic) > 126 and version < 13:
                assert found is None
                continue
            _, answer = codec.decode_response(ApiKey.PRODUCE, version, memoryview(found)[4:])
            part = answer.responses[0].partition_responses[0]
            assert (part.index, part.error_code, part.base_offset) == (1, 0, expected)
            again = codec.encode_response(ApiKey.PRODUCE, version, CORRELATION, answer)
            assert b"".join(again) == found
        await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    "whole",
    [
        request(batch(), acks=0),
        request(batch(), acks=7),
        request(batch(), "other"),
        request(batch(), index=5),
        request(batch(), transactional_id="tx"),
        request(batch() + batch()),
        request(batch()[:-1]),
        request(batch()[:-1] + b"?"),
        request(b""),
        request(None),
        request(batch(), "__consumer_offsets"),
        messages.ProduceRequest(acks=1, timeout_ms=1, topic_data=[]),
    ],
)
@pytest.mark.parametrize("version", [9, 13])
def test_all_else_is_left_to_the_long_way_untouched(
    tmp_path: Path, whole: Any, version: int
) -> None:
    async def main() -> None:
        lone = await start(tmp_path)
        lone.lead("__consumer_offsets")
        assert directly(lone, whole, version) is None
        assert [p.end_offset for p in lone.broker.partitions.all()] == [0, 0, 0]
        await lone.stop()

    asyncio.run(main())


def test_several_partitions_or_some_of_our_own_tags_take_the_long_way(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await start(tmp_path)
        two = request(batch())
        two.topic_data[0].partition_data.append(two.topic_data[0].partition_data[0])
        assert directly(lone, two, 11) is None
        for named in ((2, -1, -1), (2, 1, -1), (-1, 1, 5), (-1, -1, 5)):
            assert directly(lone, count_in(request(batch()), Named(*named)), 11) is None
        await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize("version", [9, 11, 13])
@pytest.mark.parametrize("named", [OWN, OLDER, OWN._replace(undeleted_count=-(2**31))])
def test_an_aware_producer_has_the_fast_path_when_its_count_is_right(
    tmp_path: Path, version: int, named: Named
) -> None:
    async def main() -> None:
        lone = await start(tmp_path)
        for hosted in lone.broker.partitions.all():
            put(hosted)
            fence(hosted, -1)
        found = directly(lone, count_in(request(batch()), named), version)
        assert (found is not None) == (named == OWN)
        assert sum(each.end_offset for each in lone.broker.partitions.all()) == (named == OWN)
        await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize("named", [OWN, NOT_NAMED])
@pytest.mark.parametrize("closed", ["sealed", "fence unwritten", "no unaware producers"])
def test_a_partition_that_may_refuse_a_batch_leaves_it_to_the_long_way(
    tmp_path: Path, named: Named, closed: str
) -> None:
    async def main() -> None:
        lone = await start(tmp_path)
        hosted = lone.lead("t", 2, {"unaware.producers": "refuse"} if closed[:2] == "no" else {})
        other = lone.broker.partitions.get("t", 1)
        assert other is not None
        for each in (hosted, other):
            put(each, sealed=closed == "sealed")
            each.fence_unwritten = closed == "fence unwritten"
        found = directly(lone, count_in(request(batch()), named), 11)
        is_open = closed[:2] == "no" and named == OWN
        assert (found is not None, hosted.end_offset) == (is_open, int(is_open))
        await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize("version", [9, 13])
def test_cut_and_flipped_requests_never_raise(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        lone = await start(tmp_path)
        chunks = codec.encode_request(ApiKey.PRODUCE, version, 1, "c", request(batch()))
        frame = b"".join(chunks)[4:]
        body = codec.decode_request_header(memoryview(frame)).body
        for cut in range(body, len(frame)):
            view = memoryview(frame[:cut])
            assert produce_fast_path.answer(lone.broker, view, body, version, 1, NOBODY) is None
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        for _ in range(3000):
            changed = bytearray(frame)
            changed[rng.randrange(body, len(frame))] = rng.randrange(256)
            produce_fast_path.answer(lone.broker, memoryview(changed), body, version, 1, NOBODY)
        await lone.stop()

    asyncio.run(main())


def test_of_long_tags_no_copy_is_made(tmp_path: Path) -> None:
    """Anyone may end a request with 100 MB of tags: their copy took 120 ms of the loop."""

    async def main() -> None:
        lone = await start(tmp_path)
        frame = framed(request(batch()), 9)
        long = memoryview(bytearray(len(frame) + 16 * 2**20))
        long[: len(frame)] = frame
        body = codec.decode_request_header(long).body
        tracemalloc.start()
        assert produce_fast_path.answer(lone.broker, long, body, 9, 1, NOBODY) is None
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 2**20
        assert produce_fast_path.answer(lone.broker, frame, body, 9, 1, NOBODY) is not None
        await lone.stop()

    asyncio.run(main())


def test_refusals_and_waits_of_plain_requests(tmp_path: Path) -> None:
    async def main() -> None:
        lone = await start(tmp_path)
        peer = await Peer.connect(lone.port)
        known = batch(producer=Producer(7, 0, 5))
        ahead = batch(producer=Producer(7, 0, 9))
        errors = []
        for records in (known, known, known, ahead):
            answer = await peer.ask(request(records, acks=-1), 9)
            errors.append(ErrorCode(answer.responses[0].partition_responses[0].error_code))
        assert errors == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,  # an unknown producer: see resuming_producers
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ]
        lone.lead("t", 2, isr=(1, 2), replicas=(1, 2), isr_version=1)
        peer.send(request(batch(), acks=-1), 9)
        peer.send(request(batch(), acks=1), 9)
        lone.lead("t", 2, isr=(1,), replicas=(1, 2), isr_version=2)
        offsets = [
            (await peer.receive()).responses[0].partition_responses[0].base_offset for _ in range(2)
        ]
        assert offsets == [1, 2]
        await lone.stop()

    asyncio.run(main())
