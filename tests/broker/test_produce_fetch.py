"""Produce, Fetch and their neighbours against a broker without a controller, over real sockets."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.produce_fetch import LATEST, batch, fetch, offsets, produce, run, running, send
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import Producer
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams


async def read(peer: Peer, *args: Any, version: int = 12, **kwargs: Any) -> Any:
    answer = await peer.ask(fetch(*args, **kwargs), version)
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize("version", range(3, 12))
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_appends_and_is_read_back(tmp_path: Path, version: int, acks: int) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t")
            first = await send(peer, batch("a", "b"), version=version, acks=acks)
            second = await send(peer, batch("c"), version=version, acks=acks)
            assert (first.error_code, first.base_offset) == (0, 0)
            assert (second.error_code, second.base_offset) == (0, 2)
            for fetch_version in range(4, 13):
                found = await read(peer, version=fetch_version)
                assert (found.error_code, found.high_watermark) == (0, 3)
                assert offsets(found.records) == [0, 2]

    run(main())


@pytest.mark.parametrize("version", range(3))
def test_produce_below_3_is_refused(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            answer = await send(peer, batch("a"), version=version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert hosted.end_offset == 0

    run(main())


def test_acks_0_of_an_old_version_closes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            peer.send(produce(batch("a"), acks=0), 2)
            with pytest.raises(ConnectionError):
                await peer.receive()
            assert hosted.end_offset == 0

    run(main())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"topic": "nowhere"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"transactional_id": "tx"}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({"records": b"\0" * 100}, ErrorCode.INVALID_RECORD),
        ({"records": None}, ErrorCode.INVALID_RECORD),
        ({"records": batch("x")[:-1]}, ErrorCode.CORRUPT_MESSAGE),
        ({"records": batch("x")[:-1] + b"?"}, ErrorCode.CORRUPT_MESSAGE),
        ({"topic": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_refusals_append_nothing(tmp_path: Path, changes: dict[str, Any], error: ErrorCode) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            arguments = {"records": batch("x"), **changes}
            records = arguments.pop("records")
            answer = await send(peer, records, **arguments)
            assert ErrorCode(answer.error_code) is error
            assert answer.base_offset == -1
            assert hosted.end_offset == 0
            if error is not ErrorCode.UNSUPPORTED_VERSION:
                assert answer.error_message

    run(main())


def test_acks_0_is_not_answered_and_a_refusal_closes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            peer.send(produce(batch("a"), acks=0), LATEST)
            answer = await send(peer, batch("b"))
            assert (answer.base_offset, hosted.end_offset) == (1, 2)
            peer.send(produce(batch("a"), topic="nowhere", acks=0), LATEST)
            with pytest.raises(ConnectionError):
                await peer.receive()

    run(main())


def test_a_retried_batch_is_answered_with_its_first_offset(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            known = batch("a", "b", producer=Producer(7, 0, 0))
            await send(peer, batch("before"))
            assert (await send(peer, known)).base_offset == 1
            again = await send(peer, known)
            assert (again.error_code, again.base_offset, hosted.end_offset) == (0, 1, 3)

    run(main())


def test_acks_all_waits_for_every_member_of_the_isr(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            peer.send(produce(batch("a")), LATEST)
            peer.send(produce(batch("b"), acks=1), LATEST)
            other = await Peer.connect(lone.port)
            await until(lambda: hosted.end_offset == 2)
            assert offsets((await read(other)).records) == []
            follower = fetch(2, replica_id=2, epoch=0, max_wait_ms=10)
            other.send(follower, 12)
            assert (await peer.receive()).responses[0].partition_responses[0].error_code == 0
            await other.receive()
            assert offsets((await read(other)).records) == [0, 1]

    run(main())


def test_waiting_requests_end_at_once_when_leadership_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            reader = await Peer.connect(lone.port)
            peer.send(produce(batch("a"), timeout_ms=60_000), LATEST)
            reader.send(fetch(0, max_wait_ms=60_000), 12)
            await until(lambda: hosted.end_offset == 1 and hosted.waiting.readers)
            lone.lead("t", isr=(2,), replicas=(1, 2), leader=2, epoch=1)
            written = (await peer.receive()).responses[0].partition_responses[0]
            seen = (await reader.receive()).responses[0].partitions[0]
            expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (written.error_code, seen.error_code) == (expected, expected)

    run(main())


def test_an_isr_change_in_the_same_epoch_lets_the_watermark_move(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            peer.send(produce(batch("a"), timeout_ms=60_000), LATEST)
            await until(lambda: hosted.end_offset == 1)
            lone.lead("t", isr=(1,), replicas=(1, 2), isr_version=1)
            answer = (await peer.receive()).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, 0)

    run(main())


def test_time_over_before_replication(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", isr=(1, 2), replicas=(1, 2))
            answer = await send(peer, batch("a"), timeout_ms=20)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT

    run(main())


def test_the_retry_of_a_batch_waits_for_it_and_not_for_younger_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            batches = [batch(f"{at}", producer=Producer(7, 0, at)) for at in range(3)]
            for each in batches:
                peer.send(produce(each, timeout_ms=60_000), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 3)
            other = await Peer.connect(lone.port)
            other.send(produce(batches[0], timeout_ms=60_000), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 4)
            hosted.follower_fetched(2, 1)
            answer = (await other.receive()).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, 0)
            assert len(hosted.waiting.commits.entries) == 2
            hosted.follower_fetched(2, 3)
            for at in range(3):
                answer = (await peer.receive()).responses[0].partition_responses[0]
                assert (answer.error_code, answer.base_offset) == (0, at)

    run(main())


def test_a_client_that_no_longer_waits_for_a_commit_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            again = batch("a", producer=Producer(7, 0, 0))
            for _ in range(3):
                answer = await send(peer, again, timeout_ms=20)
                assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
                await until(lambda: len(hosted.waiting.commits.entries) == 0)

    run(main())


def test_too_few_in_sync_refuse_acks_all_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            configs = {"min.insync.replicas": "2"}
            hosted = lone.lead("t", isr=(1,), replicas=(1, 2), configs=configs)
            refused = await send(peer, batch("a"))
            assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert (await send(peer, batch("b"), acks=1)).error_code == 0
            assert (hosted.end_offset, hosted.high_watermark) == (1, 0)

    run(main())


def test_fetch_waits_for_its_least_bytes_without_polling(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            reader = await Peer.connect(lone.port)
            reader.send(fetch(0, min_bytes=150, max_wait_ms=60_000), 12)
            await until(lambda: hosted.waiting.readers)
            await send(peer, batch("a"))
            assert hosted.waiting.readers
            await send(peer, batch("b" * 100))
            found = (await reader.receive()).responses[0].partitions[0]
            assert offsets(found.records) == [0, 1]
            assert not hosted.waiting.readers

    run(main())


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
def test_a_full_answer_does_not_wait_for_its_least_bytes(tmp_path: Path, limit: str) -> None:
    """fetch.min.bytes as large as what one answer may have: whole batches never add up to it."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            for _ in range(4):
                await send(peer, batch("x" * 100))
            size = hosted.log.size // 4
            most: Any = {limit: 2 * size + 10}
            asked = {"min_bytes": 2 * size + 10, "max_wait_ms": 60_000, **most}
            assert offsets((await read(peer, 0, **asked)).records) == [0, 1]
            peer.send(fetch(2, **asked), 12)
            await until(lambda: hosted.waiting.readers)
            await send(await Peer.connect(lone.port), batch("x" * 100))
            found = (await peer.receive()).responses[0].partitions[0]
            assert offsets(found.records) == [2, 3], "with all of it there is less than asked for"

    run(main())


