"""Produce to several partitions does on the short way what it does on the long way."""

from __future__ import annotations

import asyncio
import errno
import random
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer, know_brokers, until
from tests.support.resized import EPOCH, OLDER, OWN, count_in, fence, put, show
from tests.support.storage_logs import FaultyDisk
from tidelog.broker.handlers import produce
from tidelog.broker.partitions import produce_fast_path, produce_many
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.broker.partitions.produce_lists import MOST_BYTES, MOST_PARTITIONS
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.principals import ANONYMOUS
from tidelog.model.work import finish
from tidelog.network.router import RequestContext, begun
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.protocol import codec, messages
from tidelog.records.batch import TRANSACTIONAL_BIT, read_header, seal_batch
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.runtime.seams import Seams
from tidelog.storage.log.producers import RESUMES

CORRELATION = 77
ODD = 7
NOW_MS = int(time.time() * 1000)
TOPICS = {"a": 3, "b": 2, "c": 1}
CLIENT: Any = SimpleNamespace(listener_name="PLAINTEXT", client_host="here")


def batch(value: bytes = b"v", *, count: int = 1, producer: Producer | None = None) -> bytes:
    records = [NewRecord(NOW_MS, None, value)] * count
    return build_batch(records, producer=producer or Producer())


def request(sent: Sequence[tuple[str, int, bytes]], acks: int = 1, timeout_ms: int = 1000) -> Any:
    """A request with these batches; batches of one topic that follow each other are together."""
    kind = messages.ProduceRequest
    topics: list[Any] = []
    for topic, index, records in sent:
        if not topics or topics[-1].name != topic:
            topic_id = uuid.uuid5(uuid.NAMESPACE_OID, topic)
            topics.append(kind.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[]))
        part = kind.PartitionProduceData(index=index, records=records)
        topics[-1].partition_data.append(part)
    return kind(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def framed(whole: Any, version: int, client_id: str | None = "c") -> memoryview:
    """A request as in a connection's buffer, which an append may write to."""
    chunks = codec.encode_request(ApiKey.PRODUCE, version, CORRELATION, client_id, whole)
    return memoryview(bytearray().join(chunks))[4:]


def flat(lone: LoneBroker, whole: Any, version: int = 11, client_id: str | None = "c") -> Any:
    """What the fast path returns."""
    frame = framed(whole, version, client_id)
    body = codec.decode_request_header(frame).body
    return produce_fast_path.answer(lone.broker, frame, body, version, CORRELATION, CLIENT)


async def handled(lone: LoneBroker, whole: Any, version: int) -> bytes:
    """The frame of the handler's response."""
    frame = framed(whole, version)
    body = codec.decode_request_header(frame).body
    read, _ = codec.request_decoder(ApiKey.PRODUCE, version, None)(frame, body)
    context = RequestContext(CLIENT, version, CORRELATION, "c", ANONYMOUS)
    steps = begun(produce.handle(lone.broker, read, context))
    if isinstance(steps, GeneratorType):
        steps = finish(steps)
    response = await steps if asyncio.isfuture(steps) else steps
    return b"".join(codec.encode_response(ApiKey.PRODUCE, version, CORRELATION, response))


async def as_frame(answered: Any, version: int = 11) -> bytes:
    """The bytes of what the fast path returned, when they are known."""
    found = await answered if asyncio.isfuture(answered) else answered
    if isinstance(found, bytes):
        return found
    return b"".join(codec.encode_response(ApiKey.PRODUCE, version, CORRELATION, found))


def errors_in(frame: bytes, version: int = 11) -> list[ErrorCode]:
    """The errors of a response, in the order of its partitions."""
    response = codec.decode_response(ApiKey.PRODUCE, version, memoryview(frame)[4:])[1]
    return [ErrorCode(part.error_code) for part in parts_of(response)]


def parts_of(response: Any) -> list[Any]:
    """The partitions of a response."""
    return [part for topic in response.responses for part in topic.partition_responses]


@asynccontextmanager
async def broker(folder: Path, disk: Any = None) -> Any:
    """A broker that leads all of ``TOPICS``, each of whose partitions has two batches."""
    lone = LoneBroker(folder, seams=None if disk is None else Seams(disk=disk))
    await lone.start()
    for topic, count in TOPICS.items():
        lead(lone, topic, count)
    yield lone
    await lone.stop()


def lead(lone: LoneBroker, topic: str, count: int) -> None:
    """Lead a topic; the first two batches of each log find out how much room its segment has."""
    lone.lead(topic, count)
    for hosted in lone.broker.partitions.by_topic[topic].values():
        for _ in range(2):
            hosted.append(memoryview(bytearray(batch())), lone.broker.clock.wall_ms())


def everywhere(value: bytes = b"v") -> list[tuple[str, int, bytes]]:
    """A batch for each partition."""
    return [(topic, index, batch(value)) for topic in TOPICS for index in range(TOPICS[topic])]


def state_of(hosted: HostedPartition) -> tuple[Any, ...]:
    """All that the next request, a reader or a start can find out."""
    log = hosted.log
    producers = {
        key: (entry.epoch, [each[:4] for each in entry.batches])
        for key, entry in log.producers.entries.items()
    }
    active, counts = log.segments.active, hosted.counts
    return (
        *(hosted.key, log.end_offset, log.high_watermark, producers, active.size, active.newest),
        *(counts.appends, counts.refused_appends, hosted.bytes_in),
        *(hosted.waiting.uncommitted_bytes, Path(active.log_path).read_bytes()),
    )


def states(lone: LoneBroker) -> list[tuple[Any, ...]]:
    return [state_of(hosted) for hosted in lone.broker.partitions.all()]


@pytest.mark.parametrize("version", range(9, 14))
@pytest.mark.parametrize("named", [NOT_NAMED, OWN])
def test_all_batches_are_appended_as_on_the_long_way(
    tmp_path: Path, version: int, named: Named
) -> None:
    async def main() -> None:
        async with broker(tmp_path / "1") as one, broker(tmp_path / "2") as other:
            for lone in (one, other):
                for hosted in lone.broker.partitions.all():
                    put(hosted)
                # The first batches without a count wait until that is noted on the disk.
                peer = await Peer.connect(lone.port)
                response = await peer.ask(request(everywhere()), 11)
                assert not any(each.error_code for each in parts_of(response))
                peer.writer.close()
            for acks in (1, -1):
                whole = count_in(request(everywhere(b"x" * 300), acks), named)
                found = flat(one, whole, version)
                assert isinstance(found, bytes)
                assert found == await handled(other, whole, version)
            assert states(one) == states(other)
            assert all(hosted.end_offset == 5 for hosted in one.broker.partitions.all())

    asyncio.run(main())


def test_random_requests_come_to_the_same_on_both_ways(tmp_path: Path) -> None:
    """Where one batch is not plain, or breaks a rule, the long way has all of the request."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    sequences: dict[tuple[str, int], int] = {}

    def drawn(topic: str, index: int) -> bytes:
        kind = rng.choice(("plain", "plain", "idempotent", "idempotent", *FAULTS))
        if kind in FAULTS and rng.random() < 0.7:
            kind = "plain"
        count = rng.randint(1, 3)
        if kind in ("idempotent", "again"):
            first = sequences.get((topic, index), 0)
            if kind == "again":
                first = max(0, first - 1)
                count = 1
            else:
                sequences[topic, index] = first + count
            return batch(count=count, producer=Producer(7, 0, first))
        return _spoilt(batch(b"z" * rng.randint(0, 400), count=count), kind)

    async def main() -> None:
        plain = 0
        async with broker(tmp_path / "1") as one, broker(tmp_path / "2") as other:
            for _ in range(150):
                places = [(topic, index) for topic in TOPICS for index in range(TOPICS[topic])]
                chosen = sorted(rng.sample(places, rng.randint(2, len(places))))
                if rng.random() < 0.05:
                    chosen.append(rng.choice([chosen[-1], chosen[0], ("a", 9), ("none", 0)]))
                sent = [(topic, index, drawn(topic, index)) for topic, index in chosen]
                whole, version = request(sent, rng.choice((1, -1))), rng.randint(9, 13)
                answered = flat(one, whole, version)
                plain += answered is not None
                found = handled(one, whole, version) if answered is None else as_frame(answered)
                assert await found == await handled(other, whole, version), sent
                assert states(one) == states(other), sent
        assert 30 < plain < 150

    asyncio.run(main())


FAULTS = ("again", "bit", "cut", "twice", "control", "transactional", "too old")


def _spoilt(whole: bytes, fault: str) -> bytes:
    header = read_header(whole)
    if fault == "bit":
        return whole[:-1] + bytes([whole[-1] ^ 1])
    if fault == "cut":
        return whole[:-1]
    if fault == "twice":
        return whole * 2
    if fault in ("control", "transactional"):
        bit = 0x20 if fault == "control" else TRANSACTIONAL_BIT
        return seal_batch(header._replace(attributes=bit), whole[61:])
    if fault == "too old":
        return seal_batch(header._replace(base_timestamp=-5), whole[61:])
    return whole


@pytest.mark.parametrize(
    "spoil",
    [
        lambda sent: [*sent, sent[0]],
        lambda sent: [*sent[1:], ("a", 1, batch()), ("c", 0, batch()), ("a", 0, batch())],
        lambda sent: [*sent, ("c", 1, batch())],
        lambda sent: [*sent, ("none", 0, batch())],
        lambda sent: [*sent[:-1], (*sent[-1][:2], b"")],
        lambda sent: [*sent[:-1], (*sent[-1][:2], None)],
        lambda sent: [*sent[:-1], (*sent[-1][:2], bytes(MOST_BYTES))],
        *(
            lambda sent, fault=fault: [*sent[:-1], (*sent[-1][:2], _spoilt(batch(), fault))]
            for fault in FAULTS[1:]
        ),
    ],
)
def test_where_one_batch_is_not_plain_nothing_is_done(tmp_path: Path, spoil: Any) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            before = states(lone)
            assert flat(lone, request(spoil(everywhere()))) is None
            assert states(lone) == before

    asyncio.run(main())


@pytest.mark.parametrize(
    "change", ["acks", "id", "sealed", "follows", "short", "waits", "form", "former life"]
)
def test_what_all_batches_have_in_common_is_judged_too(tmp_path: Path, change: str) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            hosted = lone.broker.partitions.get("b", 1)
            assert hosted is not None
            whole = request(everywhere(), acks=0 if change == "acks" else -1)
            if change == "id":
                whole.transactional_id = "x"
            elif change == "sealed":
                for each in lone.broker.partitions.all():
                    put(each, sealed=each is hosted)
                whole = count_in(whole, OWN)
            elif change == "follows":
                lone.lead("b", 2, leader=2, isr=(1, 2), replicas=(1, 2), epoch=1)
            elif change == "short":
                hosted.required_in_sync = 2
            elif change == "waits":
                hosted.has_uninspected = True
            elif change == "form":
                lone.lead("b", 2, {"compression.type": "lz4"})
            elif change == "former life":
                assert hosted.log.metadata is not None
                hosted.log.metadata = replace(hosted.log.metadata, topic_id=uuid.uuid4())
            before = states(lone)
            assert flat(lone, whole, 13 if change == "former life" else 11) is None
            assert states(lone) == before
            hosted.has_uninspected = False

    asyncio.run(main())


@pytest.mark.parametrize("version", [9, 13])
def test_cut_and_flipped_requests_never_raise(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            frame = bytes(framed(count_in(request(everywhere()), OWN), version))
            body = codec.decode_request_header(memoryview(frame)).body

            def answer(changed: bytes) -> Any:
                view = memoryview(bytearray(changed))
                return produce_fast_path.answer(lone.broker, view, body, version, 1, CLIENT)

            for cut in range(body, len(frame)):
                assert answer(frame[:cut]) is None
            seed = random.randrange(2**32)
            print(f"seed {seed}")
            rng = random.Random(seed)
            for _ in range(3000):
                changed = bytearray(frame)
                changed[rng.randrange(body, len(frame))] = rng.randrange(256)
                answer(changed)

    asyncio.run(main())


def test_a_request_of_too_many_partitions_is_served_in_steps(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            lead(lone, "many", MOST_PARTITIONS + 1)
            first = lone.broker.partitions.get("many", 0)
            assert first is not None
            sent = [("many", index, batch()) for index in range(MOST_PARTITIONS + 1)]
            assert flat(lone, request(sent)) is None
            assert first.end_offset == 2
            assert isinstance(flat(lone, request(sent[:-1])), bytes)
            assert first.end_offset == 3

    asyncio.run(main())


def test_a_full_disk_refuses_one_batch_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        async with broker(tmp_path, disk) as lone:
            disk.failing, disk.fault = ("/a-1/00000000000000000000.log",), errno.ENOSPC
            frame = await as_frame(flat(lone, request(everywhere(), acks=-1)))
            full = ErrorCode.KAFKA_STORAGE_ERROR
            assert errors_in(frame) == [0, full, 0, 0, 0, 0]
            ends = {str(each.key): each.end_offset for each in lone.broker.partitions.all()}
            assert ends.pop("a-1") == 2
            assert set(ends.values()) == {3}
            disk.failing = ()
            frame = await as_frame(flat(lone, request(everywhere(), acks=-1)))
            assert set(errors_in(frame)) == {ErrorCode.NONE}

    asyncio.run(main())


def test_a_producer_without_a_count_is_noted_with_its_keys(tmp_path: Path) -> None:
    """Without the notes a shrink would take it that all producers know of the count (KIP-253)."""
    home = partition_of(hash_of_key(b"key"), 1, ODD)
    places = [("b", 0), ("b", 1), ("c", 0)]

    async def main() -> None:
        disk = FaultyDisk()
        async with broker(tmp_path, disk) as lone:
            writers, partitions = lone.broker.unaware_writers, lone.broker.partitions
            hosted = [partitions.by_topic[topic][index] for topic, index in places]
            for each in hosted:
                put(each, undeleted_count=ODD)
                fence(each, -1)
            for topic in ("b", "c"):
                show(lone, EPOCH, topic, TOPICS[topic])

            def sent(client_id: str | None, noted_ms: int = 0) -> Any:
                for each in hosted:
                    each.noted_ms = noted_ms
                records = build_batch([NewRecord(NOW_MS, b"key", b"v")])
                whole = request([(topic, index, records) for topic, index in places])
                return flat(lone, whole, client_id=client_id)

            def noted(topic: str) -> list[str]:
                return list(writers.led(topic, uuid.uuid4()).client_ids)

            assert sent("early") is None, "the disk has to know of it first"
            peer = await Peer.connect(lone.port)
            response = await peer.ask(request(everywhere()), 11)
            assert not any(each.error_code for each in parts_of(response))
            peer.writer.close()
            assert isinstance(sent("müller"), bytes)
            assert noted("b") == noted("c") == ["müller", "peer"]
            assert all(each.noted_ms for each in hosted)
            assert isinstance(sent(None), bytes)
            assert noted("b") == noted("c") == ["", "müller", "peer"]
            sends = 2

            def is_short() -> bool:
                """Whether a batch soon after a note, whose keys alone are of interest, makes none;
                on a busy machine it comes too late for that."""
                nonlocal sends
                sends += 1
                soon = lone.broker.clock.wall_ms() - 1
                assert isinstance(sent("soon", soon), bytes)
                return all(each.noted_ms == soon for each in hosted)

            await until(is_short)
            misplaced = {
                topic: sends * sum(one == topic and index != home for one, index in places)
                for topic in ("b", "c")
            }
            await until(lambda: writers.misplaced == misplaced)
            disk.failing, disk.fault = ("/c-0/00000000000000000000.log",), errno.ENOSPC
            full = await as_frame(sent("late"))
            assert errors_in(full) == [0, 0, ErrorCode.KAFKA_STORAGE_ERROR]
            assert "late" in noted("b")
            assert "late" not in noted("c")

    asyncio.run(main())


def test_beside_a_refused_batch_the_others_wait_for_their_followers(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        async with broker(tmp_path, disk) as lone:
            lone.lead("a", 3, isr=(1, 2), replicas=(1, 2), isr_version=1)
            disk.failing, disk.fault = ("/a-1/00000000000000000000.log",), errno.ENOSPC
            answered = flat(lone, request(everywhere(), acks=-1))
            full, hosted = ErrorCode.KAFKA_STORAGE_ERROR, lone.broker.partitions.by_topic["a"]
            for index in (0, 2):
                assert not answered.done()
                hosted[index].follower_fetched(2, hosted[index].end_offset)
            assert errors_in(await as_frame(answered)) == [0, full, 0, 0, 0, 0]
            late = flat(lone, request(everywhere(), acks=-1, timeout_ms=20))
            timed_out = ErrorCode.REQUEST_TIMED_OUT
            assert errors_in(await as_frame(late)) == [timed_out, full, timed_out, 0, 0, 0]

    asyncio.run(main())


def test_a_count_that_is_not_the_present_one_is_left_to_the_handler(tmp_path: Path) -> None:
    """One that does not know of a resize would write keys to where they no longer belong."""

    async def main() -> None:
        async with broker(tmp_path) as lone:
            for hosted in lone.broker.partitions.all():
                put(hosted)
            before = states(lone)
            assert flat(lone, count_in(request(everywhere()), OLDER)) is None
            for topic, index in ((0, 0), (0, 2), (1, 1)):
                whole = count_in(request(everywhere()), OWN)
                whole.topic_data[topic].partition_data[index].partition_epoch += 1
                assert flat(lone, whole) is None
            assert states(lone) == before
            assert flat(lone, count_in(request(everywhere()), OWN)) is not None

    asyncio.run(main())


def test_after_a_failed_write_nothing_is_acknowledged_on_its_disk(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        async with broker(tmp_path, disk) as lone:
            before = {str(each.key): each.end_offset for each in lone.broker.partitions.all()}
            disk.failing, disk.fault = ("/a-1/00000000000000000000.log",), errno.EIO
            answered = flat(lone, request(everywhere(), acks=1))
            hosted = lone.broker.partitions.by_topic["a"]
            assert hosted[1].offline_reason, "before any other request is served"
            frame = await as_frame(answered)
            failed = ErrorCode.KAFKA_STORAGE_ERROR
            assert errors_in(frame)[1:] == [failed] * 5
            ends = {str(each.key): each.end_offset for each in lone.broker.partitions.all()}
            assert {key for key in ends if ends[key] > before[key]} == {"a-0"}
            assert all(each.offline_reason for each in lone.broker.partitions.all())

    asyncio.run(main())


def test_acks_all_waits_for_every_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            two: Any = {"isr": (1, 2), "replicas": (1, 2)}
            lone.lead("a", 3, **two, isr_version=1)
            answered = flat(lone, request(everywhere(), acks=-1))
            assert asyncio.isfuture(answered)
            places = [lone.broker.partitions.get("a", index) for index in range(3)]
            for hosted in places:
                assert hosted is not None
                assert not answered.done()
                hosted.follower_fetched(2, hosted.end_offset)
            assert set(errors_in(await as_frame(answered))) == {ErrorCode.NONE}

            late = flat(lone, request(everywhere(), acks=-1, timeout_ms=20))
            first = lone.broker.partitions.get("a", 0)
            assert first is not None
            first.follower_fetched(2, first.end_offset)
            timed_out = ErrorCode.REQUEST_TIMED_OUT
            assert errors_in(await as_frame(late)) == [0, timed_out, timed_out, 0, 0, 0]
            assert not any(each.waiting.commits.entries for each in lone.broker.partitions.all())

            moved = flat(lone, request(everywhere(), acks=-1))
            lone.lead("a", 3, **two, leader=2, epoch=1, isr_version=2)
            gone = ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert errors_in(await as_frame(moved)) == [gone, gone, gone, 0, 0, 0]

    asyncio.run(main())


def test_acks_all_waits_for_the_last_record_of_each_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            lone.lead("a", 3, isr=(1, 2), replicas=(1, 2), isr_version=1)
            sent = [("a", index, batch(count=3)) for index in range(2)]
            answered = flat(lone, request(sent, acks=-1))
            for index in range(2):
                hosted = lone.broker.partitions.by_topic["a"][index]
                for missing in (2, 1, 0):
                    assert not answered.done()
                    hosted.follower_fetched(2, hosted.end_offset - missing)
            assert set(errors_in(await as_frame(answered))) == {ErrorCode.NONE}

    asyncio.run(main())


@pytest.mark.parametrize("is_full", [False, True])
def test_a_refusal_after_a_wait_names_the_leader(tmp_path: Path, is_full: bool) -> None:
    """KIP-951; a full disk may have refused another batch before."""

    async def main() -> None:
        disk = FaultyDisk()
        async with broker(tmp_path, disk) as lone:
            two: Any = {"isr": (1, 2), "replicas": (1, 2)}
            lone.lead("a", 3, **two, isr_version=1)
            if is_full:
                disk.failing, disk.fault = ("/b-1/00000000000000000000.log",), errno.ENOSPC
            answered = flat(lone, request(everywhere(), acks=-1))
            know_brokers(lone, 1, 2)
            lone.lead("a", 3, **two, leader=2, epoch=1, isr_version=2)
            frame = await as_frame(answered)
            gone = ErrorCode.NOT_LEADER_OR_FOLLOWER
            refused = ErrorCode.KAFKA_STORAGE_ERROR if is_full else ErrorCode.NONE
            assert errors_in(frame) == [gone, gone, gone, 0, refused, 0]
            response = codec.decode_response(ApiKey.PRODUCE, 11, memoryview(frame)[4:])[1]
            named = [part.current_leader for part in parts_of(response)[:3]]
            assert [(leader.leader_id, leader.leader_epoch) for leader in named] == [(2, 1)] * 3
            ends = [(end.node_id, end.port) for end in response.node_endpoints]
            assert ends == [(2, lone.port)]

    asyncio.run(main())


def test_a_batch_that_a_full_disk_refused_keeps_its_place(tmp_path: Path) -> None:
    """Its producer is unknown here: if a later batch was taken first, this one would count as
    stored (0100)."""

    async def main() -> None:
        disk = FaultyDisk()
        async with broker(tmp_path, disk) as lone:

            def sent(sequence: int) -> Any:
                return request([("a", 0, batch(producer=Producer(7, 0, sequence))), *others])

            others = [("b", 0, batch())]
            assert errors_in(await handled(lone, sent(5), 11)) == [RESUMES.error, 0]
            disk.failing, disk.fault = ("/a-0/00000000000000000000.log",), errno.ENOSPC
            frame = await as_frame(flat(lone, sent(0)))
            assert errors_in(frame) == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
            disk.failing = ()
            assert errors_in(await handled(lone, sent(5), 11)) == [RESUMES.error, 0]
            assert errors_in(await handled(lone, sent(0), 11)) == [0, 0]

    asyncio.run(main())


def test_no_batch_is_read_where_a_topic_wants_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksums of the other topics' batches are most of the work, and the handler makes them
    again."""

    def read(*_: Any) -> Any:
        raise AssertionError("a batch was read")

    async def main() -> None:
        async with broker(tmp_path) as lone:
            lone.lead("c", 1, {"compression.type": "lz4"})
            monkeypatch.setattr(produce_many, "plain_header", read)
            assert flat(lone, request(everywhere())) is None

    asyncio.run(main())


def test_a_reader_of_two_partitions_gets_both_batches_in_one_response(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as lone:
            reader, writer = await Peer.connect(lone.port), await Peer.connect(lone.port)
            kind = messages.FetchRequest
            parts = [
                kind.FetchPartition(x, fetch_offset=2, partition_max_bytes=999) for x in (0, 1)
            ]
            topic = kind.FetchTopic(topic="a", partitions=parts)
            reader.send(kind(max_wait_ms=60_000, min_bytes=1, topics=[topic]), 11)
            hosted = lone.broker.partitions.get("a", 0)
            assert hosted is not None
            await until(lambda: hosted.waiting.readers)
            await writer.ask(request([("a", 0, batch()), ("a", 1, batch())], acks=-1), 11)
            response = await reader.receive()
            sizes = [len(part.records) for part in response.responses[0].partitions]
            assert len(sizes) == 2
            assert all(sizes)
            for peer in (reader, writer):
                peer.writer.close()

    asyncio.run(main())


def test_a_partition_costs_few_calls(tmp_path: Path) -> None:
    """Without this, a helper here and there would double the cost of a Produce again."""

    async def main() -> None:
        async with broker(tmp_path) as lone:
            lead(lone, "many", 100)
            calls = 0

            def count(_: Any, event: str, __: Any) -> None:
                nonlocal calls
                calls += event == "call"

            took = []
            for partitions in (50, 100):
                whole = request([("many", index, batch()) for index in range(partitions)], acks=-1)
                calls = 0
                sys.setprofile(count)
                try:
                    answered = flat(lone, whole)
                finally:
                    sys.setprofile(None)
                assert isinstance(answered, bytes)
                took.append(calls)
            assert (took[1] - took[0]) / 50 < 20

    asyncio.run(main())
