"""The coordinator and topics that are deleted and created again, on a real log (B5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.group_broker import GroupBroker, done
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tidelog.broker.handlers import offset_commit, offset_fetch
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.protocol import messages

FORMER, PRESENT = UUID(int=1), UUID(int=2)
CONFIG = {"offsets.commit.timeout.ms": "60000"}


def run(folder: Path, story: Callable[[GroupBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = GroupBroker(folder, CONFIG)
        await broker.start()
        try:
            await asyncio.wait_for(story(broker), DEADLINE_S)
        finally:
            await broker.stop()

    asyncio.run(main())


def tell(broker: GroupBroker, topic_id: UUID, *, gone: bool = False) -> None:
    """Let the broker know of ``t`` under this id, or that it is deleted."""
    request = messages.UpdateMetadataRequest
    leader = -2 if gone else 1
    parts = [
        request.UpdateMetadataPartitionState(partition_index=at, leader=leader) for at in (0, 1)
    ]
    topic = request.UpdateMetadataTopicState(
        topic_name="t", topic_id=topic_id, partition_states=parts
    )
    broker.broker.metadata.apply(request(topic_states=[topic]), complete=False)


def working(broker: GroupBroker, name: str) -> bool:
    return any(name in task.get_name() for task in broker.coordinator._tasks)


async def loaded(broker: GroupBroker) -> None:
    await until(lambda: not broker.coordinator.is_loading)


async def commit(broker: GroupBroker, offset: int, partition: int = 0) -> E:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(partition, offset, 5, "m")
    topics = [request.OffsetCommitRequestTopic("t", partitions=[part])]
    asked = request(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    answer = await broker.ask(offset_commit, asked, 8)
    return E(answer.topics[0].partitions[0].error_code)


async def committed(broker: GroupBroker) -> dict[int, int] | E:
    """All offsets of the group for ``t``."""
    request = messages.OffsetFetchRequest
    every = request(groups=[request.OffsetFetchRequestGroup("g", topics=None)])
    named = request(
        groups=[
            request.OffsetFetchRequestGroup(
                "g", topics=[request.OffsetFetchRequestTopics("t", partition_indexes=[0, 1])]
            )
        ]
    )
    answers: list[Any] = [
        (await broker.ask(offset_fetch, each, 8)).groups[0] for each in (every, named)
    ]
    if answers[0].error_code:
        return E(answers[0].error_code)
    one, other = (
        {
            part.partition_index: part.committed_offset
            for topic in answer.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        }
        for answer in answers
    )
    assert one == other
    return one


def test_a_next_topic_does_not_inherit_offsets_from_a_coordinator_that_moved(
    tmp_path: Path,
) -> None:
    async def story(broker: GroupBroker) -> None:
        tell(broker, FORMER)
        broker.lead_offsets()
        await loaded(broker)
        assert await commit(broker, 1000) is E.NONE
        assert await commit(broker, 2000, partition=1) is E.NONE
        # The coordinator is elsewhere, and dies before it has removed anything.
        broker.lead_offsets(epoch=1, leader=2)
        tell(broker, FORMER, gone=True)
        tell(broker, PRESENT)
        # This broker, which leads nothing, has looked at all its groups.
        await until(lambda: not working(broker, "groups-forget-topics"))
        broker.lead_offsets(epoch=2)
        await loaded(broker)
        assert await committed(broker) == {}
        assert await commit(broker, 7) is E.NONE
        assert await committed(broker) == {0: 7}
        # Nor does the next coordinator find them in the log.
        broker.lead_again(3)
        await loaded(broker)
        assert await committed(broker) == {0: 7}

    run(tmp_path, story)


def test_what_is_of_a_former_incarnation_goes_with_the_first_load(tmp_path: Path) -> None:
    """It is taken out of the log: a coordinator that knows no topic yet answers what it finds."""

    async def first(broker: GroupBroker) -> None:
        tell(broker, FORMER)
        broker.lead_offsets()
        await loaded(broker)
        assert await commit(broker, 1000) is E.NONE
        broker.lead_offsets(epoch=1, leader=2)
        tell(broker, FORMER, gone=True)
        tell(broker, PRESENT)
        await until(lambda: not working(broker, "groups-forget-topics"))
        broker.lead_offsets(epoch=2)
        await loaded(broker)
        assert await committed(broker) == {}

    async def second(broker: GroupBroker) -> None:
        broker.lead_offsets(epoch=3)
        await loaded(broker)
        assert await committed(broker) == {}

    run(tmp_path, first)
    run(tmp_path, second)


def test_a_position_that_is_committed_at_once_does_not_keep_the_former_ones(tmp_path: Path) -> None:
    """A commit may come before the look at all groups: nothing of its topic is left then."""

    async def story(broker: GroupBroker) -> None:
        tell(broker, FORMER)
        broker.lead_offsets()
        await loaded(broker)
        assert await commit(broker, 1000) is E.NONE
        assert await commit(broker, 2000, partition=1) is E.NONE
        tell(broker, PRESENT)
        assert await committed(broker) == {}
        assert await commit(broker, 7) is E.NONE
        broker.lead_again()
        await loaded(broker)
        assert await committed(broker) == {0: 7}

    run(tmp_path, story)


def test_a_topic_that_is_not_known_keeps_its_offsets(tmp_path: Path) -> None:
    """Promise 20: a topic that no request named is not proved to be deleted."""

    async def first(broker: GroupBroker) -> None:
        tell(broker, FORMER)
        broker.lead_offsets()
        await loaded(broker)
        assert await commit(broker, 1000) is E.NONE

    async def second(broker: GroupBroker) -> None:
        broker.lead_offsets(epoch=1)
        await loaded(broker)
        assert await committed(broker) == {0: 1000}
        tell(broker, FORMER)
        assert await committed(broker) == {0: 1000}

    run(tmp_path, first)
    run(tmp_path, second)


def test_no_incarnation_is_judged_before_the_metadata_that_comes_with_the_leadership(
    tmp_path: Path,
) -> None:
    """A FULL LeaderAndIsr comes before UpdateMetadata: what is known of a topic may be over."""

    async def first(broker: GroupBroker) -> None:
        tell(broker, PRESENT)
        broker.lead_offsets()
        await loaded(broker)
        assert await commit(broker, 5) is E.NONE

    async def second(broker: GroupBroker) -> None:
        metadata, coordinator = broker.broker.metadata, broker.coordinator
        tell(broker, FORMER)
        broker.lead_offsets(epoch=1, leader=2)
        told: list[Any] = []
        apply = metadata.apply
        metadata.apply = lambda request, complete: told.append(request)  # type: ignore[method-assign]
        broker.lead_offsets(epoch=2)
        await until(lambda: metadata._changed or not coordinator.is_loading)
        assert coordinator.is_loading
        assert await committed(broker) is E.COORDINATOR_LOAD_IN_PROGRESS
        assert await commit(broker, 1) is E.COORDINATOR_LOAD_IN_PROGRESS
        # A change that says nothing of this leadership ends nothing, another leader does.
        metadata.wake()
        await until(lambda: bool(metadata._changed))
        broker.lead_offsets(epoch=3, leader=2)
        await until(lambda: not working(broker, "groups-load"))
        assert not metadata._changed
        broker.lead_offsets(epoch=4)
        await until(lambda: bool(metadata._changed))
        metadata.apply = apply  # type: ignore[method-assign]
        tell(broker, PRESENT)
        metadata.apply(told[-1], complete=False)
        await loaded(broker)
        assert await committed(broker) == {0: 5}
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        assert hosted.end_offset == 2, "something was removed"

    run(tmp_path, first)
    run(tmp_path, second)


def test_a_topic_that_is_deleted_while_its_offsets_are_loaded(tmp_path: Path) -> None:
    """The look at all groups finds none yet: groups loaded after it are looked at again."""

    async def first(broker: GroupBroker) -> None:
        tell(broker, FORMER)
        broker.lead_offsets()
        await loaded(broker)
        assert await commit(broker, 1000) is E.NONE

    async def second(broker: GroupBroker) -> None:
        metadata, coordinator = broker.broker.metadata, broker.coordinator
        tell(broker, FORMER)
        broker.lead_offsets(epoch=1, leader=2)
        told: list[Any] = []
        apply = metadata.apply
        metadata.apply = lambda request, complete: told.append(request)  # type: ignore[method-assign]
        broker.lead_offsets(epoch=2)
        await until(lambda: bool(metadata._changed))
        metadata.apply = apply  # type: ignore[method-assign]
        tell(broker, FORMER, gone=True)
        await until(lambda: not working(broker, "groups-forget-topics"))
        assert coordinator.is_loading
        metadata.apply(told[-1], complete=False)
        await loaded(broker)
        assert await committed(broker) == {}

    run(tmp_path, first)
    run(tmp_path, second)


# Topics by id (v10) ------------------------------------------------------------------------


async def commit_by_id(broker: GroupBroker, *offsets: tuple[UUID, int, int]) -> list[Any]:
    """Commit (topic id, partition, offset) in one request; the ids and errors of the response."""
    request = messages.OffsetCommitRequest
    topics = [
        request.OffsetCommitRequestTopic(
            topic_id=topic_id,
            partitions=[request.OffsetCommitRequestPartition(at, offset, 5, "m")],
        )
        for topic_id, at, offset in offsets
    ]
    asked = request(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    answer = await broker.ask(offset_commit, asked, 10)
    return [
        (t.topic_id, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions
    ]


async def fetch_by_id(broker: GroupBroker, *asked: tuple[UUID, list[int]] | None) -> Any:
    """What a group has committed, by topic id; None instead of topics: all."""
    request = messages.OffsetFetchRequest
    topics = None
    if asked != (None,):
        named = [each for each in asked if each is not None]
        topics = [
            request.OffsetFetchRequestTopics(topic_id=each, partition_indexes=indexes)
            for each, indexes in named
        ]
    group = request.OffsetFetchRequestGroup("g", topics=topics)
    (found,) = (await broker.ask(offset_fetch, request(groups=[group]), 10)).groups
    return {
        (topic.topic_id, part.partition_index): (part.committed_offset, part.error_code)
        for topic in found.topics
        for part in topic.partitions
    }


def test_offsets_by_topic_ids_are_those_of_one_incarnation(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        tell(broker, FORMER)
        broker.lead_offsets()
        await loaded(broker)
        unknown = UUID(int=9)
        assert await commit_by_id(broker, (FORMER, 0, 10), (unknown, 0, 1), (FORMER, 7, 1)) == [
            (FORMER, 0, E.NONE),
            (unknown, 0, E.UNKNOWN_TOPIC_ID),
            (FORMER, 7, E.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert await fetch_by_id(broker, (FORMER, [0, 1]), (unknown, [3, 3])) == {
            (FORMER, 0): (10, E.NONE),
            (FORMER, 1): (-1, E.NONE),
            (unknown, 3): (-1, E.UNKNOWN_TOPIC_ID),
        }
        assert await fetch_by_id(broker, None) == {(FORMER, 0): (10, E.NONE)}
        tell(broker, FORMER, gone=True)
        tell(broker, PRESENT)
        assert await commit_by_id(broker, (FORMER, 0, 11)) == [(FORMER, 0, E.UNKNOWN_TOPIC_ID)]
        assert await fetch_by_id(broker, (FORMER, [0]), (PRESENT, [0])) == {
            (FORMER, 0): (-1, E.UNKNOWN_TOPIC_ID),
            (PRESENT, 0): (-1, E.NONE),
        }
        assert await commit_by_id(broker, (PRESENT, 0, 2)) == [(PRESENT, 0, E.NONE)]
        assert await fetch_by_id(broker, None) == {(PRESENT, 0): (2, E.NONE)}

    run(tmp_path, story)


def test_a_long_commit_by_id_ends_with_the_topic(tmp_path: Path) -> None:
    """It is decided in parts; the topic is deleted and created again between two of them."""

    async def story(broker: GroupBroker) -> None:
        count = 2_000
        request = messages.UpdateMetadataRequest

        def tell_wide(topic_id: UUID, leader: int) -> None:
            parts = [
                request.UpdateMetadataPartitionState(partition_index=at, leader=leader)
                for at in range(count)
            ]
            topic = request.UpdateMetadataTopicState(
                topic_name="wide", topic_id=topic_id, partition_states=parts
            )
            broker.broker.metadata.apply(request(topic_states=[topic]), complete=False)

        tell_wide(FORMER, 1)
        broker.lead_offsets()
        await loaded(broker)
        commits = messages.OffsetCommitRequest
        wide = commits.OffsetCommitRequestTopic(
            topic_id=FORMER,
            partitions=[commits.OffsetCommitRequestPartition(x, x, 5, "m") for x in range(count)],
        )
        asked = commits(group_id="g", generation_id_or_member_epoch=-1, topics=[wide])
        waiting = broker.ask_now(offset_commit, asked, 10)
        tell_wide(FORMER, -2)
        tell_wide(PRESENT, 1)
        answer = done(await waiting)
        codes = [each.error_code for each in answer.topics[0].partitions]
        assert set(codes) <= {E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION}
        assert codes[-1] == E.UNKNOWN_TOPIC_OR_PARTITION
        found = await fetch_by_id(broker, (PRESENT, list(range(count))))
        assert {offset for offset, _ in found.values()} == {-1}

    run(tmp_path, story)
