"""The coordinator on a real log: durability, waits for the high watermark, responses to members."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_broker import BY_KEY, GroupBroker, done, read_back, statistics
from tests.support.group_driver import subscription
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import FaultyDisk
from tidelog.broker.coordinator import led_partition, parts, position_steps
from tidelog.broker.coordinator.group_partition import GroupPartition
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.coordinator.writes import batches_of
from tidelog.broker.handlers import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tidelog.broker.partitions.leadership import Leadership
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.groups import limits, pending_removal
from tidelog.groups.placement import partition_for
from tidelog.groups.records import NO_TOPIC_ID, CommittedOffset, OffsetRecord, encode
from tidelog.groups.table import GroupTable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC
from tidelog.model.work import finish
from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime import pace
from tidelog.runtime.clock import Clock
from tidelog.runtime.disk import Disk
from tidelog.runtime.seams import Seams

E = ErrorCode
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "50",
    "offsets.commit.timeout.ms": "60000",
    "offsets.topic.num.partitions": "3",
}


def run(
    folder: Path,
    story: Callable[[GroupBroker], Awaitable[None]],
    *,
    lead: bool = True,
    disk: Disk | None = None,
    **config: str,
) -> None:
    """Run a story against a broker that leads ``t`` and, by default, the offsets."""

    async def main() -> None:
        seams = None if disk is None else Seams(disk=disk)
        broker = GroupBroker(folder, CONFIG | config, seams)
        await broker.start()
        try:
            broker.lead("t", 2)
            if lead:
                broker.lead_offsets()
                await until(lambda: not broker.coordinator.is_loading)
            await asyncio.wait_for(story(broker), DEADLINE_S)
        finally:
            await broker.stop()

    asyncio.run(main())


async def turn() -> None:
    """Let everything that is ready run once."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


def commit_request(offset: int, topic: str = "t", partition: int = 0, **more: Any) -> Any:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(partition, offset, 5, "m")
    return request(
        group_id="g",
        generation_id_or_member_epoch=more.pop("generation", -1),
        topics=[request.OffsetCommitRequestTopic(topic, partitions=[part])],
        **more,
    )


async def commit(broker: GroupBroker, offset: int, version: int = 8, **more: Any) -> ErrorCode:
    answer = await broker.ask(offset_commit, commit_request(offset, **more), version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def committed(broker: GroupBroker, partition: int = 0, topic: str = "t") -> int:
    request = messages.OffsetFetchRequest
    asked = request(group_id="g", topics=[request.OffsetFetchRequestTopic(topic, [partition])])
    answer = await broker.ask(offset_fetch, asked, 7)
    assert answer.error_code == 0
    return int(answer.topics[0].partitions[0].committed_offset)


def join_request(member_id: str = "", session_ms: int = 10_000, **more: Any) -> Any:
    request = messages.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol("range", memoryview(subscription("t")))
    return request(
        group_id="g",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=5_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol],
        **more,
    )


async def new_member(broker: GroupBroker, **more: Any) -> tuple[str, asyncio.Future[Any]]:
    """Get an id and join with it; returns the id and the answer that is to come."""
    first = await broker.ask(join_group, join_request(**more), 9)
    assert first.error_code == E.MEMBER_ID_REQUIRED
    answer = broker.ask_now(join_group, join_request(first.member_id, **more), 9)
    if not asyncio.isfuture(answer):
        present, answer = answer, asyncio.get_running_loop().create_future()
        answer.set_result(present)
    return first.member_id, answer


def sync_request(member_id: str, generation: int, shares: dict[str, bytes] | None = None) -> Any:
    request = messages.SyncGroupRequest
    return request(
        group_id="g",
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            request.SyncGroupRequestAssignment(name, memoryview(share))
            for name, share in (shares or {}).items()
        ],
    )


# Offsets -----------------------------------------------------------------------------------


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def first(broker: GroupBroker) -> None:
        for offset in range(10):
            assert await commit(broker, offset) is E.NONE
        assert await commit(broker, 77, partition=1) is E.NONE
        assert await commit(broker, 1, topic="nowhere") is E.UNKNOWN_TOPIC_OR_PARTITION

    async def second(broker: GroupBroker) -> None:
        assert await committed(broker) == 9
        assert await committed(broker, 1) == 77
        assert await committed(broker, 1, "nowhere") == -1

    run(tmp_path, first)
    run(tmp_path, second)


def test_many_groups_are_fetched_at_once(tmp_path: Path) -> None:
    """KIP-709: v8 asks for several groups, each with its own topics or, with null, all of them."""

    async def scenario(broker: GroupBroker) -> None:
        for partition in (0, 1):
            assert await commit(broker, 5 + partition, partition=partition) is E.NONE
        request = messages.OffsetFetchRequest
        group = request.OffsetFetchRequestGroup
        one = [request.OffsetFetchRequestTopics("t", partition_indexes=[1, 7])]
        asked = [group("g", topics=one), group("g", topics=None), group("other", topics=one)]
        answer = await broker.ask(offset_fetch, request(groups=asked), 8)
        found = [
            [
                (item.partition_index, item.committed_offset)
                for topic in each.topics
                for item in topic.partitions
            ]
            for each in answer.groups
        ]
        # A group that is named twice is answered once, as it was named last.
        assert [each.group_id for each in answer.groups] == ["g", "other"]
        assert found == [[(0, 5), (1, 6)], [(1, -1), (7, -1)]]
        answer = await broker.ask(offset_fetch, request(groups=[asked[0]]), 8)
        (topic,) = answer.groups[0].topics
        found = [(item.partition_index, item.committed_offset) for item in topic.partitions]
        assert found == [(1, 6), (7, -1)]

    run(tmp_path, scenario)


