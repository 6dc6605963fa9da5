"""An old tool writes `/admin/reassign_partitions` to a real ZooKeeper; the controller acts on it.

The brokers host partitions by the product's rules, and the test plays the leaders.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.lone_broker import until
from tests.support.moving_brokers import HostingBroker
from tests.support.processes import DEADLINE_S
from tests.support.zookeeper import ZooKeeper
from tests.support.zookeeper_world import World, run, zookeeper
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

pytestmark = pytest.mark.java
__all__ = ["zookeeper"]

PATH = "/admin/reassign_partitions"
TOPIC = "/brokers/topics/t"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def row(partition: int, *replicas: int, topic: str = "t") -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "replicas": list(replicas)}


def plan(*rows: Any) -> str:
    return json.dumps({"version": 1, "partitions": list(rows)})


class Cluster:
    """Brokers 2 to 4 with t-0 and t-1 on broker 2; a tool moves them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers = {node_id: HostingBroker(node_id) for node_id in (2, 3, 4)}

    async def __aenter__(self) -> Cluster:
        for broker in self.brokers.values():
            await broker.listen()
        await self.register()
        await self.create("t", 2)
        return self

    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic whose partitions are on broker 2."""
        request = messages.CreateTopicsRequest
        assignment = [request.CreatableReplicaAssignment(x, [2]) for x in range(partitions)]
        asked = request.CreatableTopic(topic, -1, -1, assignment, [])
        answer = await self.brokers[2].forward(request([asked], timeout_ms=20_000), 7)
        assert answer.topics[0].error_code == 0, answer

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.close()

    async def register(self) -> None:
        for broker in self.brokers.values():
            if broker.session is not None:
                broker.session.close()
            broker.hold()
            answer = await broker.register(self.world.controller.listener_port)
            assert answer.error_code == 0

    @property
    def moves(self) -> dict[TopicPartition, list[int]]:
        found: dict[TopicPartition, list[int]] = self.world.controller.cluster.moves
        return found

    async def moving(self, expected: dict[TopicPartition, list[int]]) -> None:
        await until(lambda: self.moves == expected, DEADLINE_S)

    async def alter(self, where: TopicPartition, targets: Sequence[int] | None) -> None:
        request = messages.AlterPartitionReassignmentsRequest
        wanted = None if targets is None else list(targets)
        partition = request.ReassignablePartition(where.partition, wanted)
        asked = request(topics=[request.ReassignableTopic(where.topic, [partition])])
        answer = await self.brokers[2].forward(asked, 0)
        assert answer.responses[0].partitions[0].error_code == 0, answer

    async def joins(self, where: TopicPartition, target: int) -> None:
        """Broker 2 leads, and proposes the target as a member of the ISR."""
        cluster = self.world.controller.cluster

        def knows() -> bool:
            kept = self.brokers[2].replicas.get(where)
            known = None if kept is None else (kept.leader_epoch, kept.isr_version)
            return known == (cluster.states[where].leader_epoch, cluster.isr_version(where))

        await until(knows, DEADLINE_S)
        epochs = [self.brokers[x].epoch for x in (2, target)]
        assert await self.brokers[2].propose(where, [2, target], epochs) is ErrorCode.NONE

    async def node_gone(self) -> None:
        await until(lambda: not self.world.tool.there(PATH), DEADLINE_S)


def test_a_plan_is_carried_out_to_its_end_and_a_second_one_waits_for_it(
    zookeeper: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        async with Cluster(world) as cluster:
            rows = (row(0, 3), row(1, 9), {"topic": "t"}, row(7, 3), row(1, 4))
            await world.tell(
                PATH, plan(row(0, 3), row(1, 4), *rows[2:4], {**rows[1], "topic": "u"})
            )
            await cluster.moving({T0: [3], T1: [4]})
            await until(lambda: world.tool.read(PATH)["partitions"] == [row(0, 3), row(1, 4)])
            for words in ("Row 2 is no reassignment", "no partition t-7", "no topic u"):
                await until(lambda words=words: caplog.text.count(words) == 1)
            await world.tell(PATH, plan(row(0, 4)))
            await until(lambda: "second write of /admin/reassign_partitions" in caplog.text)
            await until(lambda: world.tool.read(PATH)["partitions"] == [row(0, 3), row(1, 4)])
            assert cluster.moves == {T0: [3], T1: [4]}
            await cluster.joins(T0, 3)
            await until(lambda: world.tool.read(TOPIC)["partitions"]["0"] == [3])
            await until(lambda: world.tool.read(PATH)["partitions"] == [row(1, 4)])
            await cluster.alter(T1, None)
            assert not world.tool.there(PATH), "removed before the cancellation is answered"
            assert world.tool.read(TOPIC)["partitions"] == {"0": [3], "1": [2]}
            await world.tell(PATH, plan(row(1, 4)))
            await cluster.moving({T1: [4]})
            await cluster.joins(T1, 4)
            await cluster.node_gone()
            assert world.tool.read(TOPIC)["partitions"] == {"0": [3], "1": [4]}
            assert world.controller.cluster.controller_epoch == 1, "it never lost its place"

    run(zookeeper, scenario)


def test_a_plan_that_cannot_be_read_is_named_once_and_removed(
    zookeeper: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        async with Cluster(world) as cluster:
            deep = '{"version":1,"partitions":' + "[" * 100_000
            huge = plan() + " " * 950_000
            for text in ('{"version":1,"partitions":[{', deep, huge, '{"version":2}'):
                caplog.clear()
                await world.tell(PATH, text)
                await cluster.node_gone()
                await until(lambda: f"{PATH} cannot be read" in caplog.text)
                lines = [x for x in caplog.messages if PATH in x]
                assert len(lines) == 1 and len(lines[0]) < 300
            # An empty node waits for a write (KIP-455).
            await world.tell(PATH, "")
            await world.tell(PATH, plan(row(0, 3)))
            await cluster.moving({T0: [3]})
            # Other replicas in the topic's own node move nothing.
            node = world.tool.read(TOPIC)
            await world.tell(TOPIC, json.dumps({**node, "partitions": {"0": [2], "1": [3]}}))
            await until(lambda: world.tool.read(TOPIC)["partitions"] == {"0": [2], "1": [2]})
            assert cluster.moves == {T0: [3]}
            assert world.controller.cluster.controller_epoch == 1, "it never lost its place"

    run(zookeeper, scenario)


def test_a_new_controller_merges_the_node_over_the_states_and_ends_it(
    zookeeper: ZooKeeper,
) -> None:
    async def scenario(world: World) -> None:
        async with Cluster(world) as cluster:
            await cluster.alter(T0, [4])
            await cluster.alter(T1, [4])
            await world.controller.stop()
            await world.tell(PATH, plan(row(0, 3), row(5, 3)))
            await world.start()
            await cluster.moving({T0: [3], T1: [4]})
            await until(lambda: world.tool.read(PATH)["partitions"] == [row(0, 3)])
            assert world.tool.read("/tidelog/topics/t")["original_replicas"] == {"0": [2], "1": [2]}
            # Under way, once more: the plan goes on with the next controller.
            await world.controller.stop()
            await world.start()
            await cluster.register()
            await cluster.moving({T0: [3], T1: [4]})
            await cluster.joins(T0, 3)
            await cluster.node_gone()
            assert cluster.moves == {T1: [4]}, "no row of the node"
            # A plan whose end came while no controller was active.
            await world.controller.stop()
            await world.tell(PATH, plan(row(0, 3)))
            await world.start()
            await cluster.node_gone()
            await world.controller.stop()
            await world.tell(PATH, "{")
            await world.start()
            await cluster.node_gone()

    run(zookeeper, scenario)


def test_rows_of_a_topic_that_waits_for_its_deletion_are_named_and_the_others_go_on(
    zookeeper: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Below level 1.4 the topic is in the store until a dead broker confirms: no row waits so."""
    caplog.set_level(logging.INFO, "tidelog.controller")
    u0 = TopicPartition("u", 0)
    why = "the topic t is being deleted"

    async def scenario(world: World) -> None:
        await world.controller.stop()
        world.level = "1.3"
        await world.start()
        await world.broker.register(world.controller.listener_port)
        async with Cluster(world) as cluster:
            await cluster.create("u", 1)
            await world.tell(PATH, plan(row(0, 4), row(0, 3, topic="u")))
            await cluster.moving({T0: [4], u0: [3]})
            await cluster.brokers[4].close()
            # Its move is running.
            await world.tell("/admin/delete_topics/t", "")
            await until(lambda: world.tool.read(PATH)["partitions"] == [row(0, 3, topic="u")])
            await until(lambda: caplog.text.count(f"1 rows of {PATH} end: {why}") == 1)
            assert world.tool.there(TOPIC), "no broker 4 has confirmed"
            await cluster.joins(u0, 3)
            await cluster.node_gone()
            # It is named after that.
            await world.tell(PATH, plan(row(1, 3), row(0, 2, topic="u")))
            await until(lambda: cluster.moves.get(u0) == [2])
            await until(lambda: world.tool.read(PATH)["partitions"] == [row(0, 2, topic="u")])
            await until(lambda: caplog.text.count(f"t-1: {why.capitalize()}.") == 1)
            # And before a controller starts.
            await world.controller.stop()
            await world.tell(PATH, plan(row(1, 3), row(0, 2, topic="u")))
            await world.start()
            await until(lambda: world.tool.read(PATH)["partitions"] == [row(0, 2, topic="u")])
            await until(lambda: caplog.text.count(f"t-1: {why.capitalize()}.") == 2)
            assert world.tool.there(TOPIC) and cluster.moves.get(u0) == [2]

    run(zookeeper, scenario)
