"""A leader with followers: the high watermark, the replicas that count, changes of the ISR."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.led_partition import TOPIC_ID, Session, answer, append, lead, run, running
from tests.support.lone_broker import LoneBroker, Peer, until
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.client.errors import ConnectionLost
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.replication.isr_change import IsrChange


def lost(_: Any) -> Any:
    raise ConnectionLost("lost")


def stale(_: Any) -> Any:
    return messages.AlterIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)


def propose(hosted: HostedPartition, isr: tuple[int, ...]) -> None:
    assert hosted.leadership is not None
    hosted.leadership.change = IsrChange(hosted.leader_epoch, hosted.isr_version, isr)


def fetch(node_id: int, offset: int, **changes: Any) -> messages.FetchRequest:
    request = messages.FetchRequest
    epoch = changes.pop("epoch", 1)
    last_epoch = changes.pop("last_epoch", -1)
    part = request.FetchPartition(0, epoch, offset, last_epoch, 0, 2**20)
    topic = request.FetchTopic(
        "t", partitions=[part], follower_topic_id=changes.pop("topic_id", TOPIC_ID)
    )
    fields = {"max_wait_ms": 0, "min_bytes": 1, "replica_broker_epoch": 20 + node_id, **changes}
    return request(replica_id=node_id, topics=[topic], **fields)


async def fetched(lone: LoneBroker, *args: Any, **changes: Any) -> Any:
    peer = await Peer.connect(lone.port)
    found = await peer.ask(fetch(*args, **changes), 12)
    peer.writer.close()
    return found.responses[0].partitions[0]


def test_the_watermark_waits_for_every_member_of_the_isr(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone)
            append(hosted, 3)
            await fetched(lone, 2, 3)
            assert hosted.high_watermark == 0
            await fetched(lone, 3, 2)
            assert hosted.high_watermark == 2
            await fetched(lone, 3, 3)
            assert hosted.high_watermark == 3
            await fetched(lone, 3, 1)
            assert hosted.high_watermark == 3, "it never steps back"

    run(main())


def test_it_stands_while_the_committed_isr_is_too_small(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1,), configs={"min.insync.replicas": "2"})
            append(hosted, 2)
            await fetched(lone, 2, 2)
            propose(hosted, (1, 2))
            hosted.advance()
            assert hosted.high_watermark == 0, "a proposal is no member yet"
            hosted.take_isr((1, 2), 1)
            assert hosted.high_watermark == 2

    run(main())


def test_a_change_in_flight_counts_the_larger_isr(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1, 2))
            append(hosted)
            propose(hosted, (1, 2, 3))
            await fetched(lone, 2, 1)
            assert hosted.high_watermark == 0
            hosted.take_isr((1, 2), 0)
            assert hosted.high_watermark == 1

    run(main())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic_id": uuid.uuid4()}, ErrorCode.INCONSISTENT_TOPIC_ID),
        ({"epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"last_epoch": 0}, ErrorCode.NONE),
    ],
)
def test_what_does_not_count(tmp_path: Path, changes: dict[str, Any], error: ErrorCode) -> None:
    """Another life of the topic, another epoch, a log that parts from the leader's."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1, 2))
            append(hosted)
            found = await fetched(lone, 2, 1, **changes)
            assert found.error_code == error
            assert (found.diverging_epoch is not None) == (error is ErrorCode.NONE)
            assert hosted.high_watermark == 0
            assert hosted.followers[2].end_offset == -1
            beyond = await fetched(lone, 2, 5)
            assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert hosted.high_watermark == 0
            stranger = await fetched(lone, 9, 1)
            assert stranger.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main())


def test_a_fetch_of_a_former_life_says_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1, 2))
            append(hosted, 2)
            await fetched(lone, 2, 0, replica_broker_epoch=8)
            await fetched(lone, 2, 2, replica_broker_epoch=7)
            assert hosted.high_watermark == 0

    run(main())


def test_a_follower_waits_for_the_end_and_not_for_the_watermark(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone)
            peer = await Peer.connect(lone.port)
            peer.send(fetch(2, 0, max_wait_ms=60_000), 12)
            await until(lambda: hosted.waiting.followers)
            append(hosted)
            found = (await peer.receive()).responses[0].partitions[0]
            assert len(found.records) > 0
            assert found.high_watermark == 0

    run(main())


