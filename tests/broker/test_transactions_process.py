"""A whole broker and its controller coordinate a transaction: the topic, sockets, a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.authorization import World, world_in
from tests.support.lone_broker import Peer, until
from tests.support.transaction_broker import Recorder, partitions
from tidelog.broker.process import BrokerProcess
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TRANSACTIONS_TOPIC
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams
from tidelog.transactions.state import IdAndEpoch

ID = "payments"


async def coordinator_of(world: World, peer: Peer) -> None:
    """Ask for the coordinator as clients do, until it is there."""
    request = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[ID])
    async with asyncio.timeout(20):
        while True:
            (found,) = (await peer.ask(request, 4)).coordinators
            if found.error_code == E.NONE:
                break
            assert found.error_code == E.COORDINATOR_NOT_AVAILABLE, found
            await world.broker.broker.metadata.changed()
    assert (found.node_id, found.port) == (1, world.port("broker"))


async def initialized(peer: Peer, **fields: Any) -> Any:
    """Ask for a producer id until the coordinator has loaded its ids."""
    request = messages.InitProducerIdRequest(ID, 60_000, **fields)
    async with asyncio.timeout(20):
        while True:
            answer = await peer.ask(request, 5)
            if answer.error_code != E.COORDINATOR_LOAD_IN_PROGRESS:
                return answer


async def state(peer: Peer) -> str:
    answer = await peer.ask(messages.DescribeTransactionsRequest([ID]), 0)
    (found,) = answer.transaction_states
    assert found.error_code in (E.NONE, E.COORDINATOR_LOAD_IN_PROGRESS)
    return str(found.transaction_state)


async def restart(world: World) -> None:
    """Stop the broker and start it again, with its own sender of markers."""
    await world.broker.stop()
    world.broker = BrokerProcess(
        world.broker.configs,
        Seams(),
        [("127.0.0.1", world.controller.listener_port)],
        secret=world.secret,
    )
    await world.broker.start()


async def add(peer: Peer, producer: tuple[int, int]) -> None:
    request = messages.AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic("t", [0])]
    answer = await peer.ask(request([], ID, *producer, topics), 3)
    ((result,),) = [x.results_by_partition for x in answer.results_by_topic_v3_and_below]
    assert result.error_code == E.NONE


def test_no_client_gives_the_topic_of_transactions_another_form(tmp_path: Path) -> None:
    """Neither at a broker nor at the controller; a client that asks for it gets the right one."""
    creation = messages.CreateTopicsRequest
    topic = creation.CreatableTopic(name=TRANSACTIONS_TOPIC, num_partitions=9, replication_factor=1)
    metadata = messages.MetadataRequest
    named = metadata.MetadataRequestTopic(name=TRANSACTIONS_TOPIC)

    async def main() -> None:
        async with world_in(tmp_path, {"auto.create.topics.enable": "true"}) as world:
            peer = await Peer.connect(world.port("broker"))
            answer = await peer.ask(creation(topics=[topic], timeout_ms=20_000), 7)
            (refused,) = answer.topics
            assert refused.error_code == E.INVALID_REQUEST
            assert "transaction.state.log.*" in refused.error_message
            level = world.broker.broker.cluster_level
            level.take("1.5")
            (found,) = (await peer.ask(metadata(topics=[named]), 12)).topics
            assert found.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
            level.take("1.6")
            async with asyncio.timeout(20):
                while found.error_code:
                    (found,) = (await peer.ask(metadata(topics=[named]), 12)).topics
            assert len(found.partitions) == 1 and found.is_internal
            hosted = world.broker.broker.partitions.get(TRANSACTIONS_TOPIC, 0)
            assert hosted is not None and hosted.log.configs.cleanup_policy == {"compact"}
            growth = messages.CreatePartitionsRequest
            more = growth.CreatePartitionsTopic(name=TRANSACTIONS_TOPIC, count=2)
            answer = await peer.ask(growth(topics=[more], timeout_ms=20_000), 3)
            assert answer.results[0].error_code == E.INVALID_PARTITIONS
            peer.writer.close()

    asyncio.run(main())


def test_a_transaction_over_a_restart_of_its_coordinator(tmp_path: Path) -> None:
    async def main() -> None:
        async with world_in(tmp_path) as world:
            markers = Recorder()
            world.broker.broker.transactions.send_with(markers)
            peer = await Peer.connect(world.port("broker"))
            await coordinator_of(world, peer)
            hosted = world.broker.broker.partitions.get(TRANSACTIONS_TOPIC, 0)
            assert hosted is not None and hosted.log.configs.cleanup_policy == {"compact"}
            first = await initialized(peer)
            assert (first.error_code, first.producer_epoch) == (E.NONE, 0)
            producer = IdAndEpoch(first.producer_id, 0)
            await add(peer, producer)
            assert (await peer.ask(messages.EndTxnRequest(ID, *producer, True), 4)).error_code == 0
            await until(lambda: markers.sent)
            assert markers.sent[0].markers.partitions == partitions(("t", 0))
            # The broker stops before its markers are sent; after its start it sends them.
            await restart(world)
            peer = await Peer.connect(world.port("broker"))
            async with asyncio.timeout(20):
                while await state(peer) != "CompleteCommit":
                    pass
            await add(peer, producer)
            # The transaction is open when the broker stops: the next producer aborts it.
            await restart(world)
            peer = await Peer.connect(world.port("broker"))
            assert (await initialized(peer)).producer_epoch == 2
            answer = await peer.ask(messages.EndTxnRequest(ID, *producer, True), 4)
            assert answer.error_code == E.PRODUCER_FENCED
            peer.writer.close()

    asyncio.run(main())
