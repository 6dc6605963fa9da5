"""TxnOffsetCommit of every version at a broker with real logs: members, errors, parts, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer
from tests.support.marker_broker import EPOCH, ID, MarkerBroker, marker, sender_to, write
from tests.support.transactional_logs import marker as own_marker
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.protocol import messages
from tidelog.records.batch import Rejected

Story = Callable[[MarkerBroker, Peer], Awaitable[None]]
Commit = messages.TxnOffsetCommitRequest
OFFSETS = (OFFSETS_TOPIC, 0)


def play(folder: Path, story: Story, partitions: int = 4) -> None:
    """Run a story with a broker that coordinates groups, and one client."""

    async def main() -> None:
        broker = MarkerBroker(folder, {"group.initial.rebalance.delay.ms": 0})
        await broker.start()
        broker.lead("t", partitions)
        await broker.coordinator.reloaded(broker.lead_offsets())
        peer = await sender_to(broker)
        try:
            await story(broker, peer)
        finally:
            peer.writer.close()
            await broker.stop()

    asyncio.run(main())


def commit(offsets: dict[int, int], topic: str = "t", **more: Any) -> Commit:
    parts = [
        Commit.TxnOffsetCommitRequestPartition(at, offset, 3) for at, offset in offsets.items()
    ]
    fields = {"transactional_id": "id", "group_id": "g", "producer_id": ID, "producer_epoch": EPOCH}
    topics = [Commit.TxnOffsetCommitRequestTopic(topic, parts)]
    return Commit(**{**fields, **more, "topics": topics})


def errors(answer: messages.TxnOffsetCommitResponse) -> dict[int, E]:
    return {
        part.partition_index: E(part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    }


async def stable(peer: Peer, *partitions: int) -> dict[int, tuple[int, E]]:
    """The stable offsets of these partitions, and their errors."""
    asked = messages.OffsetFetchRequest
    topics = [asked.OffsetFetchRequestTopic("t", list(partitions))]
    answer = await peer.ask(asked(group_id="g", topics=topics, require_stable=True), 7)
    return {
        part.partition_index: (part.committed_offset, E(part.error_code))
        for part in answer.topics[0].partitions
    }


async def joined(peer: Peer, instance_id: str | None = None) -> tuple[str, int]:
    """Join group g as its only member; return the member id and the generation."""
    asked = messages.JoinGroupRequest
    join = asked(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[asked.JoinGroupRequestProtocol("range", b"")],
    )
    answer = await peer.ask(join, 5)
    if answer.error_code == E.MEMBER_ID_REQUIRED:
        join.member_id = answer.member_id
        answer = await peer.ask(join, 5)
    assert answer.error_code == E.NONE
    return answer.member_id, answer.generation_id


@pytest.mark.parametrize("version", range(5))
def test_offsets_count_once_the_transaction_commits(tmp_path: Path, version: int) -> None:
    async def story(_: MarkerBroker, peer: Peer) -> None:
        answer = await peer.ask(commit({0: 5, 9: 1, 2: 7}), version)
        assert errors(answer) == {0: E.NONE, 9: E.UNKNOWN_TOPIC_OR_PARTITION, 2: E.NONE}
        unstable = (-1, E.UNSTABLE_OFFSET_COMMIT)
        assert await stable(peer, 0, 1, 2) == {0: unstable, 1: (-1, E.NONE), 2: unstable}
        assert await write(peer, marker(OFFSETS)) == [E.NONE]
        assert await stable(peer, 0, 2) == {0: (5, E.NONE), 2: (7, E.NONE)}
        assert errors(await peer.ask(commit({0: 8}), version)) == {0: E.NONE}
        assert await write(peer, marker(OFFSETS, committed=False)) == [E.NONE]
        assert await stable(peer, 0) == {0: (5, E.NONE)}

    play(tmp_path, story)


def test_no_partition_of_a_commit_is_known(tmp_path: Path) -> None:
    async def story(_: MarkerBroker, peer: Peer) -> None:
        answer = await peer.ask(commit({0: 5}, "nowhere"), 3)
        assert errors(answer) == {0: E.UNKNOWN_TOPIC_OR_PARTITION}
        answer = await peer.ask(commit({}), 3)
        assert errors(answer) == {}

    play(tmp_path, story)


@pytest.mark.parametrize("version", range(5))
def test_a_fenced_producer_is_refused(tmp_path: Path, version: int) -> None:
    async def story(_: MarkerBroker, peer: Peer) -> None:
        assert await write(peer, marker(OFFSETS)) == [E.NONE]
        older = commit({0: 5}, producer_epoch=EPOCH - 1)
        assert errors(await peer.ask(older, version)) == {0: E.INVALID_PRODUCER_EPOCH}
        none = commit({0: 5}, producer_id=-1)
        assert errors(await peer.ask(none, version)) == {0: E.INVALID_PRODUCER_ID_MAPPING}

    play(tmp_path, story)


@pytest.mark.parametrize(("version", "takes_members"), [(2, False), (3, True), (4, True)])
def test_a_member_names_itself_and_its_generation(
    tmp_path: Path, version: int, takes_members: bool
) -> None:
    async def story(_: MarkerBroker, peer: Peer) -> None:
        member, generation = await joined(peer, "an instance")

        async def error(**more: Any) -> E:
            return errors(await peer.ask(commit({0: 5}, **more), version))[0]

        if not takes_members:
            assert await error() is E.NONE
            return
        own = {"member_id": member, "generation_id": generation}
        assert await error(**own) is E.NONE
        assert await error(**own, group_instance_id="an instance") is E.NONE
        assert await error(**own | {"generation_id": generation - 1}) is E.ILLEGAL_GENERATION
        assert await error(**own | {"member_id": "another"}) is E.UNKNOWN_MEMBER_ID
        fenced = own | {"member_id": "another", "group_instance_id": "an instance"}
        assert await error(**fenced) is E.FENCED_INSTANCE_ID
        # A consumer that assigns itself names none: only its producer is checked.
        assert await error() is E.NONE

    play(tmp_path, story)


@pytest.mark.parametrize(("version", "expected"), [(1, E.COORDINATOR_NOT_AVAILABLE), (2, None)])
def test_old_clients_do_not_know_that_a_coordinator_loads(
    tmp_path: Path, version: int, expected: E | None
) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        # Its own end is not committed, so the load does not end.
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        await write(peer, marker(OFFSETS))
        broker.lead_again()
        hosted = broker.broker.partitions.get(*OFFSETS)
        assert hosted is not None
        assert not isinstance(
            hosted.append(own_marker(8, 0, committed=True), 1, from_client=False), Rejected
        )
        broker.lead_again(3)
        answer = await peer.ask(commit({0: 5}), version)
        assert errors(answer) == {0: expected or E.COORDINATOR_LOAD_IN_PROGRESS}

    play(tmp_path, story)


def test_a_large_commit_is_decided_in_parts(tmp_path: Path) -> None:
    count = 1_201

    async def story(_: MarkerBroker, peer: Peer) -> None:
        answer = await peer.ask(commit({at: at for at in range(count + 1)}), 4)
        unknown = {count: E.UNKNOWN_TOPIC_OR_PARTITION}
        assert errors(answer) == dict.fromkeys(range(count), E.NONE) | unknown
        assert await write(peer, marker(OFFSETS)) == [E.NONE]
        assert await stable(peer, *range(count)) == {at: (at, E.NONE) for at in range(count)}

    play(tmp_path, story, count)


def test_a_broker_that_does_not_coordinate_the_group_says_so(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        broker.lead_offsets(epoch=1, leader=2)
        assert errors(await peer.ask(commit({0: 5}), 3)) == {0: E.NOT_COORDINATOR}

    play(tmp_path, story)


def test_it_is_not_served_while_transactions_are_not_offered(tmp_path: Path) -> None:
    async def story(broker: MarkerBroker, peer: Peer) -> None:
        broker.broker.cluster_level.take("1.5")
        with pytest.raises(ConnectionError):
            await peer.ask(commit({0: 5}), 3)

    play(tmp_path, story)
