"""An unclean leader of ``__transaction_state``: its ids are fenced, and its transactions end,
before the debt of the loss goes (KIP-704)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.isr_grants import altered
from tests.support.lone_broker import until
from tests.support.transaction_broker import ID, Session, TransactionBroker, partitions
from tidelog.broker.data_loss import handling
from tidelog.broker.transactions import transaction_coordinator
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.transactions.decision import SendMarkers
from tidelog.transactions.limits import MAX_EPOCH
from tidelog.transactions.state import IdAndEpoch


class Controller(Session):
    """It allocates producer ids, and notes which handlings are finished."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: list[int] = []

    async def request(self, request: Any) -> Any:
        if isinstance(request, messages.AlterIsrRequest):
            self.handled += [
                part.leader_epoch
                for topic in request.topics
                for part in topic.partitions
                if part.unclean_handled
            ]
            return altered(request, 0, newer=True)
        if isinstance(request, messages.ReportTruncationRequest):
            return messages.ReportTruncationResponse(error_code=0)
        return await super().request(request)


class World:
    def __init__(self, broker: TransactionBroker, controller: Controller) -> None:
        self.broker = broker
        self.controller = controller

    def lose(self, hosted: Any, epoch: int, *, inherits: bool = False) -> Any:
        """Lead in a new epoch after an unclean election, here or before."""
        self.broker.lead_state(epoch=epoch - 1, leader=2)
        state = replace(
            hosted.state,
            leader=1,
            leader_epoch=epoch,
            isr=(1,),
            is_unclean_leader=not inherits,
            has_debt=True,
        )
        self.broker.broker.partitions.apply(hosted, state)
        return hosted


