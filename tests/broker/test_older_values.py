"""Whether a broker keeps the tombstones of a partition: what it asks of which leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.lone_broker import LoneBroker, until
from tests.support.resized_topics import tell_resized
from tests.support.storage_logs import records_of
from tidelog.broker.partitions import older_values
from tidelog.broker.partitions.older_values import AGAIN_MS, OlderValues
from tidelog.broker.partitions.state import LeaderAndIsrState
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch

TOPIC_ID = UUID(int=1)
BIRTHS = {0: (0, 0), 1: (0, 0), 2: (1, 0), 3: (1, 0), 4: (2, 0), 5: (2, 0)}
"""A topic of two partitions that grew to four, and then to six: 5 descends from 1, 4 from 0."""


class Leaders:
    """What the leaders of the ancestors answer; counts the questions."""

    def __init__(self, starts: dict[int, int], fences: dict[int, list[tuple[int, int]]]) -> None:
        self.starts, self.fences = starts, fences
        self.asked: list[tuple[ApiKey, int, int]] = []
        self.questions = 0

    async def ask(
        self, broker: int, purpose: str, api: ApiKey, version: int, requests: Any
    ) -> list[Any]:
        assert purpose == older_values.PURPOSE
        answers: list[Any] = []
        for request in requests:
            (topic,) = request.topics
            if api is ApiKey.LIST_OFFSETS:
                numbers = [part.partition_index for part in topic.partitions]
                offset = messages.ListOffsetsResponse.ListOffsetsPartitionResponse
                offsets = [
                    offset(at, 0 if at in self.starts else 6, -1, self.starts.get(at, -1))
                    for at in numbers
                ]
                made = messages.ListOffsetsResponse.ListOffsetsTopicResponse("t", offsets)
                answers.append(messages.ListOffsetsResponse(topics=[made]))
            else:
                numbers = [part.partition for part in topic.partitions]
                answers.append(self._fences_of(numbers))
            self.asked += [(api, broker, at) for at in numbers]
            self.questions += 1
        return answers

    def _fences_of(self, numbers: list[int]) -> Any:
        response = messages.DescribeFencesResponse
        partitions = []
        for at in numbers:
            fences = [
                response.Fence(epoch, 8, offset, int(ChangeKind.FENCE), offset)
                for epoch, offset in self.fences.get(at, [])
            ]
            partitions.append(response.Partition(at, 0, 0, fences))
        return response(topics=[response.Topic("t", partitions)])


class Clock:
    now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms


def hosted(partition: int, **changes: Any) -> Any:
    fields = {
        "topic_id": TOPIC_ID,
        "leader_epoch": 0,
        "partition_epoch": partition,
        "undeleted_count": 6,
        "resize_epoch": 2,
        "birth_epoch": BIRTHS[partition][0],
    }
    state = LeaderAndIsrState(**{**fields, **changes})
    return SimpleNamespace(topic="t", partition=partition, topic_id=TOPIC_ID, state=state)


def with_cache(
    folder: Path, story: Callable[[LoneBroker], Coroutine[Any, Any, None]], **said: Any
) -> None:
    async def work() -> None:
        lone = LoneBroker(folder)
        await lone.start()
        try:
            tell_resized(lone, "t", BIRTHS, resize_epoch=2, topic_id=TOPIC_ID, **said)
            await story(lone)
        finally:
            await lone.stop()

    asyncio.run(work())


def asking(lone: LoneBroker, leaders: Leaders, clock: Clock | None = None) -> OlderValues:
    others: Any = leaders
    made: Any = clock or Clock()
    return OlderValues(lone.broker.metadata, others, made)


@pytest.mark.parametrize(
    ("partition", "changes", "said", "kept"),
    [
        # Created with the topic: no ancestors.
        (1, {}, {}, False),
        # Below level 1.5 nothing is kept.
        (4, {"undeleted_count": -1}, {}, False),
        # It survives partition 5, which is retired and still listed.
        (1, {}, {"retired": {5: 3}}, True),
        (0, {}, {"retired": {5: 3}}, False),
        # The metadata are older than the replica: they may not show a retired one.
        (1, {"resize_epoch": 3}, {}, True),
        # Born by a growth: the ancestors decide, and they have records.
        (4, {}, {}, True),
    ],
)
def test_the_table(tmp_path: Path, partition: int, changes: Any, said: Any, kept: bool) -> None:
    async def story(lone: LoneBroker) -> None:
        leaders = Leaders(dict.fromkeys(BIRTHS, 0), {at: [(1, 4), (2, 9)] for at in range(4)})
        assert await asking(lone, leaders).may_exist(hosted(partition, **changes)) is kept

    with_cache(tmp_path, story, **said)


def test_another_topic_of_the_name_and_an_unknown_one(tmp_path: Path) -> None:
    async def story(lone: LoneBroker) -> None:
        older = asking(lone, Leaders({}, {}))
        other = hosted(1)
        other.topic_id = UUID(int=2)
        assert await older.may_exist(other)
        other.topic = "unknown"
        assert await older.may_exist(other)

    with_cache(tmp_path, story)


def test_an_ancestor_that_has_emptied_is_not_asked_again(tmp_path: Path) -> None:
    async def story(lone: LoneBroker) -> None:
        leaders, clock = Leaders({1: 9}, {1: [(1, 4), (2, 9)]}), Clock()
        older = asking(lone, leaders, clock)
        assert not await older.may_exist(hosted(5))
        assert leaders.asked == [
            (ApiKey.LIST_OFFSETS, 1, 1),
            (ApiKey.DESCRIBE_FENCES, 1, 1),
        ]
        clock.now_ms += 10 * AGAIN_MS
        assert not await older.may_exist(hosted(5))
        assert len(leaders.asked) == 2
        # The next incarnation of the partition has another birth.
        leaders.starts[1] = 8
        assert await older.may_exist(hosted(5, partition_epoch=77))

    with_cache(tmp_path, story)


@pytest.mark.parametrize(
    ("starts", "fences"),
    [
        ({1: 8}, {1: [(2, 9)]}),  # one record below the fence, perhaps
        ({1: 8}, {1: [(1, 4)]}),  # the fence of another growth
        ({1: 8}, {}),
        ({}, {1: [(2, 9)]}),
    ],
)
def test_doubt_keeps_tombstones_and_is_asked_again_later(
    tmp_path: Path, starts: dict[int, int], fences: dict[int, list[tuple[int, int]]]
) -> None:
    async def story(lone: LoneBroker) -> None:
        leaders, clock = Leaders(starts, fences), Clock()
        older = asking(lone, leaders, clock)
        assert await older.may_exist(hosted(5))
        asked = len(leaders.asked)
        clock.now_ms += AGAIN_MS - 1
        assert await older.may_exist(hosted(5))
        assert len(leaders.asked) == asked
        clock.now_ms += 1
        leaders.starts, leaders.fences = {1: 9}, {1: [(2, 9)]}
        assert not await older.may_exist(hosted(5))

    with_cache(tmp_path, story)


@pytest.mark.parametrize(("leaders_of", "questions"), [({}, 2), ({3: 2}, 4)])
def test_the_ancestors_of_one_leader_are_one_question(
    tmp_path: Path, leaders_of: dict[int, int], questions: int
) -> None:
    """7 descends from 3 and 1, when a topic of two partitions grows to four, and then to eight."""

    async def story(lone: LoneBroker) -> None:
        births = {at: (0 if at < 2 else 1 if at < 4 else 2, 0) for at in range(8)}
        tell_resized(lone, "t", births, resize_epoch=2, topic_id=TOPIC_ID, leaders=leaders_of)
        child = hosted(5, undeleted_count=8, partition_epoch=7)
        child.partition = 7
        clock = Clock()
        leaders = Leaders({1: 9, 3: 4}, {1: [(1, 4), (2, 9)], 3: [(2, 5)]})
        older = asking(lone, leaders, clock)
        assert await older.may_exist(child)
        clock.now_ms += AGAIN_MS
        leaders.starts[3], leaders.questions, leaders.asked = 5, 0, []
        assert not await older.may_exist(child)
        assert leaders.questions == questions
        assert sorted(leaders.asked) == sorted(
            (api, leaders_of.get(at, 1), at)
            for api in (ApiKey.LIST_OFFSETS, ApiKey.DESCRIBE_FENCES)
            for at in (1, 3)
        )

    with_cache(tmp_path, story)


def test_an_ancestor_without_a_leader_keeps_tombstones(tmp_path: Path) -> None:
    async def story(lone: LoneBroker) -> None:
        leaders = Leaders({1: 9}, {1: [(2, 9)]})
        assert await asking(lone, leaders).may_exist(hosted(5))
        assert not leaders.asked

    with_cache(tmp_path, story, leaders={1: -1})


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older_values, "MOST_KNOWN", 3)

    async def story(lone: LoneBroker) -> None:
        older = asking(lone, Leaders({1: 9}, {1: [(2, 9)]}))
        for epoch in range(10):
            assert not await older.may_exist(hosted(5, partition_epoch=epoch))
            assert await older.may_exist(hosted(4, partition_epoch=epoch))
        assert len(older._free) <= 3 and len(older._again_ms) <= 3

    with_cache(tmp_path, story)


def test_over_a_connection(tmp_path: Path) -> None:
    """The leader of the ancestor is asked by its own requests: no fence, records, then neither."""

    async def work() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            topic_id = lone.lead("t", 2).topic_id
            tell_resized(lone, "t", BIRTHS, resize_epoch=2, topic_id=topic_id)
            ancestor = lone.broker.partitions.get("t", 1)
            assert ancestor is not None
            clock: Any = Clock()
            child = hosted(5, topic_id=topic_id)
            child.topic_id = topic_id

            async def may_exist() -> bool:
                clock.now_ms += AGAIN_MS
                return await older.may_exist(child)

            older = OlderValues(lone.broker.metadata, lone.broker.other_brokers, clock)
            assert await may_exist()
            now = lone.broker.clock.wall_ms()
            ancestor.append(build_batch([NewRecord(now, b"k", b"v")]), now)
            record = FenceRecord(ChangeKind.FENCE, 2, 6)
            ancestor.append(
                change_batch(record, leader_epoch=0, timestamp_ms=now), now, from_client=False
            )
            assert await may_exist()
            assert ancestor.log.advance_start(1) is None
            assert not await may_exist()
        finally:
            await lone.stop()

    asyncio.run(work())


def test_the_cleaner_of_a_broker_asks(tmp_path: Path) -> None:
    """Tombstones of a survivor stay on disk while a retired partition is listed, and then go."""

    async def story(lone: LoneBroker) -> None:
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "0",
        }
        led = lone.lead("t", 2, configs)
        births = dict.fromkeys(range(3), (0, 0))
        topic_id = led.topic_id
        tell_resized(
            lone, "t", births, resize_epoch=1, initial=1, retired={1: 1, 2: 1}, topic_id=topic_id
        )
        state = LeaderAndIsrState(
            **{
                each: getattr(led.state, each)
                for each in ("topic_id", "leader", "isr", "replicas", "partition_epoch")
            },
            leader_epoch=1,
            undeleted_count=1,
            resize_epoch=1,
        )
        lone.broker.partitions.apply(led, state)

        async def cleaned() -> list[bytes | None]:
            now = lone.broker.clock.wall_ms()
            log = led.log
            log.append_as_leader(build_batch([NewRecord(now, b"other", b"v")]), 1, now)
            log.high_watermark = log.end_offset
            log.roll(now)
            log.sync()
            await lone.broker.maintenance.cleaning.clean()
            await until(lambda: log.first_dirty_offset == log.segments[-1].base_offset)
            return [record.key for record in records_of(log) if record.value is None]

        now = lone.broker.clock.wall_ms()
        led.log.append_as_leader(build_batch([NewRecord(now, b"gone", None)]), 1, now)
        assert await cleaned() == [b"gone"]
        assert await cleaned() == [b"gone"]
        lone.broker.metadata.topics["t"].partitions = {
            0: lone.broker.metadata.topics["t"].partitions[0]
        }
        assert await cleaned() == [b"gone"]  # its time begins
        assert await cleaned() == []

    with_cache(tmp_path, story)
