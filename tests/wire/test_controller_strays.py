"""Nodes that somebody else put where the controller's are: none of them costs more than itself.

No failover for each, and above all none without an end. Topics that are being deleted are in
``test_controller_conflicts``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lone_broker import until
from tests.wire.test_controller_conflicts import CountingStore, assigned, on
from tests.wire.test_controller_process import World, run
from tidelog.controller import outside
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryTree
from tidelog.metadata.store import Create, Node, Operation
from tidelog.protocol import messages


def by_tool(tree: MemoryTree, *paths: str) -> None:
    """Create nodes, and below each a chain of two that nobody knows."""
    wanted: list[Operation] = [
        Create(f"{path}{below}", b"")
        for path in paths
        for below in ("", "/junk", "/junk/deeper")
        if f"{path}{below}" not in tree.nodes
    ]
    assert tree.apply(tree.new_session(), wanted) is None


def test_a_dead_broker_is_buried_with_what_somebody_put_below_its_node() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(
            world,
            store,
            broker_session_timeout_ms="1200",
            broker_silence_suspect_ms="900",
            broker_heartbeat_interval_ms="300",
        )
        broker = await world.broker(controller, 1)
        by_tool(tree, layout.broker(1))
        assert broker.session is not None
        broker.session.close()
        await until(lambda: not controller.cluster.brokers)
        assert (controller.active, store.loads) == (True, 1)
        assert not [path for path in tree.nodes if path.startswith(layout.broker(1))]

    run(scenario)


async def reset(broker: Any, kind: int, name: str, key: str) -> list[int]:
    request = messages.IncrementalAlterConfigsRequest
    wanted = [request.AlterConfigsResource(kind, name, [request.AlterableConfig(key, 1, None)])]
    answer = await broker.forward(request(wanted), 1)
    return [x.error_code for x in answer.responses]


def test_settings_go_with_what_somebody_put_below_them() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        created = assigned("t", 1, retention_ms="1000")
        assert (await broker.forward(created, 7)).topics[0].error_code == 0
        by_tool(tree, layout.topic_configs("t"))
        assert await reset(broker, 2, "t", "retention.ms") == [0]
        assert layout.topic_configs("t") not in tree.nodes
        assert "t" in controller.cluster.topics and not controller.cluster.undeletable
        assert (controller.active, store.loads) == (True, 1)

    run(scenario)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_mark_in_vain_keeps_no_controller_from_becoming_active(enabled: str) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        broker = await world.broker(first, 1)
        assert (await broker.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        await first.stop()
        mark = layout.deletion_mark("nobody" if enabled == "true" else "t")
        by_tool(tree, mark)
        store = CountingStore(tree)
        second = await on(world, store, delete_topic_enable=enabled)
        assert (second.active, store.loads) == (True, 1)
        assert mark not in tree.nodes
        assert set(second.cluster.topics) == {"t"} and not second.cluster.marked

    run(scenario)


def test_a_note_of_a_change_goes_with_what_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of it than goes at once."""
    monkeypatch.setattr(outside, "MOST_STRAYS", 2)

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store)
        note = f"{layout.CONFIG_CHANGES}/config_change_1"
        by_tool(tree, note)
        await until(lambda: note not in tree.nodes)
        assert (controller.active, store.loads) == (True, 1)

    run(scenario)


@pytest.mark.parametrize("path", [f"{layout.BROKERS}/junk", f"{layout.DELETIONS}/junk"])
@pytest.mark.parametrize("data", [b"", b'{"name":"t","partitions":{"0":[1]}}'])
def test_a_node_that_cannot_be_what_its_place_says_is_nothing(path: str, data: bytes) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        await first.stop()
        assert tree.apply(tree.new_session(), [Create(path, data)]) is None
        store = CountingStore(tree)
        second = await on(world, store)
        assert (second.active, store.loads) == (True, 1)
        assert not second.cluster.brokers and not second.cluster.deletions
        kept = tree.nodes[path]
        assert Node(kept.data, kept.version) == Node(data, 0)

    run(scenario)
