"""Commands that must be refused: every control request, on every wrong channel (promise 23)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.controlled_broker import ControlledBroker, open_channel
from tests.support.lone_broker import Peer
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

A = UUID(int=0xA)
CONTROLLER_EPOCH = 5
BROKER_EPOCH = 7


def leader_and_isr(**who: Any) -> tuple[Any, int]:
    """Make this broker host t-0."""
    request = messages.LeaderAndIsrRequest
    state = request.LeaderAndIsrPartitionState(
        partition_index=0, controller_epoch=5, leader=1, leader_epoch=9, isr=[1], replicas=[1]
    )
    topic = request.LeaderAndIsrTopicState(topic_name="t", topic_id=A, partition_states=[state])
    return request(controller_id=1, type=1, topic_states=[topic], **who), 5


def stop_replica(**who: Any) -> tuple[Any, int]:
    """Delete k-0, which this broker hosts."""
    request = messages.StopReplicaRequest
    topic = request.StopReplicaTopicState(
        "k", UUID(int=0), [request.StopReplicaPartitionState(0, -2, True)]
    )
    return request(controller_id=1, topic_states=[topic], **who), 3


def update_metadata(**who: Any) -> tuple[Any, int]:
    """Name another broker."""
    request = messages.UpdateMetadataRequest
    end = request.UpdateMetadataEndpoint(port=1, host="elsewhere", listener="PLAINTEXT")
    live = [request.UpdateMetadataBroker(id=99, endpoints=[end])]
    return request(controller_id=1, live_brokers=live, **who), 7


def update_configs(**who: Any) -> tuple[Any, int]:
    """Change the retention of k."""
    request = messages.UpdateConfigsRequest
    entity = request.Entity(2, "k", [request.Config("retention.ms", "1")])
    return request(controller_id=1, store_revision=10**6, entities=[entity], **who), 0


COMMANDS = (leader_and_isr, stop_replica, update_metadata, update_configs)
Command = Callable[..., tuple[Any, int]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_applied_on_the_newest_channel_of_the_newest_controller_only(
    command: Command, tmp_path: Path
) -> None:
    async def main() -> None:
        lone = ControlledBroker(tmp_path, {})
        await lone.start()
        try:
            lone.lead("k")
            stray, older, channel = [await Peer.connect(lone.port) for _ in range(3)]

            async def answer(peer: Peer, controller_epoch: int, broker_epoch: int) -> ErrorCode:
                request, version = command(
                    controller_epoch=controller_epoch, broker_epoch=broker_epoch
                )
                return ErrorCode((await peer.ask(request, version)).error_code)

            now = (CONTROLLER_EPOCH, BROKER_EPOCH)
            assert await answer(stray, *now) is ErrorCode.STALE_CONTROLLER_EPOCH
            assert await open_channel(older, CONTROLLER_EPOCH, 1) == ErrorCode.NONE
            assert await open_channel(channel, CONTROLLER_EPOCH, 2) == ErrorCode.NONE
            with pytest.raises(ConnectionError):
                await answer(older, *now)
            again = await Peer.connect(lone.port)
            assert await open_channel(again, 5, 1) is ErrorCode.STALE_CONTROLLER_EPOCH
            assert await open_channel(again, 4, 9) is ErrorCode.STALE_CONTROLLER_EPOCH
            for peer in (stray, again):
                assert await answer(peer, *now) is ErrorCode.STALE_CONTROLLER_EPOCH
            assert await answer(channel, 4, BROKER_EPOCH) is ErrorCode.STALE_CONTROLLER_EPOCH
            assert await answer(channel, 6, BROKER_EPOCH) is ErrorCode.STALE_CONTROLLER_EPOCH
            assert await answer(channel, 5, BROKER_EPOCH - 1) is ErrorCode.STALE_BROKER_EPOCH
            assert not changed(lone), "nothing of it was done"
            assert await answer(channel, *now) is ErrorCode.NONE
            assert changed(lone)
        finally:
            await lone.stop()

    asyncio.run(main())


def changed(lone: ControlledBroker) -> bool:
    """Whether any of the four commands was applied."""
    broker = lone.broker
    return (
        broker.partitions.get("t", 0) is not None
        or broker.partitions.get("k", 0) is None
        or 99 in broker.metadata.brokers
        or broker.topic_configs.topic("k").retention_ms == 1
    )