def test_a_commit_is_answered_when_the_high_watermark_has_passed_it(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        broker.lead_offsets(epoch=1)
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        await until(lambda: not broker.coordinator.is_loading)
        answer = asyncio.ensure_future(commit(broker, 5))
        # The first sight of the topic, and the offset.
        await until(lambda: hosted.end_offset == 2)
        assert not answer.done()
        assert await committed(broker) == -1
        hosted.follower_fetched(2, 2)
        assert await answer is E.NONE
        assert await committed(broker) == 5
        # A follower that does not follow: an error in time, and the offset counts all the same.
        assert await commit(broker, 6) is E.COORDINATOR_NOT_AVAILABLE
        assert await committed(broker) == 5
        hosted.follower_fetched(2, 3)
        assert await committed(broker) == 6

    run(tmp_path, story, **{"offsets.commit.timeout.ms": "300"})


def test_writes_in_flight_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_partition, "MAX_IN_FLIGHT", 2)

    async def story(broker: GroupBroker) -> None:
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        broker.lead_offsets(epoch=1)
        await until(lambda: not broker.coordinator.is_loading)
        waiting = [asyncio.ensure_future(commit(broker, offset)) for offset in (1, 2)]
        await turn()
        assert await commit(broker, 3) is E.COORDINATOR_NOT_AVAILABLE
        assert not any(task.done() for task in waiting)
        broker.lead_offsets(epoch=2, leader=2)
        assert [await task for task in waiting] == [E.NOT_COORDINATOR] * 2

    run(tmp_path, story, **{"offsets.commit.timeout.ms": "60000"})


