"""What is open in a log and over at its coordinator is ended: real coordinators, logs, requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import until
from tests.support.marker_broker import EPOCH, begin, markers_of
from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import NOW_MS, batch
from tests.support.transaction_broker import TransactionBroker
from tidelog.broker.transactions import hanging_checks
from tidelog.broker.transactions.hanging_checks import HangingChecks
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.records.batch import Rejected
from tidelog.storage.log.stable import last_stable_offset

STRANGER = 777
"""A producer id that no coordinator knows."""


class World:
    def __init__(self, broker: TransactionBroker) -> None:
        self.broker = broker
        self.hosted: Any = broker.lead("t", 2)
        self.checks: HangingChecks = broker.broker.markers.checks

    @property
    def is_held(self) -> bool:
        """Whether something that is open holds readers back."""
        return last_stable_offset(self.hosted.log) < self.hosted.high_watermark

    @property
    def questions(self) -> int:
        return self.broker.server.router.tallies[ApiKey.LIST_TRANSACTIONS].requests

    def lose_states(self, epoch: int) -> None:
        """Lead ``__transaction_state`` after an unclean election, alone: nothing is committed."""
        self.broker.lead_state(epoch=epoch - 1, leader=2)
        led = {"leader": 1, "leader_epoch": epoch}
        lost = {"is_unclean_leader": True, "has_debt": True, "isr": (1,), "replicas": (1, 2, 3)}
        topic: Any = self.broker.broker.metadata.topic("__transaction_state")
        for number in range(self.broker.state_partitions):
            hosted: Any = self.broker.broker.partitions.get("__transaction_state", number)
            self.broker.broker.partitions.apply(hosted, replace(hosted.state, **led, **lost))
            topic.partitions[number] = replace(topic.partitions[number], **led)

    async def until(self, done: Callable[[], bool]) -> None:
        """Check again and again until a condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not done():
                await self.checks.check()

    def verdicts(self) -> list[tuple[int, int, bool]]:
        """Producer id, epoch and verdict of each marker."""
        return [(*producer, end.committed) for *producer, end in markers_of(self.hosted)]

    async def decided(self, *, committed: bool) -> tuple[int, int]:
        """A transaction that is complete at its coordinator, and has lost its marker here."""
        producer = await self.broker.init()
        assert await self.broker.add(producer, ("t", 0)) == [E.NONE]
        begin(self.hosted, *producer)
        assert await self.broker.end(producer, committed=committed) == E.NONE
        await until(lambda: self.broker.markers.sent)
        self.broker.markers.sent.pop().written()
        name = "CompleteCommit" if committed else "CompleteAbort"
        assert await self.broker.state() == name
        return producer


def run(folder: Path, story: Callable[[World], Awaitable[None]], **config: object) -> None:
    async def main() -> None:
        broker = TransactionBroker(folder, {"transaction.state.log.num.partitions": 3, **config})
        broker.state_partitions = 3
        await broker.start()
        try:
            await broker.lead_and_load()
            await until(lambda: not broker.ids.is_loading)
            await story(World(broker))
        finally:
            await broker.broker.markers.checks.stop()
            await broker.stop()

    asyncio.run(main())


def test_what_no_coordinator_knows_is_aborted_and_is_a_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        begin(world.hosted, STRANGER, 4)
        await world.checks.check()
        assert world.verdicts() == [(STRANGER, 4, False)] and not world.is_held
        assert (world.checks.ended, world.checks.lost) == (1, 1)
        await world.checks.check()
        assert world.questions == 1, "nothing is left to ask about"

    with caplog.at_level(logging.INFO):
        run(tmp_path, story)
    (line,) = (x for x in caplog.records if x.name == "tidelog.audit")
    assert line.getMessage() == (
        "a transaction of producer 777, epoch 4, in t-0 from offset 0 was aborted: no coordinator "
        "knows how it ended"
    )


@pytest.mark.parametrize("committed", [True, False])
def test_what_is_decided_gets_its_lost_marker(tmp_path: Path, committed: bool) -> None:
    async def story(world: World) -> None:
        producer = await world.decided(committed=committed)
        await world.checks.check()
        assert world.verdicts() == [(*producer, committed)] and not world.is_held
        assert (world.checks.ended, world.checks.lost) == (1, 0)

    run(tmp_path, story)


