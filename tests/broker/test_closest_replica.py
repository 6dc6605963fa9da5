"""Reads from followers (KIP-392): the replica that is chosen, and a follower's responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.led_partition import append, run
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.produce_fetch import fetch, offsets, running
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.replication.closest import Candidate, closest

LEADER = Candidate(1, "a", 0, 100)
RACK_AWARE = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.rack": "a",
}
LONG_MS = 60_000


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"),
    [
        pytest.param("a", [Candidate(2, "a", 0, 100)], 1, id="the leader is near"),
        pytest.param("b", [Candidate(2, "b", 0, 60)], 2, id="the one in the rack"),
        pytest.param("c", [Candidate(2, "b", 0, 60)], 1, id="none in the rack"),
        pytest.param("b", [Candidate(2, "b", 0, 49)], 1, id="it does not hold the offset yet"),
        pytest.param("b", [Candidate(2, "b", 51, 90)], 1, id="nor any more"),
        pytest.param(
            "b", [Candidate(2, "b", 0, 60), Candidate(3, "b", 0, 70)], 3, id="the longest log"
        ),
        pytest.param(
            "b", [Candidate(3, "b", 0, 60), Candidate(2, "b", 0, 60)], 2, id="alike: the first"
        ),
        pytest.param("b", [Candidate(2, None, 0, 60)], 1, id="a broker without a rack"),
        pytest.param("b", [Candidate(2, "b/m", 0, 60)], 2, id="a machine of the rack"),
        pytest.param("b/n", [Candidate(2, "b/m", 0, 60)], 1, id="another machine"),
    ],
)
def test_the_closest_replica(rack: str, followers: list[Candidate], chosen: int) -> None:
    assert closest(rack, 50, LEADER, followers) == chosen


def near(offset: int, rack: str = "b", **changes: Any) -> messages.FetchRequest:
    request: messages.FetchRequest = fetch(offset, **changes)
    request.rack_id = rack
    return request


def know_racks(lone: LoneBroker, *alive: int) -> None:
    """Broker 1 in rack a, 2 in b, 3 in c."""
    request = messages.UpdateMetadataRequest
    end = request.UpdateMetadataEndpoint(port=lone.port, host="127.0.0.1", listener="PLAINTEXT")
    brokers = [
        request.UpdateMetadataBroker(id=node_id, endpoints=[end], rack=" abc"[node_id])
        for node_id in alive
    ]
    lone.broker.metadata.apply(request(controller_id=1, live_brokers=brokers), complete=False)


async def ask(peer: Peer, request: messages.FetchRequest, version: int = 12) -> Any:
    return (await peer.ask(request, version)).responses[0].partitions[0]


def test_the_leader_names_the_replica_in_the_rack(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, dict(RACK_AWARE)) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2, 3), replicas=(1, 2, 3))
            know_racks(lone, 1, 2, 3)
            append(hosted, 3)
            for follower in (2, 3):
                hosted.follower_fetched(follower, 3, log_start=0)
            sent = await ask(peer, near(1))
            assert (sent.preferred_read_replica, len(sent.records)) == (2, 0)
            assert sent.high_watermark == 3
            # At once, although there is no record to read and the request would wait.
            waiting = await ask(peer, near(3, max_wait_ms=LONG_MS))
            assert waiting.preferred_read_replica == 2
            here = await ask(peer, near(1, "a"))
            assert (here.preferred_read_replica, offsets(here.records)) == (-1, [1, 2])
            assert (await ask(peer, near(1, ""))).preferred_read_replica == -1
            assert len((await ask(peer, near(1), 10)).records), "v10 cannot say it"
            hosted.take_isr((1, 3), 1)
            assert (await ask(peer, near(1))).preferred_read_replica == -1, "out of the ISR"
            hosted.take_isr((1, 2, 3), 2)
            know_racks(lone, 1, 3)
            assert (await ask(peer, near(1))).preferred_read_replica == -1, "dead"

    run(main())


def test_without_a_selector_no_reader_is_sent_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, {"broker.rack": "a"}) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            know_racks(lone, 1, 2)
            append(hosted)
            hosted.follower_fetched(2, 1, log_start=0)
            assert offsets((await ask(peer, near(0))).records) == [0]

    run(main())


def follower(lone: LoneBroker, epoch: int = 4) -> HostedPartition:
    """Partition 0 with three records, two of them known to be committed."""
    hosted = lone.lead("t", epoch=3)
    append(hosted, 3)
    lone.lead("t", epoch=epoch, leader=2, isr=(1, 2), replicas=(1, 2))
    hosted.log.high_watermark = 2
    return hosted


def test_a_follower_is_read_up_to_its_own_watermark(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = follower(lone)
            assert offsets((await ask(peer, near(0, epoch=4))).records) == [0, 1]
            assert (await ask(peer, near(2, epoch=4))).error_code == 0
            ahead = await ask(peer, near(3, epoch=4))
            assert ahead.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
            assert ahead.aborted_transactions is None
            outside = await ask(peer, near(4, epoch=4))
            assert outside.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert (outside.high_watermark, outside.log_start_offset) == (2, 0)
            fenced = await ask(peer, near(0, epoch=3))
            assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
            unknown = await ask(peer, near(0, epoch=5))
            assert unknown.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
            no_rack = await ask(peer, near(0, "", epoch=4))
            assert no_rack.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            old = await ask(peer, near(0, epoch=4), 10)
            assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "v10 names no rack"
            # The leader's watermark wakes a waiting reader, also for records not committed here.
            peer.send(near(3, epoch=4, max_wait_ms=LONG_MS), 12)
            await until(lambda: hosted.waiting.readers)
            hosted.replicated(0, 3)
            assert (await peer.receive()).responses[0].partitions[0].error_code == 0
            lone.broker.partitions.stop("t", 0, delete=False)
            stopped = await ask(peer, near(0, epoch=4))
            assert stopped.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main())


def test_a_tool_reads_any_replica_up_to_its_own_watermark(tmp_path: Path) -> None:
    """Replica id -2, Kafka's debugging consumer: what compares replicas asks each of them."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            follower(lone)
            found = await ask(peer, fetch(0, replica_id=-2))
            assert (found.high_watermark, found.log_start_offset) == (2, 0)
            assert offsets(found.records) == [0, 1]
            for offset in (2, 3):
                nothing = await ask(peer, fetch(offset, replica_id=-2))
                assert (nothing.error_code, len(nothing.records)) == (0, 0)
                assert nothing.high_watermark == 2
            outside = await ask(peer, fetch(4, replica_id=-2))
            assert outside.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert outside.high_watermark == 2
            consumer = await ask(peer, fetch(0, replica_id=-1))
            assert consumer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            lone.lead("t", epoch=5, leader=-1, isr=(), replicas=(1, 2))
            assert offsets((await ask(peer, fetch(0, replica_id=-2))).records) == [0, 1]
            lone.broker.partitions.stop("t", 0, delete=True)
            assert (await ask(peer, fetch(0, replica_id=-2))).error_code != 0

    run(main())


