"""OffsetFetch for partitions that were born after a group's first sight of their topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.group_broker import GroupBroker
from tests.support.lone_broker import LoneBroker
from tests.support.resized_topics import tell_resized
from tidelog.broker.control_plane.session import ControllerUnreachable
from tidelog.broker.coordinator import first_offsets
from tidelog.broker.handlers import offset_commit, offset_fetch
from tidelog.controller.handlers import describe_topic_partitions
from tidelog.metadata.records import ResizeKind, ResizePlan, TopicHistory, TopicNode
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.network.requester import Requester
from tidelog.protocol import codec, messages
from tidelog.records.builder import NewRecord, build_batch

LOADING = int(E.COORDINATOR_LOAD_IN_PROGRESS)
BORN_AT = {0: (0, 0), 1: (0, 0), 2: (1, 5), 3: (1, 2)}
"""A topic of two partitions that has grown to four."""


class Controller:
    """A session whose controller has this topic, or none that can be reached."""

    def __init__(self, partitions: int | None, history: TopicHistory | None = None) -> None:
        self.asked: list[int] = []
        self.cluster = None
        if partitions is not None:
            node = TopicNode(
                {at: [1] for at in range(partitions)},
                initial_partition_count=2,
                undeleted_partition_count=partitions,
            )
            histories = {} if history is None else {"t": history}
            self.cluster = SimpleNamespace(topics={"t": node}, topic_histories=histories)

    async def forward(self, inner: bytes, requester: Requester, timeout_ms: int) -> bytes:
        if self.cluster is None:
            raise ControllerUnreachable("no controller")
        frame = memoryview(inner)
        header = codec.decode_request_header(frame)
        assert header.api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS
        request, _ = codec.request_decoder(75, 0, None, 1)(frame, header.body)
        self.asked.append(request.cursor.partition_index)
        answer = await describe_topic_partitions.handle(self, request, None)  # type: ignore[arg-type]
        return b"".join(codec.encode_response(75, 0, 0, answer))[4:]


@asynccontextmanager
async def coordinator(folder: Path, births: Any = None) -> AsyncIterator[GroupBroker]:
    """A coordinator whose group ``g`` has committed 7 in partition 0 before the topic grew."""
    lone = GroupBroker(folder)
    await lone.start()
    try:
        lone.lead("t", 4)
        lone.broker.metadata.topics["t"].partitions.clear()
        await lone.broker.coordinator.reloaded(lone.lead_offsets())
        tell_resized(lone, "t", {0: (0, 0), 1: (0, 0)}, resize_epoch=0)
        await commit(lone, 0, 7)
        tell_resized(lone, "t", births or BORN_AT, resize_epoch=1)
        yield lone
    finally:
        await lone.stop()


def lose_to(lone: LoneBroker, index: int, offset: int) -> None:
    """Write records to a partition, and delete those below an offset."""
    hosted = lone.broker.partitions.get("t", index)
    assert hosted is not None
    hosted.append(build_batch([NewRecord(1, b"k", b"v")] * 9), 1, from_client=False)
    assert hosted.log.advance_start(offset) is None


def resign(lone: LoneBroker, index: int) -> None:
    """Let a partition be led elsewhere."""
    hosted = lone.broker.partitions.get("t", index)
    assert hosted is not None
    hosted.is_leader = False


async def commit(lone: GroupBroker, partition: int, offset: int, group: str = "g") -> None:
    assert await commit_error(lone, partition, offset, group) == E.NONE


async def commit_error(lone: GroupBroker, partition: int, offset: int, group: str = "g") -> E:
    request = messages.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=-1
    )
    topics = [request.OffsetCommitRequestTopic("t", partitions=[part])]
    asked = request(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    answer = await lone.ask(offset_commit, asked, 8)
    return E(answer.topics[0].partitions[0].error_code)


async def fetch(
    lone: GroupBroker, partitions: list[int] | None, version: int = 9, group: str = "g"
) -> dict[int, int] | int:
    """The offsets by partition, or the error of the group."""
    request = messages.OffsetFetchRequest
    if version >= 8:
        topic = request.OffsetFetchRequestTopics
        topics = None if partitions is None else [topic("t", partition_indexes=partitions)]
        asked = request(groups=[request.OffsetFetchRequestGroup(group_id=group, topics=topics)])
        answer = (await lone.ask(offset_fetch, asked, version)).groups[0]
    else:
        one = request.OffsetFetchRequestTopic
        topics_of_one = None if partitions is None else [one("t", partitions)]
        asked = request(group_id=group, topics=topics_of_one)
        answer = await lone.ask(offset_fetch, asked, version)
    parts = [part for topic in answer.topics for part in topic.partitions]
    errors = {part.error_code for part in parts if part.error_code}
    if version >= 2 and answer.error_code:
        assert not parts
        return int(answer.error_code)
    if errors:
        assert version == 1 and len(errors) == 1
        return int(errors.pop())
    return {part.partition_index: part.committed_offset for part in parts}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.mark.parametrize("version", range(1, 10))
def test_a_group_begins_at_the_birth_of_a_partition(tmp_path: Path, version: int) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            assert await fetch(lone, [0, 1, 2, 3], version) == {0: 7, 1: -1, 2: 5, 3: 2}
            # One commit below the birth is of a former incarnation; one above counts.
            await commit(lone, 2, 4)
            await commit(lone, 3, 3)
            assert await fetch(lone, [2, 3], version) == {2: 5, 3: 3}
            if version >= 2:
                assert await fetch(lone, None, version) == {0: 7, 2: 5, 3: 3}

    run(work())


def test_a_new_group_and_a_topic_below_level_1_5_are_as_in_kafka(tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            assert await fetch(lone, [0, 2, 3], group="new") == {0: -1, 2: -1, 3: -1}
            await commit(lone, 0, 1, group="later")
            assert await fetch(lone, [0, 2], group="later") == {0: 1, 2: -1}
            lone.lead("t", 4)  # an UpdateMetadata without counts
            lone.broker.metadata.topics["t"].undeleted_partition_count = -1
            assert await fetch(lone, [0, 2, 9]) == {0: 7, 2: -1, 9: -1}

    run(work())


def test_where_retention_passed_the_birth_the_group_begins_at_the_log_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            lose_to(lone, 3, 8)
            assert await fetch(lone, [3]) == {3: 8}

    run(work())


def test_another_leader_is_asked_for_the_log_start(tmp_path: Path) -> None:
    async def work() -> None:
        other = LoneBroker(tmp_path / "other")
        await other.start()
        try:
            other.lead("t", 4)
            lose_to(other, 2, 6)
            async with coordinator(tmp_path / "own") as lone:
                tell_resized(
                    lone,
                    "t",
                    BORN_AT,
                    resize_epoch=1,
                    leaders={2: 2, 3: 3},
                    ports={2: other.port, 3: 1},
                )
                resign(lone, 2)
                resign(lone, 3)
                assert await fetch(lone, [0, 2]) == {0: 7, 2: 6}
                # The leader of partition 3 does not respond: no offset is better than a wrong one.
                assert await fetch(lone, [2, 3]) == LOADING
                # A leader of another epoch may not know the log start.
                other.lead("t", 4, epoch=1)
                assert await fetch(lone, [2]) == LOADING
        finally:
            await other.stop()

    run(work())


@pytest.mark.parametrize("version", [1, 2, 7, 8, 9])
def test_a_partition_that_is_not_known_here(tmp_path: Path, version: int) -> None:
    async def work() -> None:
        async with coordinator(tmp_path, {0: (0, 0), 1: (0, 0)}) as lone:
            lone.session = Controller(2)
            assert await fetch(lone, [0, 2, 5, -3], version) == {0: 7, 2: -1, 5: -1, -3: -1}
            assert lone.session.asked == [2]
            lone.session = Controller(4)
            assert await fetch(lone, [0, 2, 5], version) == LOADING
            lone.session = Controller(None)
            assert await fetch(lone, [0, 2], version) == LOADING
            assert await fetch(lone, [0, 1], version) == {0: 7, 1: -1}
            tell_resized(lone, "t", BORN_AT, resize_epoch=1)
            assert await fetch(lone, [2, 3], version) == {2: 5, 3: 2}

    run(work())


def test_a_removed_partition_takes_the_last_commit_and_is_not_listed(tmp_path: Path) -> None:
    """Partitions 2 and 3 retire and are removed while a stock member has them in hand."""

    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            await commit(lone, 2, 8)
            tell_resized(lone, "t", {0: (0, 0), 1: (0, 0)}, resize_epoch=2)
            for index in (2, 3):
                del lone.broker.metadata.topics["t"].partitions[index]
            await commit(lone, 3, 6)
            assert await fetch(lone, None) == {0: 7}
            # Of a partition that no partition epoch of the cluster allows for there is no offset.
            assert await commit_error(lone, 9, 6) == E.UNKNOWN_TOPIC_OR_PARTITION
            await commit(lone, 3, 6, group="of no others")
            assert await fetch(lone, None, group="of no others") == {3: 6}

    run(work())


def test_a_coordinator_that_does_not_know_the_growth_yet_lists_what_was_committed_there(
    tmp_path: Path,
) -> None:
    """In the first resize epoch no partition was removed: one that is not known will come."""

    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            await commit(lone, 2, 8)
            known = lone.broker.metadata.topics["t"]
            known.resize_epoch = known.resize_epoch - 1  # as another broker, with older metadata
            for index in (2, 3):
                del known.partitions[index]
            assert known.resize_epoch == 0 and await fetch(lone, None) == {0: 7, 2: 8}

    run(work())


def test_children_that_are_not_published_do_not_exist(tmp_path: Path) -> None:
    plan = ResizePlan(ResizeKind.GROW, 2, 4, 1, "fences")
    assert not plan.published

    async def work() -> None:
        async with coordinator(tmp_path, {0: (0, 0), 1: (0, 0)}) as lone:
            lone.session = Controller(4, TopicHistory("id", 2, resize_epoch=1, resize=plan))
            assert await fetch(lone, [1, 2]) == {1: -1, 2: -1}

    run(work())


def test_each_group_of_a_batch_has_its_own_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            tell_resized(lone, "t", BORN_AT, resize_epoch=1, leaders={3: 9})
            resign(lone, 3)
            request = messages.OffsetFetchRequest
            three = request.OffsetFetchRequestTopics("t", partition_indexes=[0, 2, 3])
            asked = request(
                groups=[
                    request.OffsetFetchRequestGroup(
                        group_id=name,
                        topics=[three],
                    )
                    for name in ("g", "new")
                ]
            )
            mine, new = (await lone.ask(offset_fetch, asked, 9)).groups
            assert (mine.error_code, mine.topics) == (LOADING, [])
            assert [part.committed_offset for part in new.topics[0].partitions] == [-1, -1, -1]

    run(work())


def test_questions_end_after_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_offsets, "WAIT_MS", 50)

    class Silent:
        async def forward(self, *_: Any) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            lone.session = Silent()
            # More at a time than have a place.
            many: list[Callable[..., Any]] = [fetch] * (2 * first_offsets.ASKING_AT_ONCE)
            answers = await asyncio.gather(*(each(lone, [7]) for each in many))
            assert answers == [LOADING] * len(many)

    run(work())


def test_a_page_of_the_controller() -> None:
    request = messages.DescribeTopicPartitionsRequest

    async def page(limit: int, cursor: Any = None, names: tuple[str, ...] = ("t", "no")) -> Any:
        topics = [request.TopicRequest(name) for name in names]
        asked = request(topics=topics, response_partition_limit=limit, cursor=cursor)
        controller: Any = Controller(4)
        answer = await describe_topic_partitions.handle(controller, asked, None)  # type: ignore[arg-type]
        shown = [
            (topic.name, topic.error_code, [part.partition_index for part in topic.partitions])
            for topic in answer.topics
        ]
        rest = answer.next_cursor
        return shown, None if rest is None else (rest.topic_name, rest.partition_index)

    async def work() -> None:
        unknown = ("no", E.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert await page(9) == ([unknown, ("t", 0, [0, 1, 2, 3])], None)
        assert await page(3) == ([unknown, ("t", 0, [0, 1, 2])], ("t", 3))
        assert await page(1, request.Cursor("t", 3)) == ([("t", 0, [3])], None)
        assert await page(1, request.Cursor("t", 4)) == ([("t", 0, [])], None)
        assert await page(-5, request.Cursor("t", -7), ("t",)) == ([("t", 0, [0])], ("t", 1))
        assert await page(1, None, ()) == ([], None)

    run(work())


def test_a_retired_partition_that_was_removed_and_made_again_meanwhile(tmp_path: Path) -> None:
    """What the group committed lies before the log of the next incarnation, and a reset would skip
    its records: the group asks again until this broker's metadata show it."""

    async def work() -> None:
        other = LoneBroker(tmp_path / "other")
        await other.start()
        try:
            other.lead("t", 4)
            async with coordinator(tmp_path / "own") as lone:
                for index in (2, 3):
                    await commit(lone, index, 6)

                def shown(ports: dict[int, int]) -> None:
                    tell_resized(
                        lone,
                        "t",
                        BORN_AT,
                        resize_epoch=2,
                        retired={2: 2, 3: 2},
                        leaders={2: 2},
                        ports=ports,
                    )

                shown({2: other.port})
                resign(lone, 2)
                assert await fetch(lone, [0, 2, 3]) == {0: 7, 2: 6, 3: 6}
                # The next incarnation has a higher leader epoch, here or there.
                other.lead("t", 4, epoch=1)
                assert await fetch(lone, [0, 2]) == LOADING
                assert await fetch(lone, [0, 3]) == {0: 7, 3: 6}
                assert await fetch(lone, None) == {0: 7, 2: 6, 3: 6}
                # A group without a commit there has none that would skip records.
                await commit(lone, 0, 1, "h")
                assert await fetch(lone, [0, 2], group="h") == {0: 1, 2: -1}
                hosted = lone.broker.partitions.get("t", 3)
                assert hosted is not None
                hosted.leader_epoch = 1
                assert await fetch(lone, [3]) == LOADING
                # One that does not respond holds up no group.
                shown({2: 1})
                assert await fetch(lone, [0, 2]) == {0: 7, 2: 6}
        finally:
            await other.stop()

    run(work())


