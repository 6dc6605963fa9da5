"""Troubles of a resize in a pure cluster, and what an operator does about each.

For the tests that follow the advice of refusals. The names say what is wrong, or what was done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from tests.support.resizing_world import NOW_MS, ResizingWorld
from tidelog.controller.decisions import (
    soft_state,
)
from tidelog.controller.decisions.cluster import NO_LEADER, LogEnd
from tidelog.controller.decisions.configuration import Alteration, Resource, alter_configs
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.growth import Growth
from tidelog.controller.decisions.open_requests import note_retirements, open_until
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    expire,
    register,
    settle_returned,
    take_out,
)
from tidelog.controller.decisions.removal import (
    Held,
    is_drained_first,
    remove_retired,
    retained,
    retired_from_the_top,
    to_purge,
    undrained,
)
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.controller.decisions.resize_requests import resize_topics
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.unaware_writers import note_unaware
from tidelog.metadata import layout
from tidelog.metadata.records import FormerPartition, PartitionState, UncleanDebt
from tidelog.model.admin_requests import ElectionType
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SET = 0
World = ResizingWorld


@dataclass
class Ask:
    """A request, and the same again: some advice changes it."""

    count: int = 4
    assignments: tuple[tuple[int, ...], ...] | None = None
    force: bool = False
    name: str = "t"
    now_ms: int = NOW_MS


Follow = Callable[[World, Ask], object]


# What goes wrong ---------------------------------------------------------------------------------


def small(factor: int = 2, brokers: int = 3) -> World:
    world = World(2, brokers=brokers, factor=factor)
    nodes = world.cluster.brokers.items()
    world.commit(
        tuple(
            Put(layout.broker(x), msgspec.structs.replace(y, log_dirs=["/data"])) for x, y in nodes
        )
    )
    topic_id = world.cluster.topic_id("t")
    world.cluster.unaware[topic_id] = dict.fromkeys(world.cluster.brokers, -1)
    return world


def grown() -> World:
    world = small()
    assert world.ask(6) is None
    world.settle()
    return world


def under_way() -> World:
    world = small()
    assert world.ask(3) is None
    return world


def moving() -> World:
    world = small()
    world.do(reassign(world.cluster, [Asked(T0, (3,))]))
    return world


def dead_leader() -> World:
    world = small(factor=1)
    world.do(expire(world.cluster, [world.state(0).leader]))
    return world


def lost_disk() -> World:
    """Both replicas were in sync; the one that is left is not."""
    world = small()
    changed = msgspec.structs.replace(world.state(0), isr=[1], leader=1)
    world.commit((put_state(world.cluster, T0, changed),))
    world.do(expire(world.cluster, [1]))
    return world


def not_elected_yet() -> World:
    world = small()
    changed = msgspec.structs.replace(world.state(0), leader=NO_LEADER)
    world.commit((put_state(world.cluster, T0, changed),))
    return world


def suspected_leader() -> World:
    world = small(factor=1)
    world.cluster.suspected.add(world.state(0).leader)
    return world


def leaving_leader() -> World:
    world = small(factor=1)
    soft_state.note_leaving(world.cluster, world.state(0).leader)
    return world


def damage(world: World, *brokers: int) -> World:
    for broker in brokers:
        topic_id = world.cluster.topic_id("t")
        soft_state.note_damaged(world.cluster, broker, [(topic_id, T0)])
        world.do(take_out(world.cluster, [T0]))
    return world


def damaged_in_sync() -> World:
    world = small()
    changed = msgspec.structs.replace(world.state(0), isr=[1], leader=1)
    world.commit((put_state(world.cluster, T0, changed),))
    return damage(world, 1)


def full_disk() -> World:
    world = small()
    world.fill_disk(world.state(1).leader)
    return world


def full_follower() -> World:
    world = small()
    world.fill_disk(world.state(1).isr[-1])
    return world


def full_elsewhere() -> World:
    """The topic is on brokers 1 and 2; the only other one has no room."""
    world = small(factor=1)
    world.fill_disk(3)
    return world


def below_minimum(*, dead: bool) -> World:
    world = small()
    configured(world, "t", "min.insync.replicas", "2")
    leader, other = world.cluster.replicas(T1)
    changed = msgspec.structs.replace(world.state(1), isr=[leader], leader=leader)
    world.commit((put_state(world.cluster, T1, changed),))
    if dead:
        world.cluster.suspected.add(other)
    return world


def on_machines(*, lagging: bool) -> World:
    """Brokers 1 and 2 are one machine, and t-1 is on it; or on both machines, one of which lags."""
    world = small()
    for broker, node in list(world.cluster.brokers.items()):
        rack = "a/m" if broker < 3 else "b/n"
        world.commit((Put(layout.broker(broker), msgspec.structs.replace(node, rack=rack)),))
    configured(world, "t", "min.insync.machines", "2")
    place(world, (1, 3), (1, 3) if lagging else (1, 2))
    if lagging:
        world.commit_only((put_state(world.cluster, T1, PartitionState(1, 0, 1, [1])),))
    return world


def place(world: World, *replicas: tuple[int, ...]) -> None:
    """Move the partitions of t to these brokers; all replicas are in sync."""
    topic = world.cluster.topics["t"]
    placed = {index: list(brokers) for index, brokers in enumerate(replicas)}
    world.commit_only((Put(layout.topic("t"), msgspec.structs.replace(topic, partitions=placed)),))
    for index, brokers in placed.items():
        state = msgspec.structs.replace(
            world.state(index), leader=brokers[0], isr=brokers, leader_epoch=0
        )
        world.commit_only((put_state(world.cluster, TopicPartition("t", index), state),))


def moved_to_more_machines(world: World, _: Ask) -> None:
    place(world, (1, 3), (1, 3))


def stateless() -> World:
    """The controller has just read the partitions of a new topic, whose brokers register."""
    world = small()
    del world.cluster.states[T1]
    return world


def incomplete() -> World:
    world = small()
    world.cluster.hidden = world.cluster.topic_histories.pop("t")  # type: ignore[attr-defined]
    return world


def unaware() -> World:
    world = grown()
    world.cluster.unaware[world.cluster.topic_id("t")] = {1: NOW_MS, 2: -1, 3: -1}
    return world


def unheard() -> World:
    world = grown()
    world.cluster.unaware.clear()
    return world


def with_record(**fields: Any) -> World:
    world = small()
    history = msgspec.structs.replace(world.history, **fields)
    world.commit((Put(layout.topic_history("t"), history),))
    return world


def large_record() -> World:
    debts = dict.fromkeys(range(20), UncleanDebt(1, 1))
    return with_record(unclean=debts, former={9: FormerPartition(1, 1, 1, 1, 1)})


def cordoned(*brokers: int) -> World:
    world = small(brokers=max(2, *brokers))
    for broker in brokers:
        configured(world, str(broker), "cordoned.log.dirs", "*", kind=4)
    return world


def few_brokers() -> World:
    world = small(brokers=2)
    world.do(expire(world.cluster, [2]))
    return world


DATA_END, END = 100, 102
READ = {4: DATA_END, 5: DATA_END}


class Retiring(ResizingWorld):
    """Partitions 4 and 5 are retired, with records from ``start`` to ``DATA_END``.

    ``commits`` are those of groups, None while not all can be asked.
    """

    def __init__(self, commits: dict[str, dict[int, int]] | None = None, **configs: str) -> None:
        super().__init__(2)
        self.cluster.unaware[self.cluster.topic_id("t")] = dict.fromkeys(self.cluster.brokers, -1)
        for count in (6, 4):
            assert self.ask(count) is None
            self.settle()
        for key, value in configs.items():
            configured(self, "t", key.replace("_", "."), value)
        self.start, self.commits = 20, commits
        self.now_ms, self.delay_ms = NOW_MS, 0

    def look(self) -> Retiring:
        """Do as the controller's timer does."""
        for purges in (True, False):
            answers = {
                index: Held(
                    self.state(index).leader, self.state(index).leader_epoch, self.start, END, END,
                    DATA_END, True,
                )
                for index in retired_from_the_top(self.cluster, "t")
            }  # fmt: skip
            is_drained = is_drained_first(self.cluster, "t")
            commits = self.commits if is_drained else {}
            expiries = dict.fromkeys(commits or {}, NOW_MS)
            self.do(note_retirements(self.cluster, ["t"], self.now_ms))
            kept = open_until(self.cluster, "t", self.now_ms, self.delay_ms)
            holds = retained(self.cluster, "t", answers, commits, expiries, kept)
            soft_state.note_retained(self.cluster, "t", holds)
            waited = undrained(self.cluster, "t", answers, commits) if is_drained else set()
            if purges and to_purge(self.cluster, "t", answers, waited, kept):
                self.start = DATA_END
                continue
            self.do(remove_retired(self.cluster, "t", answers, waited, kept))
        return self


