"""Replicas that one LeaderAndIsr creates are fetched together, when all of them are there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.controller_commands import fetched, follow, run, running
from tests.support.every_yield import every_yield
from tests.support.lone_broker import LoneBroker
from tidelog.model.errors import ErrorCode

MANY = 80


def hosted(lone: LoneBroker) -> int:
    return len(lone.broker.partitions.by_topic.get("t", {}))


def test_new_replicas_are_fetched_once_all_are_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            asked = asyncio.create_task(channel.ask(follow(range(MANY)), 5))
            seen: list[tuple[int, int]] = []
            while not asked.done():
                seen.append((hosted(lone), fetched(lone)))
                await asyncio.sleep(0)
            assert len({made for made, _ in seen if 0 < made < MANY}) > 1
            assert all(count == 0 for made, count in seen if made < MANY)
            assert fetched(lone) == MANY

    with every_yield():
        run(work())


def test_the_new_replicas_of_a_request_that_became_stale_are_fetched(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            asked = asyncio.create_task(channel.ask(follow(range(MANY)), 5))
            while not (hosted(lone) or asked.done()):  # noqa: ASYNC110 - the very next turn
                await asyncio.sleep(0)
            # Between two turns of the request, so that no machine is too fast or too slow for it.
            lone.session.broker_epoch += 1
            assert (await asked).error_code == ErrorCode.STALE_BROKER_EPOCH
            made = hosted(lone)
            assert 0 < made < MANY
            assert fetched(lone) == made

    with every_yield():
        run(work())