@pytest.mark.parametrize("goes_on", ["in this segment", "in the next one"])
def test_a_full_answer_from_a_file_does_not_wait(tmp_path: Path, goes_on: str) -> None:
    """What is sent from the file is found by its size alone."""
    ends = {"segment.bytes": "300000"} if goes_on == "in the next one" else {}

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", configs=ends)
            for _ in range(5):
                await send(peer, batch("x" * 100_000))
            if ends:
                assert len(hosted.log.segments) == 3
            answer = await read(
                peer,
                0,
                min_bytes=2**20 if ends else 250_000,
                max_wait_ms=60_000,
                partition_max_bytes=2**20 if ends else 250_000,
            )
            assert offsets(answer.records) == [0, 1]

    run(main())


def test_fetch_returns_empty_when_its_time_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            found = await read(peer, max_wait_ms=30)
            assert (found.error_code, len(found.records), found.high_watermark) == (0, 0, 0)
            assert not hosted.waiting.readers

    run(main())


def test_a_delayed_fetch_leaves_nothing_when_its_client_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            peer.send(fetch(0, max_wait_ms=60_000), 12)
            await until(lambda: hosted.waiting.readers)
            peer.writer.close()
            await until(lambda: not hosted.waiting.readers)

    run(main())


def test_the_first_batch_is_whole_and_limits_hold_for_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", 3)
            for index in range(3):
                for _ in range(3):
                    await send(peer, batch("x" * 1000), partition=index)
            request = fetch(0, (0, 1, 2), max_bytes=10, partition_max_bytes=10)
            parts = (await peer.ask(request, 12)).responses[0].partitions
            assert [offsets(part.records) for part in parts] == [[0], [], []]
            request = fetch(0, (0, 1, 2), max_bytes=4000, partition_max_bytes=2500)
            parts = (await peer.ask(request, 12)).responses[0].partitions
            assert [offsets(part.records) for part in parts] == [[0, 1], [0], []]

    run(main())


