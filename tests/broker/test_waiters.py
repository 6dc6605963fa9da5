"""Requests that wait at a leader for its followers: what ends the wait, and how it is answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.broker_pair import append as append_values
from tests.support.broker_pair import running as running_pair
from tests.support.lone_broker import Peer, know_brokers, until
from tests.support.produce_fetch import LATEST, batch, fetch, produce, run, running, send
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

LONG_MS = 60_000
TWO = {"min.insync.replicas": "2"}


def test_an_isr_that_shrinks_below_the_minimum_ends_the_wait(tmp_path: Path) -> None:
    """The records stay: whether they are committed is for the next ISR to say."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2), configs=TWO)
            for value in "ab":
                peer.send(produce(batch(value), timeout_ms=LONG_MS), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 2)
            hosted.take_isr((1,), 1)
            for _ in "ab":
                answer = (await peer.receive()).responses[0].partition_responses[0]
                assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                assert answer.base_offset == -1
            assert (hosted.end_offset, hosted.high_watermark) == (2, 0)
            assert (await send(peer, batch("c"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            hosted.take_isr((1, 2), 2)
            hosted.follower_fetched(2, 2)
            assert hosted.high_watermark == 2

    run(main())


def test_a_patient_append_waits_on_while_the_isr_is_too_small(tmp_path: Path) -> None:
    """The groups' coordinator: its writes are decided by the log."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2), configs=TWO)
            assert (await send(peer, batch("a"), acks=1)).error_code == 0
            told: list[ErrorCode] = []
            hosted.when_committed(0, told.append)
            hosted.take_isr((1,), 1)
            assert told == []
            hosted.take_isr((1, 2), 2)
            hosted.follower_fetched(2, 1)
            assert told == [ErrorCode.NONE]

    run(main())


def test_a_raised_minimum_ends_the_wait_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2, 3))
            peer.send(produce(batch("a"), timeout_ms=LONG_MS), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 1)
            lone.lead("t", isr=(1, 2), replicas=(1, 2, 3), configs={"min.insync.replicas": "3"})
            answer = (await peer.receive()).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    run(main())


def test_a_removed_replica_answers_all_that_wait_at_once(tmp_path: Path) -> None:
    """A partition that moves away: NOT_LEADER_OR_FOLLOWER, and not by time-out."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            follower, reader = await Peer.connect(lone.port), await Peer.connect(lone.port)
            peer.send(produce(batch("a"), timeout_ms=LONG_MS), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 1)
            reader.send(fetch(0, max_wait_ms=LONG_MS), 12)
            follower.send(fetch(1, replica_id=3, epoch=0, max_wait_ms=LONG_MS), 12)
            refused = (await follower.receive()).responses[0].partitions[0]
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is no replica"
            await until(lambda: hosted.waiting.readers)
            lone.broker.partitions.stop("t", 0, delete=True)
            expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
            written = (await peer.receive()).responses[0].partition_responses[0]
            assert written.error_code == expected
            seen = (await reader.receive()).responses[0].partitions[0]
            assert seen.error_code == expected

    run(main())


def test_a_wait_ends_with_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2), configs=TWO)
            answer = await send(peer, batch("a"), timeout_ms=20)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            await asyncio.sleep(0)
            assert len(hosted.waiting.commits.entries) == 0

    run(main())


def delete(offset: int, timeout_ms: int = LONG_MS) -> Any:
    request = messages.DeleteRecordsRequest
    part = request.DeleteRecordsPartition(0, offset)
    return request([request.DeleteRecordsTopic("t", [part])], timeout_ms)


def test_delete_records_waits_for_the_followers_that_live(tmp_path: Path) -> None:
    """They receive the new start at once; the result is the least start."""

    async def main() -> None:
        async with running_pair(tmp_path, {"replica.fetch.wait.max.ms": LONG_MS}) as pair:
            leader = pair.lead()
            peer = await Peer.connect(pair.leader.port)
            append_values(leader, "a", "b", "c")
            know_brokers(pair.leader, 1, 2)
            pair.follow()
            await until(lambda: leader.high_watermark == 3)
            deleted = await peer.ask(delete(2), 2)
            part = deleted.topics[0].partitions[0]
            assert (part.error_code, part.low_watermark) == (0, 2)
            assert leader.followers[2].start_offset == 2
            assert not leader.waiting.deletions

    run(main())


def test_delete_records_does_not_wait_for_the_dead(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            await send(peer, batch("a"), acks=1)
            hosted.follower_fetched(2, 1, log_start=0)
            know_brokers(lone, 1, 2)
            late = (await peer.ask(delete(1, 20), 2)).topics[0].partitions[0]
            assert (late.error_code, late.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
            peer.send(delete(1), 2)
            await until(lambda: hosted.waiting.deletions)
            know_brokers(lone, 1)
            part = (await peer.receive()).topics[0].partitions[0]
            assert (part.error_code, part.low_watermark) == (0, 1)
            know_brokers(lone, 1, 2)
            peer.send(delete(1), 2)
            await until(lambda: hosted.waiting.deletions)
            lone.lead("t", isr=(2,), replicas=(1, 2), leader=2, epoch=1)
            gone = (await peer.receive()).topics[0].partitions[0]
            assert gone.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main())


def test_a_refusal_names_the_leader_and_where_it_listens(tmp_path: Path) -> None:
    """KIP-951: at once, after a wait, and not where the version has no room for it."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            two = lone.lead("u", partitions=2, isr=(1, 2), replicas=(1, 2))
            know_brokers(lone, 1, 2)
            # Two partitions: not the short way of plain requests.
            request = produce(batch("a"), topic="u", timeout_ms=LONG_MS)
            other = messages.ProduceRequest.PartitionProduceData(1, batch("b"))
            request.topic_data[0].partition_data.append(other)
            peer.send(request, LATEST)
            await until(lambda: len(two.waiting.commits.entries) == 1)
            for topic in ("t", "u"):
                lone.lead(topic, 2, isr=(2,), replicas=(1, 2), leader=2, epoch=4)
            know_brokers(lone, 1, 2)
            waited = await peer.receive()
            assert [
                part.current_leader.leader_id for part in waited.responses[0].partition_responses
            ] == [2, 2]
            assert not hosted.is_leader
            refused = await peer.ask(produce(batch("a")), LATEST)
            leader = refused.responses[0].partition_responses[0].current_leader
            assert (leader.leader_id, leader.leader_epoch) == (2, 4)
            assert [(n.node_id, n.port) for n in refused.node_endpoints] == [(2, lone.port)]
            # The short way of plain requests says it too.
            hosted = lone.lead("t", epoch=5, isr=(1, 2), replicas=(1, 2))
            peer.send(produce(batch("c"), timeout_ms=LONG_MS), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 1)
            lone.lead("t", isr=(2,), replicas=(1, 2), leader=2, epoch=6)
            plain = await peer.receive()
            leader = plain.responses[0].partition_responses[0].current_leader
            assert (leader.leader_id, leader.leader_epoch) == (2, 6)
            know_brokers(lone, 1, 2)
            older = await peer.ask(produce(batch("a")), 9)
            part = older.responses[0].partition_responses[0]
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert not older.node_endpoints

    run(main())


def test_a_waiter_that_fails_when_it_is_woken_keeps_no_other_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            told: list[ErrorCode] = []

            class Fails:
                def more(self, _size: int) -> None:
                    raise ValueError

            def fails(_error: ErrorCode) -> None:
                raise ValueError

            for _ in range(2):
                assert (await send(peer, batch("a"), acks=1)).error_code == 0
                hosted.waiting.readers[Fails()] = None
                hosted.when_committed(hosted.end_offset - 1, fails)
                hosted.when_committed(hosted.end_offset - 1, told.append)
            hosted.follower_fetched(2, 1)
            assert told == [ErrorCode.NONE]
            lone.broker.partitions.stop("t", 0, delete=True)
            assert told == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
            assert lone.broker.partitions.get("t", 0) is None

    run(main())
