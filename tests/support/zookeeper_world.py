"""A controller process over a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.controller_process import configs
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S
from tests.support.reporting_brokers import ReportingBroker
from tests.support.zookeeper import PATIENT_SESSION_S, Door, ZooKeeper, needed
from tidelog.metadata.zookeeper import ZookeeperStore
from tidelog.model.levels import LATEST
from tidelog.runtime.seams import Seams


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    needed()
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class Tool:
    """A tool that has the address of the ZooKeeper."""

    def __init__(self, client: KazooClient, chroot: str) -> None:
        self.client = client
        self.chroot = chroot

    def write(self, path: str, content: str) -> None:
        """Create or replace a node."""
        whole = self.chroot + path
        if self.client.exists(whole):
            self.client.set(whole, content.encode())
        else:
            self.client.create(whole, content.encode())

    def make_ephemeral(self, path: str, content: str) -> None:
        """Create a node that goes with this tool."""
        self.client.create(self.chroot + path, content.encode(), ephemeral=True)

    def lasts(self, path: str) -> bool:
        """Whether there is such a node that no session owns."""
        found = self.client.exists(self.chroot + path)
        return found is not None and not found.ephemeralOwner

    def read(self, path: str) -> Any:
        """A node's JSON."""
        return json.loads(self.client.get(self.chroot + path)[0])

    def there(self, path: str) -> bool:
        """Whether there is such a node."""
        return self.client.exists(self.chroot + path) is not None


class World:
    """A controller on ZooKeeper, one recorded broker that reports its fences, and a tool."""

    def __init__(self, zookeeper: ZooKeeper, tool: Tool) -> None:
        self.address = zookeeper.address + tool.chroot
        self.door = Door(zookeeper.port, unheard=0)
        self.tool = tool
        self.broker = ReportingBroker(1)
        self.controller: LoneController
        self.level = LATEST.name

    async def start(self) -> None:
        address = await self.door.open() + self.tool.chroot
        self.controller = LoneController(
            configs(
                broker_session_timeout_ms="60000",
                broker_silence_suspect_ms="59000",
                inter_broker_protocol_version=self.level,
            ),
            Seams(),
            ZookeeperStore(address, PATIENT_SESSION_S),
        )
        await self.controller.start()

    async def tell(self, path: str, content: str) -> None:
        """The tool writes, in a thread."""
        await asyncio.get_running_loop().run_in_executor(None, self.tool.write, path, content)

    async def told(self, kind: type, holds: Callable[[Any], bool]) -> Any:
        """Wait until the broker gets a request of a kind that holds; return it."""
        found: list[Any] = []

        def has_come(requests: list[Any]) -> bool:
            found[:] = [x for x in requests if isinstance(x, kind) and holds(x)]
            return bool(found)

        await self.broker.told(has_come)
        return found[-1]


def run(zookeeper: ZooKeeper, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    chroot = f"/{uuid.uuid4().hex}"
    client = KazooClient(hosts=zookeeper.address)
    client.start(DEADLINE_S)

    async def main() -> None:
        world = World(zookeeper, Tool(client, chroot))
        await world.start()
        try:
            await world.broker.listen()
            answer = await world.broker.register(world.controller.listener_port)
            assert answer.error_code == 0
            async with asyncio.timeout(DEADLINE_S), beating(world.broker):
                await scenario(world)
        finally:
            await world.broker.close()
            await world.controller.stop()
            await world.door.close()

    try:
        asyncio.run(main())
    finally:
        client.stop()
        client.close()


@contextlib.asynccontextmanager
async def beating(broker: ReportingBroker) -> AsyncIterator[None]:
    """The broker's heartbeats."""

    async def beat() -> None:
        while True:
            await broker.heartbeat()
            assert broker.session is not None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(broker.session.wait_closed(), 0.2)

    task = asyncio.ensure_future(beat())
    try:
        yield
    finally:
        task.cancel()