def test_a_topic_and_a_group_that_are_named_twice_are_in_the_response_once(tmp_path: Path) -> None:
    """All partitions of a topic count, and the last entry of a group."""

    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            request = messages.OffsetFetchRequest
            topic, group = request.OffsetFetchRequestTopics, request.OffsetFetchRequestGroup
            both = [topic("t", partition_indexes=[0]), topic("t", partition_indexes=[2])]
            asked = request(
                groups=[
                    group("g", topics=[topic("t", partition_indexes=[3])]),
                    group("g", topics=both),
                ]
            )
            (found,) = (await lone.ask(offset_fetch, asked, 9)).groups
            (named,) = found.topics
            assert {part.partition_index: part.committed_offset for part in named.partitions} == {
                0: 7,
                2: 5,
            }

    run(work())


@pytest.mark.parametrize("version", [7, 9])
def test_a_group_that_moved_while_its_births_were_asked_for_has_no_offsets_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async def work() -> None:
        async with coordinator(tmp_path) as lone:
            ask = first_offsets.FirstOffsets.ask
            groups = lone.broker.coordinator

            async def then_moved(*asked: Any) -> Any:
                found = await ask(*asked)
                monkeypatch.setattr(groups, "table_of", lambda _: E.NOT_COORDINATOR)
                return found

            monkeypatch.setattr(first_offsets.FirstOffsets, "ask", then_moved)
            assert await fetch(lone, [0, 2], version) == int(E.NOT_COORDINATOR)

    run(work())
