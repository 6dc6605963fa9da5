"""Producers without a count: when a leader last saw one, its misplaced records, its heartbeats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import produce, run, running
from tests.support.resized import COUNT, EPOCH, LIFE, count_in, fence, put, show
from tidelog.broker.metrics import BrokerCollector
from tidelog.broker.partitions import misplaced_records, unaware_writers
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.records.batch import read_header, seal_batch
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.compression import Codec
from tidelog.replication.resize_rules import NOT_NAMED, Named

KEYS = [b"key-%d" % number for number in range(1000)]
ODD = COUNT - 1
"""A count at which linear hashing is not Kafka's own: the topics here begin with one partition."""


def elsewhere(count: int, partition: int = 0) -> int:
    """How many of the keys belong to another partition."""
    return sum(partition_of(hash_of_key(key), 1, count) != partition for key in KEYS)


def keyed(codec: int = Codec.NONE, keys: list[bytes] = KEYS) -> bytes:
    records = [NewRecord(1, key, b"v") for key in keys]
    return build_batch([*records, NewRecord(1, None, b"without a key")], codec=codec)


def scraped(lone: LoneBroker) -> str:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(lone.broker, lone.server))
    return generate_latest(registry).decode()


def resized(lone: LoneBroker, count: int = ODD, **configs: str) -> HostedPartition:
    hosted = lone.lead("t", configs=configs)
    show(lone, EPOCH)
    put(hosted, undeleted_count=count)
    fence(hosted, -1)
    return hosted


async def send(peer: Peer, records: bytes, named: Named = NOT_NAMED, topics: int = 1) -> None:
    request = count_in(produce(records), named)
    if topics > 1:
        request.topic_data *= topics  # named twice: the handler's path, and its second is refused
    answer = await peer.ask(request, 11)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def counted(lone: LoneBroker, expected: int) -> None:
    writers = lone.broker.unaware_writers
    await until(lambda: writers.misplaced.get("t", 0) >= expected)
    assert writers.misplaced.get("t", 0) == expected
    await until(lambda: not writers.search._is_working)
    assert (writers.misplaced.get("t", 0), writers.search._bytes) == (expected, 0)