def retiring(commits: dict[str, dict[int, int]] | None = None, **configs: str) -> World:
    return Retiring(commits, **configs).look()


def looked(*changes: Callable[[Retiring], object]) -> Follow:
    """Do what the advice says; the next request begins a look."""

    def follow(world: World, _: Ask) -> None:
        assert isinstance(world, Retiring)
        for change in changes:
            change(world)
        world.look()

    return follow


def setting(key: str, value: str) -> Callable[[Retiring], object]:
    return lambda world: configured(world, "t", key, value)


def committed(commits: dict[str, dict[int, int]]) -> Callable[[Retiring], object]:
    return lambda world: setattr(world, "commits", commits)


def records_deleted(world: Retiring) -> None:
    world.start = DATA_END


DELAY_MS = 120_000


def read_just_now(start: int = 20) -> World:
    """Every group has read them, or retention emptied them, in the time of producers' requests."""
    world = Retiring({"g": READ}, retired_purge="drained")
    world.start, world.delay_ms = start, DELAY_MS
    return world.look()


def delay_over(world: Retiring) -> None:
    world.now_ms += DELAY_MS


def gone_unread() -> World:
    """Retention emptied them before the group had read them."""
    world = Retiring({"g": {4: 7}}, retired_purge="drained")
    world.start = DATA_END
    return world.look()


