"""A write that fails, or meets what others wrote: the controller over real connections.

A controller sends only durable state, and one node that another process changed is no reason to
step down.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.controller_conflicts import CountingStore, assigned, delete, on, topics_told
from tests.support.controller_process import HeldStore, World, configs, run
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tidelog.controller import process, store_watches
from tidelog.controller.decisions import external_changes as outside_decisions
from tidelog.controller.decisions.decision import Decision
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.store import Create, Delete, Set, StoreUnavailable, Watch
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams

T0 = TopicPartition("t", 0)
MARK = layout.deletion_mark("t")


# -- C1


def test_a_replica_eligible_by_a_higher_minimum_is_not_elected_by_the_next_controller() -> None:
    """End to end: the file of the controller has a lower minimum after its restart."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree, min_insync_replicas="2")
        one = await world.broker(first, 1)
        two = await world.broker(first, 2)
        assert (await one.forward(assigned("t", 1, 2), 7)).topics[0].error_code == 0
        assert two.session is not None and one.session is not None
        two.session.close()
        await until(lambda: first.cluster.states[T0].eligible_replicas == [2])
        one.session.close()
        await first.stop()
        second = await world.controller(tree, min_insync_replicas="1")
        assert second.cluster.states[T0].eligible_replicas == []
        entry = messages.BrokerRegistrationRequest
        held = [
            entry.InventoryTopic(
                "t", second.cluster.topic_id("t"), [entry.InventoryPartition(0, -1, 0, 500)]
            )
        ]
        one.inventory = two.inventory = held
        await one.register(second.listener_port, last_life_ended=3)
        await one.told(lambda requests: len(requests) >= 4)
        # From now on 1 acknowledges alone. 2 comes back, and 1 goes before 2 has caught up.
        two.incarnation = uuid.uuid4()
        await two.register(second.listener_port, last_life_ended=2)
        one.session.close()
        await until(lambda: second.cluster.suspected == {1})
        # After the turn in which the suspicion is acted on.
        await second.perform(lambda _: Decision(None))
        state = second.cluster.states[T0]
        assert (state.leader, state.isr) == (1, [1]), "2 lacks what 1 acknowledged"

    run(scenario)


# -- C2


