"""Bad requests of transactions over real sockets, at a lone broker with the real coordinator.

Bad batches are in ``test_verification``, bad requests for a producer id in
``test_transactions_requests``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.marker_broker import markers_of
from tests.support.played_coordinator import part_of, produced
from tests.support.storage_logs import batch
from tests.support.transaction_broker import ID, TransactionBroker
from tests.support.transactional_logs import transactional
from tidelog.model.errors import ErrorCode as E
from tidelog.protocol import messages
from tidelog.records.builder import Producer
from tidelog.runtime.clock import RealClock
from tidelog.storage.log.stable import last_stable_offset
from tidelog.transactions import limits

NOW_MS = RealClock().wall_ms()
LAST_SEQUENCE = 2**31 - 1
MANY = 1_000
"""Partitions of one transaction."""

Identity = tuple[int, int]
Story = Callable[[TransactionBroker, Peer], Awaitable[None]]


def play(folder: Path, story: Story, partitions: int = 2) -> None:
    """Run a story with a broker that leads topic t, and one connection to it."""

    async def main() -> None:
        broker = TransactionBroker(folder)
        await broker.start()
        broker.broker.transactions.send_with(broker.broker.markers.sender)
        peer = await Peer.connect(broker.port)
        try:
            broker.lead("t", partitions)
            await broker.lead_and_load()
            await story(broker, peer)
        finally:
            peer.writer.close()
            await broker.broker.markers.checks.stop()
            await broker.stop()

    asyncio.run(main())


async def end(
    peer: Peer, producer: Identity, committed: bool, name: str = ID, version: int = 3
) -> E:
    answer = await peer.ask(messages.EndTxnRequest(name, *producer, committed), version)
    return E(answer.error_code)


async def add(peer: Peer, producer: Identity, *places: tuple[str, int], name: str = ID) -> list[E]:
    request = messages.AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic(topic, [index]) for topic, index in places]
    answer = await peer.ask(request([], name, *producer, topics), 3)
    return [
        E(part.error_code)
        for each in answer.results_by_topic_v3_and_below
        for part in each.results_by_partition
    ]


async def init(peer: Peer, name: str = ID) -> tuple[E, Identity]:
    answer = await peer.ask(messages.InitProducerIdRequest(name, 60_000, -1, -1), 4)
    return E(answer.error_code), (answer.producer_id, answer.producer_epoch)


async def send(peer: Peer, producer: Identity, sequence: int, partition: int = 0) -> E:
    made = batch(1, timestamp=NOW_MS, producer=Producer(*producer, sequence))
    request = produced((partition, transactional(made)), transactional_id=ID)
    return E(part_of(await peer.ask(request, 11)).error_code)


def verdicts(broker: TransactionBroker, partition: int = 0) -> list[bool]:
    hosted: Any = broker.broker.partitions.get("t", partition)
    return [ended.committed for *_, ended in markers_of(hosted)]


@pytest.mark.parametrize("committed", [False, True])
def test_an_end_that_comes_twice_is_one_end_and_its_opposite_is_refused(
    tmp_path: Path, committed: bool
) -> None:
    async def story(broker: TransactionBroker, peer: Peer) -> None:
        _, producer = await init(peer)
        assert await end(peer, producer, committed) is E.INVALID_TXN_STATE, "nothing was added"
        assert await add(peer, producer, ("t", 0)) == [E.NONE]
        assert await send(peer, producer, 0) is E.NONE
        old = producer[0], producer[1] - 1
        assert await end(peer, old, committed) is E.PRODUCER_FENCED
        assert await end(peer, old, committed, version=1) is E.INVALID_PRODUCER_EPOCH
        assert await end(peer, (producer[0] + 9, 0), committed) is E.INVALID_PRODUCER_ID_MAPPING
        assert await end(peer, producer, committed, "another") is E.INVALID_PRODUCER_ID_MAPPING
        for name in ("", "x" * 100_000):
            assert await end(peer, producer, committed, name) is E.INVALID_REQUEST
        assert await broker.state() == "Ongoing"
        assert await end(peer, producer, committed) is E.NONE
        assert await end(peer, producer, committed) is E.NONE
        assert await end(peer, producer, not committed) is E.INVALID_TXN_STATE
        assert verdicts(broker) == [committed]

    play(tmp_path, story)


def test_a_partition_that_is_deleted_meanwhile_adds_nothing(tmp_path: Path) -> None:
    """The request is sent again, as after CONCURRENT_TRANSACTIONS; the topic is gone by then."""

    async def story(broker: TransactionBroker, peer: Peer) -> None:
        broker.lead("u")
        _, producer = await init(peer)
        assert await add(peer, producer, ("t", 0)) == [E.NONE]
        gone = messages.UpdateMetadataRequest
        dead = gone.UpdateMetadataPartitionState(partition_index=0, leader=-2)
        state = gone.UpdateMetadataTopicState(topic_name="u", partition_states=[dead])
        broker.broker.metadata.apply(gone(topic_states=[state]), complete=False)
        assert await add(peer, producer, ("t", 1), ("u", 0)) == [
            E.OPERATION_NOT_ATTEMPTED,
            E.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        (named,) = (await broker.describe()).topics
        assert (named.topic, named.partitions) == ("t", [0])
        assert await send(peer, producer, 0, 1) is E.TRANSACTION_ABORTABLE
        assert await end(peer, producer, True) is E.NONE

    play(tmp_path, story)


def test_sequence_numbers_wrap_within_a_transaction(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker, peer: Peer) -> None:
        _, producer = await init(peer)
        assert await add(peer, producer, ("t", 0)) == [E.NONE]
        hosted: Any = broker.broker.partitions.get("t", 0)
        made = batch(1, timestamp=NOW_MS, producer=Producer(*producer, LAST_SEQUENCE - 1))
        hosted.append(transactional(made), NOW_MS, from_client=False)
        assert await send(peer, producer, LAST_SEQUENCE) is E.NONE
        assert await send(peer, producer, 1) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(peer, producer, 0) is E.NONE
        assert await send(peer, producer, 0) is E.NONE, "a repetition"
        assert hosted.end_offset == 3
        assert await end(peer, producer, True) is E.NONE
        await until(lambda: last_stable_offset(hosted.log) == hosted.end_offset == 4)

    play(tmp_path, story)


def test_a_transaction_over_very_many_partitions_ends_in_each(tmp_path: Path) -> None:
    async def story(broker: TransactionBroker, peer: Peer) -> None:
        _, producer = await init(peer)
        places = [("t", index) for index in range(MANY)]
        assert set(await add(peer, producer, *places)) == {E.NONE}
        assert await send(peer, producer, 0, MANY - 1) is E.NONE
        assert await end(peer, producer, True) is E.NONE
        await until(lambda: all(verdicts(broker, index) == [True] for index in range(MANY)))

    play(tmp_path, story, MANY)


def test_a_new_id_for_each_transaction_meets_a_limit_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: TransactionBroker, peer: Peer) -> None:
        monkeypatch.setattr(limits, "MAX_IDS", 3)
        identities = {}
        for number in range(3):
            error, identities[f"id-{number}"] = await init(peer, f"id-{number}")
            assert error is E.NONE
        assert await init(peer, "id-3") == (E.COORDINATOR_NOT_AVAILABLE, (-1, -1))
        for name, producer in identities.items():
            assert await add(peer, producer, ("t", 0), name=name) == [E.NONE]
            assert await end(peer, producer, True, name) is E.NONE
        error, (_, epoch) = await init(peer, "id-0")
        assert (error, epoch) == (E.NONE, 1)

    play(tmp_path, story)
