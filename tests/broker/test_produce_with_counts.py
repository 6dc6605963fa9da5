"""Produce with a count to a broker at level 1.5: what is appended, what is refused, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import batch, produce, run, running
from tests.support.resized import COUNT, EPOCH, LIFE, OLDER, OWN, count_in, fence, put, show
from tidelog.broker.partitions import delayed_produce
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.records.batch import CONTROL_BIT, HEADER_SIZE, read_header, seal_batch
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import AncestorTombstone, ChangeKind, FenceRecord, change_batch
from tidelog.replication.resize_rules import NOT_NAMED, Named


def resized(lone: LoneBroker, partitions: int = 1) -> list[Any]:
    """Lead partitions of t in resize epoch EPOCH; clients are not shown it yet."""
    lone.lead("t", partitions)
    show(lone, EPOCH - 1, partitions=partitions)
    found = []
    for index in range(partitions):
        hosted = lone.broker.partitions.get("t", index)
        assert hosted is not None
        hosted.append(build_batch([NewRecord(1, b"k", b"before")]), 1)
        put(hosted)
        fence(hosted, 0)
        found.append(hosted)
    return found


def errors(answer: Any) -> list[E]:
    return [E(part.error_code) for part in answer.responses[0].partition_responses]


def waiting(lone: LoneBroker) -> int:
    return lone.broker.unseen_epochs.waiting


@pytest.mark.parametrize("acks", [1, -1])
def test_a_refused_producer_waits_until_its_next_metadata_show_the_epoch(
    tmp_path: Path, acks: int
) -> None:
    """It asks this broker next. The other partition of its request is appended meanwhile."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            _, other = resized(lone, 2)
            put(other, undeleted_count=4, resize_epoch=EPOCH - 1)
            request = produce(batch("a"), acks=acks, timeout_ms=60_000)
            request.topic_data[0].partition_data.append(
                messages.ProduceRequest.PartitionProduceData(1, batch("b"))
            )
            peer.send(count_in(request, OLDER), 11)
            await until(lambda: waiting(lone) == 1)
            assert other.end_offset == 2
            show(lone, EPOCH - 1, partitions=2)
            await asyncio.sleep(0)
            assert waiting(lone) == 1, "it is no newer epoch"
            show(lone, EPOCH, partitions=2)
            assert errors(await peer.receive()) == [E.INVALID_PARTITION_METADATA, E.NONE]
            assert waiting(lone) == 0
            again = await peer.ask(count_in(produce(batch("a"), acks=acks), OLDER), 11)
            assert errors(again) == [E.INVALID_PARTITION_METADATA], "now it is shown: no wait"

    run(main())


def test_the_wait_for_metadata_and_the_waiters_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_produce, "MOST_WAIT_TO_SEE", 2)

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            (hosted,) = resized(lone)
            request = count_in(produce(batch("a"), timeout_ms=60_000), OLDER)
            others = [await Peer.connect(lone.port) for _ in range(2)]
            for other in others:
                other.send(request, 11)
            await until(lambda: waiting(lone) == 2)
            assert errors(await peer.ask(request, 11)) == [E.INVALID_PARTITION_METADATA]
            others[0].writer.close()
            await until(lambda: waiting(lone) == 1)
            # Its second is over before the minute of the request.
            assert errors(await others[1].receive()) == [E.INVALID_PARTITION_METADATA]
            assert (waiting(lone), hosted.end_offset) == (0, 1)

    run(main())


