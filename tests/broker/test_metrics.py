"""Prometheus metrics and health of a broker, read by a thread that is not the loop's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker
from tidelog.broker.control_plane.session import ControllerSession, Reported
from tidelog.broker.metrics import BrokerCollector, health
from tidelog.model.registration import FormerRegistration

CHECKS = 1_000


@pytest.fixture
def threads_alternate() -> Iterator[None]:
    """Let threads have their turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_loop_may_change_what_is_looked_at(tmp_path: Path, threads_alternate: None) -> None:
    """A topic that came while /health was made answered it with 500."""

    def look(lone: LoneBroker) -> None:
        for _ in range(CHECKS):
            assert health(lone.broker)["replicas"] >= 50
        list(BrokerCollector(lone.broker, lone.server).collect())

    async def work() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        broker = lone.broker
        report = Reported(FormerRegistration.CLEAN, -1, -1, [])
        lone.session = ControllerSession(
            [("127.0.0.1", 1)], 500, 6_000, 1_000, lambda: report, lambda _: None
        )
        for number in range(50):
            lone.lead(f"t{number}")
        by_topic = broker.partitions.by_topic
        looking = asyncio.get_running_loop().run_in_executor(None, look, lone)
        while not looking.done():
            for number in range(50):
                by_topic[f"u{number}"] = dict(by_topic["t0"])
            for number in range(50):
                del by_topic[f"u{number}"]
            await asyncio.sleep(0)
        await looking
        await lone.stop()

    asyncio.run(work())
