"""How long groups of very many positions hold the coordinator's loop: in turns of a few ms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.group_broker import GroupBroker
from tests.support.lone_broker import until
from tests.support.turn_costs import TurnCosts
from tidelog.broker.coordinator.group_partition import GroupPartition
from tidelog.broker.coordinator.led_partition import LedPartition
from tidelog.broker.coordinator.parts import Answers, InParts
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups import replay
from tidelog.groups.events import CommitOffsets, Event
from tidelog.groups.group import Group
from tidelog.groups.offset_columns import columns_of
from tidelog.groups.records import CommittedOffset, FirstSight, FirstSightRecord, OffsetRecord
from tidelog.groups.table import GroupTable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

LONGEST_S = 0.02
"""A turn takes 2 to 4 ms where nothing else runs; 50 to 300 ms when it was one decision."""

FORMER, PRESENT = UUID(int=1), UUID(int=2)


Led = LedPartition[GroupTable]


def run(tmp_path: Path, story: Callable[[GroupBroker, Led], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = GroupBroker(tmp_path)
        await broker.start()
        try:
            broker.lead_offsets()
            await until(lambda: not broker.coordinator.is_loading)
            (led,) = broker.coordinator._led.values()
            await story(broker, led)
        finally:
            await broker.stop()

    asyncio.run(main())


def group_with(led: Led, topics: int, positions: int, committed_ms: int) -> Group:
    """A group as a load of the log leaves it, with so many positions of each topic."""
    group = led.table._new("g", led.now())
    for name in (f"t{number}" for number in range(topics)):
        replay.apply(group, FirstSightRecord("g", name, FirstSight(FORMER, 0, -1)))
        for index in range(positions):
            value = CommittedOffset(5, -1, "", committed_ms, topic_id=FORMER)
            replay.apply(group, OffsetRecord("g", name, index, value))
    return group


def commit_of(pending_response: Any, offsets: tuple[Any, ...]) -> Event:
    return CommitOffsets(pending_response, "", None, -1, columns_of(offsets))


def in_present_life(positions: int) -> list[tuple[TopicPartition, CommittedOffset]]:
    value = CommittedOffset(9, topic_id=PRESENT)
    return [(TopicPartition("t0", index), value) for index in range(positions)]


def part_of(led: Led) -> GroupPartition:
    assert isinstance(led.own_part, GroupPartition)
    return led.own_part


async def done(led: Led) -> None:
    await until(lambda: not part_of(led)._long and not led._in_flight)


def test_a_look_at_200_000_positions_takes_many_short_turns(tmp_path: Path) -> None:
    async def story(broker: GroupBroker, led: Led) -> None:
        now = led.now() + led.table.ahead_ms
        group = group_with(led, 20, 10_000, now)
        # The last ones have expired: they are found, and removed with their first sight.
        for index in range(10_000):
            if index >= 300:
                group.offsets["t19"].pop(index)
                group.offset_count -= 1
            else:
                group.offsets["t19"][index] = CommittedOffset(5, -1, "", 0, topic_id=FORMER)
        async with TurnCosts() as turns:
            await broker.broker.groups.expire_offsets()
            await done(led)
        assert (group.offset_count, "t19" in group.first_sights) == (190_000, False)
        assert turns.longest_s < LONGEST_S

    run(tmp_path, story)


def test_a_commit_in_a_topics_next_incarnation_removes_50_000_positions_in_short_turns(
    tmp_path: Path,
) -> None:
    async def story(_: GroupBroker, led: Led) -> None:
        group = group_with(led, 1, 50_000, led.now() + led.table.ahead_ms)
        pending_response, behind = PendingResponse(), PendingResponse()
        async with TurnCosts() as turns:
            led.decide("g", commit_of(pending_response, tuple(in_present_life(1))))
            # It waits for the whole of the first one.
            led.decide("g", commit_of(behind, tuple(in_present_life(2)[1:])))
            await done(led)
        for each in (pending_response, behind):
            result = await each.result()
            assert [code for _, code in result.partitions] == [ErrorCode.NONE]
        assert set(group.offsets["t0"]) == {0, 1}
        assert group.first_sights["t0"].topic_id == PRESENT
        assert turns.longest_s < LONGEST_S

    run(tmp_path, story)


def test_a_commit_in_parts_in_a_next_incarnation_waits_for_what_its_first_part_removes(
    tmp_path: Path,
) -> None:
    async def story(_: GroupBroker, led: Led) -> None:
        group = group_with(led, 1, 3_000, led.now() + led.table.ahead_ms)
        pending_response = PendingResponse()
        led.decide("g", InParts(pending_response, iter(in_present_life(1_200)), commit_of))
        answers = await pending_response.result()
        assert isinstance(answers, Answers) and answers.error is ErrorCode.NONE
        assert len(answers.errors) == 1_200 and set(answers.errors.values()) == {ErrorCode.NONE}
        await done(led)
        assert sorted(group.offsets["t0"]) == list(range(1_200))
        assert {value.offset for value in group.offsets["t0"].values()} == {9}

    run(tmp_path, story)