def compacted() -> World:
    world = grown()
    configured(world, "t", "cleanup.policy", "compact")
    return world


# What advice asks for ----------------------------------------------------------------------------


def configured(world: World, name: str, key: str, value: str, kind: int = 2) -> None:
    asked = [(Resource(kind, name), [Alteration(key, SET, value)])]
    ((_, refusal),) = world.do(alter_configs(world.cluster, asked))
    assert refusal is None, refusal


def start(world: World, broker: int) -> None:
    """The broker registers, with the records that it had, and catches up."""
    cluster = world.cluster
    topic_id = cluster.topic_id("t")
    held = {
        (topic_id, where.partition): LogEnd(cluster.partition_nodes[where].partition_epoch, 9, 9)
        for where in cluster.states
        if broker in cluster.replicas(where)
    }
    address = (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),)
    asked = Registration(
        broker, "", UUID(int=900 + broker), UUID(int=broker), address, None,
        FormerRegistration.CLEAN, held, {}, frozenset(),
    )  # fmt: skip
    cluster.suspected.discard(broker)
    cluster.shutting_down.discard(broker)
    cluster.inventories[broker] = held
    assert isinstance(world.do(register(cluster, asked, 1)), int)
    world.do(settle_returned(cluster, broker))


def started(broker: int) -> Follow:
    return lambda world, _: start(world, broker)


def caught_up(world: World, _: Ask) -> None:
    changed = msgspec.structs.replace(world.state(1), isr=list(world.cluster.replicas(T1)))
    world.commit((put_state(world.cluster, T1, changed),))


def started_and_caught_up(world: World, ask: Ask) -> None:
    start(world, next(iter(world.cluster.suspected)))
    caught_up(world, ask)


def elected(world: World, _: Ask) -> None:
    world.do(settle_returned(world.cluster, 1))


def elected_unclean(world: World, _: Ask) -> None:
    found = world.do(elect_on_request(world.cluster, ElectionType.UNCLEAN, [T0]))
    assert found == {T0: None}


def created_again(world: World, _: Ask) -> None:
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    world.create(TopicToCreate("t", 2, 1))


def made_room(world: World, _: Ask) -> None:
    for broker in list(world.cluster.shortages):
        world.free_disk(broker)


def named_others(_: World, ask: Ask) -> None:
    ask.assignments = ((1,), (2,), (1,), (2,))


def changed(**fields: Any) -> Follow:
    def follow(_: World, ask: Ask) -> None:
        for name, value in fields.items():
            setattr(ask, name, value)

    return follow


def waited(world: World, _: Ask) -> None:
    world.settle()


def cancelled(world: World, _: Ask) -> None:
    world.do(reassign(world.cluster, [Asked(T0, None)]))


def reported(world: World, _: Ask) -> None:
    topic_id = world.cluster.topic_id("t")
    for broker in world.cluster.brokers:
        note_unaware(world.cluster, broker, [(topic_id, -1)], 0)


def completed(world: World, _: Ask) -> None:
    world.cluster.topic_histories["t"] = world.cluster.hidden  # type: ignore[attr-defined]


def led(world: World, _: Ask) -> None:
    world.cluster.states[T1] = world.cluster.states[T0]


def handled(world: World, _: Ask) -> None:
    history = msgspec.structs.replace(world.history, unclean={}, former={})
    world.commit((Put(layout.topic_history("t"), history),))


def created(world: World, ask: Ask) -> None:
    world.create(TopicToCreate(ask.name, 2, 1))


def opened(world: World, _: Ask) -> None:
    configured(world, "2", "cordoned.log.dirs", "", kind=4)


def largest(world: World, ask: Ask) -> None:
    refusal = asked_again(world, ask)
    assert refusal is not None
    ask.count = int(refusal.sentence.rpartition(" ")[2].rstrip("."))


def asked_again(world: World, ask: Ask) -> RequestRefusal | None:
    wanted = Growth(ask.name, ask.count, ask.assignments, ask.force)
    decision = resize_topics(world.cluster, [wanted], world.chance, ask.now_ms)
    ((_, refusal),) = decision.answer
    assert (refusal is None) == bool(decision.writes)
    return refusal
