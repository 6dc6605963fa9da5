"""A controller is killed between any two commits on a real ZooKeeper: the next one goes on.

The store of the first controller takes so many commits and then nothing any more, with its session
ended: what a kill leaves. Writes are cut small, so that creating a topic takes several.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from tests.support.controller_process import RecordedBroker, configs, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S
from tests.support.zookeeper import PATIENT_SESSION_S, ZooKeeper
from tests.support.zookeeper_world import zookeeper
from tidelog.controller.decisions import journal
from tidelog.metadata.store import Conflict, Operation, StoreUnavailable
from tidelog.metadata.zookeeper import ZookeeperStore
from tidelog.model.errors import ErrorCode
from tidelog.runtime.seams import Seams

__all__ = ["zookeeper"]

pytestmark = pytest.mark.java

PARTITIONS = 6
SMALL_WRITES = 900


class KilledStore(ZookeeperStore):
    """Takes so many commits; with the last one its session ends and no call returns any more."""

    def __init__(self, address: str, commits: int) -> None:
        super().__init__(address, PATIENT_SESSION_S)
        self.max_write_bytes = SMALL_WRITES
        self.commits = commits
        self.killed = asyncio.Event()
        self.buried = asyncio.Event()

    async def multi(self, operations: Sequence[Operation]) -> Conflict | None:
        conflict = None
        if not self.killed.is_set():
            conflict = await super().multi(operations)
        self.commits -= 1
        if self.commits > 0:
            return conflict
        self.killed.set()
        await self.close()
        await self.buried.wait()
        raise StoreUnavailable("killed")


async def outlive(address: str, commits: int) -> bool:
    """Kill a first controller after so many commits; False when the story took fewer."""
    store = KilledStore(address, commits)
    first = LoneController(
        configs(broker_session_timeout_ms="60000", broker_silence_suspect_ms="59000"),
        Seams(),
        store,
    )
    second = LoneController(
        configs(
            node_id="102", broker_session_timeout_ms="60000", broker_silence_suspect_ms="59000"
        ),
        Seams(),
        ZookeeperStore(address, PATIENT_SESSION_S),
    )
    broker = RecordedBroker(1)
    await broker.listen()

    async def story() -> None:
        await first.start()
        assert (await broker.register(first.listener_port)).error_code == 0
        wanted = topic("t", PARTITIONS, 1)
        assert (await broker.forward(wanted, 7)).topics[0].error_code == 0

    told = asyncio.ensure_future(story())
    dying = asyncio.ensure_future(store.killed.wait())
    try:
        await asyncio.wait({told, dying}, return_when=asyncio.FIRST_COMPLETED)
        was_killed = store.killed.is_set()
        if not was_killed:
            await store.close()
            store.killed.set()
        await second.start()
        await asyncio.wait_for(second.activity.activated.wait(), DEADLINE_S)
        await check(second, broker)
        return was_killed
    finally:
        store.buried.set()
        for task in (told, dying):
            task.cancel()
        await asyncio.gather(told, dying, return_exceptions=True)
        await broker.close()
        await second.stop()
        await first.stop()


async def check(second: LoneController, broker: RecordedBroker) -> None:
    """The broker registers with the second controller; the topic is there, whole, at last."""
    broker.requests.clear()
    assert (await broker.register(second.listener_port)).error_code == 0
    answer = (await broker.forward(topic("t", PARTITIONS, 1), 7)).topics[0]
    assert answer.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
    cluster = second.cluster
    await until(lambda: len(cluster.states) == PARTITIONS, DEADLINE_S)
    assert {state.leader for state in cluster.states.values()} == {1}
    epochs = {life.partition_epoch for life in cluster.partition_nodes.values()}
    assert len(epochs) == PARTITIONS, "a partition epoch was given twice"
    assert cluster.damaged == {}
    await broker.told(lambda requests: len(requests) >= 4)
    assert broker.requests[0].controller_epoch == cluster.controller_epoch


def test_killed_between_any_two_commits(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MANY", 1)

    async def main() -> int:
        commits = 1
        while await outlive(f"{zookeeper.address}/{uuid.uuid4().hex}", commits):
            commits += 1
        return commits

    assert asyncio.run(main()) > 5, "activation, registration and several parts of a creation"
