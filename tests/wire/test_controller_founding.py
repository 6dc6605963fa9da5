"""An empty store: when it is that of a new cluster, and what shows that it is not (promise 20)."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from tests.support.controller_process import RecordedBroker, World, configs, run, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.processes import free_ports
from tests.support.standing_clock import StandingClock
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.controller import founding
from tidelog.controller.metrics import statistics, store_trouble
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.store import Create, Delete, StoreRefused
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams

OTHER = "anothercluster00000000"
NOT_CONTROLLER, OK = int(ErrorCode.NOT_CONTROLLER), 0


async def unproven(
    world: World,
    tree: MemoryTree | None = None,
    belongs_to: str | None = None,
    seams: Seams | None = None,
    **texts: str,
) -> LoneController:
    """A controller whose starter has no proof that its cluster is new."""
    store = MemoryStore(MemoryTree() if tree is None else tree)
    controller = LoneController(
        configs(**texts), seams or Seams(), store, belongs_to=belongs_to, is_new=False
    )
    world.controllers.append(controller)
    await controller.start()
    return controller


async def listening(world: World, node_id: int) -> RecordedBroker:
    broker = RecordedBroker(node_id)
    world.brokers.append(broker)
    await broker.listen()
    return broker


async def problems(broker: RecordedBroker) -> list[str]:
    answer = await broker.forward(messages.DescribeConditionRequest(), 0)
    kinds = [each["kind"] for each in json.loads(answer.condition)["problems"]]
    # A controller that has just loaded everything presumes that its brokers live.
    return [kind for kind in kinds if kind != "brokers_presumed"]


async def created(broker: RecordedBroker, name: str) -> tuple[int, str]:
    (result,) = (await broker.forward(topic(name, 1, 1), 7)).topics
    return result.error_code, result.error_message or ""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(founding, "EVIDENCE_MS", 300)


def test_a_broker_of_a_cluster_shows_that_an_empty_store_is_its_lost_one() -> None:
    async def scenario(world: World) -> None:
        # The time for evidence does not pass.
        controller = await unproven(world, seams=Seams(clock=StandingClock()))
        new, old = await listening(world, 1), await listening(world, 2)
        founded = controller.cluster.cluster_id
        assert (await world.registered(controller, new, cluster_id="")).error_code == OK
        # It waits for evidence, and there is some.
        waiting = asyncio.ensure_future(created(new, "t"))
        assert (await world.registered(controller, old, cluster_id=OTHER)).error_code == OK
        assert (controller.cluster.cluster_id, controller.cluster.past.founded_as) == (
            OTHER,
            founded,
        )
        assert (await waiting)[0] == ErrorCode.POLICY_VIOLATION
        error, sentence = await created(old, "t")
        assert error == ErrorCode.POLICY_VIOLATION
        assert sentence.startswith(f"The metadata store of cluster {OTHER} is lost: broker 2 ")
        assert "backup" in sentence and "tidelog doctor restored" in sentence
        assert not controller.cluster.topics
        assert await problems(old) == ["store_went_back"]
        assert store_trouble(controller) == sentence
        assert statistics(controller)["store_went_back"] == 1
        assert old.names() == ["OpenControlChannel"]
        # The broker on the empty disk learns what the cluster is called.
        answer = await new.register(controller.listener_port, cluster_id=founded)
        assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert controller.founding.strangers() == {}
        assert new.session is not None
        for broker, expected in ((1, founded), (-1, "")):
            request = messages.DescribeClusterRequest(broker_id=broker)
            described = await new.session.send(request, 0)
            assert (described.cluster_id, described.founded_as) == (OTHER, expected)
        # A third cluster is none of this store's.
        third = await listening(world, 3)
        answer = await world.registered(controller, third, cluster_id="third")
        assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        # What is lost comes first.
        assert await problems(old) == ["store_went_back", "brokers_of_another_cluster"]

    run(scenario)


def test_brokers_that_show_it_at_once_are_no_strangers() -> None:
    async def scenario(world: World) -> None:
        controller = await unproven(world)
        brokers = [await listening(world, number) for number in (1, 2, 3)]
        shown = [controller.founding.witness(number, OTHER) for number in (1, 2, 3)]
        # One makes it the lost store; the others wait for the turn of that change.
        assert (await asyncio.gather(*shown, return_exceptions=True)).count(True) == 1
        for broker in brokers:
            assert (await world.registered(controller, broker, cluster_id=OTHER)).error_code == OK
        assert await problems(brokers[0]) == ["store_went_back"]
        assert controller.founding.strangers() == {}
        assert statistics(controller)["brokers_of_another_cluster"] == 0
        answer = await brokers[0].forward(messages.RestoredStoreRequest(accept=True), 0)
        assert answer.error_code == OK
        for broker in brokers:
            assert (await world.registered(controller, broker, cluster_id=OTHER)).error_code == OK
        assert await problems(brokers[0]) == []

    run(scenario)


def test_what_was_refused_under_another_id_does_not_count_under_the_own_one() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()
        assert not await controller.founding.witness(2, OTHER)
        assert not await controller.founding.witness(3, "third")
        assert controller.founding.strangers() == {2: OTHER, 3: "third"}
        # As a store that is put back by hand names it.
        controller.cluster.cluster_id = OTHER
        assert controller.founding.strangers() == {3: "third"}
        assert statistics(controller)["brokers_of_another_cluster"] == 1

    run(scenario)


def test_a_broker_that_starts_shows_it_too() -> None:
    async def scenario(world: World) -> None:
        controller = await unproven(world)
        asked = messages.DescribeClusterRequest(broker_id=2, own_cluster_id=OTHER)

        async def ask() -> tuple[ClientConnection, Any]:
            connection = await connect("127.0.0.1", controller.listener_port)
            return connection, await connection.send(asked, 0)

        broker = await listening(world, 1)
        assert (await world.registered(controller, broker, cluster_id="")).error_code == OK
        # Of a client no broker forwards it.
        assert await broker.refused(asked, 0) != OK
        assert controller.cluster.went_back is None
        connection, answer = await ask()
        connection.close()
        assert answer.error_code == NOT_CONTROLLER
        await until(lambda: controller.active)
        connection, answer = await ask()
        connection.close()
        assert (answer.error_code, answer.cluster_id) == (OK, OTHER)

    run(scenario)


def test_without_evidence_the_cluster_is_founded_and_only_its_first_change_waits() -> None:
    async def scenario(world: World) -> None:
        clock = StandingClock()
        controller = await unproven(world, seams=Seams(clock=clock))
        broker = await listening(world, 1)
        assert (await world.registered(controller, broker, cluster_id="")).error_code == OK
        waiting = asyncio.ensure_future(created(broker, "t"))
        # The session and all that changes nothing go on meanwhile.
        assert (await problems(broker)) == [] and not waiting.done()
        clock.passed_ms += founding.EVIDENCE_MS
        assert (await waiting)[0] == OK
        assert controller.founding._open_until_ms is None
        # Now it has a topic: a broker of another cluster makes no lost store of it, but a case for
        # the operator. No further topic is created.
        stranger = await listening(world, 2)
        answer = await world.registered(controller, stranger, cluster_id=OTHER)
        assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        error, sentence = await created(broker, "u")
        assert error == ErrorCode.POLICY_VIOLATION and OTHER in sentence
        assert "metadata.store and log.dirs" in sentence
        assert await problems(broker) == ["store_contested"]
        assert store_trouble(controller) == sentence
        assert set(controller.cluster.topics) == {"t"}
        assert statistics(controller)["brokers_of_another_cluster"] == 1

    run(scenario)


def test_a_stranger_does_not_stop_a_cluster_that_this_process_has_not_founded() -> None:
    async def scenario(world: World) -> None:
        controller = await world.controller()  # with proof
        broker, stranger = await world.broker(controller, 1), await listening(world, 2)
        answer = await world.registered(controller, stranger, cluster_id=OTHER)
        assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert await problems(broker) == ["brokers_of_another_cluster"]
        assert (await created(broker, "t"))[0] == OK
        assert store_trouble(controller) is None

    run(scenario)


def test_the_strangers_on_record_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(founding, "MOST_STRANGERS", 2)

    async def scenario(world: World) -> None:
        controller = await world.controller()
        for number in range(2, 6):
            assert not await controller.founding.witness(number, OTHER)
        assert controller.founding.strangers() == {4: OTHER, 5: OTHER}

    run(scenario)


def test_the_log_directories_of_the_process_show_it_before_any_broker_does() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        controller = await unproven(world, tree, OTHER)
        assert controller.cluster.cluster_id == OTHER
        assert "the log directories of this node" in (controller.cluster.went_back or "")
        await controller.stop()
        # It stays so, for a node whose new disk has the id that was given by mistake too.
        again = await unproven(world, tree, OTHER)
        assert again.cluster.went_back is not None

    run(scenario)


def test_a_store_without_its_cluster_id_gets_it_back_or_is_refused() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        controller = await unproven(world, tree)
        broker = await listening(world, 1)
        assert (await world.registered(controller, broker, cluster_id="")).error_code == OK
        assert (await created(broker, "t"))[0] == OK
        cluster_id = controller.cluster.cluster_id
        await controller.stop()
        tool = MemoryStore(tree)
        await tool.open()
        assert await tool.multi([Delete(layout.CLUSTER_ID)]) is None
        with pytest.raises(StoreRefused, match=r"no node /cluster/id: .*meta\.properties"):
            await unproven(world, tree)
        again = await unproven(world, tree, cluster_id)
        assert (again.cluster.cluster_id, again.cluster.went_back) == (cluster_id, None)

    run(scenario)


def test_another_controller_that_knows_a_cluster_shows_that_the_store_is_the_wrong_one() -> None:
    async def scenario(world: World) -> None:
        first = await world.controller()
        addresses = f"127.0.0.1:{first.listener_port},127.0.0.1:{free_ports(1)[0]}"
        with pytest.raises(StoreRefused, match=f"active for cluster {first.cluster.cluster_id}"):
            await unproven(world, controller_quorum_bootstrap_servers=addresses)
        # Both roads to one store: the second stands by.
        tree = MemoryTree()
        tool = MemoryStore(tree)
        await tool.open()
        await tool.multi([Create("/cluster", b""), Create(layout.CLUSTER_ID, _id(OTHER))])
        second = await unproven(world, tree, controller_quorum_bootstrap_servers=addresses)
        assert second.cluster.cluster_id == OTHER

    run(scenario)


def _id(cluster_id: str) -> bytes:
    return json.dumps({"version": "1", "id": cluster_id}).encode()


def inventory(name: str, number: int, end: int) -> Any:
    request = messages.BrokerRegistrationRequest
    part = request.InventoryPartition(0, 7, 5, end, record_epoch=5)
    return request.InventoryTopic(name, UUID(int=number), [part])


def test_a_broker_that_comes_after_the_acceptance_keeps_what_it_has() -> None:
    """Before its configurations it has to end its service, by the FULL it has to keep it."""

    async def scenario(world: World) -> None:
        controller = await unproven(world)
        first, late = await listening(world, 1), await listening(world, 2)
        first.inventory = [inventory("t", 91, 3)]
        assert (await world.registered(controller, first, cluster_id=OTHER)).error_code == OK
        await until(lambda: controller.cluster.inventories.get(1) is not None)
        accept = messages.RestoredStoreRequest(accept=True)
        assert first.session is not None
        assert (await first.session.send(accept, 0)).error_code == OK
        await until(lambda: controller.active)
        assert (await world.registered(controller, first, cluster_id=OTHER)).error_code == OK
        late.inventory = [inventory("u", 92, 4)]
        assert (await world.registered(controller, late, cluster_id=OTHER)).error_code == OK
        await late.told(lambda _: "UpdateMetadata" in late.names())
        assert late.names()[:4] == [
            "OpenControlChannel",
            "StopReplica",
            "UpdateConfigs",
            "LeaderAndIsr",
        ]
        stopped, full = late.requests[1], late.requests[3]
        (of_topic,) = stopped.topic_states
        (part,) = of_topic.partition_states
        assert (of_topic.topic_id, part.delete_partition) == (UUID(int=92), False)
        (of_topic,) = full.topic_states
        (part,) = of_topic.partition_states
        assert (of_topic.topic_id, part.partition_index) == (UUID(int=92), 0)
        assert (full.type, part.leader, part.leader_epoch) == (2, -1, -1)
        assert "replicas_late" in await problems(late)
        assert late.session is not None
        assert (await late.session.send(accept, 0)).error_code == OK
        await until(lambda: controller.active)
        assert (await world.registered(controller, late, cluster_id=OTHER)).error_code == OK
        await until(lambda: "u" in controller.cluster.topics)
        assert await problems(late) and "replicas_late" not in await problems(late)

    run(scenario)