def test_a_reader_that_waits_at_a_follower_notices_a_new_leader(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = follower(lone)
            peer.send(near(2, epoch=4, max_wait_ms=LONG_MS), 12)
            await until(lambda: hosted.waiting.readers)
            lone.lead("t", epoch=5, leader=3, isr=(1, 3), replicas=(1, 2, 3))
            found = (await peer.receive()).responses[0].partitions[0]
            assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH

    run(main())


def test_the_watermark_travels_at_once_where_consumers_read_from_followers(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, dict(RACK_AWARE)) as (lone, peer):
            hosted = lone.lead("t", epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
            append(hosted)

            def of(offset: int, session: tuple[int, int]) -> messages.FetchRequest:
                wait = {"max_wait_ms": LONG_MS, "session": session, "replica_id": 2}
                request: messages.FetchRequest = fetch(offset, epoch=1, **wait)  # type: ignore[arg-type]
                request.topics[0].topic_id = hosted.topic_id
                return request

            first = await peer.ask(of(0, (0, 0)), 12)
            peer.send(of(1, (first.session_id, 1)), 12)
            await until(lambda: hosted.followers[2].end_offset == 1)
            hosted.follower_fetched(3, 1)
            told = (await peer.receive()).responses[0].partitions[0]
            assert (told.high_watermark, len(told.records)) == (1, 0)

    run(main())
