"""N2: a name that came over the wire never leaves the log directory, whichever way it takes.

One function judges names (``storage.names.why_no_directory``); here each way to a path meets the
names that have fooled others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.controlled_broker import ControlledBroker, commanded
from tests.support.lone_broker import Peer
from tidelog.broker.metadata.configurations import EntityType
from tidelog.controller.handlers import broker_registration
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.names import InvalidName, directory_name, marked_name, parse_directory

A = UUID(int=0xA)
HOSTILE = (
    "../../x",
    "..",
    ".",
    "",
    "a/b",
    "/etc/x",
    "a\0b",
    "x\nt 0 5",
    "x y",
    "\x1b[2J",
    "é",
    "x" * 250,
)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def running(folder: Path) -> AbstractAsyncContextManager[tuple[ControlledBroker, Peer]]:
    return commanded(ControlledBroker(folder / "deep" / "er" / "logs"))


def everything_in(folder: Path) -> list[str]:
    # The file of seen epochs is written in place; names alone are compared.
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", HOSTILE)
def test_no_directory_is_ever_named_so(name: str) -> None:
    for make in (directory_name, lambda key: marked_name(key, "f" * 32, "-delete")):
        # Only the name of what is deleted is cut to what fits.
        if make is not directory_name and len(name) > 249:
            continue
        with pytest.raises(InvalidName):
            make(TopicPartition(name, 0))
    with pytest.raises(InvalidName):
        directory_name(TopicPartition("t", -1))
    with pytest.raises(InvalidName):
        directory_name(TopicPartition("x" * 249, 2**31 - 1))


def test_a_name_is_as_long_as_a_file_system_takes() -> None:
    """NAME_MAX is 255 bytes: the partition's number counts, too."""
    longest = TopicPartition("x" * 249, 99_999)
    assert len(directory_name(longest)) == 255
    with pytest.raises(InvalidName):
        directory_name(TopicPartition("x" * 249, 100_000))


@pytest.mark.parametrize("name", HOSTILE)
def test_recovery_takes_no_such_directory_for_a_replica(name: str) -> None:
    for ending in ("", f".{'f' * 32}-delete", f".{'f' * 32}-stray"):
        if ending and len(name) > 249:
            continue
        assert parse_directory(f"{name}-0{ending}") is None


@pytest.mark.parametrize("version", [2, 4, 5, 6])
def test_leader_and_isr_makes_nothing_of_such_a_name(tmp_path: Path, version: int) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            before = everything_in(tmp_path)
            for name in HOSTILE:
                assert await command(channel, name, version) == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert await command(channel, "t", version, -1) == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert everything_in(tmp_path) == before
            assert not list(lone.broker.partitions.all())
            assert await command(channel, "t", version) == ErrorCode.NONE

    run(work())


async def command(channel: Peer, name: str, version: int, index: int = 0) -> int:
    request = messages.LeaderAndIsrRequest
    state = request.LeaderAndIsrPartitionState(
        topic_name=name,
        partition_index=index,
        controller_epoch=1,
        leader=1,
        leader_epoch=3,
        isr=[1],
        replicas=[1],
        isr_version=1,
    )
    topic = request.LeaderAndIsrTopicState(
        topic_name=name, topic_id=A if version > 4 else UUID(int=0), partition_states=[state]
    )
    answer = await channel.ask(
        request(controller_id=1, controller_epoch=1, broker_epoch=7, topic_states=[topic]), version
    )
    assert answer.error_code == ErrorCode.NONE
    by_id = [e.error_code for t in answer.topics for e in t.partition_errors]
    (code,) = [*by_id, *(e.error_code for e in answer.partition_errors)]
    return int(code)


@pytest.mark.parametrize("version", [0, 1, 3, 4])
def test_stop_replica_removes_nothing_by_such_a_name(tmp_path: Path, version: int) -> None:
    precious = tmp_path / "x-0"
    precious.mkdir()
    (precious / "kept").write_bytes(b"kept")

    async def work() -> None:
        async with running(tmp_path) as (_, channel):
            before = everything_in(tmp_path)
            for name in (*HOSTILE, "../../../x"):
                assert await stop(channel, name, version) in ([0], [])
            assert everything_in(tmp_path) == before

    run(work())


async def stop(channel: Peer, name: str, version: int) -> Sequence[int]:
    request = messages.StopReplicaRequest
    state = request.StopReplicaPartitionState(
        partition_index=0, leader_epoch=-2, delete_partition=True
    )
    answer = await channel.ask(
        request(
            controller_id=1,
            controller_epoch=1,
            broker_epoch=7,
            delete_partitions=True,
            ungrouped_partitions=[request.StopReplicaPartitionV0(name, 0)],
            topics=[request.StopReplicaTopicV1(name, [0])],
            topic_states=[request.StopReplicaTopicState(name, A, [state])],
        ),
        version,
    )
    assert answer.error_code == ErrorCode.NONE
    return [int(error.error_code) for error in answer.partition_errors]


def test_configurations_of_such_a_name_are_left_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, channel):
            before = everything_in(tmp_path)
            request = messages.UpdateConfigsRequest
            entity, config = request.Entity, request.Config
            answer = await channel.ask(
                request(
                    controller_id=1,
                    controller_epoch=1,
                    broker_epoch=7,
                    store_revision=6,
                    entities=[
                        entity(EntityType.TOPIC, name, [config("retention.ms", "1")])
                        for name in (*HOSTILE, "t")
                    ],
                ),
                0,
            )
            assert answer.error_code == ErrorCode.NONE
            configs = lone.broker.topic_configs
            assert configs.topic("t").retention_ms == 1
            assert all(configs.topic(name).retention_ms != 1 for name in HOSTILE)
            assert everything_in(tmp_path) == before

    run(work())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_log_directory_creates_no_such_replica(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with running(tmp_path) as (lone, _):
            before = everything_in(tmp_path)
            directory = lone.broker.directories[0]
            configs = lone.broker.topic_configs.topic("t")
            with pytest.raises(InvalidName):
                directory.create(TopicPartition(name, 0), configs, PartitionMetadata(A, 0))
            assert everything_in(tmp_path) == before
            assert directory.failed is None

    run(work())


@pytest.mark.parametrize(("name", "index"), [*((name, 0) for name in HOSTILE), ("t", -1)])
def test_no_inventory_brings_such_a_name_into_the_store(name: str, index: int) -> None:
    request = messages.BrokerRegistrationRequest
    part = request.InventoryPartition(partition_index=index, end_offset=1)
    inventory = [request.InventoryTopic(name, A, [part])]
    assert broker_registration.invalid_name(request(inventory=inventory)) is not None
    sound = [request.InventoryTopic("t", A, [request.InventoryPartition(0)])]
    assert broker_registration.invalid_name(request(inventory=sound)) is None
