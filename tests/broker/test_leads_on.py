"""A broker that keeps leading in a newer leader epoch: its waiting clients keep waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import LoneBroker, Peer, until
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, build_batch


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[LoneBroker, Peer]]:
    lone = LoneBroker(folder)
    await lone.start()
    peer = await Peer.connect(lone.port)
    try:
        yield lone, peer
    finally:
        peer.writer.close()
        await lone.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def lead(lone: LoneBroker, epoch: int, **changes: Any) -> HostedPartition:
    return lone.lead("t", epoch=epoch, **{"isr": (1, 2), "replicas": (1, 2, 3), **changes})


def batch() -> bytes:
    return build_batch([NewRecord(1, None, b"x")])


def produce(partitions: int = 1) -> messages.ProduceRequest:
    request = messages.ProduceRequest
    parts = [request.PartitionProduceData(index, batch()) for index in range(partitions)]
    topic = request.TopicProduceData("t", partition_data=parts)
    return request(acks=-1, timeout_ms=60_000, topic_data=[topic])


def fetch(offset: int, epoch: int, node_id: int = -1, wait_ms: int = 60_000) -> Any:
    request = messages.FetchRequest
    part = request.FetchPartition(0, epoch, offset, -1, 0, 2**20)
    return request(
        replica_id=node_id,
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[request.FetchTopic("t", partitions=[part])],
        replica_broker_epoch=20,
    )


async def follower_fetches(lone: LoneBroker, offset: int, epoch: int, node_id: int = 2) -> E:
    peer = await Peer.connect(lone.port)
    answer = await peer.ask(fetch(offset, epoch, node_id, 0), 12)
    peer.writer.close()
    return E(answer.responses[0].partitions[0].error_code)


@pytest.mark.parametrize("partitions", [1, 2], ids=["the short way", "the long way"])
def test_waiting_producers_and_consumers_get_no_error(tmp_path: Path, partitions: int) -> None:
    """A replica was damaged, or a move began: for a client that waits it is no failure."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lead(lone, 1, partitions=partitions)
            reader = await Peer.connect(lone.port)
            peer.send(produce(partitions), 11)
            reader.send(fetch(0, 1), 12)
            await until(lambda: hosted.end_offset == 1 and hosted.waiting.readers)
            for epoch in (2, 4):
                lead(lone, epoch, partitions=partitions)
            for each in list(lone.broker.partitions.all()):
                each.follower_fetched(2, 1)
            written = (await peer.receive()).responses[0].partition_responses
            assert [(x.error_code, x.base_offset) for x in written] == [(E.NONE, 0)] * partitions
            seen = (await reader.receive()).responses[0].partitions[0]
            assert (seen.error_code, len(seen.records) > 0) == (E.NONE, True)
            # The reader's next request gets the epoch in its response, as any other does.
            told = (await reader.ask(fetch(1, 1, wait_ms=0), 12)).responses[0].partitions[0]
            assert told.error_code == E.FENCED_LEADER_EPOCH

    run(main())


async def waits(lone: LoneBroker, hosted: HostedPartition, epoch: int, **changes: Any) -> Peer:
    """A consumer that waits at the end of the log in this epoch."""
    waiting = len(hosted.waiting.readers)
    reader = await Peer.connect(lone.port)
    reader.send(fetch(hosted.end_offset, epoch, **changes), 12)
    await until(lambda: len(hosted.waiting.readers) > waiting)
    return reader


@pytest.mark.parametrize(("named", "error"), [(1, E.FENCED_LEADER_EPOCH), (-1, E.NONE)])
def test_a_consumer_that_waited_gets_no_record_of_a_newer_epoch(
    tmp_path: Path, named: int, error: E
) -> None:
    """A group of librdkafka lost 176 records at resizes, 2026-11-27: the fence, in a newer epoch,
    reached a consumer that had just asked for the end of the former one."""

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = lead(lone, 1, isr=(1,), replicas=(1,))
            hosted.append(batch(), 1)
            reader = await waits(lone, hosted, named)
            lead(lone, 2, isr=(1,), replicas=(1,))
            hosted.append(batch(), 1)
            seen = (await reader.receive()).responses[0].partitions[0]
            assert (seen.error_code, bool(seen.records)) == (error, error is E.NONE)

    run(main())


def test_a_consumer_that_waited_gets_the_records_of_its_epoch(tmp_path: Path) -> None:
    """What was committed before the newer epoch began is answered, up to its beginning."""

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = lead(lone, 1)
            reader = await waits(lone, hosted, 1)
            hosted.append(batch(), 1)
            lead(lone, 2)
            hosted.append(batch(), 1)
            hosted.follower_fetched(2, 2)
            seen = (await reader.receive()).responses[0].partitions[0]
            assert seen.error_code == E.NONE
            assert [header.base_offset for _, header in walk(seen.records)] == [0]

    run(main())


def test_a_consumer_waits_on_while_a_newer_epoch_has_no_record(tmp_path: Path) -> None:
    """B15: a change of epoch alone disturbs no waiting client."""

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = lead(lone, 1)
            reader = await waits(lone, hosted, 1, wait_ms=500)
            lead(lone, 2)
            seen = (await reader.receive()).responses[0].partitions[0]
            assert (seen.error_code, len(seen.records)) == (E.NONE, 0)

    run(main())


