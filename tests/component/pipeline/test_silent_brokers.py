"""Look-ups that ask brokers by name, where one of them is stopped as it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

import pytest

from tests.support.freezable_brokers import FreezableBrokers
from tests.support.stories import story
from tidelog.client.cluster import ClusterSettings
from tidelog.client.connecting import first_answer
from tidelog.pipeline.brokers import Brokers
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.options import Mode, SourceOptions, parse
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.topic_ids import text_of

SILENT_S = 0.02
REQUEST_TIMEOUT_S = 20
SOON_S = 5.0
"""Far below the request's timeout, and far above what a machine of tests needs."""

FORMER, NOW = UUID(int=1), UUID(int=2)

Ask = Callable[[Brokers, SourceOptions], None]


def was_replaced(access: Brokers, options: SourceOptions) -> None:
    assert access.was_replaced("t", text_of(FORMER), options) == text_of(NOW)
    assert access.was_replaced("t", text_of(NOW), options) is None


def who_leads(access: Brokers, options: SourceOptions) -> None:
    access.was_replaced("t", text_of(NOW), options)
    assert not access.ask_who_leads(Pid("t", 0, text_of(NOW)), options)


def missing_topic(access: Brokers, options: SourceOptions) -> None:
    with pytest.raises(PipelineError, match="topic gone does not exist"):
        access.settled(options, Positions())


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,)], ids=str)
@pytest.mark.parametrize("ask", [was_replaced, who_leads, missing_topic])
def test_one_that_is_silent_is_not_waited_for(
    ask: Ask, frozen: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_answer, "SILENT_S", SILENT_S)

    async def of() -> None:
        async with FreezableBrokers() as brokers:
            brokers.topics = {"t": NOW}
            options = options_of(brokers)
            settings = ClusterSettings(request_timeout_ms=REQUEST_TIMEOUT_S * 1000)
            access = await asyncio.to_thread(Brokers, brokers.bootstrap, settings)
            brokers.freeze(*frozen)
            began_s = time.monotonic()
            try:
                await asyncio.to_thread(ask, access, options)
                took_s = time.monotonic() - began_s
            finally:
                brokers.freeze()
                await asyncio.to_thread(access._client.close)
            assert took_s < SOON_S

    story(of)


def options_of(brokers: FreezableBrokers) -> SourceOptions:
    given = {
        "kafka.bootstrap.servers": ",".join(brokers.bootstrap),
        "subscribe": "gone",
        "fetchOffset.retryIntervalMs": "100",
        # A look-up may take as long as this many retries together.
        "fetchOffset.numRetries": "199",
    }
    return parse(given, Mode.STREAM)


def test_all_of_a_cluster_that_are_silent_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One report is not enough where others may still respond."""
    monkeypatch.setattr(first_answer, "SILENT_S", SILENT_S)

    async def of() -> None:
        async with FreezableBrokers() as brokers:
            brokers.topics = {"t": NOW}
            options = options_of(brokers)
            access = await asyncio.to_thread(Brokers, brokers.bootstrap, ClusterSettings())
            brokers.freeze(1, 2)
            asked = asyncio.ensure_future(
                asyncio.to_thread(access.was_replaced, "t", text_of(FORMER), options)
            )
            done, _ = await asyncio.wait([asked], timeout=10 * SILENT_S)
            assert not done
            brokers.freeze()
            assert await asked == text_of(NOW)
            await asyncio.to_thread(access._client.close)

    story(of)