def test_what_is_open_or_on_its_way_stays(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        broker = world.broker
        producer = await broker.init()
        assert await broker.add(producer, ("t", 0)) == [E.NONE]
        begin(world.hosted, *producer)
        await world.checks.check()
        assert await broker.end(producer) == E.NONE
        broker.lead("t", 2, epoch=1, leader=2)
        world.hosted = broker.lead("t", 2, epoch=2)
        await world.checks.check()
        assert world.questions == 2 and world.is_held and not world.verdicts()
        await world.checks.check()
        assert world.questions == 2, "once for a leadership"

    run(tmp_path, story)


def test_an_open_transaction_without_this_partition_is_another_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        producer = await world.broker.init()
        assert await world.broker.add(producer, ("t", 1)) == [E.NONE]
        begin(world.hosted, *producer)
        await world.checks.check()
        assert world.verdicts() == [(*producer, False)] and world.checks.lost == 1

    run(tmp_path, story)


@pytest.mark.parametrize("missing", ["loads", "moves", "is not led"])
def test_nothing_is_judged_until_every_coordinator_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    async def story(world: World) -> None:
        broker = world.broker
        begin(world.hosted, STRANGER)
        led = broker.ids.led()[1]
        with monkeypatch.context() as patched:
            if missing == "loads":
                patched.setattr(led, "_state", E.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                # The metadata have a newer leader epoch than the one that answers, or no leader.
                changed = {"leader_epoch": 5} if missing == "moves" else {"leader": -1}
                topic = broker.broker.metadata.topic("__transaction_state")
                assert topic is not None
                info = topic.partitions[1]
                patched.setitem(topic.partitions, 1, replace(info, **changed))  # type: ignore
            await world.checks.check()
            assert world.is_held and not world.checks.ended
            asked = world.questions
            await world.checks.check()
            assert world.questions == asked, "it pauses"
        await world.until(lambda: not world.is_held)
        assert world.checks.lost == 1

    monkeypatch.setattr(hanging_checks, "PAUSE_MS", 500)
    run(tmp_path, story)


def test_a_batch_that_comes_meanwhile_is_not_ended_with_what_was_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of a committed transaction was lost, and its producer begins the next one. Other
    producers append meanwhile, and wait for nothing."""

    async def story(world: World) -> None:
        producer = await world.decided(committed=True)
        others = world.checks.others
        ask, begun = others.ask, []

        async def late(*of: Any) -> Any:
            answer = await ask(*of)
            if ApiKey.DESCRIBE_TRANSACTIONS in of and not begun:
                begun.append(producer)
                assert await world.broker.add(producer, ("t", 0)) == [E.NONE]
                begin(world.hosted, *producer, sequence=1)
                plain = world.hosted.append(batch(1), NOW_MS, from_client=False)
                assert not isinstance(plain, Rejected)
            return answer

        monkeypatch.setattr(others, "ask", late)
        await world.checks.check()
        assert begun and world.is_held and not world.verdicts()
        await world.until(lambda: world.questions == 2)
        assert not world.verdicts(), "it is open now"

    monkeypatch.setattr(hanging_checks, "PAUSE_MS", 1)
    run(tmp_path, story)


def test_what_an_id_in_doubt_has_open_is_not_ended_with_its_transaction_before(
    tmp_path: Path,
) -> None:
    """An unclean coordinator lacks the beginning of the next transaction, and its fence waits for
    followers."""

    async def story(world: World) -> None:
        broker = world.broker
        producer = await world.decided(committed=True)
        await world.checks.check()
        begin(world.hosted, *producer, sequence=1)
        world.lose_states(epoch=5)
        await until(lambda: not broker.ids.is_loading)
        broker.lead("t", 2, epoch=1, leader=2)
        world.hosted = broker.lead("t", 2, epoch=2)
        before = world.verdicts()
        await world.checks.check()
        assert (await broker.describe()).transaction_state == "CompleteCommit"
        assert sum(led.table.doubtful for led in broker.ids.led()) == 1
        assert world.questions == 2 and world.verdicts() == before and world.is_held

    run(tmp_path, story)


def test_a_connection_of_before_the_level_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        broker = world.broker
        broker.broker.cluster_level.take("1.5")
        api = ApiKey.LIST_TRANSACTIONS
        for others in (world.checks.others, broker.broker.other_brokers):
            assert await others.ask(1, "this test", api, 1, [messages.ListTransactionsRequest()])
        broker.broker.cluster_level.take("1.6")
        await until(lambda: not broker.ids.is_loading)
        await world.decided(committed=True)
        await world.until(lambda: not world.is_held)
        assert world.checks.lost == 0

    monkeypatch.setattr(hanging_checks, "PAUSE_MS", 1)
    run(tmp_path, story)


def test_a_check_of_what_is_open_has_an_end_though_its_producer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        producer = await world.broker.init()
        assert await world.broker.add(producer, ("t", 0)) == [E.NONE]
        begin(world.hosted, *producer)
        ask, sequences = world.checks.others.ask, iter(range(1, 10))

        async def late(*of: Any) -> Any:
            answer = await ask(*of)
            begin(world.hosted, *producer, sequence=next(sequences))
            return answer

        monkeypatch.setattr(world.checks.others, "ask", late)
        await world.checks.check()
        await world.checks.check()
        assert world.questions == 1 and world.is_held and not world.verdicts()

    monkeypatch.setattr(hanging_checks, "PAUSE_MS", 0)
    run(tmp_path, story)


def test_what_holds_readers_back_for_too_long_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of its coordinator were lost after this leadership began."""

    async def story(world: World) -> None:
        await world.checks.check()
        begin(world.hosted, STRANGER)
        await world.checks.check()
        await world.checks.check()
        assert not world.questions and world.is_held
        await world.until(lambda: not world.is_held)
        assert world.questions == 1

    run(tmp_path, story, **{"transaction.max.timeout.ms": 300})


def test_a_transaction_that_is_open_for_longer_than_any_may_be_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marker is on its way, for a long time."""

    async def story(world: World) -> None:
        producer = await world.broker.init(timeout_ms=60)
        assert await world.broker.add(producer, ("t", 0)) == [E.NONE]
        begin(world.hosted, *producer)
        await world.checks.check()
        assert not world.checks.late
        await world.until(lambda: world.checks.late == 1)
        assert world.is_held
        world.broker.markers.sent.pop().written()
        await world.until(lambda: not world.is_held)
        await world.checks.check()
        assert not world.checks.late

    monkeypatch.setattr(hanging_checks, "LATE_AFTER_MS", 100)
    run(tmp_path, story, **{"transaction.max.timeout.ms": 60})


def test_the_task_checks_by_itself_and_survives_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        check, failures = world.checks.check, [ZeroDivisionError("planted")]

        async def failing() -> None:
            if failures:
                raise failures.pop()
            await check()

        monkeypatch.setattr(world.checks, "check", failing)
        begin(world.hosted, STRANGER)
        world.checks.start()
        await until(lambda: not world.is_held)

    monkeypatch.setattr(hanging_checks, "SWEEP_S", 0.01)
    run(tmp_path, story)
    assert "open transactions could not be checked" in caplog.text


def test_many_transactions_are_checked_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        for number in range(5):
            begin(world.hosted, STRANGER + number)
        await world.checks.check()
        assert world.checks.lost == 2 and world.is_held
        await world.until(lambda: not world.is_held)
        assert world.checks.lost == 5

    monkeypatch.setattr(hanging_checks, "PAUSE_MS", 1)
    monkeypatch.setattr(hanging_checks, "MOST_AT_ONCE", 2)
    run(tmp_path, story)


def test_what_lives_does_not_keep_what_hangs_from_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        producer = await world.broker.init()
        assert await world.broker.add(producer, ("t", 0)) == [E.NONE]
        begin(world.hosted, *producer)
        begin(world.hosted, STRANGER)
        for _ in range(3):
            await world.checks.check()
        assert world.questions == 2 and world.checks.lost == 1
        assert world.verdicts() == [(STRANGER, EPOCH, False)] and world.is_held

    monkeypatch.setattr(hanging_checks, "MOST_AT_ONCE", 1)
    run(tmp_path, story)


def test_nothing_is_judged_where_a_coordinator_changes_while_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        await world.decided(committed=True)
        topic: Any = world.broker.broker.metadata.topic("__transaction_state")
        ask, before = world.checks.others.ask, topic.partitions[1]

        async def late(*of: Any) -> Any:
            answer = await ask(*of)
            topic.partitions[1] = replace(before, leader_epoch=before.leader_epoch + 1)
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(world.checks.others, "ask", late)
            await world.checks.check()
        assert world.questions == 1 and world.is_held
        topic.partitions[1] = before
        await world.until(lambda: not world.is_held)
        assert world.checks.lost == 0

    monkeypatch.setattr(hanging_checks, "PAUSE_MS", 0)
    run(tmp_path, story)
