"""Batches of transactions and the real coordinator, which the leader asks over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.lone_broker import Peer
from tests.support.played_coordinator import part_of, produced
from tests.support.produce_fetch import run
from tests.support.storage_logs import batch
from tests.support.transaction_broker import ID, TransactionBroker
from tests.support.transactional_logs import transactional
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import Producer
from tidelog.records.control_records import EndMarker, marker_batch
from tidelog.runtime.clock import RealClock

NOW_MS = RealClock().wall_ms()
ABORTABLE, RETRY = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@asynccontextmanager
async def coordinating(folder: Path) -> AsyncIterator[tuple[TransactionBroker, Peer]]:
    """A broker that leads two partitions of ``t`` and coordinates its own transactions."""
    lone = TransactionBroker(folder)
    await lone.start()
    try:
        lone.lead("t", 2)
        await lone.lead_and_load()
        yield lone, await Peer.connect(lone.port)
    finally:
        await lone.stop()


async def send(peer: Peer, producer: tuple[int, int], sequence: int = 0, partition: int = 0) -> Any:
    made = batch(1, timestamp=NOW_MS, producer=Producer(*producer, sequence))
    request = produced((partition, transactional(made)), transactional_id=ID)
    return part_of(await peer.ask(request, 11)).error_code


def write_marker(lone: TransactionBroker, producer: tuple[int, int], partition: int = 0) -> None:
    """Write the markers that the coordinator has let be written, as their sender does."""
    hosted = lone.broker.partitions.get("t", partition)
    assert hosted is not None
    sent = lone.markers.sent.pop()
    made = marker_batch(
        EndMarker(sent.markers.committed, sent.coordinator_epoch),
        producer_id=producer[0],
        producer_epoch=sent.markers.producer.epoch,
        leader_epoch=0,
        timestamp_ms=NOW_MS,
    )
    hosted.append(made, NOW_MS, from_client=False)
    sent.written()


def test_a_transaction_from_its_begin_to_its_late_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with coordinating(tmp_path) as (lone, peer):
            producer = await lone.init()
            assert await send(peer, producer) == ABORTABLE
            assert await lone.add(producer, ("t", 0)) == [0]
            assert await send(peer, producer) == 0
            assert await send(peer, producer, 1) == 0
            assert await send(peer, producer, 0, 1) == ABORTABLE
            assert await lone.end(producer) == 0
            # Markers are on their way: a batch for a partition without one is to be sent again.
            assert await send(peer, producer, 0, 1) == RETRY
            write_marker(lone, producer)
            assert await send(peer, producer, 2) == ABORTABLE
            assert await lone.add(producer, ("t", 0)) == [0]
            assert await send(peer, producer, 2) == 0

    run(main())


def test_a_fenced_producer_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with coordinating(tmp_path) as (lone, peer):
            old = await lone.init()
            new = await lone.init()
            assert new[0] == old[0] and new[1] > old[1]
            assert await send(peer, old) == FENCED
            assert await send(peer, (old[0] + 1, 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert await lone.add(new, ("t", 0)) == [0]
            assert await send(peer, new) == 0
            assert await send(peer, old) == FENCED

    run(main())


def test_without_its_coordinator_a_batch_is_to_be_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with coordinating(tmp_path) as (lone, peer):
            producer = await lone.init()
            assert await lone.add(producer, ("t", 0)) == [0]
            lone.lead_state(epoch=1, leader=2)
            assert await send(peer, producer) == RETRY
            await lone.lead_and_load(epoch=2)
            assert await send(peer, producer) == 0

    run(main())
