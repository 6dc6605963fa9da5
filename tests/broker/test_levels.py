"""What a broker sends at each level: topic ids from 1.4, the clearing of the flag from 1.3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.isr_grants import altered
from tests.support.lone_broker import LoneBroker, until
from tidelog.model.levels import LEVEL_NAMES, level_of
from tidelog.protocol import messages

NO_ID = UUID(int=0)


class Session:
    """A controller that notes every AlterIsr and grants it."""

    broker_epoch = 7

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def request(self, request: Any) -> Any:
        if not isinstance(request, messages.AlterIsrRequest):
            return messages.ReportTruncationResponse()
        self.asked.append(request)
        return altered(request)


@asynccontextmanager
async def leader_at(level: str, folder: Path, session: Session) -> AsyncIterator[LoneBroker]:
    """A broker whose ISR changes and data-loss handlings run; followers lag after 200 ms."""
    lone = LoneBroker(
        folder, {"inter.broker.protocol.version": level, "replica.lag.time.max.ms": 200}
    )
    await lone.start()
    lone.session = session
    parts = (lone.broker.loss_reports, lone.broker.data_loss, lone.broker.isr_changes)
    for part in parts:
        part.start()
    try:
        yield lone
    finally:
        for part in parts:
            await part.stop()
        await lone.stop()


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_alter_isr_carries_what_the_level_has(
    level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def work() -> None:
        session = Session()
        async with leader_at(level, tmp_path, session) as lone:
            hosted = lone.lead("t", epoch=3, isr=(1, 2), replicas=(1, 2))
            unclean = replace(
                hosted.state, leader_epoch=4, isr_version=1, is_unclean_leader=True, has_debt=True
            )
            lone.broker.partitions.apply(hosted, unclean)
            # The silent follower leaves the ISR at every level; then nothing but the flag is left.
            await until(lambda: hosted.isr == (1,))
            if level_of(level).unclean_flag:
                await until(lambda: not hosted.state.is_unclean_leader)
            else:
                await until(lambda: "the data-loss handling is finished" in caplog.text)
                assert hosted.state.is_unclean_leader
            parts = [part for x in session.asked for t in x.topics for part in t.partitions]
            assert len(lone.broker.data_loss) == (0 if level_of(level).unclean_flag else 1)
            cleared = any(part.unclean_handled for part in parts)
            assert cleared == level_of(level).unclean_flag
            ids = {topic.topic_id for x in session.asked for topic in x.topics}
            assert ids == {hosted.topic_id if level_of(level).topic_ids else NO_ID}
            assert hosted.topic_id != NO_ID

    asyncio.run(work())
