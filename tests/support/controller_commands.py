"""LeaderAndIsr and StopReplica requests of a controller to a broker in this process."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.controlled_broker import ControlledBroker, commanded
from tests.support.lone_broker import LoneBroker, Peer
from tests.support.storage_logs import QuickDisk
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.runtime.disk import Disk
from tidelog.runtime.seams import Seams

A, B = UUID(int=0xA), UUID(int=0xB)
FULL, INCREMENTAL = 2, 1
OK = int(ErrorCode.NONE)


def running(
    folder: Path, disk: Disk | None = None, **config: str
) -> AbstractAsyncContextManager[tuple[ControlledBroker, Peer]]:
    return commanded(ControlledBroker(folder, config, None if disk is None else Seams(disk=disk)))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def leader_and_isr(
    topics: dict[str, tuple[UUID, dict[int, tuple[int, int]]]],
    kind: int = INCREMENTAL,
    epoch: int = 1,
    broker_epoch: int = 7,
    migrated: bool = False,
) -> Any:
    """Topic -> (id, partition -> (leader epoch, ISR version))."""
    request = messages.LeaderAndIsrRequest
    return request(
        controller_id=1,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        type=kind,
        topic_states=[
            request.LeaderAndIsrTopicState(
                topic_name=name,
                topic_id=topic_id,
                migrated=migrated,
                partition_states=[
                    request.LeaderAndIsrPartitionState(
                        partition_index=index,
                        controller_epoch=epoch,
                        leader=1,
                        leader_epoch=leader_epoch,
                        isr=[1],
                        replicas=[1],
                        isr_version=version,
                    )
                    for index, (leader_epoch, version) in partitions.items()
                ],
            )
            for name, (topic_id, partitions) in topics.items()
        ],
    )


def follow(indexes: Iterable[int], leader_epoch: int = 0) -> Any:
    """Follow broker 2 in partitions of t."""
    request = leader_and_isr({"t": (A, dict.fromkeys(indexes, (leader_epoch, 0)))})
    for state in request.topic_states[0].partition_states:
        state.leader, state.isr, state.replicas = 2, [2], [2, 1]
    return request


def fetched(lone: LoneBroker) -> int:
    """How many partitions of t this broker fetches from broker 2."""
    fetcher = lone.broker.followers._fetchers.get(2)
    of_topic = lone.broker.partitions.by_topic.get("t", {})
    return sum(fetcher is not None and fetcher.follows(x.key) for x in of_topic.values())


def stop(
    topic_id: UUID, leader_epoch: int, *, delete: bool = True, partition: int = 0, epoch: int = 1
) -> Any:
    request = messages.StopReplicaRequest
    state = request.StopReplicaPartitionState(partition, leader_epoch, delete)
    topic = request.StopReplicaTopicState("t", topic_id, [state])
    return request(controller_id=1, controller_epoch=epoch, broker_epoch=7, topic_states=[topic])


async def command(peer: Peer, request: Any, version: int = 5) -> list[int]:
    answer = await peer.ask(request, version)
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
    if isinstance(request, messages.StopReplicaRequest):
        return [error.error_code for error in answer.partition_errors]
    if version < 5:
        return [error.error_code for error in answer.partition_errors]
    return [error.error_code for topic in answer.topics for error in topic.partition_errors]


def quarantined(folder: Path, ending: str) -> list[str]:
    return sorted(path.name for path in folder.rglob(f"*-{ending}") if path.is_dir())


class OneBadPlace(QuickDisk):
    """Refuses to write or rename what has ``bad`` in its path, and to sync one directory."""

    bad = ""
    unsynced = ""

    def sync_directory(self, path: str) -> None:
        if path == self.unsynced:
            raise OSError(errno.EIO, "planted", path)
        super().sync_directory(path)

    def replace(self, path: str, content: bytes) -> None:
        self._refuse(path)
        super().replace(path, content)

    def rename(self, source: str, target: str) -> None:
        self._refuse(source)
        super().rename(source, target)

    def _refuse(self, path: str) -> None:
        # A name of its own: the first run on a machine works below `pytest-0`, which ends in `t-0`.
        if self.bad and f"/{self.bad}" in path:
            raise OSError(errno.EIO, "planted", path)