@pytest.mark.parametrize("at_append", [False, True])
def test_a_write_that_cannot_be_made_is_answered_and_leaves_its_group_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at_append: bool,
) -> None:
    async def story(broker: GroupBroker) -> None:
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        a, one = await new_member(broker)
        generation = (await one).generation_id
        end = hosted.end_offset
        with monkeypatch.context() as patch:
            place = (HostedPartition, "append") if at_append else (led_partition, "bytes_of")
            patch.setattr(*place, planted)
            answer = await broker.ask(sync_group, sync_request(a, generation, {a: b"A"}), 5)
            assert answer.error_code == E.UNKNOWN_SERVER_ERROR
            of_member = {"generation": generation, "member_id": a}
            assert await commit(broker, 5, **of_member) is E.UNKNOWN_SERVER_ERROR
            asked = commit_request(5)
            asked.group_id = "h"
            answer = await broker.ask(offset_commit, asked, 8)
            assert answer.topics[0].partitions[0].error_code == E.UNKNOWN_SERVER_ERROR
        assert hosted.end_offset == end
        (table,) = broker.coordinator.tables()
        # Nothing is in flight: a group that has nothing else is none, and the other goes on.
        group = table.get("g")
        assert table.get("h") is None and group is not None and not group.open_writes
        joined = broker.ask_now(join_group, join_request(a), 9)
        generation = (await joined if asyncio.isfuture(joined) else joined).generation_id
        answer = await broker.ask(sync_group, sync_request(a, generation, {a: b"A"}), 5)
        assert answer.error_code == E.NONE
        assert await commit(broker, 6, generation=generation, member_id=a) is E.NONE
        assert await committed(broker) == 6

    def planted(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    run(tmp_path, story)
    said = [each for each in caplog.records if each.exc_info is not None]
    assert [each.getMessage() for each in said] == [
        f"a write of group {group} failed" for group in "ggh"
    ]


def test_a_bug_when_a_write_is_committed_leaves_no_member_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition is as after a load that failed: what the log has, the next load finds."""

    async def story(broker: GroupBroker) -> None:
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        leadership = hosted.leadership
        assert leadership is not None
        a, one = await new_member(broker)
        generation = (await one).generation_id
        of_member = {"generation": generation, "member_id": a}
        answer = await broker.ask(sync_group, sync_request(a, generation, {a: b"A"}), 5)
        assert answer.error_code == E.NONE
        # Another member waits for the rest of its group to join again.
        _, other = await new_member(broker)
        with monkeypatch.context() as patch:
            patch.setattr(GroupTable, "stored", planted)
            assert await commit(broker, 7, **of_member) is E.COORDINATOR_NOT_AVAILABLE
        assert (await other).error_code == E.NOT_COORDINATOR
        assert await commit(broker, 8, **of_member) is E.COORDINATOR_NOT_AVAILABLE
        assert await broker.coordinator.reloaded(hosted) is None
        assert await committed(broker) == 7

    def planted(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    run(tmp_path, story)


def test_a_write_that_fails_after_the_append_counts_as_the_log_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = HostedPartition.append

    def failing(self: HostedPartition, *args: Any, **more: Any) -> Any:
        append(self, *args, **more)
        raise RuntimeError("planted")

    async def story(broker: GroupBroker) -> None:
        monkeypatch.setattr(HostedPartition, "append", failing)
        assert await commit(broker, 5) is E.NONE
        assert await committed(broker) == 5
        broker.lead_again()
        await until(lambda: not broker.coordinator.is_loading)
        assert await committed(broker) == 5

    run(tmp_path, story)


def test_members_of_all_partitions_share_the_room_and_one_line_says_that_it_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 20_000)

    async def story(broker: GroupBroker) -> None:
        broker.lead_offsets(partitions=3)
        await until(lambda: not broker.coordinator.is_loading)
        codes, numbers = [], set()
        for number in range(30):
            asked = join_request()
            asked.group_id = f"random-{number}"
            codes.append(ErrorCode((await broker.ask(join_group, asked, 9)).error_code))
            numbers.add(broker.coordinator.partition_of(asked.group_id))
        assert len(numbers) == 3
        assert 0 < codes.count(E.MEMBER_ID_REQUIRED) < 10
        refused = codes.count(E.COORDINATOR_NOT_AVAILABLE)
        room = broker.broker.groups.room
        assert refused == room.refused == 30 - codes.count(E.MEMBER_ID_REQUIRED)
        assert 15_000 < room.held <= 20_000
        broker.lead_offsets(epoch=1, leader=2, partitions=3)
        assert room.held == 0

    run(tmp_path, story, lead=False)
    said = [
        each.getMessage()
        for each in caplog.records
        if "memory for members and groups is full" in each.getMessage()
    ]
    assert len(said) == 1


def test_too_few_replicas_refuse_a_commit(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.offsets_replicas = (1, 2)
        broker.lead(
            OFFSETS_TOPIC, 1, {"min.insync.replicas": "2"}, epoch=1, isr=(1,), replicas=(1, 2)
        )
        broker.broker.partitions.reconfigure(OFFSETS_TOPIC)
        await until(lambda: not broker.coordinator.is_loading)
        assert await commit(broker, 5) is E.COORDINATOR_NOT_AVAILABLE
        assert len(next(broker.coordinator.tables())) == 0

    run(tmp_path, story)


def test_many_partitions_in_one_commit_span_batches(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", 400)
        change = [(2, OFFSETS_TOPIC, {"max.message.bytes": "2000"})]
        finish(broker.broker.topic_configs.apply(change, complete=False))
        request = messages.OffsetCommitRequest
        parts = [request.OffsetCommitRequestPartition(at, at, -1, "x") for at in range(400)]
        asked = request(
            group_id="g", topics=[request.OffsetCommitRequestTopic("wide", partitions=parts)]
        )
        answer = await broker.ask(offset_commit, asked, 2)
        assert {part.error_code for part in answer.topics[0].partitions} == {0}
        assert await committed(broker, 399, "wide") == 399
        big = commit_request(1)
        big.topics[0].partitions[0].committed_metadata = "x" * 3_000
        refused = await broker.ask(offset_commit, big, 8)
        assert refused.topics[0].partitions[0].error_code == E.INVALID_COMMIT_OFFSET_SIZE

    run(tmp_path, story)


def long_commit(offset: int, count: int, **more: Any) -> Any:
    """A commit of many partitions of "wide"."""
    request = messages.OffsetCommitRequest
    parts = [request.OffsetCommitRequestPartition(at, offset, -1, "x") for at in range(count)]
    asked = commit_request(offset, **more)
    asked.topics = [request.OffsetCommitRequestTopic("wide", partitions=parts)]
    return asked


def codes_of(answer: Any) -> list[ErrorCode]:
    """The errors of an answer to a commit or a removal, in order."""
    return [E(part.error_code) for topic in answer.topics for part in topic.partitions]


PART, WIDE = 20, 60


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 20 positions, one in a turn: to make a topic of more than 500 takes long."""
    monkeypatch.setattr(parts, "PART", PART)
    monkeypatch.setattr(position_steps, "PART", PART)
    monkeypatch.setattr(pace, "PART", PART)
    monkeypatch.setattr(pending_removal, "PART", PART)
    monkeypatch.setattr(pace, "BACKGROUND_MS", 0)


@pytest.mark.usefixtures("small_parts")
def test_a_commit_of_very_many_partitions_is_decided_in_parts_and_in_order(tmp_path: Path) -> None:
    """A consumer of more than 5,000 partitions could not commit at all."""

    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        long = broker.ask_now(offset_commit, long_commit(5, WIDE + 2), 8)
        last = asyncio.ensure_future(commit(broker, 7, topic="wide", partition=WIDE - 1))
        assert asyncio.isfuture(long) and not long.done()
        assert await last is E.NONE and long.done()
        codes = codes_of(done(await long))
        assert codes == [E.NONE] * WIDE + [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
        found = [await committed(broker, at, "wide") for at in (0, WIDE - 2, WIDE - 1)]
        assert found == [5, 5, 7], "what came after it counts"
        request = messages.OffsetDeleteRequest
        parts = [request.OffsetDeleteRequestPartition(at) for at in range(WIDE + 1)]
        asked = request("g", [request.OffsetDeleteRequestTopic("wide", parts)])
        answer = await broker.ask(offset_delete, asked, 0)
        assert codes_of(answer) == [E.NONE] * WIDE + [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert await committed(broker, WIDE - 1, "wide") == -1

    run(tmp_path, story)


@pytest.mark.usefixtures("small_parts")
def test_a_long_commit_that_the_group_refuses_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        asked = long_commit(5, WIDE, member_id="unknown", generation=3)
        answer = await broker.ask(offset_commit, asked, 8)
        assert set(codes_of(answer)) == {E.ILLEGAL_GENERATION}
        request = messages.OffsetDeleteRequest
        parts = [request.OffsetDeleteRequestPartition(at) for at in range(WIDE)]
        gone = request("g", [request.OffsetDeleteRequestTopic("wide", parts)])
        assert (await broker.ask(offset_delete, gone, 0)).error_code == E.GROUP_ID_NOT_FOUND
        large = long_commit(6, WIDE)
        large.topics[0].partitions[1].committed_metadata = "m" * 5_000
        codes = codes_of(await broker.ask(offset_commit, large, 8))
        assert codes.pop(1) is E.OFFSET_METADATA_TOO_LARGE
        assert set(codes) == {E.NONE}, "that is one position's fault"

    run(tmp_path, story)


@pytest.mark.usefixtures("small_parts")
def test_a_long_commit_whose_coordinator_goes_is_answered_with_all_after_it(
    tmp_path: Path,
) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        long = broker.ask_now(offset_commit, long_commit(5, WIDE), 8)
        behind = asyncio.ensure_future(commit(broker, 7, topic="wide"))
        other = asyncio.ensure_future(broker.ask(offset_commit, long_commit(8, WIDE), 8))
        await turn()
        broker.lead_offsets(epoch=1, leader=2)
        codes = codes_of(done(await long))
        assert len(codes) == WIDE and codes[-1] is E.NOT_COORDINATOR
        assert await behind is E.NOT_COORDINATOR
        assert set(codes_of(await other)) == {E.NOT_COORDINATOR}

    run(tmp_path, story)


@pytest.mark.usefixtures("small_parts")
def test_a_commit_after_two_long_ones_whose_coordinator_goes_is_answered(tmp_path: Path) -> None:
    """It waited for the second long one, which was refused without what came after it."""

    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        long = [broker.ask_now(offset_commit, long_commit(at, WIDE), 8) for at in (5, 6)]
        last = broker.ask_now(offset_commit, commit_request(7, topic="wide"), 8)
        broker.lead_offsets(epoch=1, leader=2)
        async with asyncio.timeout(DEADLINE_S):
            for each in (*long, last):
                assert codes_of(done(await each))[-1] is E.NOT_COORDINATOR

    run(tmp_path, story)


@pytest.mark.usefixtures("small_parts")
def test_a_bug_in_a_part_does_not_keep_the_group_from_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        long = broker.ask_now(offset_commit, long_commit(5, WIDE), 8)
        behind = asyncio.ensure_future(commit(broker, 7, topic="wide"))
        with monkeypatch.context() as broken:
            broken.setattr(parts.InParts, "next_part", lambda _: 1 // 0)
            assert set(codes_of(done(await long))) == {E.UNKNOWN_SERVER_ERROR}
        assert await behind is E.NONE

    run(tmp_path, story)


async def most_in_a_turn(broker: GroupBroker, until_done: Callable[[], bool]) -> int:
    """How many records the offsets partition got in one turn of the loop."""
    hosted = broker.coordinator._led[0].hosted
    ends = [hosted.end_offset]
    loop = asyncio.get_running_loop()

    def look() -> None:
        ends.append(hosted.end_offset)
        if not until_done():
            loop.call_soon(look)

    look()
    await until(until_done)
    return max(after - before for before, after in pairwise(ends))


@pytest.mark.usefixtures("small_parts")
def test_a_group_with_very_many_positions_is_deleted_in_parts(tmp_path: Path) -> None:
    """200,000 were one turn of the loop, of more than a second; topics that are gone as well."""

    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        assert set(codes_of(await broker.ask(offset_commit, long_commit(5, WIDE), 8))) == {E.NONE}
        asked = messages.DeleteGroupsRequest(["g"])
        gone = asyncio.ensure_future(broker.ask(delete_groups, asked, 2))
        again = asyncio.ensure_future(broker.ask(delete_groups, asked, 2))
        behind = asyncio.ensure_future(commit(broker, 7, topic="wide"))
        assert 0 < await most_in_a_turn(broker, gone.done) <= PART
        assert (await gone).results[0].error_code == E.NONE
        assert (await again).results[0].error_code == E.GROUP_ID_NOT_FOUND
        assert await behind in (E.NONE, E.COORDINATOR_NOT_AVAILABLE)

        assert set(codes_of(await broker.ask(offset_commit, long_commit(6, WIDE), 8))) == {E.NONE}
        own = broker.coordinator._led[0].own_part
        assert isinstance(own, GroupPartition)
        removed = asyncio.ensure_future(own.forget_topics(frozenset({"t", "wide"})))
        count = lambda: statistics(broker.coordinator)["groups"]  # noqa: E731
        present = broker.broker.metadata.id_of
        own._metadata.id_of = lambda _: NO_TOPIC_ID  # type: ignore[method-assign]
        assert 0 < await most_in_a_turn(broker, lambda: not count()) <= PART
        own._metadata.id_of = present  # type: ignore[method-assign]
        await removed

    run(tmp_path, story)


@pytest.mark.usefixtures("small_parts")
def test_a_long_removal_whose_coordinator_goes_is_answered_with_all_after_it(
    tmp_path: Path,
) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        await broker.ask(offset_commit, long_commit(5, WIDE), 8)
        asked = messages.DeleteGroupsRequest(["g"])
        gone = broker.ask_now(delete_groups, asked, 2)
        behind = broker.ask_now(offset_commit, commit_request(7, topic="wide"), 8)
        assert asyncio.isfuture(behind), "it waits for the parts that are left"
        broker.lead_offsets(epoch=1, leader=2)
        assert (await gone).results[0].error_code == E.NOT_COORDINATOR
        assert codes_of(done(await behind)) == [E.NOT_COORDINATOR]

    run(tmp_path, story)


@pytest.mark.usefixtures("small_parts")
def test_a_bug_in_a_part_of_a_removal_ends_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        await broker.ask(offset_commit, long_commit(5, WIDE), 8)
        asked = messages.DeleteGroupsRequest(["g"])
        with monkeypatch.context() as broken:
            broken.setattr(parts, "RemoveMore", lambda: 1 // 0)
            gone = await broker.ask(delete_groups, asked, 2)
            assert gone.results[0].error_code == E.UNKNOWN_SERVER_ERROR
        assert await commit(broker, 7, topic="wide") is E.NONE
        assert (await broker.ask(delete_groups, asked, 2)).results[0].error_code == E.NONE

    run(tmp_path, story)


def test_between_two_groups_that_are_deleted_others_have_their_turn(tmp_path: Path) -> None:
    """Each may have 500 positions: 2,000 of them in one turn would take it for seconds."""

    async def story(broker: GroupBroker) -> None:
        names = [f"g{number}" for number in range(3)]
        for name in names:
            asked = commit_request(5)
            asked.group_id = name
            await broker.ask(offset_commit, asked, 8)
        (table,) = broker.coordinator.tables()
        asked = messages.DeleteGroupsRequest([*names, "g0"])
        steps = delete_groups.HANDLER.handle(broker.broker, asked, None)
        left = []
        for _ in names:
            next(steps)
            left.append(len(table))
        assert left == [2, 1, 0]
        with pytest.raises(StopIteration) as end:
            next(steps)
        answer = await end.value.value
        assert [(each.group_id, each.error_code) for each in answer.results] == [
            (name, E.NONE) for name in names
        ]

    run(tmp_path, story)


class Ahead:
    """A clock ahead of another one, by what a test says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ms = 0

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self.ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms() + self.ms


def test_a_heartbeat_that_waits_after_a_long_commit_counts_from_its_arrival(tmp_path: Path) -> None:
    """Another deadline was looked at before it, at a time when this member's was over, too."""

    async def story(broker: GroupBroker) -> None:
        (led,) = broker.coordinator._led.values()
        clock = led._clock = Ahead(led._clock)
        member, joining = await new_member(broker, session_ms=10_000)
        generation = (await joining).generation_id
        synced = await broker.ask(sync_group, sync_request(member, generation, {member: b"x"}), 5)
        assert synced.error_code == E.NONE
        no_part: Any = None
        led.decide("g", parts.InParts(PendingResponse(), iter(()), no_part))
        clock.ms = 9_000
        led._due.append("g")
        led._tick()
        answer = broker.ask_now(heartbeat, beat(member, generation), 4)
        clock.ms = 10_500
        assert (await answer).error_code == E.NONE
        # A later silence ends it all the same.
        clock.ms = 30_000
        led._due.append("g")
        led._tick()
        gone = await broker.ask(heartbeat, beat(member, generation), 4)
        assert gone.error_code == E.UNKNOWN_MEMBER_ID

    run(tmp_path, story)


@pytest.mark.usefixtures("small_parts")
def test_random_commits_of_any_length_count_in_their_order(tmp_path: Path) -> None:
    """Of one group and another, on a broker that has them all at once; the seed is printed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def story(broker: GroupBroker) -> None:
        broker.lead("wide", WIDE)
        expected: dict[tuple[str, int], int] = {}
        answers = []
        for offset in range(40):
            count = rng.choice([1, 3, PART, PART + 1, WIDE])
            group = rng.choice(["g", "g", "h"])
            asked = long_commit(offset, count)
            asked.group_id = group
            expected.update(((group, at), offset) for at in range(count))
            answers.append(broker.ask_now(offset_commit, asked, 8))
            for _ in range(rng.randrange(3)):
                await turn()
        for answer in answers:
            answer = done(await answer) if asyncio.isfuture(answer) else answer
            assert set(codes_of(answer)) == {E.NONE}
        (table,) = broker.coordinator.tables()
        for group in ("g", "h"):
            for _, found in table.offsets(group, None):
                for at, offset in found:
                    assert offset is not None and offset.offset == expected.pop((group, at)), at
        assert not expected

    run(tmp_path, story)


def test_batches_are_as_small_as_asked() -> None:
    records = [
        OffsetRecord("g", "t", at, CommittedOffset(at, metadata="m" * 50)) for at in range(100)
    ]
    buffer = batches_of(records, encode, 1_000, 1_000)
    assert buffer is not None
    headers = [header for _, header in walk(buffer)]
    assert sum(header.record_count for header in headers) == 100
    assert max(header.size for header in headers) <= 1_000
    assert batches_of([records[0]], encode, 1_000, 100) is None


def test_deleting_offsets_groups_and_topics(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        for partition in (0, 1):
            await commit(broker, 5, partition=partition)
        request = messages.OffsetDeleteRequest
        part = request.OffsetDeleteRequestPartition
        asked = request("g", [request.OffsetDeleteRequestTopic("t", [part(0), part(9)])])
        answer = await broker.ask(offset_delete, asked, 0)
        assert [p.error_code for p in answer.topics[0].partitions] == [
            E.NONE,
            E.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert (await committed(broker), await committed(broker, 1)) == (-1, 5)
        gone = messages.UpdateMetadataRequest
        dead = gone.UpdateMetadataPartitionState(partition_index=1, leader=-2)
        other = gone.UpdateMetadataPartitionState(partition_index=0, leader=-2)
        state = gone.UpdateMetadataTopicState(topic_name="t", partition_states=[dead, other])
        broker.broker.metadata.apply(gone(topic_states=[state]), complete=False)
        # Nothing is left of a group without members whose last offset goes.
        await until(lambda: statistics(broker.coordinator)["groups"] == 0)
        broker.lead("u")
        assert await commit(broker, 5, topic="u") is E.NONE
        answer = await broker.ask(delete_groups, messages.DeleteGroupsRequest(["g", "h"]), 2)
        assert [r.error_code for r in answer.results] == [E.NONE, E.GROUP_ID_NOT_FOUND]
        assert statistics(broker.coordinator)["groups"] == 0

    run(tmp_path, story)


def test_offsets_expire(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        await commit(broker, 5, version=2, retention_time_ms=1)
        await commit(broker, 6, partition=1)
        began = broker.seams.clock.wall_ms()
        await until(lambda: broker.seams.clock.wall_ms() > began + 1)
        await broker.broker.groups.expire_offsets()
        assert (await committed(broker), await committed(broker, 1)) == (-1, 6)

    run(tmp_path, story)


# Members -----------------------------------------------------------------------------------


def test_an_unknown_group_is_dead_and_from_version_6_on_not_found(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        await commit(broker, 5)
        request = messages.DescribeGroupsRequest(["g", "unknown"])
        for version in range(7):
            known, unknown = (await broker.ask(describe_groups, request, version)).groups
            assert (known.error_code, known.group_state, known.error_message) == (0, "Empty", None)
            assert (unknown.group_id, unknown.group_state) == ("unknown", "Dead")
            expected = E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE
            assert unknown.error_code == expected
            if version >= 6:
                assert unknown.error_message == "group 'unknown' not found"

    run(tmp_path, story)


def test_two_members_and_a_change_of_coordinator(tmp_path: Path) -> None:
    members: list[str] = []

    async def first(broker: GroupBroker) -> None:
        a, one = await new_member(broker)
        joined = await one
        b, two = await new_member(broker)
        assert (await broker.ask(heartbeat, beat(a, joined.generation_id), 4)).error_code == (
            E.REBALANCE_IN_PROGRESS
        )
        again = await broker.ask(join_group, join_request(a), 9)
        other = await two
        assert again.leader == a
        assert [m.member_id for m in again.members] == [a, b]
        assert bytes(again.members[0].metadata) == subscription("t")
        assert other.members == []
        generation = again.generation_id
        waiting = asyncio.ensure_future(broker.ask(sync_group, sync_request(b, generation), 5))
        await turn()
        shares = {a: b"A", b: b"B"}
        assert (
            await broker.ask(sync_group, sync_request(a, generation, shares), 5)
        ).assignment == (b"A")
        assert (await waiting).assignment == b"B"
        assert await commit(broker, 9, generation=generation, member_id=b) is E.NONE
        assert await commit(broker, 9, generation=0, member_id=b) is E.ILLEGAL_GENERATION
        shown = (await broker.ask(describe_groups, messages.DescribeGroupsRequest(["g"]), 5)).groups
        assert shown[0].group_state == "Stable"
        assert shown[0].members[0].client_host == "/127.0.0.1"
        members.extend((a, b))

    async def second(broker: GroupBroker) -> None:
        a, b = members
        listed = await broker.ask(list_groups, messages.ListGroupsRequest(["stable"], []), 5)
        assert [(g.group_id, g.group_type) for g in listed.groups] == [("g", "classic")]
        assert (await broker.ask(heartbeat, beat(a, 2), 4)).error_code == E.NONE
        answer = await broker.ask(sync_group, sync_request(b, 2), 5)
        assert answer.assignment == b"B"
        left = await broker.ask(leave_group, messages.LeaveGroupRequest("g", a), 0)
        assert left.error_code == E.NONE
        left = await broker.ask(leave_group, messages.LeaveGroupRequest("g", a), 0)
        assert left.error_code == E.UNKNOWN_MEMBER_ID
        assert (await broker.ask(heartbeat, beat(b, 2), 4)).error_code == E.REBALANCE_IN_PROGRESS

    run(tmp_path, first)
    run(tmp_path, second)


def beat(member_id: str, generation: int) -> Any:
    return messages.HeartbeatRequest("g", generation, member_id)


def test_sessions_end_by_the_clock(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        a, one = await new_member(broker, session_ms=60)
        generation = (await one).generation_id
        await broker.ask(sync_group, sync_request(a, generation, {a: b"A"}), 5)
        table = next(broker.coordinator.tables())
        await until(lambda: table.describe("g").state == "Empty")
        assert (await broker.ask(heartbeat, beat(a, generation), 4)).error_code == (
            E.UNKNOWN_MEMBER_ID
        )

    run(tmp_path, story)


def test_an_earlier_deadline_moves_the_timer(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        await new_member(broker, session_ms=10_000)
        other = join_request(session_ms=60)
        other.group_id = "other"
        await broker.ask(join_group, other, 9)
        table = next(broker.coordinator.tables())
        assert sorted(table) == ["g", "other"]
        # The id that was handed out is not used: with its session the whole group goes.
        await until(lambda: list(table) == ["g"])

    run(tmp_path, story)


def test_another_leadership_is_another_coordinator(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        assert await commit(broker, 1) is E.NONE
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        # Before the coordinator is notified.
        hosted.leadership = Leadership(5, (1,), hosted.end_offset)
        assert await commit(broker, 2) is E.NOT_COORDINATOR

    run(tmp_path, story)


def test_a_coordinator_that_leads_on_keeps_its_groups_and_waiting_members(tmp_path: Path) -> None:
    """A newer leader epoch (a replica was damaged, a move began) concerns no member."""

    async def story(broker: GroupBroker) -> None:
        a, one = await new_member(broker)
        generation = (await one).generation_id
        await broker.ask(sync_group, sync_request(a, generation, {a: b"A"}), 5)
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        broker.lead_offsets(epoch=1)
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        waiting = asyncio.ensure_future(commit(broker, 5, generation=generation, member_id=a))
        await turn()
        end = hosted.end_offset
        broker.lead_offsets(epoch=2)
        await turn()
        assert not broker.coordinator.is_loading
        assert not waiting.done()
        assert (await broker.ask(heartbeat, beat(a, generation), 4)).error_code == E.NONE
        hosted.follower_fetched(2, end)
        assert await waiting is E.NONE
        assert await committed(broker) == 5
        # A join that waits for the others is answered when they have come.
        _, joining = await new_member(broker)
        await turn()
        broker.lead_offsets(epoch=3)
        again = asyncio.ensure_future(broker.ask(join_group, join_request(a), 9))
        assert (await joining).error_code == (await again).error_code == E.NONE
        assert (await joining).generation_id == generation + 1

    run(tmp_path, story, **{"offsets.commit.timeout.ms": "60000"})


def test_a_load_goes_on_in_a_newer_epoch_and_one_that_failed_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: GroupBroker) -> None:
        await commit(broker, 7)
        broker.lead_again()
        assert broker.coordinator.is_loading
        broker.lead_offsets(epoch=3)
        await until(lambda: not broker.coordinator.is_loading)
        assert await committed(broker) == 7

        def replay(*_: object) -> None:
            raise RuntimeError("planted in a load")

        with monkeypatch.context() as patch:
            patch.setattr(GroupTable, "replay", replay)
            broker.lead_again(4)
            await until(lambda: not broker.coordinator.is_loading)
            assert await commit(broker, 8) is E.COORDINATOR_NOT_AVAILABLE
        broker.lead_offsets(epoch=6)
        await until(lambda: not broker.coordinator.is_loading)
        assert await committed(broker) == 7

    run(tmp_path, story)


def test_delayed_requests_are_answered_when_leadership_goes(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        a, one = await new_member(broker)
        generation = (await one).generation_id
        await broker.ask(sync_group, sync_request(a, generation, {a: b"A"}), 5)
        _, joining = await new_member(broker)
        await turn()
        assert not joining.done()
        broker.lead_offsets(epoch=1, leader=2)
        assert (await joining).error_code == E.NOT_COORDINATOR
        assert (await broker.ask(heartbeat, beat(a, generation), 4)).error_code == E.NOT_COORDINATOR
        assert await commit(broker, 1) is E.NOT_COORDINATOR
        listed = await broker.ask(list_groups, messages.ListGroupsRequest(), 5)
        assert (listed.error_code, listed.groups) == (E.NONE, [])
        broker.lead_offsets(epoch=2)
        await until(lambda: not broker.coordinator.is_loading)
        # Its session began again with the coordinator.
        assert (await broker.ask(heartbeat, beat(a, generation), 4)).error_code == E.NONE

    run(tmp_path, story)


def test_a_disk_that_fails_under_a_write_sends_everyone_elsewhere(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def story(broker: GroupBroker) -> None:
        a, one = await new_member(broker)
        generation = (await one).generation_id
        await broker.ask(sync_group, sync_request(a, generation, {a: b"A"}), 5)
        _, joining = await new_member(broker)
        await turn()
        disk.fault = errno.EIO
        assert await commit(broker, 1, generation=generation, member_id=a) is E.NOT_COORDINATOR
        assert (await joining).error_code == E.NOT_COORDINATOR
        # What watches over all partitions goes on.
        await broker.broker.groups.expire_offsets()
        assert await commit(broker, 2) is E.NOT_COORDINATOR

    run(tmp_path, story, disk=disk)


def test_a_client_that_goes_away_leaves_no_trace(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        a, one = await new_member(broker)
        await one
        _, joining = await new_member(broker)
        await turn()
        joining.cancel()
        again = await broker.ask(join_group, join_request(a), 9)
        assert len(again.members) == 2

    run(tmp_path, story)


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_a_first_join(tmp_path: Path, version: int) -> None:
    async def story(broker: GroupBroker) -> None:
        answer = await broker.ask(join_group, join_request(), version)
        expected = E.MEMBER_ID_REQUIRED if version >= 4 else E.NONE
        assert answer.error_code == expected
        assert (answer.protocol_name is None) == (version >= 7)

    run(tmp_path, story)


# Loading -----------------------------------------------------------------------------------


def test_while_loading_each_request_gets_the_response_of_kafka(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        for offset in range(50):
            await commit(broker, offset)
        broker.lead_again()
        assert broker.coordinator.is_loading
        loading = E.COORDINATOR_LOAD_IN_PROGRESS
        assert await commit(broker, 1) is loading
        # An error would end the heartbeats of kafka-python for good.
        beat = messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await broker.ask(heartbeat, beat, 4)).error_code is E.NONE
        sync = messages.SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
        assert (await broker.ask(sync_group, sync, 4)).error_code is E.REBALANCE_IN_PROGRESS
        assert (await broker.ask(join_group, join_request(), 9)).error_code == loading
        assert (
            await broker.ask(list_groups, messages.ListGroupsRequest(), 5)
        ).error_code == loading
        request = messages.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopic("t", [0])
        fetched = broker.ask_now(offset_fetch, request(group_id="g", topics=[topic]), 1)
        assert fetched.topics[0].partitions[0].error_code == loading
        group = request.OffsetFetchRequestGroup(group_id="g", topics=None)
        assert broker.ask_now(offset_fetch, request(groups=[group]), 9).groups[0].error_code == (
            loading
        )
        await until(lambda: not broker.coordinator.is_loading)
        assert await committed(broker) == 49

    run(tmp_path, story)


def test_what_is_not_committed_is_not_served_after_a_change_of_leader(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        broker.lead_offsets(epoch=1)
        await until(lambda: not broker.coordinator.is_loading)
        waiting = asyncio.ensure_future(commit(broker, 5))
        await turn()
        broker.lead_again(2)
        assert await waiting is E.NOT_COORDINATOR
        for _ in range(10):
            await turn()
        assert broker.coordinator.is_loading
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        hosted.follower_fetched(2, hosted.end_offset)
        await until(lambda: not broker.coordinator.is_loading)
        assert await committed(broker) == 5

    run(tmp_path, story)


def test_a_partition_whose_end_is_not_committed_holds_up_no_other(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead_offsets(partitions=2)
        await until(lambda: not broker.coordinator.is_loading)
        assert broker.coordinator.partition_of("g") == 1
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        buffer = batches_of([OffsetRecord("h", "t", 0, CommittedOffset(5))], encode, 1_000, 1_000)
        assert buffer is not None
        hosted.append(buffer, 1_000, from_client=False)
        # A new leader has records not known to be committed, and no follower.
        hosted.log.high_watermark = 0
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        broker.lead_again(partitions=2)
        await until(lambda: statistics(broker.coordinator)["partitions_loading"] == 1)
        assert await committed(broker) == -1
        hosted.follower_fetched(2, hosted.end_offset)
        await until(lambda: not broker.coordinator.is_loading)
        assert statistics(broker.coordinator)["groups"] == 1

    run(tmp_path, story)


def test_a_log_with_records_of_others_is_loaded(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        await commit(broker, 5)
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        strange = [NewRecord(1, bytes.fromhex("0003 0001 67"), b"\0\0"), NewRecord(1, b"x", None)]
        hosted.append(build_batch(strange), 1, from_client=False)
        broker.lead_again()
        await until(lambda: not broker.coordinator.is_loading)
        assert await committed(broker) == 5
        assert statistics(broker.coordinator)["unknown_records"] == 2

    run(tmp_path, story)


def test_loading_many_groups_gives_way(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        for start in range(0, 20_000, 500):
            records = [
                OffsetRecord(f"group-{at}", "t", 0, CommittedOffset(at, committed_ms=1))
                for at in range(start, start + 500)
            ]
            buffer = batches_of(records, encode, 1, 1_000_000)
            assert buffer is not None
            hosted.append(buffer, 1, from_client=False)
        broker.lead_again()
        turns = 0
        while broker.coordinator.is_loading:
            turns += 1
            await turn()
        assert statistics(broker.coordinator)["groups"] == 20_000
        # Forty batches: at most one of them is read in a turn that is already too long.
        assert turns >= 20

    run(tmp_path, story)


def test_damage_is_named_and_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(broker: GroupBroker) -> None:
        await commit(broker, 5)
        log = tmp_path / f"{OFFSETS_TOPIC}-0" / "00000000000000000000.log"
        content = bytearray(log.read_bytes())
        content[-1] ^= 1
        log.write_bytes(content)
        broker.lead_again()
        await until(lambda: not broker.coordinator.is_loading)
        # The partition is out of service here: a member that commits looks for its next leader.
        assert await commit(broker, 6) is E.NOT_COORDINATOR
        assert "wrong CRC" in caplog.text

    run(tmp_path, story)


def test_a_bug_in_one_sweep_or_load_is_not_the_end_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead_offsets(epoch=1, partitions=3)
        await until(lambda: not broker.coordinator.is_loading)
        await commit(broker, 5)
        swept = []

        async def sweep(own: GroupPartition) -> None:
            swept.append(own._shell.hosted.partition)
            raise KeyError("planted in a sweep")

        with monkeypatch.context() as patch:
            patch.setattr(GroupPartition, "expire", sweep)
            await until(lambda: sorted(swept[-6:]) == [0, 0, 1, 1, 2, 2])
        await broker.broker.groups.expire_offsets()
        assert "planted in a sweep" in caplog.text

        def replay(*_: object) -> None:
            raise RuntimeError("planted in a load")

        monkeypatch.setattr(GroupTable, "replay", replay)
        broker.lead_again(2, partitions=3)
        await until(lambda: not broker.coordinator.is_loading)
        assert await commit(broker, 6) is E.COORDINATOR_NOT_AVAILABLE
        assert "planted in a load" in caplog.text

    run(tmp_path, story, **{"offsets.retention.check.interval.ms": "10"})


@pytest.mark.parametrize("seed", range(6))
def test_acked_offsets_are_never_lost_nor_unread(tmp_path: Path, seed: int) -> None:
    """Offsets only grow here: so no answer may be below an acked offset, or below an answer."""

    async def story(broker: GroupBroker) -> None:
        source = random.Random(seed)
        broker.offsets_isr = broker.offsets_replicas = (1, 2)
        epoch, offset, acked, seen = 1, 0, -1, -1
        broker.lead_offsets(epoch=epoch)
        hosted = broker.broker.partitions.get(OFFSETS_TOPIC, 0)
        assert hosted is not None
        waiting: list[tuple[int, asyncio.Future[ErrorCode]]] = []
        for step in range(400):
            roll = source.random()
            if roll < 0.4:
                offset += 1
                waiting.append((offset, asyncio.ensure_future(commit(broker, offset))))
            elif roll < 0.7:
                hosted.follower_fetched(2, source.randint(hosted.high_watermark, hosted.end_offset))
            elif roll < 0.75:
                epoch += 1
                broker.lead_offsets(epoch=epoch, leader=source.choice([1, 1, 2]))
            elif roll < 0.9:
                await turn()
            else:
                request = messages.OffsetFetchRequest
                asked = request(group_id="g", topics=[request.OffsetFetchRequestTopic("t", [0])])
                answer = broker.ask_now(offset_fetch, asked, 7)
                if answer.error_code == E.NONE:
                    found = answer.topics[0].partitions[0].committed_offset
                    assert found >= max(acked, seen), (seed, step)
                    seen = found
            for value, task in [pair for pair in waiting if pair[1].done()]:
                waiting.remove((value, task))
                acked = max(acked, value) if task.result() is E.NONE else acked
        epoch += 1
        broker.lead_offsets(epoch=epoch)

        def all_answered() -> bool:
            # The follower follows on: commits that were just sent are appended meanwhile.
            hosted.follower_fetched(2, hosted.end_offset)
            return all(task.done() for _, task in waiting)

        await until(all_answered)
        await until(lambda: not broker.coordinator.is_loading)
        outcomes = {task.result() for _, task in waiting}
        assert E.COORDINATOR_NOT_AVAILABLE not in outcomes, "one waited until its time was over"
        assert await committed(broker) >= max(acked, seen) > 0, seed

    run(tmp_path, story, **{"offsets.commit.timeout.ms": "60000"})


# Finding -----------------------------------------------------------------------------------


def test_finding_creates_the_topic_and_names_the_leader(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        request = messages.FindCoordinatorRequest
        answer = await broker.ask(find_coordinator, request(key="g"), 0)
        assert (answer.error_code, answer.node_id, answer.port) == (E.NONE, 1, broker.port)
        topic = broker.broker.metadata.topic(OFFSETS_TOPIC)
        assert topic is not None
        assert len(topic.partitions) == 3
        assert statistics(broker.coordinator)["partitions"] == 3
        for version in (4, 5, 6):
            many = await broker.ask(find_coordinator, request(coordinator_keys=["a", "b"]), version)
            assert [(c.key, c.error_code, c.node_id) for c in many.coordinators] == [
                ("a", E.NONE, 1),
                ("b", E.NONE, 1),
            ]
        transactions = await broker.ask(find_coordinator, request(key="x", key_type=1), 3)
        assert transactions.error_code == E.CLUSTER_AUTHORIZATION_FAILED
        assert "transactions come with" in transactions.error_message
        assert (await broker.ask(find_coordinator, request(key="x", key_type=2), 3)).error_code == (
            E.INVALID_REQUEST
        )

    run(tmp_path, story, lead=False)


def test_asking_for_the_topic_creates_it_as_finding_does(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        request = messages.MetadataRequest
        asked = request(topics=[request.MetadataRequestTopic(name=OFFSETS_TOPIC)])
        asked.allow_auto_topic_creation = True
        answer = read_back(metadata, 9, await broker.ask(metadata, asked, 9))
        assert [len(topic.partitions) for topic in answer.topics] == [3]

    run(tmp_path, story, lead=False, **{"auto.create.topics.enable": "true"})


def test_a_topic_that_is_half_known_moves_no_group(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead_offsets(partitions=3)
        topic = broker.broker.metadata.topic(OFFSETS_TOPIC)
        assert topic is not None
        topic.undeleted_partition_count = 50
        assert broker.coordinator.partition_of("g") == partition_for("g", 50)

    run(tmp_path, story, lead=False)


def test_finding_before_the_topic_is_there(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        async def refused(*_: object) -> ErrorCode:
            return E.INVALID_REPLICATION_FACTOR

        broker.broker.topic_creation.ensure = refused  # type: ignore[method-assign]
        request = messages.FindCoordinatorRequest(key="g")
        answer = await broker.ask(find_coordinator, request, 3)
        assert answer.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert answer.error_message == find_coordinator.NOT_YET.format(OFFSETS_TOPIC)
        why = "A replication factor of 3 needs as many brokers; 1 are there."
        broker.broker.topic_creation.why_refused = {OFFSETS_TOPIC: why}.get  # type: ignore[method-assign]
        answer = await broker.ask(find_coordinator, request, 3)
        assert answer.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert why in answer.error_message and OFFSETS_TOPIC in answer.error_message
        assert await commit(broker, 1) is E.NOT_COORDINATOR

    run(tmp_path, story, lead=False)


def test_groups_are_where_finding_says(tmp_path: Path) -> None:
    async def story(broker: GroupBroker) -> None:
        broker.lead_offsets(partitions=3)
        await until(lambda: not broker.coordinator.is_loading)
        assert await commit(broker, 5) is E.NONE
        partition = broker.broker.partitions.get(OFFSETS_TOPIC, partition_for("g", 3))
        assert partition is not None
        # The first sight of the topic, and the offset.
        assert partition.end_offset == 2

    run(tmp_path, story, lead=False)


def test_every_group_api_can_refuse() -> None:
    """A bug in a handler is answered in the shape of the API, not by a closed connection."""
    from tidelog.network.router import refusal
    from tidelog.protocol import codec

    for key, handler in BY_KEY.items():
        request_class = messages.classes_of(codec.api_of(key).request)[""]
        for version in handler.versions:
            answer = refusal(handler, request_class(), E.UNKNOWN_SERVER_ERROR, version)
            assert answer is not None, key.name
            codec.encode_response(key, version, 1, answer)
