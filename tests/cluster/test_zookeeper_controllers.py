"""Controllers on a real ZooKeeper: a server that is not there yet or goes away, lost sessions.

Controllers killed or paused under load are `test_cli_up_controllers.py`'s.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.cluster import ControllerNode
from tests.support.controller_process import RecordedBroker, configs, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.zookeeper import PATIENT_SESSION_S, ZooKeeper, end_session, needed
from tests.support.zookeeper_world import World, run, zookeeper
from tidelog.metadata.zookeeper import ZookeeperStore
from tidelog.model.errors import ErrorCode
from tidelog.runtime.seams import Seams

__all__ = ["zookeeper"]

pytestmark = [pytest.mark.java, pytest.mark.long(20)]


def test_a_store_that_is_down_at_the_start_is_waited_for(tmp_path: Path) -> None:
    needed()
    server = ZooKeeper(tmp_path / "zookeeper")
    node = ControllerNode(
        tmp_path / "controller", {"metadata.store": f"zookeeper://{server.address}/late"}
    )
    try:
        node.launch()
        said = "not active, trying again"
        wait_until(lambda: said in node.program.output(), DEADLINE_S, lambda: node.said(said), 0.2)
        assert f"ZooKeeper at {server.address}/late does not answer" in node.program.output()
        assert node.program.exit_status() is None
        with server:

            def active() -> bool:
                found = server.content("/late/controller")
                return found is not None and json.loads(found)["brokerid"] == 100

            wait_until(active, DEADLINE_S, lambda: node.said("is active"), 0.5)
            assert node.program.output().count(said) == 1, "one line for one reason"
            assert node.stop() == 0
    finally:
        node.__exit__()


def test_a_controller_whose_session_expires_starts_again(zookeeper: ZooKeeper) -> None:
    async def scenario(world: World) -> None:
        broker, controller = world.broker, world.controller
        assert (await broker.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
        store = controller.store
        assert isinstance(store, ZookeeperStore)
        await end_session(store, world.door, zookeeper)
        await until(lambda: controller.cluster.controller_epoch == 2, DEADLINE_S)
        await asyncio.wait_for(controller.activity.activated.wait(), DEADLINE_S)
        # A broker registered with the first epoch registers again, and receives a FULL.
        await until(lambda: controller.cluster.presumed == {1}, DEADLINE_S)
        assert (await broker.heartbeat()).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        broker.requests.clear()
        assert (await broker.register(controller.listener_port)).broker_epoch == 1
        await broker.told(lambda requests: len(requests) >= 4)
        assert broker.requests[0].controller_epoch == 2
        # Its watches stand on the new session.
        await world.tell("/brokers/topics/u", '{"version":1,"partitions":{"0":[1]}}')
        await until(lambda: "u" in controller.cluster.topic_histories, DEADLINE_S)

    run(zookeeper, scenario)


def test_of_two_controllers_the_second_writes_and_the_first_cannot(zookeeper: ZooKeeper) -> None:
    """Promise 22: a first one that does not know of the second; whatever it writes fails."""

    async def scenario(world: World) -> None:
        first = world.controller
        store = ZookeeperStore(world.address, PATIENT_SESSION_S)
        second = LoneController(configs(node_id="102"), Seams(), store)
        await second.start()
        try:
            assert not second.active
            # The znode of the first is deleted without an event for it: as if it had been paused.
            first.store_watches.end()
            path = world.tool.chroot + "/controller"
            await asyncio.get_running_loop().run_in_executor(None, world.tool.client.delete, path)
            await asyncio.wait_for(second.activity.activated.wait(), DEADLINE_S)
            assert second.cluster.controller_epoch == 2
            refused = await world.broker.refused(topic("t", 1, 1), 7)
            assert refused == ErrorCode.NOT_CONTROLLER
            assert not world.tool.there("/brokers/topics/t")
            await until(lambda: not first.active, DEADLINE_S)
            beat = await world.broker.heartbeat()
            assert beat.error_code == ErrorCode.NOT_CONTROLLER
            other = RecordedBroker(1)
            other.directory, other.incarnation = world.broker.directory, world.broker.incarnation
            await other.listen()
            assert (await other.register(second.listener_port)).error_code == 0
            assert (await other.forward(topic("t", 1, 1), 7)).topics[0].error_code == 0
            await other.close()
        finally:
            await second.stop()

    run(zookeeper, scenario)


def test_while_the_server_is_gone_no_heartbeat_is_answered(tmp_path: Path) -> None:
    needed()
    server = ZooKeeper(tmp_path)

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, server.kill)
        await until(lambda: not world.controller.store.reachable, DEADLINE_S)
        answer = await world.broker.heartbeat()
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        await loop.run_in_executor(None, server.start)
        await until(lambda: world.controller.store.reachable, DEADLINE_S)
        await asyncio.wait_for(world.controller.activity.activated.wait(), DEADLINE_S)

    with server:
        run(server, scenario)


def test_a_controller_whose_node_a_tool_removes_has_another_elected(zookeeper: ZooKeeper) -> None:
    async def scenario(world: World) -> None:
        path = world.tool.chroot + "/controller"
        await asyncio.get_running_loop().run_in_executor(None, world.tool.client.delete, path)
        await until(lambda: world.controller.cluster.controller_epoch == 2, DEADLINE_S)
        await asyncio.wait_for(world.controller.activity.activated.wait(), DEADLINE_S)
        assert (await world.broker.register(world.controller.listener_port)).error_code == 0

    run(zookeeper, scenario)