def test_a_mark_that_is_to_be_removed_is_sent_to_no_broker() -> None:
    """With ``delete.topic.enable=false`` and a slow store: neither is the topic gone, nor does a
    FULL of that moment leave it out and make its replicas stale."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = HeldStore(tree)
        controller = await on(world, store, delete_topic_enable="false")
        one = await world.broker(controller, 1)
        two = await world.broker(controller, 2)
        assert (await one.forward(assigned("t", 1, 2), 7)).topics[0].error_code == 0
        store.free.clear()
        store.reached.clear()
        one.requests.clear()
        two.requests.clear()
        tree.apply(tree.new_session(), [Create(MARK, b"")])
        await until(store.reached.is_set)
        # The mark is read, the write that removes it is under way: 2's channel begins again.
        assert two.server is not None
        for connection in list(two.server.connections):
            connection.close("test")
        await two.told(lambda requests: len(requests) >= 4)
        full = next(x for x in two.requests if isinstance(x, messages.LeaderAndIsrRequest))
        assert (full.type, [x.topic_name for x in full.topic_states]) == (2, ["t"])
        store.free.set()
        await until(lambda: MARK not in tree.nodes and not controller.cluster.marked)
        assert await controller.reached(controller.cluster.revision, 60_000)
        assert "t" in controller.cluster.topics
        told = topics_told([*one.requests, *two.requests])
        assert told and all(leader == 1 for _, _, leader in told), told

    run(scenario)


def test_a_mark_of_a_tool_deletes_the_topic_once_that_is_durable() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = HeldStore(tree)
        controller = await on(world, store)
        one = await world.broker(controller, 1)
        assert (await one.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        store.free.clear()
        store.reached.clear()
        one.requests.clear()
        tree.apply(tree.new_session(), [Create(MARK, b"")])
        await until(store.reached.is_set)
        assert "t" in controller.cluster.topics and not controller.cluster.marked
        store.free.set()
        await until(lambda: "t" not in controller.cluster.topics)
        assert await controller.reached(controller.cluster.revision, 60_000)
        assert ("UpdateMetadataRequest", "t", -2) in topics_told(one.requests)

    run(scenario)


# -- C3


class BlipStore(MemoryStore):
    """Fails once, when it is to remove a mark."""

    armed = False

    async def multi(self, operations: Any) -> Any:
        if self.armed and any(isinstance(x, Delete) and x.path == MARK for x in operations):
            self.armed = False
            raise StoreUnavailable("a blip")
        return await super().multi(operations)


def test_a_controller_that_failed_while_it_became_active_watches_the_store_afterwards() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = BlipStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        for name in ("t", "u"):
            assert (await broker.forward(assigned(name, 1), 7)).topics[0].error_code == 0
        other = tree.new_session()
        store.armed = True
        controller.lose("test: the session expired")
        tree.apply(other, [Create(MARK, b"")])
        await until(lambda: controller.active and not store.armed)
        assert "t" not in controller.cluster.topics
        tree.apply(other, [Create(layout.deletion_mark("u"), b"")])
        await until(lambda: "u" not in controller.cluster.topics)
        epoch = controller.cluster.controller_epoch
        tree.apply(other, [Delete(layout.CONTROLLER)])
        await until(lambda: controller.cluster.controller_epoch > epoch and controller.active)
        assert layout.CONTROLLER in tree.nodes

    run(scenario)


class UnwatchedStore(MemoryStore):
    """Refuses one watch, of those that are set from some moment on."""

    refused_at = -1
    asked = 0

    def watch(self, path: str, callback: Callable[[str], None], *, children: bool = True) -> Watch:
        self.asked += 1
        if self.asked == self.refused_at:
            raise StoreUnavailable("a blip")
        return super().watch(path, callback, children=children)


@pytest.mark.parametrize("at", range(1, 10))
def test_a_controller_that_lacks_one_watch_sets_all_of_them_again(at: int) -> None:
    """Those that it had are of a session of the store that ended with the try."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = UnwatchedStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        for name in ("t", "u"):
            assert (await broker.forward(assigned(name, 1), 7)).topics[0].error_code == 0
        epoch, store.refused_at = controller.cluster.controller_epoch, store.asked + at
        controller.lose("test: the session expired")
        await until(lambda: store.asked > store.refused_at and controller.active)
        assert controller.cluster.controller_epoch > epoch
        other = tree.new_session()
        written = [
            Create(MARK, b""),
            Create(layout.topic_configs("u"), b'{"version":1,"config":{"retention.ms":"7"}}'),
        ]
        for each in written:
            assert tree.apply(other, [each]) is None
        await until(lambda: "t" not in controller.cluster.topics)
        await until(lambda: controller.cluster.topic_configs.get("u") == {"retention.ms": "7"})
        epoch = controller.cluster.controller_epoch
        tree.apply(other, [Delete(layout.CONTROLLER)])
        await until(lambda: controller.cluster.controller_epoch > epoch and controller.active)

    run(scenario)


# -- C4


STRAY = f"{layout.partition('t', 0)}/junk"


def test_a_stray_child_fails_the_deletion_of_its_topic_and_nothing_else() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = CountingStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        for name in ("t", "u"):
            assert (await broker.forward(assigned(name, 1), 7)).topics[0].error_code == 0
        other = tree.new_session()
        assert tree.apply(other, [Create(STRAY, b"")]) is None
        answers = await delete(broker, "t", "u")
        assert answers == {"t": ErrorCode.UNKNOWN_SERVER_ERROR, "u": ErrorCode.NONE}
        assert "junk" in controller.cluster.undeletable["t"]
        assert set(controller.cluster.topics) == {"t"}
        # A mark of a tool is no loop either: it waits until the stray is gone.
        assert tree.apply(other, [Create(MARK, b"")]) is None
        await until(lambda: controller.cluster.marked == {"t"})
        assert (await broker.forward(assigned("v", 1), 7)).topics[0].error_code == 0
        assert (controller.active, store.loads) == (True, 1)
        assert tree.apply(other, [Delete(STRAY)]) is None
        await until(lambda: "t" not in controller.cluster.topics)
        assert (controller.cluster.controller_epoch, store.loads) == (1, 1)

    run(scenario)