def test_what_is_not_committed_yet_is_refused_at_once_and_undetermined(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            (hosted,) = resized(lone)
            hosted.log.high_watermark = 0
            answer = await peer.ask(count_in(produce(batch("a")), OLDER), 11)
            assert errors(answer) == [E.NOT_LEADER_OR_FOLLOWER]

    run(main())


@pytest.mark.parametrize("named", [OLDER, Named(7, EPOCH, LIFE), Named(8, -1, LIFE)])
def test_a_refusal_without_a_response_closes_the_connection(tmp_path: Path, named: Named) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            (hosted,) = resized(lone)
            peer.send(count_in(produce(batch("a"), acks=0), OWN), 11)
            peer.send(count_in(produce(batch("b"), acks=0), named), 11)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await peer.receive()
            assert hosted.end_offset == 2

    run(main())


def test_a_batch_that_is_looked_into_is_checked_again_before_its_append(tmp_path: Path) -> None:
    """The partition is resized while a thread decompresses the batch."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", configs={"compression.type": "gzip"})
            show(lone, EPOCH)
            put(hosted, undeleted_count=4, resize_epoch=EPOCH - 1)
            large = batch("x" * 200_000)
            looked = asyncio.Event()
            run_pieces = lone.broker.background.run

            async def then_resized(pieces: Any) -> Any:
                result = await run_pieces(pieces)
                put(hosted)
                fence(hosted, -1)
                looked.set()
                return result

            lone.broker.background.run = then_resized  # type: ignore[method-assign]
            answer = await peer.ask(count_in(produce(large), OLDER), 11)
            assert looked.is_set()
            assert errors(answer) == [E.INVALID_PARTITION_METADATA]
            assert hosted.end_offset == 0

    run(main())


def tombstone() -> bytes:
    return change_batch(AncestorTombstone(b"k"), leader_epoch=-1, timestamp_ms=1)


def changed(made: bytes, **fields: int) -> bytes:
    return seal_batch(read_header(made)._replace(**fields), made[HEADER_SIZE:])


PRODUCED = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
FENCE = change_batch(FenceRecord(ChangeKind.FENCE, 4, 16), leader_epoch=-1, timestamp_ms=1)


@pytest.mark.parametrize(
    ("records", "named", "partitions", "expected"),
    [
        (tombstone(), OWN, 2, E.NONE),
        (tombstone(), OWN, 1, E.INVALID_RECORD),  # it has no child
        (tombstone(), NOT_NAMED, 2, E.INVALID_RECORD),
        (tombstone(), OLDER, 2, E.INVALID_PARTITION_METADATA),
        (FENCE, OWN, 2, E.INVALID_RECORD),
        (tombstone()[:-1] + b"?", OWN, 2, E.CORRUPT_MESSAGE),
        (tombstone()[:-1], OWN, 2, E.CORRUPT_MESSAGE),
        (tombstone() + tombstone(), OWN, 2, E.INVALID_RECORD),
        # It would take a sequence number, which no check of duplicates has seen.
        (changed(tombstone(), **PRODUCED), OWN, 2, E.INVALID_RECORD),
        (changed(tombstone(), attributes=CONTROL_BIT | 1), OWN, 2, E.INVALID_RECORD),
    ],
    ids=[
        "a tombstone",
        "no child",
        "no count",
        "an older epoch",
        "a fence",
        "a flipped bit",
        "cut",
        "two",
        "a producer id",
        "compressed",
    ],
)
def test_the_only_control_batch_of_a_client_is_a_tombstone_for_an_ancestor(
    tmp_path: Path, records: bytes, named: Named, partitions: int, expected: E
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", 1, {"cleanup.policy": "compact"})
            (hosted,) = resized(lone)
            show(lone, EPOCH, partitions=partitions)
            end = hosted.end_offset
            answer = await peer.ask(count_in(produce(records), named), 11)
            part = answer.responses[0].partition_responses[0]
            assert errors(answer) == [expected], part.error_message
            assert hosted.end_offset == end + (expected is E.NONE)

    run(main())


def test_a_batch_that_was_appended_before_a_growth_is_answered_with_its_offset(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            put(hosted, undeleted_count=4, resize_epoch=EPOCH - 1)
            known = batch("a", producer=Producer(7, 0, 0))
            first = await peer.ask(count_in(produce(known), OLDER), 11)
            put(hosted)
            fence(hosted, 0)
            again = await peer.ask(count_in(produce(known), OLDER), 11)
            for answer in (first, again):
                part = answer.responses[0].partition_responses[0]
                assert (part.error_code, part.base_offset) == (E.NONE, 0)
            assert hosted.end_offset == 1

    run(main())


def test_a_partition_takes_records_without_a_count_when_this_broker_shows_it(
    tmp_path: Path,
) -> None:
    """Until then its growth may be undone, and what was acknowledged would go with the partition.
    The producer knows it from the metadata of its former incarnation."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", 1)
            show(lone, EPOCH - 1)
            (hosted,) = lone.broker.partitions.by_topic["t"].values()
            put(hosted, birth_epoch=EPOCH, partition_epoch=LIFE + 7)
            for version in (8, 11):
                answer = await peer.ask(produce(batch("a")), version)
                assert errors(answer) == [E.NOT_LEADER_OR_FOLLOWER]
            assert hosted.end_offset == 0
            show(lone, EPOCH)
            assert errors(await peer.ask(produce(batch("a")), 11)) == [E.NOT_LEADER_OR_FOLLOWER]
            # A producer that names the epoch has seen it published.
            named = Named(COUNT, EPOCH, LIFE + 7)
            assert errors(await peer.ask(count_in(produce(batch("a")), named), 11)) == [E.NONE]
            show(lone, EPOCH, life=LIFE + 7)
            for offset, version in enumerate((8, 11, 11), 1):
                answer = await peer.ask(produce(batch("a")), version)
                assert errors(answer) == [E.NONE]
                assert answer.responses[0].partition_responses[0].base_offset == offset

    run(main())
