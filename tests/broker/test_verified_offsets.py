"""TxnOffsetCommit asks the coordinator whether its transaction has the partition of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.marker_broker import (
    COORDINATOR,
    EPOCH,
    ID,
    MarkerBroker,
    marker,
    sender_to,
    write,
)
from tests.support.played_coordinator import Asked, PlayedCoordinator, know_coordinator
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.handlers import txn_offset_commit
from tidelog.broker.partitions.verifier import ENABLED
from tidelog.groups.events import EndTransaction
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.protocol import messages

Commit = messages.TxnOffsetCommitRequest
Story = Callable[[MarkerBroker, PlayedCoordinator, Peer], Awaitable[None]]
OFFSETS = (OFFSETS_TOPIC, 0)
QUESTION = Asked("id", ID, EPOCH, *OFFSETS)


def play(folder: Path, story: Story, partitions: int = 4, enabled: str = "true") -> None:
    """Run a story with a broker that coordinates groups, the coordinator of transactions, and one
    client."""

    async def main() -> None:
        coordinator = PlayedCoordinator()
        broker = MarkerBroker(folder, {ENABLED: enabled})
        await broker.start()
        await coordinator.start()
        broker.lead("t", partitions)
        await broker.coordinator.reloaded(broker.lead_offsets())
        know_coordinator(broker, coordinator.port, epoch=COORDINATOR)
        peer = await sender_to(broker)
        try:
            await story(broker, coordinator, peer)
        finally:
            peer.writer.close()
            await broker.stop()
            await coordinator.stop()

    asyncio.run(main())


def commit(*offsets: int, epoch: int = EPOCH) -> Commit:
    parts = [Commit.TxnOffsetCommitRequestPartition(*each, 3) for each in enumerate(offsets)]
    topics = [Commit.TxnOffsetCommitRequestTopic("t", parts)]
    return Commit("id", "g", ID, epoch, topics=topics)


async def errors(peer: Peer, *offsets: int, version: int = 4, **more: int) -> list[E]:
    answer = await peer.ask(commit(*offsets, **more), version)
    return [E(part.error_code) for topic in answer.topics for part in topic.partitions]


async def has_pending(peer: Peer) -> bool:
    """Whether the group has offsets that are not stable."""
    asked = messages.OffsetFetchRequest
    topics = [asked.OffsetFetchRequestTopic("t", [0])]
    answer = await peer.ask(asked(group_id="g", topics=topics, require_stable=True), 7)
    return bool(answer.topics[0].partitions[0].error_code == E.UNSTABLE_OFFSET_COMMIT)


def test_the_coordinator_is_asked_once_in_a_transaction(tmp_path: Path) -> None:
    async def story(_: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        coordinator.open.add(QUESTION)
        assert await errors(peer, 5, 6) == [E.NONE, E.NONE]
        assert coordinator.asked == [QUESTION]
        # It is open here now: the second commit goes on with it.
        assert await errors(peer, 7) == [E.NONE]
        assert coordinator.asked == [QUESTION]
        assert await write(peer, marker(OFFSETS)) == [E.NONE]
        assert await errors(peer, 8) == [E.NONE]
        assert coordinator.asked == [QUESTION] * 2

    play(tmp_path, story)


@pytest.mark.parametrize("version", range(5))
def test_a_commit_that_comes_after_the_marker_leaves_nothing_pending(
    tmp_path: Path, version: int
) -> None:
    async def story(broker: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        assert await write(peer, marker(OFFSETS)) == [E.NONE]
        end = broker.broker.partitions.get(*OFFSETS)
        assert end is not None
        before = end.end_offset
        assert await errors(peer, 5, version=version) == [E.INVALID_TXN_STATE]
        assert end.end_offset == before and not await has_pending(peer)
        assert coordinator.asked == [QUESTION]

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("answer", "version", "expected"),
    [
        (E.INVALID_TXN_STATE, 4, E.INVALID_TXN_STATE),
        (E.TRANSACTION_ABORTABLE, 4, E.INVALID_TXN_STATE),
        (E.PRODUCER_FENCED, 4, E.INVALID_PRODUCER_EPOCH),
        (E.INVALID_PRODUCER_ID_MAPPING, 4, E.INVALID_PRODUCER_ID_MAPPING),
        (E.CONCURRENT_TRANSACTIONS, 4, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.NOT_COORDINATOR, 4, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.COORDINATOR_LOAD_IN_PROGRESS, 1, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_the_coordinator_says_refuses_all_of_it(
    tmp_path: Path, answer: E, version: int, expected: E
) -> None:
    async def story(_: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        coordinator.error = answer
        assert await errors(peer, 5, 6, version=version) == [expected] * 2
        assert not await has_pending(peer)

    play(tmp_path, story)


def test_a_coordinator_that_does_not_answer_is_waited_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(_: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        coordinator.may_answer.clear()
        assert await errors(peer, 5) == [E.COORDINATOR_LOAD_IN_PROGRESS]

    monkeypatch.setattr(txn_offset_commit, "CONFIRMED_WITHIN_S", 0.05)
    play(tmp_path, story)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_marker_that_comes_while_the_coordinator_is_asked_ends_the_commit(
    tmp_path: Path, is_late: bool
) -> None:
    async def story(broker: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        other = await sender_to(broker)
        coordinator.open.add(QUESTION)
        coordinator.may_answer.clear()
        asking = asyncio.create_task(errors(peer, 5))
        await until(lambda: coordinator.requests)
        if is_late:
            assert await write(other, marker(OFFSETS)) == [E.NONE]
        coordinator.may_answer.set()
        assert await asking == [E.INVALID_TXN_STATE if is_late else E.NONE]
        assert await has_pending(other) is not is_late
        other.writer.close()

    play(tmp_path, story)


def test_each_part_of_a_long_commit_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker between two parts ends the transaction: the rest would join the next one."""
    count = 1_201

    async def story(broker: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        coordinator.open.add(QUESTION)
        other = await sender_to(broker)
        (led,) = broker.coordinator.led()
        decided: list[Any] = []
        decide_now = led.decide_now

        def between_parts(group_id: str, event: Any) -> None:
            decide_now(group_id, event)
            decided.append(event)
            if len(decided) == 1:
                ended = EndTransaction(PendingResponse(), ID, EPOCH, True, COORDINATOR)
                broker.broker.groups.end_transaction(0, ended)

        monkeypatch.setattr(led, "decide_now", between_parts)
        answers = await errors(peer, *range(count))
        assert answers[:500] == [E.NONE] * 500
        assert answers[500:] == [E.INVALID_TXN_STATE] * 701
        assert len(decided) == 1 and not await has_pending(other)
        other.writer.close()

    play(tmp_path, story, count)


def test_without_verification_no_coordinator_is_asked(tmp_path: Path) -> None:
    async def story(_: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        assert await errors(peer, 5) == [E.NONE]
        assert coordinator.asked == []

    play(tmp_path, story, enabled="false")


def test_a_broker_that_does_not_coordinate_the_group_asks_nothing(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, coordinator: PlayedCoordinator, peer: Peer) -> None:
        broker.lead_offsets(epoch=1, leader=2)
        assert await errors(peer, 5) == [E.NOT_COORDINATOR]
        assert coordinator.asked == []

    play(tmp_path, story)
