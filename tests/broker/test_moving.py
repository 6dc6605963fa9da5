"""A partition whose replicas move, at its leader: hosts, shortcuts, and epochs of one leader.

Source: KIP-455; docs/design/moving.md.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_broker import GroupBroker, statistics
from tests.support.led_partition import Session, answer, append, running
from tests.support.lone_broker import LoneBroker, Peer, until
from tidelog.broker.handlers import offset_commit, offset_fetch
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

EPOCHS = 20
REQUESTS = 8
"""Requests that wait in each epoch."""


def produce(value: bytes) -> Any:
    kind = messages.ProduceRequest
    records = build_batch([NewRecord(int(time.time() * 1000), None, value)])
    part = kind.PartitionProduceData(index=0, records=records)
    data = kind.TopicProduceData(name="t", partition_data=[part])
    return kind(acks=-1, timeout_ms=30_000, topic_data=[data])


def fetched(hosted: HostedPartition, *followers: int) -> None:
    """The followers hold all of the log."""
    for each in followers:
        hosted.follower_fetched(each, hosted.end_offset)


def test_producers_without_ids_wait_through_twenty_epochs_of_one_leader(tmp_path: Path) -> None:
    """Each step of a move raises the epoch: no request is refused for it, so none is repeated."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        peers = [await Peer.connect(lone.port) for _ in range(REQUESTS)]
        hosted = lone.lead("t", epoch=0, isr=(1, 2), replicas=(1, 2))
        try:
            for epoch in range(1, EPOCHS + 1):
                end = hosted.end_offset
                for at, peer in enumerate(peers):
                    peer.send(produce(b"%d-%d" % (epoch, at)), 9 + at % 3)
                await until(lambda end=end: hosted.end_offset == end + REQUESTS)
                lone.lead("t", epoch=epoch, isr=(1, 2), replicas=(1, 2), targets=(3, epoch % 2 + 4))
                assert hosted.high_watermark == end
                fetched(hosted, 2)
                for peer in peers:
                    part = (await peer.receive()).responses[0].partition_responses[0]
                    assert part.error_code == ErrorCode.NONE
            assert hosted.high_watermark == EPOCHS * REQUESTS
        finally:
            for peer in peers:
                peer.writer.close()
            await lone.stop()

    asyncio.run(main())


async def committed(group: GroupBroker, offset: int) -> int:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = request.OffsetCommitRequestTopic(name="t", partitions=[part])
    response = await group.ask(offset_commit, request(group_id="g", topics=[topic]), 8)
    return int(response.topics[0].partitions[0].error_code)


async def position(group: GroupBroker) -> int:
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    wanted = request.OffsetFetchRequestGroup(group_id="g", topics=[topic])
    response = await group.ask(offset_fetch, request(groups=[wanted]), 8)
    return int(response.groups[0].topics[0].partitions[0].committed_offset)


def test_a_group_writes_and_reads_through_twenty_epochs_of_one_leader(tmp_path: Path) -> None:
    """The coordinator stays loaded: a new load would refuse the group meanwhile."""

    async def main() -> None:
        group = GroupBroker(tmp_path)
        await group.start()
        try:
            group.lead("t")
            group.lead_offsets()
            await until(lambda: statistics(group.coordinator)["partitions_loading"] == 0)
            led = group.coordinator._led[0]
            for epoch in range(1, EPOCHS + 1):
                group.lead_offsets(epoch=epoch)
                assert await committed(group, epoch) == ErrorCode.NONE
                assert await position(group) == epoch
            assert group.coordinator._led[0] is led
        finally:
            await group.stop()

    asyncio.run(main())


def test_the_shortcuts_of_a_single_replica_are_off_while_it_moves(tmp_path: Path) -> None:
    """Without that an append would wake no follower, and the move would never end."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        peer = await Peer.connect(lone.port)
        try:
            hosted = lone.lead("t", epoch=1, isr=(1,), replicas=(1,), targets=(2,))
            append(hosted)
            assert hosted.high_watermark == 1
            peer.send(fetch_of_follower(1), 12)
            await until(lambda: hosted.waiting.followers)
            append(hosted)
            part = (await peer.receive()).responses[0].partitions[0]
            assert (part.error_code, len(part.records or b"") > 0) == (ErrorCode.NONE, True)
        finally:
            peer.writer.close()
            await lone.stop()

    asyncio.run(main())


class HeldSession(Session):
    """A controller whose answers arrive when a test lets them."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.released = asyncio.Event()

    async def request(self, request: Any) -> Any:
        found = await super().request(request)
        await self.released.wait()
        return found


