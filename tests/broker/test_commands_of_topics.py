"""Orders for many partitions in one request: others have their turn, and an old channel ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlled_broker import open_channel
from tests.support.controller_commands import (
    FULL,
    OK,
    A,
    B,
    command,
    leader_and_isr,
    quarantined,
    run,
    running,
    stop,
)
from tests.support.every_yield import every_yield
from tests.support.lone_broker import DEADLINE_S, LoneBroker, Peer
from tidelog.model.errors import ErrorCode

MANY = 500


def all_of(topic_id: Any, count: int = MANY, **kind: Any) -> Any:
    return leader_and_isr({"t": (topic_id, dict.fromkeys(range(count), (0, 0)))}, **kind)


def stop_many(topic_id: Any, count: int = MANY) -> Any:
    request = stop(topic_id, 0)
    state = request.topic_states[0].partition_states[0]
    request.topic_states[0].partition_states = [
        type(state)(index, state.leader_epoch, state.delete_partition) for index in range(count)
    ]
    return request


def hosted(lone: LoneBroker) -> int:
    return len(lone.broker.partitions.by_topic.get("t", {}))


class Turns:
    """Counts the partitions made or removed in one turn of the loop."""

    def __init__(self, lone: LoneBroker) -> None:
        self.most = 0
        self._lone = lone
        self._before = hosted(lone)
        self._task = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while True:
            now = hosted(self._lone)
            self.most = max(self.most, abs(now - self._before))
            self._before = now
            await asyncio.sleep(0)

    def end(self) -> int:
        self._task.cancel()
        return self.most


async def until_hosted_changes(lone: LoneBroker, before: int) -> None:
    """Turn by turn: all of a request takes few milliseconds."""
    async with asyncio.timeout(DEADLINE_S):
        while hosted(lone) == before:  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_a_request_of_many_partitions_lets_others_have_their_turn(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            for request, version, left in (
                (all_of(A), 5, MANY),
                (leader_and_isr({}, kind=FULL), 5, 0),
                (all_of(B), 5, MANY),
                (stop_many(B), 4, 0),
            ):
                turns = Turns(lone)
                assert set(await command(channel, request, version)) <= {OK}
                assert hosted(lone) == left
                assert turns.end() <= 1
            assert len(quarantined(tmp_path, "stray")) == MANY
            assert len(quarantined(tmp_path, "delete")) == MANY

    with every_yield():
        run(work())


@pytest.mark.parametrize("kind", ["create", "full", "stop"])
def test_a_newer_channel_ends_a_request_that_is_half_applied(tmp_path: Path, kind: str) -> None:
    """What is left of it is not applied: the next controller's commands come on the new channel."""

    async def work() -> None:
        async with running(tmp_path) as (lone, first):
            begun = 0
            if kind != "create":
                assert set(await command(first, all_of(A))) == {OK}
                begun = MANY
            requests = {
                "create": (all_of(A), 5),
                "full": (leader_and_isr({}, kind=FULL), 5),
                "stop": (stop_many(A), 4),
            }
            second = await Peer.connect(lone.port)
            first.send(*requests[kind])
            await until_hosted_changes(lone, begun)
            assert await open_channel(second, 2, 2) is ErrorCode.NONE
            left = hosted(lone)
            assert 0 < left < MANY
            assert await command(second, all_of(A, 1, epoch=2, kind=1)) == [OK]
            assert hosted(lone) in (left, left + 1), "nothing more of the old request"

    with every_yield():
        run(work())


def test_another_life_ends_a_request_that_is_half_applied(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            channel.send(all_of(A), 5)
            await until_hosted_changes(lone, 0)
            lone.broker.session.broker_epoch += 1
            answer = await channel.receive()
            assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
            assert 0 < hosted(lone) < MANY

    with every_yield():
        run(work())
