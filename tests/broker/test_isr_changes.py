"""A leader's proposals of the ISR, against controllers whose answers make no sense."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.every_yield import every_yield
from tests.support.isr_grants import altered
from tests.support.lone_broker import LoneBroker, until
from tidelog.broker.control_plane import isr_changes
from tidelog.broker.control_plane.isr_changes import IsrChanges
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import NewRecord, build_batch

Answer = Callable[[Any], Any]


class Session:
    """Answers one AlterIsr after the other as configured."""

    broker_epoch = 7

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.proposed: list[set[int]] = []

    async def request(self, request: Any) -> Any:
        self.proposed.append(set(request.topics[0].partitions[0].new_isr))
        return self.answers.pop(0)(request)


def answer_with(code: int, *, newer: bool = True) -> Answer:
    """Answer every partition with a code and what was proposed, in a newer version."""
    return lambda request: altered(request, code, newer=newer)


def nonsense(_: Any) -> Any:
    raise ValueError("planted: no such thing")


def test_no_answer_and_no_bug_ends_the_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needs_check = IsrChanges._needs_check
    failures = [KeyError("planted in a look")]

    def failing_once(self: IsrChanges, *given: Any) -> bool:
        if failures:
            raise failures.pop()
        return needs_check(self, *given)

    async def main() -> None:
        lone = LoneBroker(tmp_path, {"replica.lag.time.max.ms": 100})
        await lone.start()
        try:
            session = Session(nonsense, answer_with(12_345), answer_with(0))
            lone.session = session
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            monkeypatch.setattr(IsrChanges, "_needs_check", failing_once)
            lone.broker.isr_changes.start()
            await until(lambda: hosted.isr == (1,))
            assert session.answers == []
        finally:
            await lone.broker.isr_changes.stop()
            await lone.stop()

    asyncio.run(main())
    assert "planted in a look" in caplog.text
    assert "no such thing" in caplog.text


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_answer_that_settles_nothing_does_not_freeze_the_isr(
    tmp_path: Path, code: ErrorCode
) -> None:
    """A node of the store was damaged for a moment: no LeaderAndIsr follows, and it is no end."""

    async def main() -> None:
        lone = LoneBroker(tmp_path, {"replica.lag.time.max.ms": 100})
        await lone.start()
        try:
            unsettled = answer_with(code, newer=False)
            session = Session(unsettled, unsettled, answer_with(ErrorCode.NONE))
            lone.session = session
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2))
            told: list[ErrorCode] = []
            hosted.append(build_batch([NewRecord(1, None, b"x")]), 1)
            hosted.when_committed(0, told.append, patient=False)
            lone.broker.isr_changes.start()
            await until(lambda: told)
            assert (told, hosted.isr) == ([ErrorCode.NONE], (1,))
            assert session.proposed == [{1}] * 3
        finally:
            await lone.broker.isr_changes.stop()
            await lone.stop()

    asyncio.run(main())


def test_a_change_that_stays_open_holds_up_no_other_partition(tmp_path: Path) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path, {"replica.lag.time.max.ms": 100})
        await lone.start()
        try:
            session = Picky("lost")
            lone.session = session
            lost = lone.lead("lost", isr=(1, 2), replicas=(1, 2))
            lone.broker.isr_changes.start()
            await until(lambda: session.refused >= 3)
            other = lone.lead("other", isr=(1, 2), replicas=(1, 2))
            await until(lambda: other.isr == (1,))
            assert lost.proposed_isr == (1,)
            # A decision made elsewhere ends it, and it is not proposed again.
            lone.lead("lost", isr=(2,), replicas=(1, 2), leader=2, epoch=1)
            assert lost.proposed_isr is None
            asked = session.refused
            third = lone.lead("third", isr=(1, 2), replicas=(1, 2))
            await until(lambda: third.isr == (1,))
            assert session.refused == asked
        finally:
            await lone.broker.isr_changes.stop()
            await lone.stop()

    asyncio.run(main())


class Picky:
    """Answers for ever; the topic ``lost`` with UNKNOWN_TOPIC_OR_PARTITION."""

    broker_epoch = 7

    def __init__(self, lost: str) -> None:
        self.lost = lost
        self.refused = 0

    async def request(self, request: Any) -> Any:
        found = answer_with(ErrorCode.NONE)(request)
        for topic in found.topics:
            if topic.topic_name == self.lost:
                self.refused += 1
                for part in topic.partitions:
                    part.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found


class Controller(Session):
    """Answers for ever; a proposal with one of ``unfit`` as a new member is refused."""

    def __init__(self, unfit: set[int]) -> None:
        super().__init__()
        self.unfit = unfit

    async def request(self, request: Any) -> Any:
        self.answers = [answer_with(0)]
        if self.unfit & set(request.topics[0].partitions[0].new_isr):
            self.answers = [answer_with(ErrorCode.INELIGIBLE_REPLICA)]
        return await super().request(request)


@pytest.mark.parametrize(
    ("unfit", "proposals"),
    [
        pytest.param({3}, [{1, 2, 3}, {1, 2}, {1, 2, 3}], id="the earlier to fetch"),
        pytest.param({2}, [{1, 2, 3}, {1, 2}, {1, 3}], id="the last to fetch"),
        pytest.param({2, 3}, [{1, 2, 3}, {1, 2}, {1, 3}], id="both"),
        pytest.param(set(), [{1, 2, 3}], id="none: both in one request"),
    ],
)
def test_a_member_that_is_refused_keeps_no_other_one_out(
    tmp_path: Path, unfit: set[int], proposals: list[set[int]]
) -> None:
    """Two followers died; what the leader knew of the one counts on when the other is back."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            session = Controller(unfit)
            lone.session = session
            hosted = lone.lead("t", isr=(1,), replicas=(1, 2, 3))
            now_ms = lone.broker.clock.monotonic_ms()
            hosted.follower_fetched(3, 0, 23, now_ms - 1_000)
            hosted.follower_fetched(2, 0, 22, now_ms)
            lone.broker.isr_changes.start()
            lone.broker.isr_changes.fetched(hosted, 2)
            await until(lambda: len(session.proposed) == len(proposals))
            await until(lambda: hosted.proposed_isr is None)
            assert session.proposed == proposals
            assert set(hosted.isr) == {1, 2, 3} - unfit
            for node_id in (2, 3):
                lone.broker.isr_changes.fetched(hosted, node_id)
            await asyncio.sleep(0)
            assert hosted.proposed_isr is None, "a refused follower is not proposed at once"
        finally:
            await lone.broker.isr_changes.stop()
            await lone.stop()

    asyncio.run(main())


