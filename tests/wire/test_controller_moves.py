"""Moves of partitions by a real controller over the wire: whole moves, cancels, dying controllers.

The brokers host partitions by the product's rules (`tests/support/moving_brokers.py`), and the test
plays the leaders: they propose ISRs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.controller_process import World, configs, run
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.moving_brokers import HostingBroker
from tidelog.client.errors import ClientError
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.records import PartitionState, TopicNode
from tidelog.metadata.store import StoreUnavailable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BEFORE, TARGETS = (1, 2), (3, 4)
WRITES = 7
"""The writes of one whole move: the start, two joins, the completion, the shrink, two stops."""

Look = tuple[list[int], list[int], list[int] | None]


class MortalStore(MemoryStore):
    """A store whose controller dies right after a write, and what each write left of R, I and T."""

    def __init__(self, tree: MemoryTree, seen: list[Look]) -> None:
        super().__init__(tree)
        self.tree = tree
        self.seen = seen
        self.writes = 0
        self.lives_for: int | None = None

    @property
    def is_dead(self) -> bool:
        return self.lives_for is not None and self.writes >= self.lives_for

    async def multi(self, operations: Any) -> Any:
        if self.is_dead:
            raise StoreUnavailable("this controller is dead")
        found = await super().multi(operations)
        if found is None and self.lives_for is not None:
            self.writes += 1
        self._look()
        if self.is_dead:
            raise StoreUnavailable("this controller died after its write")
        return found

    def _look(self) -> None:
        kept = [self.tree.nodes.get(path) for path in (layout.topic("t"), layout.state("t", 0))]
        if None in kept:
            return
        node, state = (
            layout.decode(path, x.node.data)  # type: ignore[union-attr]
            for path, x in zip((layout.topic("t"), layout.state("t", 0)), kept, strict=True)
        )
        assert isinstance(node, TopicNode) and isinstance(state, PartitionState)
        look = (node.partitions[0], state.isr, state.target_replicas)
        if not self.seen or self.seen[-1] != look:
            self.seen.append(look)


class Stage:
    """One cluster whose partition t-0 moves; controllers follow each other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tree = MemoryTree()
        self.seen: list[Look] = []
        self.brokers: dict[int, HostingBroker] = {}
        self.controller: LoneController
        self.store: MortalStore
        self.deaths = 0
        self.asked = False
        self.on_death: Callable[[], None] = lambda: None

    @property
    def state(self) -> PartitionState:
        found: PartitionState = self.controller.cluster.states[T0]
        return found

    @property
    def replicas(self) -> list[int]:
        found: list[int] = self.controller.cluster.replicas(T0)
        return found

    async def begin(self, *, brokers: Sequence[int] = (*BEFORE, *TARGETS)) -> None:
        await self.new_controller()
        for node_id in brokers:
            broker = self.brokers[node_id] = HostingBroker(node_id)
            self.world.brokers.append(broker)
            await broker.listen()
            await broker.register(self.controller.listener_port)
        request = messages.CreateTopicsRequest
        asked = request.CreatableTopic(
            "t",
            -1,
            -1,
            [request.CreatableReplicaAssignment(x, list(BEFORE)) for x in (0, 1)],
            [],
        )
        answer = await self.brokers[1].forward(request([asked], timeout_ms=20_000), 7)
        assert answer.topics[0].error_code == 0, answer
        await until(lambda: all(T1 in self.brokers[x].replicas for x in BEFORE))

    async def new_controller(self) -> None:
        self.store = MortalStore(self.tree, self.seen)
        self.controller = LoneController(configs(), Seams(), self.store)
        self.world.controllers.append(self.controller)
        await self.controller.start()

    async def after_a_death(self) -> None:
        """Start the next controller, with which each broker registers again."""
        self.deaths += 1
        await self.controller.stop()
        self.on_death()
        await self.new_controller()
        for broker in self.brokers.values():
            if broker.session is not None:
                broker.session.close()
            broker.hold()
            answer = await broker.register(self.controller.listener_port, last_life_ended=3)
            assert answer.error_code == 0

    async def ask(self, *topics: Any) -> Any:
        request = messages.AlterPartitionReassignmentsRequest
        return await self.brokers[1].forward(request(topics=list(topics)), 0)

    async def move(self, where: TopicPartition, targets: Sequence[int] | None) -> ErrorCode:
        answer = await self.ask(row(where, targets))
        assert answer.error_code == 0, answer
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    async def listed(self, *topics: tuple[str, list[int] | None]) -> list[Any]:
        request = messages.ListPartitionReassignmentsRequest
        named = [request.ListPartitionReassignmentsTopics(*topic) for topic in topics]
        answer = await self.brokers[1].forward(request(topics=named or None), 0)
        assert answer.error_code == 0
        return [
            (topic.name, x.partition_index, x.replicas, x.adding_replicas, x.removing_replicas)
            for topic in answer.topics
            for x in topic.partitions
        ]

    async def propose(self, isr: Sequence[int]) -> ErrorCode:
        """Have the leader propose an ISR, once it knows the present epoch and version."""
        await until(lambda: self.store.is_dead or self._leader_knows())
        if self.store.is_dead:
            return ErrorCode.NOT_CONTROLLER
        epochs = [self.brokers[x].epoch for x in isr]
        return await self.brokers[self.state.leader].propose(T0, isr, epochs)

    def _leader_knows(self) -> bool:
        cluster = self.controller.cluster
        if not self.controller.active or T0 not in cluster.states:
            return False
        leader = self.brokers.get(self.state.leader)
        kept = None if leader is None else leader.replicas.get(T0)
        known = None if kept is None else (kept.leader_epoch, kept.isr_version)
        return known == (self.state.leader_epoch, cluster.isr_version(T0))

    async def whole_move(self) -> None:
        """Carry out one move to its end, whichever controller is alive."""
        while True:
            if self.store.is_dead:
                await self.after_a_death()
            try:
                if await self._step():
                    return
            except (ClientError, ConnectionError, AssertionError):
                if not self.store.is_dead:
                    raise

    async def _step(self) -> bool:
        cluster = self.controller.cluster
        if not self.asked:
            assert await self.move(T0, TARGETS) is ErrorCode.NONE
            self.asked = True
        elif T0 in cluster.moves:
            missing = [x for x in TARGETS if x not in self.state.isr]
            assert missing, "a controller left a move whose targets are all in sync"
            (target, *_) = missing
            await until(lambda: self.store.is_dead or T0 in self.brokers[target].replicas)
            await self.propose([*self.state.isr, target])
        elif not set(self.state.isr) <= set(self.replicas):
            assert not any(self.brokers[x].stopped for x in BEFORE), "stopped before the shrink"
            await self.propose([x for x in self.state.isr if x in self.replicas])
        else:
            await until(lambda: self.store.is_dead or self._is_done())
            return not self.store.is_dead
        return False

    def _is_done(self) -> bool:
        history = self.controller.cluster.topic_histories["t"]
        hosts = [x for x, broker in self.brokers.items() if T0 in broker.replicas]
        return not history.pending_stops and hosts == list(TARGETS)