def test_a_new_leader_does_not_know_the_end_yet(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lead(lone, (1,))
            append(hosted, 2)
            hosted.log.high_watermark = 1
            lone.lead("t", epoch=2, isr=(1, 2, 3), replicas=(1, 2, 3), leader=2)
            lone.lead("t", epoch=3, isr=(1, 2, 3), replicas=(1, 2, 3), isr_version=5)
            peer = await Peer.connect(lone.port)
            request = messages.ListOffsetsRequest
            part = request.ListOffsetsPartition(0, -1, -1)
            asked = request(-1, 0, [request.ListOffsetsTopic("t", [part])])
            for version, error in (
                (4, ErrorCode.LEADER_NOT_AVAILABLE),
                (7, ErrorCode.OFFSET_NOT_AVAILABLE),
            ):
                found = await peer.ask(asked, version)
                assert found.topics[0].partitions[0].error_code == error
            for node_id in (2, 3):
                await fetched(lone, node_id, 2, epoch=3)
            found = await peer.ask(asked, 7)
            assert (found.topics[0].partitions[0].error_code, hosted.high_watermark) == (0, 2)

    run(main())


@pytest.mark.parametrize(
    ("topic_id", "found"),
    [
        (TOPIC_ID, (ErrorCode.NONE, 1, 2)),
        (uuid.uuid4(), (ErrorCode.INCONSISTENT_TOPIC_ID, -1, -1)),
    ],
)
def test_the_end_of_an_epoch_is_answered_by_topic_id(
    tmp_path: Path, topic_id: uuid.UUID, found: tuple[int, ...]
) -> None:
    async def main() -> None:
        async with running(tmp_path) as lone:
            append(lead(lone), 2)
            request = messages.OffsetForLeaderEpochRequest
            part = request.OffsetForLeaderPartition(0, 1, 1)
            topic = request.OffsetForLeaderTopic("t", [part], topic_id=topic_id)
            peer = await Peer.connect(lone.port)
            whole = await peer.ask(request(replica_id=2, topics=[topic]), 4)
            end = whole.topics[0].partitions[0]
            assert (end.error_code, end.leader_epoch, end.end_offset) == found

    run(main())


# -- changes of the ISR


def test_all_partitions_change_in_one_request(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(answer(ErrorCode.NONE, 1))
        asked: list[list[int]] = []

        async def request(whole: Any) -> Any:
            response = messages.AlterIsrResponse
            asked.append([part.partition_index for part in whole.topics[0].partitions])
            parts = [
                response.PartitionData(part.partition_index, 0, 1, 1, part.new_isr, 1)
                for part in whole.topics[0].partitions
            ]
            return response(topics=[response.TopicData("t", parts)])

        session.request = request  # type: ignore[method-assign]
        async with running(tmp_path, session) as lone:
            lead(lone, (1, 2), partitions=3)
            hosted = list(lone.broker.partitions.all())
            for each in hosted:
                each.followers[2].caught_up_ms = 0  # All lag from the same moment on.
            await until(lambda: all(each.isr == (1,) for each in hosted))
            assert [sorted(each) for each in asked] == [[0, 1, 2]]

    run(main())


def test_a_member_that_lags_leaves_and_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(answer(ErrorCode.NONE, 1), answer(ErrorCode.NONE, 2))
        async with running(tmp_path, session) as lone:
            hosted = lead(lone, (1, 2))
            append(hosted)
            await until(lambda: hosted.isr == (1,))
            assert hosted.high_watermark == 1
            assert [list(part.broker_epochs) for part in session.asked] == [[10]]
            await fetched(lone, 2, 1)
            await until(lambda: hosted.isr == (1, 2))
            assert list(session.asked[1].broker_epochs) == [10, 22]
            assert hosted.proposed_isr is None

    run(main())


def test_a_follower_below_the_start_of_the_epoch_does_not_join(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(answer(ErrorCode.NONE, 9))
        async with running(tmp_path, session) as lone:
            append(lead(lone, (1,), configs={"min.insync.replicas": "2"}), 2)
            hosted = lone.lead("t", epoch=2, isr=(1,), replicas=(1, 2, 3), isr_version=5)
            assert (hosted.high_watermark, hosted.epoch_start) == (0, 2)
            for _ in range(3):
                await fetched(lone, 2, 1, epoch=2)
            assert session.asked == []

    run(main())


@pytest.mark.parametrize("unanswered", [lost, stale])
def test_an_answer_that_does_not_come_is_asked_for_again(
    tmp_path: Path, unanswered: Callable[[Any], Any]
) -> None:
    async def main() -> None:
        # The first try was committed; the second one finds a newer version, and the state.
        late = answer(ErrorCode.INVALID_UPDATE_VERSION, 1, (1, 2))
        session = Session(unanswered, late)
        async with running(tmp_path, session) as lone:
            hosted = lead(lone, (1,))
            await fetched(lone, 2, 0)
            await until(lambda: hosted.proposed_isr == (1, 2))
            append(hosted)
            assert hosted.high_watermark == 0, "it may be a member by now"
            await until(lambda: hosted.isr == (1, 2))
            assert hosted.isr_version == 1

    run(main())


def test_a_refused_member_is_not_counted(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(answer(ErrorCode.INELIGIBLE_REPLICA, 0, (1,)))
        async with running(tmp_path, session) as lone:
            hosted = lead(lone, (1,))
            await fetched(lone, 2, 0)
            await until(lambda: session.asked and hosted.proposed_isr is None)
            append(hosted)
            assert (hosted.isr, hosted.high_watermark) == ((1,), 1)
            for _ in range(3):
                await fetched(lone, 2, 1)
            assert len(session.asked) == 1, "it is not asked at every fetch"

    run(main())


def test_a_deposed_leader_counts_what_it_proposed(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(answer(ErrorCode.FENCED_LEADER_EPOCH, 3, (1, 2), epoch=2))
        async with running(tmp_path, session) as lone:
            hosted = lead(lone, (1,))
            await fetched(lone, 2, 0)
            await until(lambda: session.asked)
            append(hosted)
            await fetched(lone, 3, 1)
            assert (hosted.proposed_isr, hosted.high_watermark) == ((1, 2), 0)

    run(main())


def test_an_order_of_the_controller_settles_a_change_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        session = Session(lost)
        async with running(tmp_path, session) as lone:
            hosted = lead(lone, (1,))
            await fetched(lone, 2, 0)
            await until(lambda: hosted.proposed_isr == (1, 2))
            lead(lone, (1, 2), isr_version=1)
            assert (hosted.proposed_isr, hosted.isr) == (None, (1, 2))

    run(main())


# -- replicas that change


def test_a_replica_that_was_taken_off_holds_nothing_when_it_comes_back(tmp_path: Path) -> None:
    """Its copy was deleted meanwhile; it is the same broker, in the same life and leader epoch."""

    async def main() -> None:
        session = Session(answer(ErrorCode.NONE, 9))
        async with running(tmp_path, session) as lone:
            hosted = lone.lead("t", epoch=1, isr=(1,), replicas=(1, 2, 3))
            append(hosted, 2)
            now_ms = lone.broker.clock.monotonic_ms()
            for node_id in (2, 3):
                hosted.follower_fetched(node_id, 2, 20 + node_id, now_ms, 0)
            lone.lead("t", epoch=1, isr=(1,), replicas=(1, 3), isr_version=1)
            hosted.follower_fetched(2, 2, 22, now_ms, 0)
            assert 2 not in hosted.followers, "what is under way of it comes too late"
            lone.lead("t", epoch=1, isr=(1,), replicas=(1, 2, 3), isr_version=2)
            lone.broker.isr_changes.fetched(hosted, 2)
            assert 2 not in hosted.followers
            assert hosted.followers[3].end_offset == 2, "it was a replica all the time"
            lone.broker.isr_changes.fetched(hosted, 3)
            await until(lambda: session.asked)
            assert list(session.asked[0].new_isr) == [1, 3]

    run(main())


def test_what_a_replica_fetched_before_it_was_taken_off_no_longer_counts(tmp_path: Path) -> None:
    """Its session stays: a request that names nothing repeats what it held then."""

    async def main() -> None:
        async with running(tmp_path) as lone:
            hosted = lone.lead("t", epoch=1, isr=(1,), replicas=(1, 2))
            append(hosted, 2)
            peer = await Peer.connect(lone.port)
            first = await peer.ask(fetch(2, 2, session_id=0, session_epoch=0), 12)
            assert hosted.followers[2].end_offset == 2
            lone.lead("t", epoch=1, isr=(1,), replicas=(1,), isr_version=1)
            lone.lead("t", epoch=1, isr=(1,), replicas=(1, 2), isr_version=2)
            nothing = fetch(2, 0, session_id=first.session_id, session_epoch=1)
            nothing.topics = []
            told = (await peer.ask(nothing, 12)).responses[0].partitions[0]
            assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is to ask again"
            assert 2 not in hosted.followers
            again = fetch(2, 0, session_id=first.session_id, session_epoch=2)
            told = (await peer.ask(again, 12)).responses[0].partitions[0]
            assert told.error_code == ErrorCode.NONE
            assert hosted.followers[2].end_offset == 0

    run(main())