def run(folder: Path, story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = TransactionBroker(folder)
        await broker.start()
        controller = broker.session = Controller()
        parts = (
            broker.broker.loss_reports,
            broker.broker.data_loss,
            broker.broker.isr_changes,
        )
        for part in parts:
            part.start()
        try:
            broker.lead("t", 4)
            await broker.lead_and_load()
            await story(World(broker, controller))
        finally:
            for part in parts:
                await part.stop()
            await broker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("inherits", [False, True])
def test_the_debt_goes_when_all_is_fenced_whatever_markers_the_fences_have_to_write(
    tmp_path: Path, inherits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a later leader that was in sync. A decision of before the loss is carried out first,
    and a routine ends before its markers."""
    monkeypatch.setattr(transaction_coordinator, "SETTLED_S", 0.05)

    async def story(world: World) -> None:
        broker = world.broker
        decided = await broker.init()
        assert await broker.add(decided, ("t", 1)) == [E.NONE]
        assert await broker.end(decided) == E.NONE
        opened = await broker.init(transactional_id="open")
        assert await broker.add(opened, ("t", 0), transactional_id="open") == [E.NONE]
        idle = await broker.init(transactional_id="idle")
        hosted = world.lose(broker.broker.partitions.get("__transaction_state", 0), 5)
        await until(lambda: len(broker.markers.sent) == 3)
        if inherits:
            hosted = world.lose(hosted, 9, inherits=True)
            await until(lambda: len(broker.markers.sent) == 5)
        ends = {x.markers.transactional_id: x for x in broker.markers.sent[-2:]}
        assert {x.coordinator_epoch for x in ends.values()} == {hosted.leader_epoch}
        assert ends[ID].markers == SendMarkers(ID, IdAndEpoch(*decided), True, partitions(("t", 1)))
        fence = IdAndEpoch(opened[0], MAX_EPOCH)
        assert ends["open"].markers == SendMarkers("open", fence, False, partitions(("t", 0)))
        await until(lambda: broker.broker.data_loss.debts.owed[hosted].failures > 1)
        assert not world.controller.handled and broker.table().doubtful == 1
        assert (await broker.describe("idle")).producer_epoch == MAX_EPOCH
        ends[ID].written()
        await until(lambda: world.controller.handled)
        assert world.controller.handled == [hosted.leader_epoch]
        assert (await broker.describe("open")).transaction_state == "PrepareAbort"
        assert await broker.end(decided) == E.PRODUCER_FENCED
        ends["open"].written()
        assert await broker.init(transactional_id="open") not in (decided, opened, idle)

    run(tmp_path, story)


def test_what_is_decided_is_carried_out_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        broker = world.broker
        producer = await broker.init()
        assert await broker.add(producer, ("t", 0)) == [E.NONE]
        assert await broker.end(producer) == E.NONE
        await until(lambda: broker.markers.sent)
        hosted = world.lose(broker.broker.partitions.get("__transaction_state", 0), 5)
        await until(lambda: len(broker.markers.sent) == 2)
        assert broker.markers.sent[1].markers.committed
        assert not world.controller.handled
        broker.markers.sent[1].written()
        await until(lambda: world.controller.handled == [hosted.leader_epoch])
        state = await broker.describe()
        assert (state.transaction_state, state.producer_epoch) == ("CompleteCommit", MAX_EPOCH)

    run(tmp_path, story)


def test_a_loss_that_becomes_known_later_loads_the_table_again(tmp_path: Path) -> None:
    """The leadership goes on, and its table was loaded without the loss."""

    async def story(world: World) -> None:
        broker = world.broker
        await broker.init()
        hosted: Any = broker.broker.partitions.get("__transaction_state", 0)
        before = broker.table()
        state = replace(hosted.state, leader_epoch=1, has_debt=True)
        broker.broker.partitions.apply(hosted, state)
        await until(lambda: world.controller.handled)
        assert broker.table() is not before
        assert (await broker.describe()).producer_epoch == MAX_EPOCH

    run(tmp_path, story)


def test_without_a_loss_nothing_is_fenced(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        broker = world.broker
        producer = await broker.init()
        broker.lead_state(epoch=1, leader=2)
        await broker.lead_and_load(epoch=2)
        assert not broker.table().doubtful
        assert await broker.add(producer, ("t", 0)) == [E.NONE]

    run(tmp_path, story)


def test_below_the_level_an_empty_log_has_nothing_to_settle(tmp_path: Path) -> None:
    """Older clusters have the topic too: Metadata and CreateTopics could create it."""

    async def story(world: World) -> None:
        world.broker.broker.cluster_level.take("1.5")
        hosted = world.lose(world.broker.broker.partitions.get("__transaction_state", 0), 5)
        await until(lambda: world.controller.handled == [hosted.leader_epoch])
        assert world.broker.broker.cluster_level.offers_transactions is False

    run(tmp_path, story)


def test_below_the_level_what_a_log_has_waits_for_the_level_without_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        broker, attempts = world.broker, 0
        await broker.init()
        settled = broker.broker.transactions.settled

        async def counted(hosted: Any) -> str | None:
            nonlocal attempts
            attempts += 1
            return await settled(hosted)

        monkeypatch.setattr(broker.broker.transactions, "settled", counted)
        broker.broker.cluster_level.take("1.5")
        hosted = world.lose(broker.broker.partitions.get("__transaction_state", 0), 5)
        debts = broker.broker.data_loss.debts.owed
        await until(lambda: debts[hosted].is_deferred)
        # Meanwhile the loss of another partition is handled, from its report to its end.
        ordinary: Any = broker.broker.partitions.get("t", 0)
        broker.broker.partitions.apply(
            ordinary, replace(ordinary.state, leader_epoch=1, has_debt=True)
        )
        await until(lambda: world.controller.handled == [1])
        assert attempts == 1
        world.controller.handled.clear()
        broker.broker.cluster_level.take("1.6")
        await until(lambda: world.controller.handled == [hosted.leader_epoch])
        assert attempts == 2 and (await broker.describe()).producer_epoch == MAX_EPOCH

    monkeypatch.setattr(handling, "RETRY_MS", 1)
    run(tmp_path, story)
    (line,) = (x for x in caplog.records if "data-loss handling waits" in x.getMessage())
    assert "__transaction_state-0" in line.getMessage()