def row(where: TopicPartition, targets: Sequence[int] | None) -> Any:
    request = messages.AlterPartitionReassignmentsRequest
    replicas = None if targets is None else list(targets)
    partition = request.ReassignablePartition(where.partition, replicas)
    return request.ReassignableTopic(where.topic, [partition])


def check_moved(stage: Stage) -> None:
    cluster, state = stage.controller.cluster, stage.state
    assert stage.replicas == list(TARGETS) and set(state.isr) == set(TARGETS)
    assert state.leader == TARGETS[0] and state.target_replicas is None
    history = cluster.topic_histories["t"]
    assert history.original_replicas == {} and history.pending_stops == {}
    for target in TARGETS:
        broker = stage.brokers[target]
        assert broker.stopped == broker.stale == [], "a copy that is wanted was deleted"
    for former in BEFORE:
        gone = [*stage.brokers[former].stopped, *stage.brokers[former].stale]
        assert gone == [T0]
    assert cluster.replicas(T1) == list(BEFORE) and cluster.states[T1].leader_epoch == 0
    for (now, isr, targets), (then, after, later) in zip(stage.seen, stage.seen[1:], strict=False):
        if targets is not None and later is None:
            assert set(targets) <= set(isr) and then == targets and after == isr
        else:
            assert set(now) <= set(then), "R lost a member outside of the completion"
        assert targets in (None, list(TARGETS)) and set(then).intersection(after)


def test_a_whole_move_has_as_many_writes_as_a_controller_can_die_after() -> None:
    async def scenario(world: World) -> None:
        stage = Stage(world)
        await stage.begin()
        stage.store.lives_for = 1_000
        await stage.whole_move()
        check_moved(stage)
        assert (stage.store.writes, stage.deaths) == (WRITES, 0)
        assert stage.seen == [
            ([1, 2], [1, 2], None),
            ([1, 2], [1, 2], [3, 4]),
            ([1, 2, 3], [1, 2, 3], [3, 4]),
            ([1, 2, 3, 4], [1, 2, 3, 4], [3, 4]),
            ([3, 4], [1, 2, 3, 4], None),
            ([3, 4], [3, 4], None),
        ]

    run(scenario)


@pytest.mark.parametrize("lives_for", range(1, WRITES + 1))
def test_the_next_controller_goes_on_after_each_single_write_of_a_move(lives_for: int) -> None:
    async def scenario(world: World) -> None:
        stage = Stage(world)
        await stage.begin()
        stage.store.lives_for = lives_for
        await stage.whole_move()
        assert stage.deaths == 1
        check_moved(stage)

    run(scenario)