def test_a_stray_child_does_not_keep_a_controller_from_becoming_active() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        broker = await world.broker(first, 1)
        assert (await broker.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        await first.stop()
        assert tree.apply(tree.new_session(), [Create(STRAY, b""), Create(MARK, b"")]) is None
        store = CountingStore(tree)
        second = await on(world, store)
        assert (second.active, store.loads) == (True, 1)
        assert second.cluster.marked == {"t"}

    run(scenario)


def test_a_node_that_another_changed_is_read_again_and_it_is_decided_again() -> None:
    """Not a failover for each: the change of a tool is taken up before the one that met it."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = HeldStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        created = assigned("t", 1, retention_ms="1000")
        assert (await broker.forward(created, 7)).topics[0].error_code == 0
        path = layout.topic_configs("t")
        store.free.clear()
        store.reached.clear()
        request = messages.IncrementalAlterConfigsRequest
        alter = request.AlterConfigsResource(
            2, "t", [request.AlterableConfig("segment.ms", 0, "7000")]
        )
        asked = asyncio.create_task(broker.forward(request([alter]), 1))
        await until(store.reached.is_set)
        written = Set(path, b'{"version":1,"config":{"retention.ms":"2000"}}')
        assert tree.apply(tree.new_session(), [written]) is None
        store.free.set()
        answer = await asked
        assert [x.error_code for x in answer.responses] == [0]
        both = {"retention.ms": "2000", "segment.ms": "7000"}
        assert controller.cluster.topic_configs["t"] == both
        assert (controller.active, controller.cluster.controller_epoch) == (True, 1)

    run(scenario)


class DeposedStore(MemoryStore):
    """Each time it is active, another controller raises the epoch before its first write."""

    tries = 0
    at_each_open: Callable[[], None]

    async def open(self) -> None:
        self.at_each_open()
        await super().open()

    async def multi(self, operations: Any) -> Any:
        conflict = await super().multi(operations)
        if any(isinstance(x, Create) and x.path == layout.CONTROLLER for x in operations):
            self.tries += 1
            raised = Set(layout.CONTROLLER_EPOCH, str(1000 * self.tries).encode())
            self.tree.apply(self.tree.new_session(), [raised])
        return conflict


class WithoutJitter(random.Random):
    """Randomness that leaves each pause as long as its rule says."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def test_an_activation_that_fails_again_and_again_pauses_longer_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        broker = await world.broker(first, 1)
        assert (await broker.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        await first.stop()
        assert tree.apply(tree.new_session(), [Create(MARK, b"")]) is None
        # Shorter, so that it takes no time: what doubles up to what is the same.
        monkeypatch.setattr(process, "RETRY_MS", 10)
        monkeypatch.setattr(process, "RETRY_MAX_MS", 40)
        store = DeposedStore(tree)
        controller = LoneController(configs(), Seams(random=WithoutJitter()), store)
        store.at_each_open = lambda: pauses.append(controller._pause_s)
        world.controllers.append(controller)
        pauses: list[float] = []
        await controller.start()
        await until(lambda: len(pauses) >= 7)
        assert not controller.active
        # The first is the start, the second its first repetition.
        assert pauses[:7] == [0.0, 0.0, 0.01, 0.02, 0.04, 0.04, 0.04]

    run(scenario)


def test_a_controller_that_is_lost_again_and_again_pauses_longer_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It becomes active each time; a store that takes it away at once must not be hammered."""

    async def scenario(world: World) -> None:
        monkeypatch.setattr(process, "RETRY_MS", 10)
        monkeypatch.setattr(process, "RETRY_MAX_MS", 40)
        controller = await world.controller(seams=Seams(random=WithoutJitter()))
        pauses: list[float] = []
        for _ in range(5):
            await until(lambda: controller.active)
            controller.lose("test: the session expired")
            await until(lambda: controller.active)
            pauses.append(controller._pause_s)
        assert pauses == [0.01, 0.02, 0.04, 0.04, 0.04]
        # One that was active for a while tries again at once.
        monkeypatch.setattr(process, "STEADY_S", 0.0)
        controller.lose("test: the session expired")
        await until(lambda: controller.active)
        assert controller._pause_s == 0.0

    run(scenario)


def test_controllers_that_lost_their_store_together_do_not_return_to_it_together() -> None:
    pauses = set()
    for _ in range(3):
        controller = LoneController(configs(), Seams(), MemoryStore(MemoryTree()))
        controller._failures = 3
        pauses.add(controller._pause_s)
    assert len(pauses) == 3
    longest_s = process.RETRY_MAX_MS / 1000
    assert all(0.8 * longest_s <= pause <= 1.2 * longest_s for pause in pauses)


# -- C10


def test_a_bug_in_one_look_at_the_store_leaves_the_state_as_it_was_and_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        monkeypatch.setattr(store_watches, "RETRY_S", 0.02)
        controller = await world.controller(tree)
        broker = await world.broker(controller, 1)
        assert (await broker.forward(assigned("t", 1), 7)).topics[0].error_code == 0
        complete = outside_decisions.complete
        seen: list[bool] = []

        def fails_once(cluster: Any, chance: Any) -> Any:
            seen.append("n" in controller.cluster.topics)
            if len(seen) == 1:
                raise RuntimeError("planted")
            return complete(cluster, chance)

        monkeypatch.setattr(outside_decisions, "complete", fails_once)
        node = b'{"version":1,"partitions":{"0":[1]}}'
        assert tree.apply(tree.new_session(), [Create(layout.topic("n"), node)]) is None
        await until(lambda: TopicPartition("n", 0) in controller.cluster.states)
        assert seen[:2] == [False, False], "half of a change was taken up"
        assert controller.cluster.controller_epoch == 1

    run(scenario)


class TornStore(MemoryStore):
    """Another controller, still active, creates a topic while this one loads."""

    torn: list[Any]

    async def load(self) -> Any:
        found = await super().load()
        if self.torn:
            assert self.tree.apply(self.tree.new_session(), self.torn) is None
            self.torn = []
            # The container was read before, what comes later in the walk is read after.
            found[layout.REVISION] = (await super().load())[layout.REVISION]
        return found


def test_a_topic_that_was_created_while_everything_is_loaded_is_not_missed() -> None:
    """A container that was seen empty: a FULL without the topic would make its replicas stale."""

    async def scenario(world: World) -> None:
        tree = MemoryTree()
        first = await world.controller(tree)
        await first.stop()
        store = TornStore(tree)
        path = layout.topic("n")
        revision = tree.nodes[layout.REVISION].version
        store.torn = [
            Create(
                path, b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAABA","partitions":{"0":[1]}}'
            ),
            Set(layout.REVISION, b"900", revision),
        ]
        second = await on(world, store)
        assert "n" in second.cluster.topics
        assert second.cluster.revision == 901

    run(scenario)


# -- C5


def test_a_broker_does_not_expire_in_the_moment_that_it_registers() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = HeldStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        former = broker.session
        store.free.clear()
        store.reached.clear()
        broker.incarnation = uuid.uuid4()
        registering = asyncio.create_task(broker.register(controller.listener_port))
        await until(store.reached.is_set)
        # Its write takes longer than its former session lasts: its expiry is next.
        session = controller.session_watch.sessions.by_broker[1]
        session.received_ms -= controller.session_watch.sessions.patience.timeout_ms
        judging = asyncio.create_task(controller.session_watch.judge())
        await until(lambda: bool(controller.turn._waiters))
        store.free.set()
        assert (await registering).error_code == 0
        await judging
        assert 1 in controller.cluster.brokers
        assert (await broker.heartbeat()).error_code == ErrorCode.NONE
        assert former is not None
        former.close()

    run(scenario)


def test_a_registration_after_an_expiry_is_kept() -> None:
    async def scenario(world: World) -> None:
        tree = MemoryTree()
        store = HeldStore(tree)
        controller = await on(world, store)
        broker = await world.broker(controller, 1)
        former = broker.session
        assert former is not None
        session = controller.session_watch.sessions.by_broker[1]
        session.received_ms -= controller.session_watch.sessions.patience.timeout_ms
        store.free.clear()
        store.reached.clear()
        judging = asyncio.create_task(controller.session_watch.judge())
        await until(store.reached.is_set)
        # Its expiry is being written; its next registration waits for the turn after that.
        broker.incarnation = uuid.uuid4()
        registering = asyncio.create_task(broker.register(controller.listener_port))
        await until(lambda: bool(controller.turn._waiters))
        store.free.set()
        assert (await registering).error_code == 0
        await judging
        assert 1 in controller.cluster.inventories
        assert 1 in controller.session_watch.sessions.by_broker
        assert (await broker.heartbeat()).error_code == ErrorCode.NONE
        former.close()

    run(scenario)