def test_an_append_waits_for_a_target_whose_join_is_under_way(tmp_path: Path) -> None:
    """The controller may have the target in the ISR already, and elect it: alone is over."""

    async def main() -> None:
        session = HeldSession(answer(ErrorCode.NONE))
        async with running(tmp_path, session) as lone:
            hosted = lone.lead("t", epoch=1, isr=(1,), replicas=(1,), targets=(2,))
            append(hosted)
            hosted.follower_fetched(2, 1, 20, 2**40)
            lone.broker.isr_changes.fetched(hosted, 2)
            await until(lambda: session.asked)
            append(hosted)
            assert hosted.high_watermark == 1
            session.released.set()
            await until(lambda: hosted.isr == (1, 2))
            assert hosted.high_watermark == 1
            hosted.follower_fetched(2, 2, 20, 2**40)
            assert hosted.high_watermark == 2

    asyncio.run(main())


def fetch_of_follower(offset: int, node_id: int = 2, epoch: int = 1) -> Any:
    request = messages.FetchRequest
    part = request.FetchPartition(0, epoch, offset, -1, 0, 2**20)
    topic = request.FetchTopic("t", partitions=[part])
    return request(
        replica_id=node_id,
        max_wait_ms=60_000,
        min_bytes=1,
        topics=[topic],
        replica_broker_epoch=20,
    )


@pytest.mark.parametrize("level", ["1.2 and above", "below 1.2"])
def test_a_target_fetches_is_counted_and_joins(tmp_path: Path, level: str) -> None:
    """A target is a follower like any other; below level 1.2 it stands among the replicas."""
    apart = level == "1.2 and above"
    layout = {"replicas": (1, 2), "targets": (2, 3)} if apart else {"replicas": (1, 2, 3)}

    async def main() -> None:
        session = Session(answer(ErrorCode.NONE))
        async with running(tmp_path, session) as lone:
            hosted = lone.lead("t", epoch=1, isr=(1, 2), **layout)
            append(hosted)
            hosted.follower_fetched(3, 1, 20, 2**40)
            assert hosted.high_watermark == 0, "it waits for the ISR"
            hosted.follower_fetched(2, 1, 20, 2**40)
            assert hosted.high_watermark == 1
            lone.broker.isr_changes.fetched(hosted, 3)
            await until(lambda: hosted.isr == (1, 2, 3))
            assert list(session.asked[-1].new_isr) == [1, 2, 3]

    asyncio.run(main())


def test_a_target_that_joins_counts_for_the_minimum(tmp_path: Path) -> None:
    """Otherwise this leader acknowledges alone, and the controller elects the target after it.

    A LeaderAndIsr with the replicas of the join has the ISR version of the response: it changes
    nothing here.
    """

    async def main() -> None:
        session = Session(answer(ErrorCode.NONE))
        async with running(tmp_path, session) as lone:
            configs = {"min.insync.replicas": "2"}
            hosted = lone.lead("t", configs=configs, epoch=1, replicas=(1,), targets=(1, 2))
            assert hosted.required_in_sync == 1
            append(hosted)
            hosted.follower_fetched(2, 1, 20, 2**40)
            lone.broker.isr_changes.fetched(hosted, 2)
            await until(lambda: hosted.isr == (1, 2))
            assert hosted.state.replicas == (1, 2)
            assert hosted.required_in_sync == 2

    asyncio.run(main())


def test_a_broker_that_is_no_host_neither_fetches_nor_counts(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        peer = await Peer.connect(lone.port)
        try:
            hosted = lone.lead("t", epoch=1, isr=(1,), replicas=(1,), targets=(2,))
            append(hosted)
            answered = await peer.ask(fetch_of_follower(0, node_id=3), 12)
            refused = answered.responses[0].partitions[0]
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert not refused.records
            hosted.follower_fetched(3, 1)
            assert 3 not in hosted.followers
        finally:
            peer.writer.close()
            await lone.stop()

    asyncio.run(main())


def test_the_completion_of_a_move_shrinks_the_isr_at_once(tmp_path: Path) -> None:
    """Not after ``replica.lag.time.max.ms``: a removed replica holds the watermark meanwhile."""

    async def main() -> None:
        session = Session(answer(ErrorCode.NONE, epoch=2))
        async with running(tmp_path, session) as lone:
            lone.broker.isr_changes._lag_ms = 600_000
            hosted = lone.lead("t", epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3), targets=(1, 3))
            append(hosted)
            lone.lead("t", epoch=2, isr=(1, 2, 3), isr_version=0, replicas=(1, 3))
            fetched(hosted, 3)
            assert hosted.high_watermark == 0, "until it has left the ISR it counts"
            await until(lambda: hosted.isr == (1, 3))
            assert hosted.high_watermark == 1

    asyncio.run(main())