def test_the_new_epoch_counts_only_what_is_fetched_in_it(tmp_path: Path) -> None:
    """Promise 16: what a replica held in a former epoch may be gone with its damaged copy."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lead(lone, 1)
            peer.send(produce(), 11)
            await until(lambda: hosted.end_offset == 1)
            hosted.follower_fetched(3, 1, 20)
            lead(lone, 2, isr_version=1)
            assert 3 not in hosted.followers
            assert await follower_fetches(lone, 1, epoch=1) is E.FENCED_LEADER_EPOCH
            assert hosted.high_watermark == 0
            assert hosted.epoch_start == 1, "a joining replica has all from before the epoch"
            assert hosted.log.end_offset_for_epoch(1) == (1, 1)
            assert await follower_fetches(lone, 1, epoch=2) is E.NONE
            assert hosted.high_watermark == 1
            written = (await peer.receive()).responses[0].partition_responses[0]
            assert (written.error_code, written.base_offset) == (E.NONE, 0)

    run(main())


def test_too_small_an_isr_of_the_new_epoch_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lead(lone, 1, configs={"min.insync.replicas": "2"})
            peer.send(produce(), 11)
            await until(lambda: hosted.end_offset == 1)
            lead(lone, 2, isr=(1,))
            written = (await peer.receive()).responses[0].partition_responses[0]
            assert written.error_code == E.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert hosted.high_watermark == 0

    run(main())


def test_another_leader_in_between_ends_the_wait(tmp_path: Path) -> None:
    """It may have cut the log, and it has not led without a break."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lead(lone, 1)
            reader = await Peer.connect(lone.port)
            peer.send(produce(), 11)
            reader.send(fetch(0, 1), 12)
            await until(lambda: hosted.end_offset == 1 and hosted.waiting.readers)
            lead(lone, 2, leader=2)
            lead(lone, 3)
            written = (await peer.receive()).responses[0].partition_responses[0]
            assert written.error_code == E.NOT_LEADER_OR_FOLLOWER
            seen = (await reader.receive()).responses[0].partitions[0]
            assert seen.error_code == E.FENCED_LEADER_EPOCH

    run(main())


def test_only_epochs_of_its_own_leadership_are_answered(tmp_path: Path) -> None:
    """Neither one before it began to lead, nor one that it has not received."""

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = lead(lone, 2, leader=2)
            for epoch in (3, 5):
                lead(lone, epoch)
            found = [hosted.why_not_answering(epoch) for epoch in range(2, 7)]
            assert found == [E.FENCED_LEADER_EPOCH, E.NONE, E.NONE, E.NONE, E.UNKNOWN_LEADER_EPOCH]

    run(main())


def test_a_follower_that_waits_gets_the_new_epoch_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lead(lone, 1)
            peer.send(fetch(0, 1, node_id=2), 12)
            await until(lambda: hosted.waiting.followers)
            lead(lone, 2)
            told = (await peer.receive()).responses[0].partitions[0]
            assert told.error_code == E.FENCED_LEADER_EPOCH

    run(main())


def test_a_watermark_that_was_certain_stays_certain(tmp_path: Path) -> None:
    """KIP-207 is about what a new leader does not know; this one has moved it itself."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lead(lone, 1)
            hosted.append(batch(), 1)
            request = messages.ListOffsetsRequest
            part = request.ListOffsetsPartition(0, -1, -1)
            asked = request(-1, 0, [request.ListOffsetsTopic("t", [part])])
            for epoch in (1, 2):
                lead(lone, epoch)
                found = (await peer.ask(asked, 7)).topics[0].partitions[0]
                assert (found.error_code, found.offset) == (E.NONE, 0)

    run(main())


def test_delete_records_waits_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lead(lone, 1)
            hosted.append(batch(), 1)
            await follower_fetches(lone, 1, epoch=1)
            brokers = lone.broker.metadata.brokers
            brokers.update({2: brokers[1], 3: brokers[1]})
            request = messages.DeleteRecordsRequest
            topic = request.DeleteRecordsTopic("t", [request.DeleteRecordsPartition(0, 1)])
            peer.send(request(topics=[topic], timeout_ms=60_000), 2)
            await until(lambda: hosted.waiting.deletions)
            lead(lone, 2)
            brokers.update({2: brokers[1], 3: brokers[1]})
            await asyncio.sleep(0)
            assert hosted.waiting.deletions
            for node_id in (2, 3):
                hosted.follower_fetched(node_id, 1, 20, 1, 1)
            found = (await peer.receive()).topics[0].partitions[0]
            assert (found.error_code, found.low_watermark) == (E.NONE, 1)

    run(main())


class Reader:
    """A reader that waits at a partition."""

    def __init__(self) -> None:
        self.woken = 0

    def more(self, _size: int) -> None:
        self.woken += 1

    def moved(self) -> None:
        pass


def test_a_reader_at_a_follower_is_woken_when_it_leads_and_not_when_it_keeps_leading(
    tmp_path: Path,
) -> None:
    """B15: a new leader may have more to read; one that stays has not."""

    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = lead(lone, 1, leader=2)
            reader = Reader()
            hosted.waiting.readers[reader] = None
            lead(lone, 2)
            assert reader.woken == 1
            lead(lone, 3)
            assert reader.woken == 1

    run(main())