def test_the_controller_and_the_new_broker_die_together_in_mid_copy() -> None:
    """The broker comes back with an empty disk: the move resumes, and it copies again."""

    async def scenario(world: World) -> None:
        stage = Stage(world)
        await stage.begin()
        target = stage.brokers[3]

        def lose_the_disk() -> None:
            target.replicas.clear()
            target.states.clear()
            target.incarnation = uuid.uuid4()

        stage.on_death = lose_the_disk
        stage.store.lives_for = 1
        await stage.whole_move()
        assert stage.deaths == 1
        check_moved(stage)

    run(scenario)


def test_a_plan_with_an_unknown_topic_moves_the_others() -> None:
    async def scenario(world: World) -> None:
        stage = Stage(world)
        await stage.begin()
        answer = await stage.ask(
            row(TopicPartition("nope", 0), [3]),
            row(T0, TARGETS),
            row(T1, [9]),
        )
        assert answer.error_code == 0
        found = {
            (topic.name, x.partition_index): (ErrorCode(x.error_code).name, x.error_message)
            for topic in answer.responses
            for x in topic.partitions
        }
        assert found == {
            ("nope", 0): ("UNKNOWN_TOPIC_OR_PARTITION", "There is no topic nope."),
            ("t", 0): ("NONE", None),
            ("t", 1): (
                "INVALID_REPLICA_ASSIGNMENT",
                "The replica assignment cannot be used: there is no broker 9, alive or in any "
                "assignment.",
            ),
        }
        moving = [("t", 0, [3, 4, 1, 2], [3, 4], [1, 2])]
        assert await stage.listed() == moving
        assert await stage.listed(("t", None), ("t", [1])) == moving
        assert await stage.listed(("u", None), ("t", [1, 0]), ("t", [0])) == moving
        assert await stage.listed(("t", [1]), ("u", None)) == []

    run(scenario)


def test_a_cancelled_move_leaves_no_partial_copy_and_a_late_stop_hits_no_later_copy() -> None:
    async def scenario(world: World) -> None:
        stage = Stage(world)
        await stage.begin()
        assert await stage.move(T0, TARGETS) is ErrorCode.NONE
        await until(lambda: all(T0 in stage.brokers[x].replicas for x in TARGETS))
        assert await stage.propose([1, 2, 3]) is ErrorCode.NONE
        assert await stage.move(T0, None) is ErrorCode.NONE
        assert await stage.listed() == []
        await until(lambda: stage.brokers[4].stopped == [T0])
        assert stage.replicas == [1, 2, 3] and T0 in stage.brokers[3].replicas
        # The same broker again. Its stop arrives late: it is fenced.
        stop = next(
            x for x in stage.brokers[4].requests if isinstance(x, messages.StopReplicaRequest)
        )
        assert await stage.move(T0, TARGETS) is ErrorCode.NONE
        await until(lambda: T0 in stage.brokers[4].replicas)
        with pytest.raises(AssertionError, match="FENCED_LEADER_EPOCH"):
            stage.brokers[4]._stop(stop, messages.StopReplicaResponse())
        stage.asked = True
        stage.brokers[4].stopped.clear()
        await stage.whole_move()
        assert stage.replicas == list(TARGETS)

    run(scenario)


@pytest.mark.parametrize("how", ["all", "topic"])
def test_all_moves_are_cancelled(how: str) -> None:
    async def scenario(world: World) -> None:
        stage = Stage(world)
        await stage.begin()
        request = messages.AlterPartitionReassignmentsRequest
        asked = request(topics=None if how == "all" else [request.ReassignableTopic("t", None)])
        for where in (T0, T1):
            assert await stage.move(where, TARGETS) is ErrorCode.NONE
        answer = await stage.brokers[1].forward(asked, 0)
        rows = [(x.partition_index, x.error_code) for x in answer.responses[0].partitions]
        assert (answer.error_code, rows) == (0, [(0, 0), (1, 0)])
        assert await stage.listed() == []
        answer = await stage.brokers[1].forward(asked, 0)
        none = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        if how == "all":
            assert (answer.error_code, answer.responses) == (none, [])
        else:
            rows = [(x.partition_index, x.error_code) for x in answer.responses[0].partitions]
            assert (answer.error_code, rows) == (0, [(-1, none)])
        await until(lambda: all(len(stage.brokers[x].stopped) == 2 for x in TARGETS))

    run(scenario)


def test_a_full_in_mid_move_keeps_the_copy_of_a_target() -> None:
    async def scenario(world: World) -> None:
        stage = Stage(world)
        await stage.begin()
        assert await stage.move(T0, TARGETS) is ErrorCode.NONE
        await until(lambda: all(T0 in stage.brokers[x].replicas for x in TARGETS))
        await stage.after_a_death()
        await until(lambda: all(x.states for x in stage.brokers.values()))
        assert all(x.stale == [] for x in stage.brokers.values())

    run(scenario)
