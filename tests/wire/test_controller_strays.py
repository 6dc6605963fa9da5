"""Nodes of another tool where the controller's are: none of them costs more than itself.

No failover for each, and above all none without an end. Topics that are being deleted are in
``test_controller_conflicts``.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest

from tests.support.controller_conflicts import CountingStore, assigned, delete, on, topics_told
from tests.support.controller_process import RecordedBroker, World, run
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tidelog.client.errors import ClientError
from tidelog.controller import store_watches
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.store import Create, Delete, Node, Operation, Set, StoreRefused
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages


def by_tool(tree: MemoryTree, *paths: str) -> None:
    """Create nodes, and below each a chain of two unknown ones."""
    wanted: list[Operation] = [
        Create(f"{path}{below}", b"")
        for path in paths
        for below in ("", "/junk", "/junk/deeper")
        if f"{path}{below}" not in tree.nodes
    ]
    assert tree.apply(tree.new_session(), wanted) is None


def test_a_dead_broker_is_expired_with_foreign_nodes_below_its_node() -> None:
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


def test_settings_go_with_foreign_nodes_below_them() -> None:
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
        mark = layout.deletion_mark("missing" if enabled == "true" else "t")
        by_tool(tree, mark)
        store = CountingStore(tree)
        second = await on(world, store, delete_topic_enable=enabled)
        assert (second.active, store.loads) == (True, 1)
        assert mark not in tree.nodes
        assert set(second.cluster.topics) == {"t"} and not second.cluster.marked

    run(scenario)


def test_a_note_of_a_change_goes_with_what_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of it than goes at once."""
    monkeypatch.setattr(store_watches, "MOST_STRAYS", 2)

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


# -- ephemeral nodes: no children can be made below them, and they go with a session

ONE = b'{"version":1,"partitions":{"0":[1]}}'
"""A topic of one partition, as a tool writes it."""


def fleeting(tree: MemoryTree, path: str, data: bytes = b"") -> int:
    """Create an ephemeral node by a tool; return its session."""
    session = tree.new_session()
    assert tree.apply(session, [Create(path, data, ephemeral=True)]) is None
    return session


def lasts(tree: MemoryTree, path: str) -> bool:
    """Whether there is a node that goes with no session."""
    return path in tree.nodes and tree.nodes[path].session is None


async def registered(broker: RecordedBroker, controller: LoneController) -> None:
    """Register for as long as it is refused: the controller may not be active for a while."""
    await until(lambda: controller.active)
    while (await broker.register(controller.listener_port)).error_code:
        await until(lambda: controller.active)


def lines_about(caplog: pytest.LogCaptureFixture, path: str) -> list[str]:
    found = [x.getMessage() for x in caplog.records]
    return [x for x in found if f"{path} is ephemeral" in x]


