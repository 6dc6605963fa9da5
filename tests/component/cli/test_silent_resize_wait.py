"""The bound of ``topics --alter --wait`` while no controller answers is the one that it says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S
from tidelog.cli.resizing import waiting
from tidelog.cli.resizing.waiting import resize_and_wait
from tidelog.client.errors import ClusterUnreachable, Refused, RequestTimedOut
from tidelog.client.metadata import Topic
from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import NO_UUID

TOPIC = Topic("t", NO_UUID, ErrorCode.NONE, False, {})
CLUSTER: Any = type("Cluster", (), {"forget": lambda _: None})()
"""Only its questions count here, and the test answers these."""

SILENT_S = 1.0


async def never(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def after(seconds: float) -> None:
    """Return as an answer does that takes so long."""
    answered = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, answered.set)
    await answered.wait()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENT_S", SILENT_S)
    monkeypatch.setattr(waiting, "SAY_AFTER_S", 0.02)
    monkeypatch.setattr(waiting, "PAUSE_S", 0.02)
    monkeypatch.setattr(waiting, "describe_resizes", never)


@pytest.mark.parametrize("request_s", [0.0, SILENT_S / 2, DEADLINE_S])
def test_a_wait_without_a_controller_ends_within_the_bound_that_it_says(
    request_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said 15 s while the request was open, and waited a minute more after it was lost."""

    async def lost(*_: Any, **__: Any) -> Any:
        await after(request_s)
        raise ClusterUnreachable("no broker responds")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(RequestTimedOut, match="no active controller answered for 1 s"):
            await resize_and_wait(CLUSTER, [TOPIC], 8, {}, force=False)
        return loop.time() - began_s

    monkeypatch.setattr(waiting, "create_partitions", lost)
    took_s = asyncio.run(main())
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "at most 1 s" in said[0], said
    assert SILENT_S <= took_s < DEADLINE_S / 2


def test_a_request_that_ends_is_not_kept_waiting_by_a_silent_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "SILENT_S", 10 * DEADLINE_S)
    refused = Refused(ErrorCode.INVALID_PARTITIONS, "topic 't'", "The test refuses it.")

    async def answered(*_: Any, **__: Any) -> Any:
        await after(0.1)
        return {"t": refused}

    async def main() -> Any:
        async with asyncio.timeout(DEADLINE_S / 2):
            return await resize_and_wait(CLUSTER, [TOPIC], 8, {}, force=False)

    monkeypatch.setattr(waiting, "create_partitions", answered)
    assert asyncio.run(main()) == {"t": refused}
