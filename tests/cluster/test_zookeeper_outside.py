"""Tools write to a real ZooKeeper past the controller: it notices, and updates the brokers."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from tests.support.controller_process import topic
from tests.support.lone_broker import until
from tests.support.processes import DEADLINE_S
from tests.support.zookeeper import ZooKeeper
from tests.support.zookeeper_world import World, run, zookeeper
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

pytestmark = pytest.mark.java
__all__ = ["zookeeper"]


def names(request: Any) -> dict[str, list[int]]:
    """Topic -> partitions of a LeaderAndIsr."""
    return {
        each.topic_name: [x.partition_index for x in each.partition_states]
        for each in request.topic_states
    }


def test_a_topic_is_created_grown_rewritten_configured_and_deleted_by_a_tool(
    zookeeper: ZooKeeper,
) -> None:
    async def scenario(world: World) -> None:
        orders = messages.LeaderAndIsrRequest
        await world.told(orders, lambda x: x.type == 2)
        await world.tell("/brokers/topics/t", '{"version":1,"partitions":{"0":[1]}}')
        await world.told(orders, lambda x: names(x) == {"t": [0]})
        topic_id = world.controller.cluster.topic_id("t")
        assert world.tool.read("/brokers/topics/t")["topic_id"]

        await world.tell("/brokers/topics/t", '{"version":1,"partitions":{"0":[1],"1":[1]}}')
        grown = await world.told(orders, lambda x: 1 in names(x).get("t", []))
        assert grown.topic_states[0].topic_id == topic_id
        node = world.tool.read("/brokers/topics/t")
        # A resize in order (KIP-253): the initial count stays.
        assert (node["initial_partition_count"], node["undeleted_partition_count"]) == (1, 2)
        assert world.controller.cluster.partition_nodes[TopicPartition("t", 1)].partition_epoch == 2

        await world.tell("/config/topics/t", '{"version":1,"config":{"retention.ms":"77"}}')
        await world.tell(
            "/config/changes/config_change_0000000000", '{"version":2,"entity_path":"topics/t"}'
        )
        update = messages.UpdateConfigsRequest
        await world.told(
            update,
            lambda x: (
                [(c.name, c.value) for e in x.entities for c in e.configs if e.entity_name]
                == [("retention.ms", "77")]
            ),
        )
        await until(
            lambda: not world.tool.there("/config/changes/config_change_0000000000"), DEADLINE_S
        )
        await world.tell("/config/brokers/1", '{"version":1,"config":{"log.retention.ms":"5"}}')
        await world.told(
            update, lambda x: any(e.entity_name == "1" and e.configs for e in x.entities)
        )

        await world.tell("/admin/delete_topics/t", "")
        stop = await world.told(messages.StopReplicaRequest, lambda x: True)
        assert stop.topic_states[0].topic_id == topic_id
        await until(lambda: not world.tool.there("/admin/delete_topics/t"), DEADLINE_S)
        assert not world.tool.there("/brokers/topics/t")
        assert world.controller.cluster.controller_epoch == 1, "it never lost its place"

    run(zookeeper, scenario)


def test_a_tool_writes_a_smaller_count(
    zookeeper: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a request for a shrink like any other: refused while writers without a count may be
    there, and otherwise carried out (KIP-253)."""
    path = "/brokers/topics/t"

    async def scenario(world: World) -> None:
        cluster, broker = world.controller.cluster, world.broker
        await world.tell(path, '{"version":1,"partitions":{"0":[1]}}')
        await until(lambda: TopicPartition("t", 0) in cluster.states, DEADLINE_S)
        await world.tell(path, '{"version":1,"partitions":{"0":[1],"1":[1]}}')
        await until(lambda: cluster.topics["t"].undeleted_partition_count == 2, DEADLINE_S)
        await until(lambda: not cluster.resizing, DEADLINE_S)
        grown = world.tool.read(path)
        smaller = json.dumps({**grown, "undeleted_partition_count": 1})

        await world.tell(path, smaller)
        await until(lambda: "the former node is restored" in caplog.text, DEADLINE_S)
        assert "broker 1 has not said whether writers without a partition count" in caplog.text
        await until(lambda: world.tool.read(path) == grown, DEADLINE_S)

        led = messages.BrokerHeartbeatRequest.LedTopic(cluster.topic_id("t"), -1)
        await broker.heartbeat(led_topics=[led])
        await world.tell(path, smaller)
        order = await world.told(
            messages.LeaderAndIsrRequest,
            lambda x: any(p.sealed for t in x.topic_states for p in t.partition_states),
        )
        assert names(order) == {"t": [1]}
        await until(lambda: cluster.topic_histories["t"].resize_epoch == 2, DEADLINE_S)
        await until(lambda: not cluster.resizing, DEADLINE_S)
        assert world.tool.read(path)["undeleted_partition_count"] == 1
        assert world.tool.read(f"{path}/partitions/1")["retirementEpoch"] == 2
        assert sorted(world.tool.read(path)["partitions"]) == ["0", "1"], "it stays readable"

    run(zookeeper, scenario)