@pytest.mark.parametrize("data", [b"", b"junk", ONE])
def test_an_ephemeral_node_in_a_topics_place_is_no_topic(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It made the controller resign again and again: nothing can be made below it."""
    path = layout.topic("t")

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        session = fleeting(tree, path, data)
        await until(lambda: path in controller.cluster.ephemeral)
        assert (await broker.forward(assigned("u", 1), 7)).topics[0].error_code == 0
        assert set(controller.cluster.topics) == {"u"} and not controller.cluster.damaged
        assert len(lines_about(caplog, path)) == 1
        # Another controller logs no second line.
        await controller.stop()
        second = await on(world, CountingStore(tree))
        assert (set(second.cluster.topics), second.cluster.ephemeral) == ({"u"}, {path: 0})
        assert len(lines_about(caplog, path)) == 2
        # It goes, and what comes after it counts.
        await broker.register(second.listener_port)
        tree.end_session(session)
        await until(lambda: not second.cluster.ephemeral)
        assert tree.apply(tree.new_session(), [Create(path, ONE)]) is None
        await until(lambda: "t" in second.cluster.topic_histories)
        assert (second.active, second.cluster.controller_epoch) == (True, 2)

    run(scenario)


@pytest.mark.parametrize("at", ["/brokers/topics/t", "/config/topics/t", "/tidelog/topics/t"])
@pytest.mark.parametrize("is_seen", [True, False])
def test_an_ephemeral_node_gives_way_to_the_node_of_a_new_topic(at: str, is_seen: bool) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        if is_seen:
            session = fleeting(tree, at, ONE)
            if layout.TOPIC_HISTORIES not in at:
                await until(lambda: at in controller.cluster.ephemeral)
        else:
            # Between the look at the store and the write.
            async with controller.turn:
                session = fleeting(tree, at, ONE)
        created = assigned("t", 1, retention_ms="1000")
        assert (await broker.forward(created, 7)).topics[0].error_code == 0
        assert all(lasts(tree, path) for path in (at, layout.topic("t"), layout.state("t", 0)))
        tree.end_session(session)
        assert (await broker.forward(assigned("u", 1), 7)).topics[0].error_code == 0
        assert set(controller.cluster.topics) == {"t", "u"}
        assert controller.cluster.topic_configs == {"t": {"retention.ms": "1000"}}
        assert (controller.active, store.loads) == (True, 1)
        assert await delete(broker, "t") == {"t": ErrorCode.NONE}

    run(scenario)


@pytest.mark.parametrize("below", ["", "/0", "/0/state"])
@pytest.mark.parametrize("is_loaded", [True, False])
def test_an_ephemeral_node_below_a_tools_topic_gives_way(below: str, is_loaded: bool) -> None:
    path = layout.partitions("t") + below

    def write(tree: MemoryTree) -> None:
        above = [Create(layout.topic("t"), ONE)]
        if below:
            above.append(Create(layout.partitions("t"), b""))
        if below.endswith("state"):
            above.append(Create(layout.partition("t", 0), b""))
        assert tree.apply(tree.new_session(), [*above, Create(path, b"", ephemeral=True)]) is None

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        if is_loaded:
            first = await world.controller(tree)
            await first.stop()
            write(tree)
        store = CountingStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        if not is_loaded:
            write(tree)
        await until(lambda: "t" in controller.cluster.topic_histories)
        assert (await broker.forward(assigned("u", 1), 7)).topics[0].error_code == 0
        # A partition's own node that stood there is older: there is no new election.
        if not below.endswith("state"):
            await until(lambda: lasts(tree, layout.state("t", 0)))
            assert lasts(tree, path)
        assert not controller.cluster.damaged
        assert (controller.active, store.loads) == (True, 1)

    run(scenario)


def test_more_partitions_are_made_where_an_ephemeral_node_stands() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store, inter_broker_protocol_version="1.4")
        broker = await world.broker(controller, 1)
        assert (await broker.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        fleeting(tree, layout.partition("t", 1))
        request = messages.CreatePartitionsRequest
        wanted = request(topics=[request.CreatePartitionsTopic("t", 2, None)], timeout_ms=25_000)
        assert (await broker.forward(wanted, 3)).results[0].error_code == 0
        assert lasts(tree, layout.state("t", 1))
        assert (controller.active, store.loads) == (True, 1)

    run(scenario)


def test_a_topic_whose_node_became_ephemeral_is_not_taken_for_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is deleted without proof: it is named as damaged until its node is put back."""
    path = layout.topic("t")

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        assert (await broker.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        await broker.told(lambda _: len(topics_told(broker.requests)) >= 2)
        topic_id, whole = controller.cluster.topic_id("t"), tree.nodes[path].data
        below = [layout.state("t", 0), layout.partition("t", 0), layout.partitions("t")]
        removed = [Delete(x) for x in (*below, path)]
        session = tree.new_session()
        assert tree.apply(session, [*removed, Create(path, whole, ephemeral=True)]) is None
        await until(lambda: path in controller.cluster.damaged)
        assert "ephemeral" in str(controller.cluster.damaged[path])
        created = (await broker.forward(assigned("t", 1), 7)).topics[0]
        assert created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await delete(broker, "t") == {"t": ErrorCode.UNKNOWN_SERVER_ERROR}
        # Nor does the next controller, with a new channel, say that it is gone.
        await controller.stop()
        broker.requests.clear()
        second = await on(world, CountingStore(tree))
        assert path in second.cluster.damaged
        await broker.register(second.listener_port)
        tree.end_session(session)
        await until(lambda: path not in second.cluster.ephemeral)
        assert path in second.cluster.damaged
        assert not any("ephemeral" in str(x) for x in second.cluster.damaged.values())
        assert topics_told(broker.requests) == [] and "StopReplica" not in broker.names()
        # Put back, it is what it was.
        assert tree.apply(tree.new_session(), [Create(path, whole)]) is None
        await until(lambda: path not in second.cluster.damaged)
        assert second.cluster.topic_id("t") == topic_id
        await broker.told(lambda _: "UpdateMetadata" in broker.names())
        assert "StopReplica" not in broker.names()
        assert second.active

    run(scenario)


def test_settings_in_an_ephemeral_node_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    """Nor do they take along what is set after them, when their session ends."""
    path = layout.topic_configs("t")
    data = b'{"version":1,"config":{"retention.ms":"7"}}'

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        assert (await broker.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        session = fleeting(tree, path, data)
        await until(lambda: path in controller.cluster.ephemeral)
        # Its owner writes to it: it is nothing still, and one line is enough.
        assert tree.apply(session, [Set(path, data)]) is None
        await until(lambda: controller.cluster.ephemeral[path] == 1)
        assert not controller.cluster.topic_configs
        request = messages.IncrementalAlterConfigsRequest
        change = request.AlterableConfig("segment.ms", 0, "7000")
        wanted = request([request.AlterConfigsResource(2, "t", [change])])
        assert [x.error_code for x in (await broker.forward(wanted, 1)).responses] == [0]
        assert controller.cluster.topic_configs == {"t": {"segment.ms": "7000"}}
        tree.end_session(session)
        assert lasts(tree, path)
        assert (controller.active, store.loads) == (True, 1)

    run(scenario)


def test_a_broker_registers_where_an_ephemeral_node_stands() -> None:
    """As Kafka's brokers name themselves."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        data = tree.nodes[layout.CLUSTER_ID].data
        await first.stop()
        session = fleeting(tree, layout.broker(1), data)
        store = CountingStore(tree)
        controller = await on(world, store)
        assert not controller.cluster.brokers and not controller.cluster.presumed
        await world.broker(controller, 1)
        assert lasts(tree, layout.broker(1))
        tree.end_session(session)
        # One that comes while this controller is active costs one failover, not one after another.
        fleeting(tree, layout.broker(2), data)
        broker = RecordedBroker(2)
        world.brokers.append(broker)
        await broker.listen()
        await registered(broker, controller)
        assert (await broker.forward(assigned("t", 2), 7)).topics[0].error_code == 0
        assert lasts(tree, layout.broker(2))
        assert store.loads == 2

    run(scenario)


def test_containers_that_are_ephemeral_are_made_again() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        fleeting(tree, "/admin")
        fleeting(tree, "/config")
        controller = await on(world, CountingStore(tree))
        assert controller.active and all(lasts(tree, path) for path in layout.CONTAINERS)
        # While it is active: whoever writes there meets it once.
        session = tree.new_session()
        replaced = [Delete(layout.TOPIC_CONFIGS), Create(layout.TOPIC_CONFIGS, b"", ephemeral=True)]
        assert tree.apply(session, replaced) is None
        broker = await world.broker(controller, 1)
        wanted = assigned("t", 1, retention_ms="1000")
        while not lasts(tree, layout.topic_configs("t")):
            with contextlib.suppress(ClientError, AssertionError):
                await broker.forward(wanted, 7)
            await registered(broker, controller)
        assert lasts(tree, layout.TOPIC_CONFIGS)
        assert controller.cluster.controller_epoch == 2

    run(scenario)


@pytest.mark.parametrize("path", [layout.CONTROLLER_EPOCH, layout.PRODUCER_IDS, layout.REVISION])
def test_what_is_counted_must_not_go_with_a_session(path: str) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        await first.stop()
        replaced = [Delete(path)] if path in tree.nodes else []
        session = tree.new_session()
        assert tree.apply(session, [*replaced, Create(path, b"9", ephemeral=True)]) is None
        with pytest.raises(StoreRefused, match=f"{path} is ephemeral"):
            await on(world, MemoryStore(tree))
        assert tree.nodes[path].data == b"9"

    run(scenario)


def test_a_controllers_node_that_no_session_ends_is_named_and_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It kept every controller standing by, for ever and without a word."""
    caplog.set_level(logging.INFO)

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        tool = tree.new_session()
        assert tree.apply(tool, [Create(layout.CONTROLLER, b"x")]) is None
        controller = await on(world, CountingStore(tree))
        await until(lambda: "/controller is not ephemeral" in caplog.text)
        assert not controller.active
        assert tree.apply(tool, [Delete(layout.CONTROLLER)]) is None
        await until(lambda: controller.active)
        said = [x for x in caplog.records if "is not ephemeral" in x.getMessage()]
        assert len(said) == 1

    run(scenario)