def test_so_many_partitions_change_their_isr_at_once(tmp_path: Path) -> None:
    """A follower of 5,100 partitions went: one request of them all held the loop of both sides."""
    count = 3 * isr_changes.MOST_AT_ONCE + 1
    asked: list[int] = []

    def answer(request: Any) -> Any:
        asked.append(sum(len(topic.partitions) for topic in request.topics))
        return answer_with(0)(request)

    async def main() -> None:
        lone = LoneBroker(tmp_path, {"replica.lag.time.max.ms": 100})
        await lone.start()
        try:
            # The second one is not answered: those are asked again, and hold up no other.
            session = Session(answer, nonsense, *[answer] * 100)
            lone.session = session
            lone.lead("t", count, isr=(1, 2), replicas=(1, 2))
            led = [lone.broker.partitions.get("t", index) for index in range(count)]
            lone.broker.isr_changes.start()
            await until(lambda: all(hosted is not None and hosted.isr == (1,) for hosted in led))
        finally:
            await lone.broker.isr_changes.stop()
            await lone.stop()

    asyncio.run(main())
    assert max(asked) <= isr_changes.MOST_AT_ONCE and sum(asked) == count


def test_very_many_partitions_are_looked_at_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 of them would have held the loop for a third of a second."""
    most, looked = 4, [0]
    needs_check = IsrChanges._needs_check

    def counted(self: IsrChanges, *given: Any) -> bool:
        looked[0] += 1
        return needs_check(self, *given)

    async def main() -> None:
        lone = LoneBroker(tmp_path, {})
        await lone.start()
        try:
            lone.lead("t", 3 * most, isr=(1, 2), replicas=(1, 2))
            check = asyncio.create_task(lone.broker.isr_changes._check_all())
            turns = []
            while not check.done():
                looked[0] = 0
                await asyncio.sleep(0)
                turns.append(looked[0])
            assert sum(turns) == 3 * most and max(turns) <= most
        finally:
            await lone.stop()

    monkeypatch.setattr(IsrChanges, "_needs_check", counted)
    with every_yield(most):
        asyncio.run(main())
