"""Markers that other brokers send to a leader: written, waited for, refused, seen by readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.marker_broker import (
    COORDINATOR,
    EPOCH,
    ID,
    MarkerBroker,
    begin,
    errors_of,
    follower_fetches,
    marker,
    markers_of,
    read_committed,
    request,
    sender_to,
    write,
)
from tidelog.broker.handlers import describe_fences, write_txn_markers
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.broker.transactions import marker_writer
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.records.batch import Rejected
from tidelog.records.control_records import ChangeKind, EndMarker, FenceRecord, change_batch
from tidelog.storage.log.stable import last_stable_offset
from tidelog.transactions.markers import Marker
from tidelog.transactions.state import IdAndEpoch

Story = Callable[[MarkerBroker, Peer], Awaitable[None]]
T = ("t", 0)


def play(folder: Path, story: Story) -> None:
    """Run a story with a broker and one other broker's connection."""

    async def main() -> None:
        broker = MarkerBroker(folder)
        await broker.start()
        peer = await sender_to(broker)
        try:
            await story(broker, peer)
        finally:
            peer.writer.close()
            await broker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_ends_a_transaction_for_readers(tmp_path: Path, committed: bool) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        assert begin(hosted) == 0
        assert await read_committed(peer, "t") == (0, [])
        assert await write(peer, marker(T, committed=committed)) == [E.NONE]
        assert await read_committed(peer, "t") == (2, [] if committed else [0])
        assert markers_of(hosted) == [(ID, EPOCH, EndMarker(committed, COORDINATOR))]

    play(tmp_path, story)