def test_a_read_goes_on_where_a_segment_holds_almost_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t")
            for _ in range(4):
                await send(peer, batch("a"))
                hosted.log.roll(int(time.time() * 1000))
            await send(peer, batch("b" * 5000))
            hosted.log.roll(int(time.time() * 1000))
            await send(peer, batch("c"))
            assert offsets((await read(peer)).records) == [0, 1, 2, 3, 4]
            assert offsets((await read(peer, partition_max_bytes=160)).records) == [0, 1]
            assert offsets((await read(peer, 5)).records) == [5]

    run(main())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"offset": 5}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": -7}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"epoch": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 4}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"partitions": (9,)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"replica_id": 5}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_fetch_refusals_come_at_once(
    tmp_path: Path, changes: dict[str, Any], error: ErrorCode
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", epoch=3)
            await send(peer, batch("a"))
            found = await read(peer, **{"max_wait_ms": 60_000, **changes})
            assert ErrorCode(found.error_code) is error

    run(main())


def test_fetch_says_where_the_logs_part(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", epoch=1)
            await send(peer, batch("a", "b"))
            lone.lead("t", epoch=4)
            await send(peer, batch("c"))
            found = await read(peer, 3, last_fetched_epoch=2, max_wait_ms=60_000)
            assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 2)
            found = await read(peer, 3, last_fetched_epoch=4)
            assert (found.error_code, found.diverging_epoch) == (0, None)

    run(main())


def test_a_session_answers_only_what_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", 3)
            for index in range(3):
                await send(peer, batch("a"), partition=index)
            first = await peer.ask(fetch(1, (0, 1, 2), session=(0, 0)), 12)
            assert first.session_id > 0
            assert [p.partition_index for p in first.responses[0].partitions] == [0, 1, 2]
            await send(peer, batch("b"), partition=1)
            second = await peer.ask(fetch(partitions=(), session=(first.session_id, 1)), 12)
            (part,) = second.responses[0].partitions
            assert (part.partition_index, offsets(part.records)) == (1, [1])
            request = fetch(2, (1,), session=(first.session_id, 2), forget=(0,))
            third = await peer.ask(request, 12)
            assert third.responses == []
            stale = await peer.ask(fetch(partitions=(), session=(first.session_id, 2)), 12)
            assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            unknown = await peer.ask(fetch(partitions=(), session=(first.session_id + 1, 1)), 12)
            assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            await peer.ask(fetch(partitions=(), session=(first.session_id, -1)), 12)
            assert len(lone.broker.fetch_sessions) == 0

    run(main())


