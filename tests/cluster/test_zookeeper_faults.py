"""A multi-write of a controller on a real ZooKeeper is struck: refused, its answer lost, met, late.

The connection is cut before the write leaves or while its answer is on the way; another writes a
node of it just before; or it is held for 3 s, after which kazoo has given the connection up and the
write may be made all the same. The same over other stores, and for each kind of decision and each
call, is `tests/simulation/test_store_faults.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.simulation.store_stage import STORED
from tests.simulation.striking_store import LATE_S, Fault
from tests.support.controller_process import RecordedBroker, configs, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S
from tests.support.zookeeper import Door, ZooKeeper
from tests.support.zookeeper_world import zookeeper
from tidelog.client.errors import ClientError
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.nodes import load
from tidelog.metadata import layout
from tidelog.metadata.zookeeper import ZookeeperStore
from tidelog.model.configs.resolve import BrokerLayers
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams

__all__ = ["zookeeper"]

pytestmark = pytest.mark.java

MULTI = 14
"""ZooKeeper's type of a multi-write."""


class StrikingDoor(Door):
    """The way to a server, on which the next multi-write is struck."""

    def __init__(self, port: int) -> None:
        super().__init__(port, unheard=0)
        self.fault: Fault | None = None
        self.struck = 0
        self.another_writes: Callable[[], object] = lambda: None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, to_there]
        swallowed: list[bytes] = []
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.gather(
                self._ask(reader, to_there, swallowed), self._answer(there, writer, swallowed)
            )
        for each in (writer, to_there):
            each.transport.abort()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallowed: list[bytes]
    ) -> None:
        is_greeting = True
        while True:
            frame = await _frame(reader)
            fault = self.fault
            if fault is None or is_greeting or int.from_bytes(frame[8:12]) != MULTI:
                is_greeting = False
                writer.write(frame)
                continue
            self.fault, self.struck = None, self.struck + 1
            if fault is Fault.REFUSED:
                raise OSError("planted: cut before it left")
            if fault is Fault.LOST:
                swallowed.append(frame[4:8])
            elif fault is Fault.CONFLICT:
                await asyncio.get_running_loop().run_in_executor(None, self.another_writes)
            else:
                await over(LATE_S)
            writer.write(frame)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallowed: list[bytes]
    ) -> None:
        while True:
            frame = await _frame(reader)
            if frame[4:8] in swallowed:
                raise OSError("planted: its answer is lost")
            writer.write(frame)


async def over(seconds: float) -> None:
    """Let a fault last."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    await until(lambda: loop.time() >= ends)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size))


@dataclass
class Kind:
    """One thing that is asked for until it is done, and what another writes meanwhile."""

    request: Any
    version: int
    done: Callable[[ClusterState], object]
    path: str
    data: bytes


def _kinds() -> list[Kind]:
    alter, delete = messages.IncrementalAlterConfigsRequest, messages.DeleteTopicsRequest
    altered = alter.AlterConfigsResource(2, "t", [alter.AlterableConfig("segment.ms", 0, "7000")])
    other = b'{"version":1,"config":{"retention.ms":"2000"}}'
    return [
        Kind(
            *(topic("n", 2, 1), 7, lambda cluster: "n" in cluster.topic_histories),
            *(layout.topic("n"), b'{"version":1,"partitions":{"0":[1],"1":[1]}}'),
        ),
        Kind(
            *(alter([altered]), 1),
            lambda cluster: cluster.topic_configs["t"].get("segment.ms") == "7000",
            *(layout.topic_configs("t"), other),
        ),
        Kind(
            *(delete(topics=[delete.DeleteTopicState("t")], timeout_ms=1000), 6),
            lambda cluster: "t" not in cluster.topics and not cluster.deletions,
            *(layout.topic_configs("t"), other),
        ),
    ]


async def ask(
    controller: LoneController, broker: RecordedBroker, request: Any, version: int
) -> None:
    """Forward; whoever is not known any more registers again and asks later."""
    with contextlib.suppress(ClientError, OSError, AssertionError):
        await broker.forward(request, version)
    if broker.session is not None and broker.session.closed:
        broker.session = None
    if controller.active and controller.cluster.presumed:
        with contextlib.suppress(ClientError, OSError):
            await broker.register(controller.listener_port)


async def story(server: ZooKeeper, fault: Fault) -> None:
    place = uuid.uuid4().hex
    door = StrikingDoor(server.port)
    store = ZookeeperStore(f"{await door.open()}/{place}")
    times = {"broker_session_timeout_ms": "60000", "broker_silence_suspect_ms": "59000"}
    controller = LoneController(configs(**times), Seams(), store)
    broker = RecordedBroker(1)
    tool = KazooClient(hosts=f"{server.address}/{place}")

    def another(kind: Kind) -> Callable[[], object]:
        return lambda: (
            tool.set(kind.path, kind.data)
            if tool.exists(kind.path)
            else tool.create(kind.path, kind.data)
        )

    loop = asyncio.get_running_loop()
    try:
        await broker.listen()
        await controller.start()
        await loop.run_in_executor(None, tool.start, DEADLINE_S)
        await broker.register(controller.listener_port)
        made = await broker.forward(topic("t", 1, 1, retention_ms="1000"), 7)
        assert made.topics[0].error_code == 0
        for number, kind in enumerate(_kinds(), 1):
            door.another_writes, door.fault = another(kind), fault
            epoch = controller.cluster.controller_epoch
            while not (controller.active and _holds(kind, controller.cluster)):
                await ask(controller, broker, kind.request, kind.version)
                await until(lambda: controller.active)
            assert door.struck == number
            if fault is Fault.CONFLICT:
                assert controller.cluster.controller_epoch == epoch, "no failover for a tool's node"
        async with controller.turn:
            again = ClusterState(layers=BrokerLayers(static=controller.configs.texts))
            load(again, await store.load())
            for name in STORED:
                assert getattr(controller.cluster, name) == getattr(again, name), name
    finally:
        await broker.close()
        await controller.stop()
        await loop.run_in_executor(None, _end, tool)
        await door.close()


def _holds(kind: Kind, cluster: ClusterState) -> bool:
    try:
        return bool(kind.done(cluster))
    except KeyError:
        return False


def _end(tool: KazooClient) -> None:
    tool.stop()
    tool.close()


@pytest.mark.parametrize("fault", Fault)
def test_a_multi_write_that_is_struck_on_its_way(zookeeper: ZooKeeper, fault: Fault) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story(zookeeper, fault)

    asyncio.run(main())