def test_each_partition_of_a_request_has_its_own_result(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        broker.lead("t", 3)
        broker.lead("u", leader=2)
        broker.lead("v", isr=(1,), replicas=(1, 2), configs={"min.insync.replicas": "2"})
        for index in range(3):
            hosted = broker.broker.partitions.get("t", index)
            assert hosted is not None
            if index == 1:
                hosted.log.damaged = "a test damaged it"
        response = await peer.ask(
            request(
                marker(T, ("t", 1), ("t", 9), ("u", 0), ("t", 2)),
                marker(("v", 0), ("nowhere", 0), committed=False, producer_id=8),
            ),
            1,
        )
        assert errors_of(response) == [
            E.NONE,
            E.KAFKA_STORAGE_ERROR,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.NOT_LEADER_OR_FOLLOWER,
            E.NONE,
            E.NOT_ENOUGH_REPLICAS,
            E.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert [each.producer_id for each in response.markers] == [ID, 8]
        assert [topic.name for topic in response.markers[0].topics] == ["t", "u", "t"]

    play(tmp_path, story)


def test_a_partition_whose_disk_failed_refuses_alone(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        broker.lead("t").go_offline("a test's disk failed")
        broker.lead("u")
        assert await write(peer, marker(T, ("u", 0))) == [E.KAFKA_STORAGE_ERROR, E.NONE]

    play(tmp_path, story)


def test_fenced_markers_change_nothing(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        begin(hosted)
        assert await write(peer, marker(T, coordinator=-1)) == [E.TRANSACTION_COORDINATOR_FENCED]
        assert await write(peer, marker(T, epoch=EPOCH - 1)) == [E.INVALID_PRODUCER_EPOCH]
        assert await read_committed(peer, "t") == (0, [])
        assert await write(peer, marker(T)) == [E.NONE]
        end = hosted.end_offset
        older = COORDINATOR - 1
        assert await write(peer, marker(T, coordinator=older)) == [E.TRANSACTION_COORDINATOR_FENCED]
        assert hosted.end_offset == end
        # A later coordinator ends what an earlier one has begun to end.
        newer = marker(T, coordinator=COORDINATOR + 1, epoch=EPOCH + 1, committed=False)
        assert await write(peer, newer) == [E.NONE]
        assert await write(peer, marker(T)) == [E.INVALID_PRODUCER_EPOCH]

    play(tmp_path, story)


def test_a_negative_coordinator_epoch_is_refused_for_offsets_too(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        await broker.coordinator.reloaded(broker.lead_offsets())
        offsets = (OFFSETS_TOPIC, 0)
        asked = marker(offsets, coordinator=-1)
        assert await write(peer, asked) == [E.TRANSACTION_COORDINATOR_FENCED]
        assert await write(peer, marker(offsets)) == [E.NONE]

    play(tmp_path, story)


def test_a_marker_without_an_open_transaction_is_a_success_and_fences(tmp_path: Path) -> None:
    """As after the topic was made again: a marker names no incarnation."""

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        assert await write(peer, marker(T, committed=False)) == [E.NONE]
        assert await read_committed(peer, "t") == (1, [])
        # The end of a later transaction of the same producer and epoch is written as well.
        begin(hosted)
        assert await write(peer, marker(T, committed=False)) == [E.NONE]
        assert await read_committed(peer, "t") == (3, [1])

    play(tmp_path, story)


async def replicated(broker: MarkerBroker, partitions: int = 1) -> Peer:
    """Lead topic t with broker 2 in the ISR, which has nothing yet; return its connection."""
    broker.lead("t", partitions, epoch=1, isr=(1, 2), replicas=(1, 2))
    return await sender_to(broker)


def test_a_retry_waits_for_the_marker_that_is_under_way(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        begin(hosted)
        assert await write(peer, marker(T)) == [E.REQUEST_TIMED_OUT]
        assert await read_committed(peer, "t") == (0, [])
        # It is late now: the answer comes at once, and nothing is written.
        assert await write(peer, marker(T)) == [E.REQUEST_TIMED_OUT]
        assert len(markers_of(hosted)) == 1
        await follower_fetches(follower, "t", 2, epoch=1)
        assert await read_committed(peer, "t") == (2, [])
        # No caller has received its success yet: this one does.
        assert await write(peer, marker(T)) == [E.NONE]
        assert len(markers_of(hosted)) == 1
        # From now on it would be the marker of the next transaction.
        assert await write(peer, marker(T)) == [E.REQUEST_TIMED_OUT]
        assert len(markers_of(hosted)) == 2
        follower.writer.close()

    play(tmp_path, story)


async def late_success(broker: MarkerBroker, peer: Peer, follower: Peer) -> HostedPartition:
    """Let the marker of t-0 be committed after the response."""
    hosted = broker.broker.partitions.get("t", 0)
    assert hosted is not None
    assert await write(peer, marker(T)) == [E.REQUEST_TIMED_OUT]
    await follower_fetches(follower, "t", hosted.end_offset, epoch=hosted.leader_epoch)
    assert hosted.high_watermark == hosted.end_offset == len(markers_of(hosted))
    return hosted


def test_a_success_that_no_caller_received_is_of_one_leadership(tmp_path: Path) -> None:
    """Meanwhile another leader may have had the next transaction of the same epoch."""

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        both = {"isr": (1, 2), "replicas": (1, 2)}
        hosted = await late_success(broker, peer, follower)
        broker.lead("t", epoch=2, **both)
        assert await write(peer, marker(T)) == [E.NONE]
        hosted = await late_success(broker, peer, follower)
        broker.lead("t", epoch=3, leader=2, **both)
        broker.lead("t", epoch=4, **both)
        assert await write(peer, marker(T)) == [E.REQUEST_TIMED_OUT]
        assert len(markers_of(hosted)) == 3
        follower.writer.close()

    play(tmp_path, story)


def test_only_the_same_marker_has_the_success_of_the_last(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        hosted = await late_success(broker, peer, follower)
        later = marker(T, coordinator=COORDINATOR + 1)
        assert await write(peer, later) == [E.REQUEST_TIMED_OUT]
        assert len(markers_of(hosted)) == 2
        follower.writer.close()

    play(tmp_path, story)


def test_so_many_successes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_writer, "MAX_KEPT", 1)

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        asked = [marker(T, producer_id=producer_id) for producer_id in (1, 2)]
        assert await write(peer, *asked) == [E.REQUEST_TIMED_OUT] * 2
        await follower_fetches(follower, "t", 2, epoch=1)
        assert await write(peer, *reversed(asked)) == [E.NONE, E.REQUEST_TIMED_OUT]
        assert len(markers_of(hosted)) == 3
        follower.writer.close()

    play(tmp_path, story)


def test_a_success_that_one_caller_received_is_not_kept_for_another(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        received: list[E] = []
        place, asked = TopicPartition(*T), Marker(IdAndEpoch(ID, EPOCH), True, COORDINATOR)
        writer = broker.broker.markers.writer
        writer.write(place, asked, received.append)()
        writer.write(place, asked, received.append)
        await follower_fetches(follower, "t", 1, epoch=1)
        assert received == [E.NONE]
        writer.write(place, asked, received.append)
        assert received == [E.NONE] and len(markers_of(hosted)) == 2
        follower.writer.close()

    play(tmp_path, story)


def test_a_response_comes_with_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.handlers.write_txn_markers.LATE_MS", 60_000)

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        other = await sender_to(broker)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        begin(hosted)
        for each in (peer, other):
            each.send(request(marker(T)), 1)
        await until(lambda: hosted.end_offset == 2)
        await follower_fetches(follower, "t", 2, epoch=1)
        for each in (peer, other):
            assert errors_of(await each.receive()) == [E.NONE]
        assert len(markers_of(hosted)) == 1
        for each in (follower, other):
            each.writer.close()

    play(tmp_path, story)


def test_a_partition_that_hangs_holds_no_other_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        broker.lead("u", 2)
        assert await write(peer, marker(T)) == [E.REQUEST_TIMED_OUT]
        # From now on a response that waited for this partition would not come.
        monkeypatch.setattr("tidelog.broker.handlers.write_txn_markers.LATE_MS", 60_000)
        asked = marker(T, ("u", 0), ("u", 1), producer_id=8)
        assert await write(peer, asked) == [E.REQUEST_TIMED_OUT, E.NONE, E.NONE]
        # Both are in the log, and committed together.
        await follower_fetches(follower, "t", 2, epoch=1)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None and hosted.high_watermark == 2
        assert [producer_id for producer_id, *_ in markers_of(hosted)] == [ID, 8]
        follower.writer.close()

    play(tmp_path, story)


def test_a_leader_that_moves_meanwhile_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.handlers.write_txn_markers.LATE_MS", 60_000)

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        peer.send(request(marker(T)), 1)
        await until(lambda: hosted.end_offset == 1)
        broker.lead("t", epoch=2, leader=2, isr=(1, 2), replicas=(1, 2))
        assert errors_of(await peer.receive()) == [E.NOT_LEADER_OR_FOLLOWER]
        follower.writer.close()

    play(tmp_path, story)


def test_a_partition_has_so_many_markers_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_writer, "MAX_IN_FLIGHT", 2)
    monkeypatch.setattr(marker_writer, "MAX_WAITING", 1)

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        asked = [marker(T, producer_id=producer_id) for producer_id in (1, 2, 3, 1)]
        late = E.REQUEST_TIMED_OUT
        assert await write(peer, *asked) == [late, late, E.NOT_ENOUGH_REPLICAS, late]
        await follower_fetches(follower, "t", 2, epoch=1)
        asked = [marker(T, producer_id=3)]
        peer.send(request(*asked), 1)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        await until(lambda: hosted.end_offset == 3)
        await follower_fetches(follower, "t", 3, epoch=1)
        assert errors_of(await peer.receive()) == [E.NONE]
        follower.writer.close()

    play(tmp_path, story)


def test_a_sealed_partition_takes_a_marker_after_its_seal(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        begin(hosted)
        seal = change_batch(
            FenceRecord(ChangeKind.SEAL, 1, 1), leader_epoch=hosted.leader_epoch, timestamp_ms=1
        )
        hosted.fence_unwritten = True
        assert await write(peer, marker(T)) == [E.KAFKA_STORAGE_ERROR]
        assert not isinstance(hosted.append(seal, 1, from_client=False), Rejected)
        hosted.fence_unwritten = False
        assert await write(peer, marker(T)) == [E.NONE]
        assert await read_committed(peer, "t") == (3, [])
        assert hosted.log.fences.newest is not None
        assert hosted.log.fences.newest.offset == 1

    play(tmp_path, story)


def seal(hosted: HostedPartition) -> None:
    """Retire a partition: its leader has written its seal."""
    hosted.state = replace(hosted.state, sealed=True, undeleted_count=1, resize_epoch=1)
    change = FenceRecord(ChangeKind.SEAL, 1, 1)
    made = change_batch(change, leader_epoch=hosted.leader_epoch, timestamp_ms=1)
    assert not isinstance(hosted.append(made, 1, from_client=False), Rejected)


async def close(peer: Peer) -> tuple[int, int]:
    """Ask to close t-0, as the controller does; return its error, and where it ends."""
    asked = messages.DescribeFencesRequest
    fences = asked(topics=[asked.Topic("t", [asked.Partition(0, closes=True)])])
    (part,) = (await peer.ask(fences, 0)).topics[0].partitions
    return part.error_code, part.closed_end


def test_a_closed_partition_takes_no_marker_in_its_leader_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        assert await close(peer) == (0, -1), "it takes records"
        begin(hosted)
        seal(hosted)
        assert await close(peer) == (0, -1), "a transaction is open"
        assert await write(peer, marker(T)) == [E.NONE]
        assert hosted.log.advance_start(3) is None
        assert await close(peer) == (0, 3)
        assert await write(peer, marker(T)) == [E.NOT_LEADER_OR_FOLLOWER]
        assert hosted.end_offset == 3
        state = replace(hosted.state, leader_epoch=1)
        broker.broker.partitions.apply(hosted, state)
        assert await write(peer, marker(T)) == [E.NONE]
        # It opens again by itself, too: the controller may not come to remove it.
        assert await close(peer) == (0, 4)
        monkeypatch.setattr(marker_writer, "CLOSED_MS", 0)
        assert await close(peer) == (0, 4)
        assert await write(peer, marker(T)) == [E.NONE]
        assert hosted.log.fences.newest is not None and hosted.log.fences.newest.data_end == 1

    play(tmp_path, story)


def test_a_transaction_whose_records_are_deleted_is_open_all_the_same(tmp_path: Path) -> None:
    """The last stable offset does not show it: it is never below the start of the log."""

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        begin(hosted)
        seal(hosted)
        assert hosted.log.advance_start(2) is None
        assert last_stable_offset(hosted.log) == hosted.end_offset == 2
        assert await close(peer) == (0, -1)
        assert await write(peer, marker(T)) == [E.NONE]
        assert await close(peer) == (0, 3)

    play(tmp_path, story)


def test_a_partition_with_a_marker_under_way_is_not_closed(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        follower = await replicated(broker)
        hosted = broker.broker.partitions.get("t", 0)
        assert hosted is not None
        seal(hosted)
        assert await write(peer, marker(T)) == [E.REQUEST_TIMED_OUT]
        assert await close(peer) == (0, -1)
        await follower_fetches(follower, "t", 2, epoch=1)
        assert await close(peer) == (0, 2)
        follower.writer.close()

    play(tmp_path, story)


def test_a_client_without_a_proof_closes_nothing(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        seal(hosted)
        asked = messages.DescribeFencesRequest
        fences = asked(topics=[asked.Topic("t", [asked.Partition(0, closes=True)])])
        context: Any = SimpleNamespace(connection=SimpleNamespace(is_trusted=False))
        answer = finish(describe_fences.handle(broker.broker, fences, context))
        assert answer.topics[0].partitions[0].closed_end == -1
        assert await write(peer, marker(T)) == [E.NONE]

    play(tmp_path, story)


def test_a_client_without_a_proof_is_refused(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        begin(hosted)
        refused: list[Any] = []
        connection = SimpleNamespace(is_trusted=False, refused=lambda *why: refused.append(why))
        context: Any = SimpleNamespace(version=1, connection=connection)
        asked = request(marker(T, ("u", 3)))
        answer = finish(write_txn_markers.handle(broker.broker, asked, context))
        assert errors_of(answer) == [E.CLUSTER_AUTHORIZATION_FAILED] * 2
        assert [key for key, _ in refused] == [ApiKey.WRITE_TXN_MARKERS]
        assert hosted.end_offset == 1

    play(tmp_path, story)


def test_a_marker_of_an_operator_leaves_an_audit_line_and_one_of_a_broker_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        broker.lead("t")
        assert await write(peer, marker(T)) == [E.NONE]
        assert not caplog.records
        peer.client_id = "tidelog"
        assert await write(peer, marker(T, committed=False), marker(T)) == [E.NONE] * 2

    caplog.set_level(logging.INFO, "tidelog.audit")
    play(tmp_path, story)
    (line,) = (each for each in caplog.records if each.name == "tidelog.audit")
    assert line.getMessage() == (
        "tidelog at 127.0.0.1 asks for the abort of transactions: of producer 7, epoch 2, in t, "
        "and 1 more"
    )


def test_nothing_is_served_while_transactions_are_not_offered(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        hosted = broker.lead("t")
        broker.broker.cluster_level.take("1.5")
        with pytest.raises(ConnectionError):
            await write(peer, marker(T))
        assert hosted.end_offset == 0

    play(tmp_path, story)


def test_pending_offsets_are_visible_with_the_marker(tmp_path: Path) -> None:
    """The marker goes through the shell of the groups' coordinator, their only writer."""

    async def story(broker: MarkerBroker, peer: Peer) -> None:
        broker.lead("t", 2)
        await broker.coordinator.reloaded(broker.lead_offsets())
        commit = messages.TxnOffsetCommitRequest
        parts = [commit.TxnOffsetCommitRequestPartition(0, 9, 3, "mine")]
        topics = [commit.TxnOffsetCommitRequestTopic("t", parts)]
        asked = commit("id", "g", ID, EPOCH, topics=topics)
        answer = await peer.ask(asked, 4)
        assert answer.topics[0].partitions[0].error_code == E.NONE
        assert await fetched(peer) == (-1, E.UNSTABLE_OFFSET_COMMIT)
        assert await write(peer, marker((OFFSETS_TOPIC, 0))) == [E.NONE]
        assert await fetched(peer) == (9, E.NONE)

    play(tmp_path, story)


async def fetched(peer: Peer) -> tuple[int, E]:
    """The stable committed offset of t-0 in group g, and its error."""
    asked = messages.OffsetFetchRequest
    topics = [asked.OffsetFetchRequestTopic("t", [0])]
    answer = await peer.ask(asked(group_id="g", topics=topics, require_stable=True), 7)
    (part,) = answer.topics[0].partitions
    return part.committed_offset, E(part.error_code)