@pytest.mark.parametrize("topics", [1, 2], ids=["the fast path", "the handler"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_keys_of_batches_without_a_count_are_counted_where_they_belong_elsewhere(
    tmp_path: Path, codec: int, topics: int
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            resized(lone)
            await send(peer, keyed(codec), topics=topics)
            await counted(lone, elsewhere(ODD))
            await send(peer, keyed(codec), Named(ODD, EPOCH, LIFE))
            await send(peer, keyed(codec, KEYS[:10]), topics=topics)
            few = sum(partition_of(hash_of_key(key), 1, ODD) != 0 for key in KEYS[:10])
            await counted(lone, elsewhere(ODD) + few)

    run(main())


def test_a_batch_that_is_looked_into_is_counted_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            resized(lone, **{"compression.type": "gzip"})
            large = [*KEYS, *(b"%d" % number + b"x" * 100 for number in range(2000))]
            await send(peer, keyed(keys=large))
            await counted(lone, sum(partition_of(hash_of_key(key), 1, ODD) != 0 for key in large))

    run(main())


def test_where_kafkas_hash_agrees_keys_are_looked_at_only_while_metadata_may_be_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone, COUNT)
            await send(peer, keyed())
            await counted(lone, elsewhere(COUNT))
            monkeypatch.setattr(misplaced_records, "NEWEST_AGE_MS", 0)
            await send(peer, keyed())
            await counted(lone, elsewhere(COUNT))
            # Linear hashing at another count is never Kafka's.
            put(hosted, undeleted_count=ODD, resize_epoch=EPOCH + 1)
            await send(peer, keyed())
            await counted(lone, elsewhere(COUNT) + elsewhere(ODD))

    run(main())


@pytest.mark.parametrize(
    ("changes", "configs"),
    [
        ({"resize_epoch": 0}, {}),
        ({"undeleted_count": -1}, {}),
        ({}, {"enable.ordered.delivery": "false"}),
    ],
)
def test_no_key_is_looked_at_where_no_record_can_be_misplaced(
    tmp_path: Path, changes: dict[str, int], configs: dict[str, str]
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            put(resized(lone, **configs), **{"undeleted_count": ODD, **changes})
            await send(peer, keyed())
            writers = lone.broker.unaware_writers
            assert not writers.search._is_working and not writers.misplaced
            assert ("t" in writers.last_ms) == ("resize_epoch" in changes)

    run(main())


def test_what_waits_to_be_looked_at_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            resized(lone)
            writers, large = lone.broker.unaware_writers, keyed()
            monkeypatch.setattr(misplaced_records, "MOST_BYTES", len(large) - 1)
            await send(peer, large)
            assert (writers.search.skipped, writers.search._bytes) == (1, 0)
            await send(peer, keyed(keys=KEYS[:10]))
            await counted(lone, sum(partition_of(hash_of_key(x), 1, ODD) != 0 for x in KEYS[:10]))

    run(main())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_records_that_are_none_end_no_count(tmp_path: Path, codec: int) -> None:
    """With ``log.batch.check=header`` what is in a batch may be anything."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            resized(lone)
            header = read_header(keyed())._replace(attributes=codec, record_count=2)
            # It begins as its codec says: that is compared (docs/decisions/0088).
            payload = (b"\x1f\x8b\x08" if codec == Codec.GZIP else b"") + b"\xff" * 100
            await send(peer, seal_batch(header._replace(last_offset_delta=1), payload))
            await send(peer, keyed())
            await counted(lone, elsewhere(ODD))

    run(main())


def said(topics: list[Any]) -> list[tuple[int, int]]:
    return [(each.unaware_write_ms, each.misplaced_records) for each in topics]


def test_batches_that_a_retired_partition_refuses_are_counted_and_logged_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer without a count gives each record up, and is refused as fast as it sends."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            put(resized(lone), sealed=True)
            writers = lone.broker.unaware_writers
            for _ in range(3):
                answer = await peer.ask(produce(keyed()), 11)
                assert answer.responses[0].partition_responses[0].error_code == 44
            # One that sends a count is refused for its own mistake, or hashes again.
            await peer.ask(count_in(produce(keyed()), Named(ODD, EPOCH, LIFE)), 11)
            assert writers.refused == {"t": 3}
            lines = [x.getMessage() for x in caplog.records if "retired partitions" in x.message]
            assert len(lines) == 1
            assert "retired partitions of topic t refused 1 batches of producers" in lines[0]
            monkeypatch.setattr(unaware_writers, "LINE_EVERY_MS", 0)
            await peer.ask(produce(keyed()), 11)
            lines = [x.getMessage() for x in caplog.records if "retired partitions" in x.message]
            assert "of topic t refused 3 batches" in lines[1]
            assert 'tidelog_unaware_batches_refused_total{topic="t"} 4.0' in scraped(lone)

    run(main())


def test_heartbeats_name_each_topic_once_and_then_its_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            lone.lead("below-1.5")
            writers = lone.broker.unaware_writers
            first = writers.report(1)
            assert said(first) == [(-1, 0)], "none was seen: that is said too"
            assert first[0].topic_id == hosted.topic_id
            assert writers.report(1) == []
            put(lone.lead("new"))
            assert said(writers.report(1)) == [(-1, 0)], "a new topic is in the next heartbeat"
            await send(peer, keyed())
            await counted(lone, elsewhere(ODD))
            written = writers.last_ms["t"]
            assert said(writers.report(1)) == [(written, elsewhere(ODD))]
            writers.last_ms["t"] = written + unaware_writers.SAID_AGAIN_MS - 1
            assert writers.report(1) == []
            writers.last_ms["t"] += 1
            assert said(writers.report(1)) == [(writers.last_ms["t"], elsewhere(ODD))]
            assert len(writers.report(2)) == 2, "another controller knows nothing"
            hosted.is_leader = False
            assert len(writers.report(3)) == 2, "leadership moves: its writers may still be there"

    run(main())


def is_due(lone: LoneBroker) -> bool:
    """Whether the fast path notes the next batch: one in so many milliseconds."""
    hosted = lone.broker.partitions.get("t", 0)
    assert hosted is not None
    return lone.broker.clock.wall_ms() - hosted.noted_ms >= unaware_writers.NOTED_EVERY_MS


def test_a_wall_clock_that_goes_back_hides_no_producer(tmp_path: Path) -> None:
    """Its next batch is noted, although the last one seems to be younger."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            put(lone.lead("t"), undeleted_count=COUNT, resize_epoch=0)
            last_ms = lone.broker.unaware_writers.last_ms
            last_ms["t"] = lone.broker.clock.wall_ms() + 3_600_000
            await send(peer, keyed())
            assert last_ms["t"] <= lone.broker.clock.wall_ms()
            await until(lambda: is_due(lone))
            begun_ms = lone.broker.clock.wall_ms()
            await send(peer, keyed())
            assert last_ms["t"] >= begun_ms

    run(main())


@pytest.mark.parametrize("topics", [1, 2], ids=["the fast path", "the handler"])
def test_heartbeats_name_some_client_ids_of_such_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    monkeypatch.setattr(unaware_writers, "MOST_CLIENTS", 3)
    longest = unaware_writers.LONGEST_CLIENT_ID

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone)
            writers = lone.broker.unaware_writers
            await send(peer, keyed(), Named(ODD, EPOCH, LIFE), topics)
            for client_id in ("stock", "x" * 30_000, "", "one too many", "stock"):
                await until(lambda: is_due(lone))
                peer.client_id = client_id
                await send(peer, keyed(), topics=topics)
            (led,) = writers.report(1)
            assert led.client_ids == ["", "stock", "x" * longest]
            # Those that are silent for an hour make room.
            for client_id in led.client_ids[:2]:
                writers._clients["t"][client_id] -= unaware_writers.ASKED_MS + 1
            (led,) = writers.report(2)
            assert led.client_ids == ["x" * longest]
            await until(lambda: is_due(lone))
            peer.client_id = None
            await send(peer, keyed(), topics=topics)
            assert writers.led("t", hosted.topic_id).client_ids == ["", "x" * longest]

    run(main())


def test_a_batch_that_is_looked_into_has_a_client_id_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = resized(lone, **{"cleanup.policy": "compact"})
            with_keys = build_batch([NewRecord(1, key, b"v") for key in KEYS])
            await send(peer, with_keys)
            assert lone.broker.unaware_writers.led("t", hosted.topic_id).client_ids == ["peer"]

    run(main())


def test_a_heartbeat_looks_at_a_bounded_number_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unaware_writers, "TOPICS_AT_ONCE", 2)

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            for number in range(5):
                put(lone.lead(f"t{number}"))
            writers = lone.broker.unaware_writers
            writers.last_ms["gone"] = 7
            found = [writers.report(1) for _ in range(4)]
            assert [len(each) for each in found] == [2, 2, 1, 0]
            put(lone.lead("new"))
            assert sum(len(writers.report(1)) for _ in range(5)) == 1
            assert "new" in lone.broker.partitions.by_topic
            assert len({led.topic_id for each in found for led in each}) == 5
            assert "gone" not in writers.last_ms

    run(main())


def test_a_topic_of_a_former_name_begins_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = resized(lone)
            writers = lone.broker.unaware_writers
            writers.report(1)
            writers.last_ms["t"], writers.misplaced["t"] = 5, 6
            metadata = hosted.log.metadata
            assert metadata is not None
            hosted.log.metadata = replace(metadata, topic_id=UUID(int=9))
            assert said(writers.report(1)) == [(-1, 0)]

    run(main())
