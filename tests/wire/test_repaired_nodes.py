"""Nodes that an operator repairs in a shared store: an active controller notices each of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.support.controller_conflicts import CountingStore, on
from tests.support.controller_process import World, run, topic
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.store import Create, Delete, Set
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Tool:
    """Another program with the store."""

    def __init__(self, tree: MemoryTree) -> None:
        self.tree = tree
        self.session = tree.new_session()

    def change(self, path: str, **fields: Any) -> None:
        """Change fields of a node."""
        content = json.loads(self.tree.nodes[path].data)
        self.write(path, json.dumps({**content, **fields}).encode())

    def write(self, path: str, data: bytes) -> None:
        there = self.tree.nodes.get(path)
        operation = Create(path, data) if there is None else Set(path, data, there.version)
        assert self.tree.apply(self.session, [operation]) is None

    def remove(self, path: str) -> None:
        operation = Delete(path, self.tree.nodes[path].version)
        assert self.tree.apply(self.session, [operation]) is None


async def two_topics(world: World, tree: MemoryTree) -> LoneController:
    """Topics t with partitions 0 and 1, and u with partition 0, on broker 1."""
    controller = await world.controller(tree)
    one = await world.broker(controller, 1)
    for name, partitions in (("t", 2), ("u", 1)):
        assert (await one.forward(topic(name, partitions, 1), 7)).topics[0].error_code == 0
    return controller


@pytest.mark.parametrize("is_before", [False, True], ids=["after it", "before it"])
def test_the_repair_of_a_node_that_a_registration_showed_as_wrong_is_noticed(
    is_before: bool,
) -> None:
    """Its damage began without a change of the store, and no watch was set: the operator had to
    write another node."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await two_topics(world, tree)
        topic_id = first.cluster.topic_id("t")
        await first.stop()
        tool, path = Tool(tree), layout.partition(*T0)
        second = await world.controller(tree)
        entry = messages.BrokerRegistrationRequest
        one = world.brokers[0]
        one.inventory = [
            entry.InventoryTopic("t", topic_id, [entry.InventoryPartition(0, 3, 0, 5)])
        ]
        if is_before:
            # No watch is on it yet.
            tool.change(path, partition_epoch=3)
        assert (await one.register(second.listener_port)).error_code == 0
        if not is_before:
            assert "put a newer copy back" in str(second.cluster.damaged[path])
            tool.change(path, partition_epoch=3)
        await until(lambda: not second.cluster.damaged)
        assert second.cluster.partition_nodes[T0].partition_epoch == 3

    run(scenario)


def test_the_repair_of_the_partition_that_contradicts_a_count_is_noticed() -> None:
    """The line asked for that very node, and the topic stayed damaged."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await two_topics(world, tree)
        await first.stop()
        tool = Tool(tree)
        tool.change(layout.topic_history("t"), resize_epoch=1)
        tool.change(layout.topic("t"), undeleted_partition_count=1)
        second = await world.controller(tree)
        path = layout.partition(*T1)
        assert f"{path} takes records" in str(second.cluster.damaged[layout.topic("t")])
        tool.change(path, retirementEpoch=1)
        await until(lambda: not second.cluster.damaged)
        assert second.cluster.topics["t"].undeleted_partition_count == 1
        assert second.cluster.partition_nodes[T1].retirement_epoch == 1

    run(scenario)


class ReadStore(CountingStore):
    """Counts how often each node is read alone."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.reads: Counter[str] = Counter()

    async def get(self, path: str) -> Any:
        self.reads[path] += 1
        return await super().get(path)


def test_a_node_that_is_missing_is_read_once_for_each_change_and_not_again_and_again() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await two_topics(world, tree)
        await first.stop()
        tool, path, history = Tool(tree), layout.topic("t"), layout.topic_history("t")
        whole = tree.nodes[path].data, tree.nodes[history].data
        tool.write(path, b"{")
        tool.remove(history)
        store = ReadStore(tree)
        second = await on(world, store)
        for retention in ("1", "2", "3"):
            configs = json.dumps({"version": 1, "config": {"retention.ms": retention}})
            tool.write(layout.topic_configs("u"), configs.encode())
            await until(
                lambda wanted=retention: (
                    second.cluster.topic_configs.get("u") == {"retention.ms": wanted}
                )
            )
        assert 1 <= store.reads[history] <= 2
        assert 1 <= store.reads[path] <= 2
        tool.write(history, whole[1])
        tool.write(path, whole[0])
        await until(lambda: not second.cluster.damaged)
        assert second.cluster.topic_histories.keys() == {"t", "u"}

    run(scenario)