def test_no_partition_of_a_session_starves(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", 3)
            for index in range(3):
                for _ in range(4):
                    await send(peer, batch("x" * 900), partition=index)
            answer = await peer.ask(fetch(0, (0, 1, 2), session=(0, 0), max_bytes=1000), 12)
            session, seen = answer.session_id, []
            for epoch in range(1, 4):
                parts = answer.responses[0].partitions
                seen += [part.partition_index for part in parts if len(part.records)]
                request = fetch(partitions=(), session=(session, epoch), max_bytes=1000)
                answer = await peer.ask(request, 12)
            assert seen == [0, 1, 2]

    run(main())


def test_sessions_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        config = {"max.incremental.fetch.session.cache.slots": 2}
        async with running(tmp_path, config) as (lone, peer):
            lone.lead("t")
            ids = [(await peer.ask(fetch(0, session=(0, 0)), 12)).session_id for _ in range(3)]
            assert ids[0] and ids[1] and not ids[2]

    run(main())


def test_list_offsets(tmp_path: Path) -> None:
    async def look(peer: Peer, timestamp: int, version: int = 7, epoch: int = -1) -> Any:
        request = messages.ListOffsetsRequest
        part = request.ListOffsetsPartition(
            partition_index=0, timestamp=timestamp, current_leader_epoch=epoch
        )
        whole = request(replica_id=-1, topics=[request.ListOffsetsTopic("t", [part])])
        answer = await peer.ask(whole, version)
        return answer.topics[0].partitions[0]

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", epoch=2)
            now = int(time.time() * 1000)
            for age in (3000, 2000, 1000):
                await send(peer, batch("a", timestamp=now - age))
            for version in range(1, 12):
                assert (await look(peer, -1, version)).offset == 3
                assert (await look(peer, -2, version)).offset == 0
                found = await look(peer, now - 2000, version)
                assert (found.offset, found.timestamp) == (1, now - 2000)
            newest = await look(peer, -3)
            assert (newest.offset, newest.timestamp, newest.leader_epoch) == (2, now - 1000, 2)
            none = await look(peer, now + 5000)
            assert (none.error_code, none.offset, none.timestamp) == (0, -1, -1)
            for special, since in ((-4, 8), (-5, 9), (-6, 11), (-7, 12)):
                for version in range(1, since):
                    refused = await look(peer, special, version)
                    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
            for version in (8, 11):
                local = await look(peer, -4, version)
                assert (local.error_code, local.offset, local.leader_epoch) == (0, 0, 2)
            for special, version in ((-5, 9), (-5, 11), (-6, 11)):
                tiered = await look(peer, special, version)
                assert (tiered.error_code, tiered.offset, tiered.timestamp) == (0, -1, -1)
                assert tiered.leader_epoch == -1
            assert (await look(peer, -1, epoch=1)).error_code == ErrorCode.FENCED_LEADER_EPOCH

    run(main())


def test_offset_for_leader_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t", epoch=1)
            await send(peer, batch("a", "b"))
            lone.lead("t", epoch=4)
            await send(peer, batch("c"))
            request = messages.OffsetForLeaderEpochRequest
            for epoch, expected in ((1, (1, 2)), (3, (1, 2)), (4, (4, 3)), (9, (-1, -1))):
                part = request.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
                whole = request(topics=[request.OffsetForLeaderTopic("t", [part])])
                for version in (2, 3, 4):
                    answer = (await peer.ask(whole, version)).topics[0].partitions[0]
                    assert (answer.leader_epoch, answer.end_offset) == expected

    run(main())


def test_delete_records(tmp_path: Path) -> None:
    async def delete(peer: Peer, topic: str, offset: int) -> tuple[ErrorCode, int]:
        request = messages.DeleteRecordsRequest
        part = request.DeleteRecordsPartition(partition_index=0, offset=offset)
        whole = request(topics=[request.DeleteRecordsTopic(topic, [part])], timeout_ms=1000)
        answer = (await peer.ask(whole, 2)).topics[0].partitions[0]
        return ErrorCode(answer.error_code), answer.low_watermark

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            lone.lead("t")
            lone.lead("c", configs={"cleanup.policy": "compact"})
            for _ in range(5):
                await send(peer, batch("a"))
            assert await delete(peer, "t", 2) == (ErrorCode.NONE, 2)
            assert await delete(peer, "t", 1) == (ErrorCode.NONE, 2)
            assert await delete(peer, "t", 6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
            assert await delete(peer, "c", 0) == (ErrorCode.POLICY_VIOLATION, -1)
            assert (await read(peer, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert offsets((await read(peer, 2)).records) == [2, 3, 4]
            assert await delete(peer, "t", -1) == (ErrorCode.NONE, 5)

    run(main())


def test_a_restart_serves_what_was_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        known = batch("b", producer=Producer(7, 0, 0))
        async with running(tmp_path) as (lone, peer):
            lone.lead("t")
            await send(peer, batch("a"))
            await send(peer, known)
        async with running(tmp_path) as (lone, peer):
            before = lone.broker.partitions.get("t", 0)
            assert before is not None and not before.assigned
            assert (await read(peer)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            lone.lead("t", epoch=1)
            assert (await send(peer, known)).base_offset == 1
            assert offsets((await read(peer)).records) == [0, 1]
            (topic,) = lone.broker.partitions.inventory()
            (part,) = topic.partitions
            assert (part.end_offset, part.leader_epoch, part.partition_epoch) == (2, 1, 0)

    run(main())


class FaultyDisk(RealDisk):
    """A real disk whose writes or syncs fail on command."""

    def __init__(self) -> None:
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.syncs = 0

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        file = super().open(path, create=create, read_only=read_only)
        return _FaultyFile(file, self)


class _FaultyFile:
    def __init__(self, file: Any, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, position: int, chunks: Any) -> int:
        if self._disk.write_error is not None:
            raise OSError(self._disk.write_error, "planted", self._file.path)
        return int(self._file.write_at(position, chunks))

    def sync(self) -> None:
        self._disk.syncs += 1
        if self._disk.sync_error is not None:
            raise OSError(self._disk.sync_error, "planted", self._file.path)
        self._file.sync()


def test_a_full_disk_refuses_appends_serves_reads_and_heals(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, seams=Seams(disk=disk)) as (lone, peer):
            lone.lead("t")
            await send(peer, batch("a"))
            disk.write_error = errno.ENOSPC
            refused = await send(peer, batch("b"))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "full" in refused.error_message
            assert offsets((await read(peer)).records) == [0]
            disk.write_error = None
            assert (await send(peer, batch("c"))).base_offset == 1

    run(main())


def test_a_failed_write_is_final_for_the_directory(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, seams=Seams(disk=disk)) as (lone, peer):
            lone.lead("t", 2)
            disk.write_error = errno.EIO
            refused = await send(peer, batch("a"))
            disk.write_error = None
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            for partition in (0, 1):
                again = await send(peer, batch("a"), partition=partition)
                assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run(main())


def test_sync_acknowledges_only_what_is_synced_many_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        config = {"log.durability": "sync"}
        async with running(tmp_path, config, Seams(disk=disk)) as (lone, peer):
            hosted = lone.lead("t")
            for number in range(200):
                peer.send(produce(batch(f"{number}")), LATEST)
            for number in range(200):
                answer = (await peer.receive()).responses[0].partition_responses[0]
                assert (answer.error_code, answer.base_offset) == (0, number)
                assert hosted.log.synced_end_offset > number
            assert lone.broker.commit.trips < 100

    run(main())


def test_a_failed_sync_acknowledges_nothing_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        config = {"log.durability": "sync"}
        async with running(tmp_path, config, Seams(disk=disk)) as (lone, peer):
            hosted = lone.lead("t")
            assert (await send(peer, batch("a"))).error_code == 0
            disk.sync_error = errno.EIO
            assert (await send(peer, batch("b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            disk.sync_error = None
            assert (await send(peer, batch("c"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert hosted.high_watermark == 1
            await peer.ask(fetch(0, max_wait_ms=0), 12)

    run(main())


def test_replicated_never_syncs_on_the_way_of_an_ack(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, seams=Seams(disk=disk)) as (lone, peer):
            lone.lead("t")
            before = disk.syncs
            for _ in range(20):
                await send(peer, batch("a"))
            assert disk.syncs == before

    run(main())


def test_flush_messages_syncs_beside_the_acks(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", configs={"flush.messages": "3"})
            for _ in range(3):
                await send(peer, batch("a"))
            await until(lambda: hosted.log.synced_end_offset == 3)

    run(main())


def test_a_stopped_or_stale_partition_does_not_serve(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            told: list[tuple[str, int]] = []
            partitions = lone.broker.partitions
            lone.broker.coordinator.resign = (  # type: ignore[method-assign]
                lambda key, epoch: told.append((str(key), epoch))
            )
            lone.lead("t", 3, epoch=5)
            await send(peer, batch("a"), partition=1)
            partitions.stop("t", 0, delete=False)
            partitions.stop("t", 1, delete=True)
            partitions.quarantine("t", 2, "test")
            assert told == [("t-0", 5), ("t-1", 5), ("t-2", 5)]
            for partition in range(3):
                answer = await send(peer, batch("a"), partition=partition)
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            names = sorted(filter(lambda name: name.startswith("t-"), os.listdir(tmp_path)))
            assert names[0] == "t-0"
            assert [name.rpartition("-")[2] for name in names] == ["0", "delete", "stray"]

    run(main())