def test_a_damaged_topic_node_stops_fulls_until_it_is_healed(zookeeper: ZooKeeper) -> None:
    """The broker is of a version that does not know the list of unreadable topics."""

    async def scenario(world: World) -> None:
        broker = world.broker
        for name in ("t", "u"):
            assert (await broker.forward(topic(name, 1, 1), 7)).topics[0].error_code == 0
        whole = json.dumps(world.tool.read("/brokers/topics/t"))
        await world.tell("/brokers/topics/t", '{"partitions": tru')
        await world.told(messages.UpdateMetadataRequest, lambda x: x.unreadable_topics == ["t"])
        broker.requests.clear()
        broker.incarnation = uuid.uuid4()
        await broker.register(world.controller.listener_port)
        await world.told(messages.OpenControlChannelRequest, lambda _: True)
        problems = (await broker.forward(messages.DescribeConditionRequest(), 0)).condition
        assert "/brokers/topics/t cannot be read" in problems
        assert broker.names() == ["OpenControlChannel"], "no FULL, nothing becomes stale"
        await world.tell("/brokers/topics/t", whole)
        full = await world.told(messages.LeaderAndIsrRequest, lambda x: x.type == 2)
        assert names(full) == {"t": [0], "u": [0]}

    run(zookeeper, scenario)


def test_a_damaged_topic_node_is_named_and_the_other_topics_are_sent(zookeeper: ZooKeeper) -> None:
    async def scenario(world: World) -> None:
        broker = world.broker
        broker.leaves_unreadable = True
        for name in ("t", "u"):
            assert (await broker.forward(topic(name, 1, 1), 7)).topics[0].error_code == 0
        whole = json.dumps(world.tool.read("/brokers/topics/t"))
        update = messages.UpdateMetadataRequest
        await world.tell("/brokers/topics/t", '{"partitions": tru')
        await world.told(update, lambda x: x.unreadable_topics == ["t"])
        broker.requests.clear()
        broker.incarnation = uuid.uuid4()
        await broker.register(world.controller.listener_port)
        full = await world.told(messages.LeaderAndIsrRequest, lambda x: x.type == 2)
        assert (names(full), full.unreadable_topics) == ({"u": [0]}, ["t"])
        everything = await world.told(update, lambda _: True)
        assert [x.topic_name for x in everything.topic_states] == ["u"]
        assert everything.unreadable_topics == ["t"]
        broker.requests.clear()
        await world.tell("/brokers/topics/t", whole)
        healed = await world.told(messages.LeaderAndIsrRequest, lambda _: True)
        assert (names(healed), healed.type) == ({"t": [0]}, 1)
        shown = await world.told(update, lambda _: True)
        assert [x.topic_name for x in shown.topic_states] == ["t"]
        assert shown.unreadable_topics == []

    run(zookeeper, scenario)


def test_a_damaged_state_node_stands_in_a_full_and_the_others_go_on(zookeeper: ZooKeeper) -> None:
    async def scenario(world: World) -> None:
        broker = world.broker
        assert (await broker.forward(topic("t", 2, 1), 7)).topics[0].error_code == 0
        path = "/brokers/topics/t/partitions/0/state"
        whole = json.dumps(world.tool.read(path))
        await world.controller.stop()
        await world.tell(path, "{")
        await world.start()
        broker.requests.clear()
        await broker.register(world.controller.listener_port)
        full = await world.told(messages.LeaderAndIsrRequest, lambda x: x.type == 2)
        states = full.topic_states[0].partition_states
        assert [(x.leader, x.leader_epoch) for x in states] == [(-1, -1), (1, 0)]
        await world.tell(path, whole)
        healed = await world.told(messages.LeaderAndIsrRequest, lambda x: x.type == 1)
        (state,) = [x for x in healed.topic_states[0].partition_states if x.partition_index == 0]
        # A new leader epoch: its leader may have restarted meanwhile (0120).
        assert (state.leader, state.leader_epoch) == (1, 1)

    run(zookeeper, scenario)


def test_an_ephemeral_node_of_a_tool_is_no_topic_and_gives_way_to_one(
    zookeeper: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be made below it: the controller resigned for it again and again."""
    content = json.dumps({"version": 1, "partitions": {"0": [1]}})

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        tool, controller = world.tool, world.controller
        path = "/brokers/topics/e"
        await loop.run_in_executor(None, tool.make_ephemeral, path, content)
        await until(lambda: path in controller.cluster.ephemeral)
        assert f"{path} is ephemeral" in caplog.text
        assert (await world.broker.forward(topic("f", 1, 1), 7)).topics[0].error_code == 0
        assert not await loop.run_in_executor(None, tool.lasts, path)
        assert (await world.broker.forward(topic("e", 1, 1), 7)).topics[0].error_code == 0
        state = f"{path}/partitions/0/state"
        for each in (path, state):
            assert await loop.run_in_executor(None, tool.lasts, each)
        # In the way of a topic that the tool writes itself.
        await world.tell("/brokers/topics/g", content)
        await until(lambda: "g" in controller.cluster.topic_histories)
        more = json.dumps({"version": 1, "partitions": {"0": [1], "1": [1]}})
        second = "/brokers/topics/g/partitions/1"
        await loop.run_in_executor(None, tool.make_ephemeral, second, "")
        await world.tell("/brokers/topics/g", more)
        await until(lambda: TopicPartition("g", 1) in controller.cluster.states)
        assert await loop.run_in_executor(None, tool.lasts, f"{second}/state")
        assert (controller.active, controller.cluster.controller_epoch) == (True, 1)

    run(zookeeper, scenario)
