"""Markers that clients ask a leader for: it asks real coordinators first, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.marker_broker import begin, marker, markers_of, write
from tests.support.transaction_broker import TransactionBroker
from tidelog.broker.handlers import write_txn_markers
from tidelog.broker.transactions import asked_markers
from tidelog.model.errors import ErrorCode as E
from tidelog.network.router import Handler, Router
from tidelog.storage.log.stable import last_stable_offset

STRANGER = 777
"""A producer id that no coordinator knows."""

T = ("t", 0)


class MarkedBroker(TransactionBroker):
    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([write_txn_markers.HANDLER, *extra])


class World:
    def __init__(self, broker: MarkedBroker, peer: Peer) -> None:
        self.broker = broker
        self.peer = peer
        self.hosted: Any = broker.lead("t", 2)

    async def asks(
        self, producer: tuple[int, int], *, committed: bool = False, place: tuple[str, int] = T
    ) -> E:
        """Send the marker of an operator, as Kafka's tool does; return its error."""
        of = {"producer_id": producer[0], "epoch": producer[1], "coordinator": 0}
        (error,) = await write(self.peer, marker(place, committed=committed, **of))
        return error

    @property
    def is_held(self) -> bool:
        return last_stable_offset(self.hosted.log) < self.hosted.high_watermark

    def verdicts(self) -> list[tuple[int, int, bool]]:
        return [(*producer, end.committed) for *producer, end in markers_of(self.hosted)]

    async def opened(self) -> tuple[int, int]:
        """A transaction that is open at its coordinator, in both partitions, and here."""
        producer = await self.broker.init()
        assert await self.broker.add(producer, T) == [E.NONE]
        begin(self.hosted, *producer)
        return producer

    async def ended(self, *, committed: bool) -> tuple[int, int]:
        """One that is complete at its coordinator, and has lost its marker here."""
        producer = await self.opened()
        assert await self.broker.end(producer, committed=committed) == E.NONE
        await until(lambda: self.broker.markers.sent)
        self.broker.markers.sent.pop().written()
        return producer


def run(folder: Path, story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = MarkedBroker(folder, {"transaction.state.log.num.partitions": 3})
        broker.state_partitions = 3
        await broker.start()
        peer = await Peer.connect(broker.port)
        peer.client_id = "adminclient-1"
        try:
            await broker.lead_and_load()
            await until(lambda: not broker.ids.is_loading)
            await story(World(broker, peer))
        finally:
            peer.writer.close()
            await broker.broker.markers.checks.stop()
            await broker.stop()

    asyncio.run(main())


def test_what_no_coordinator_knows_is_aborted_and_not_committed(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        begin(world.hosted, STRANGER, 4)
        assert await world.asks((STRANGER, 4), committed=True) is E.INVALID_TXN_STATE
        assert await world.asks((STRANGER, 3)) is E.INVALID_PRODUCER_EPOCH
        assert await world.asks((STRANGER, 5)) is E.INVALID_PRODUCER_EPOCH
        assert world.verdicts() == [] and world.is_held
        assert await world.asks((STRANGER, 4)) is E.NONE
        assert world.verdicts() == [(STRANGER, 4, False)] and not world.is_held
        # Nothing is left to end: a repetition succeeds, and fences no later producer.
        end = world.hosted.end_offset
        assert await world.asks((STRANGER, 4)) is E.NONE
        assert world.hosted.end_offset == end
        assert await world.asks((STRANGER, 4), place=("t", 7)) is E.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, story)


@pytest.mark.parametrize("committed", [False, True])
def test_a_live_transaction_is_left_to_its_coordinator(tmp_path: Path, committed: bool) -> None:
    async def story(world: World) -> None:
        producer = await world.opened()
        refused = E.CONCURRENT_TRANSACTIONS
        for asked in (False, True):
            assert await world.asks(producer, committed=asked) is refused
        assert await world.broker.end(producer, committed=committed) == E.NONE
        for asked in (False, True):
            assert await world.asks(producer, committed=asked) is refused, "its marker is sent"
        assert world.verdicts() == [] and world.is_held

    run(tmp_path, story)


@pytest.mark.parametrize("committed", [False, True])
def test_what_is_decided_ends_as_its_coordinator_has_decided(
    tmp_path: Path, committed: bool
) -> None:
    async def story(world: World) -> None:
        producer = await world.ended(committed=committed)
        assert await world.asks(producer, committed=not committed) is E.INVALID_TXN_STATE
        assert world.is_held
        assert await world.asks(producer, committed=committed) is E.NONE
        assert world.verdicts() == [(*producer, committed)] and not world.is_held

    run(tmp_path, story)


def test_nothing_is_ended_while_a_coordinator_does_not_answer_for_its_ids(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        begin(world.hosted, STRANGER, 4)
        world.broker.lead_state(epoch=1, leader=2)
        assert await world.asks((STRANGER, 4)) is E.COORDINATOR_NOT_AVAILABLE
        assert world.is_held

    run(tmp_path, story)


def test_a_batch_that_comes_while_coordinators_are_asked_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        begin(world.hosted, STRANGER, 4)
        checks = world.broker.broker.markers.checks
        ask = checks.states

        async def late(producer_ids: set[int]) -> Any:
            states = await ask(producer_ids)
            begin(world.hosted, STRANGER, 4, sequence=1)
            return states

        with monkeypatch.context() as slow:
            slow.setattr(checks, "states", late)
            assert await world.asks((STRANGER, 4)) is E.CONCURRENT_TRANSACTIONS
        assert world.is_held
        assert await world.asks((STRANGER, 4)) is E.NONE

    run(tmp_path, story)


def test_only_so_many_requests_and_producers_are_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        begin(world.hosted, STRANGER, 4)
        begin(world.hosted, STRANGER + 1, 4)
        one, two = (
            marker(T, committed=False, producer_id=STRANGER + more, epoch=4) for more in (0, 1)
        )
        with monkeypatch.context() as small:
            small.setattr(asked_markers, "MOST_PRODUCERS", 1)
            assert await write(world.peer, one, two) == [E.INVALID_REQUEST] * 2
        with monkeypatch.context() as small:
            small.setattr(asked_markers, "MOST_REQUESTS", 0)
            assert await write(world.peer, one) == [E.COORDINATOR_NOT_AVAILABLE]
        assert world.verdicts() == []
        assert await write(world.peer, one, two) == [E.NONE] * 2

    run(tmp_path, story)
