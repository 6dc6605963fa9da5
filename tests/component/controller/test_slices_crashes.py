"""A controller that crashes after any commit of a request that is decided in slices.

Whatever stands then, the next controller loads it, does what each does when it becomes active, and
is asked again. No topic is half there, none stands with less than was asked for, no epoch is given
twice; what is asked again is done in the end, and done once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.controller_world import DEFAULTS, World
from tidelog.controller import slices
from tidelog.controller.decisions import config_effects, deletion, journal
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.configuration import (
    Alteration,
    Resource,
    alter_configs,
    cost_of_change,
)
from tidelog.controller.decisions.creation import (
    Earlier,
    TopicToCreate,
    cost_of_topic,
    create_topics,
)
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.deletion import PendingDelete, cost_of_deletion, delete_topics
from tidelog.controller.decisions.growth import Growth, cost_of_growth, create_partitions
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import stops_of
from tidelog.controller.slices import perform_in_slices
from tidelog.metadata.records import PartitionState
from tidelog.model.admin_requests import ElectionType
from tidelog.model.levels import LATEST, level_of
from tidelog.model.topics import TopicPartition

BROKERS = (1, 2)
MOST_BYTES = 2_000
"""What the store takes in one commit: a topic of some partitions is several."""

BELOW_IDS = level_of("1.3")


class Died(Exception):
    """The controller is gone."""


class Office:
    """What ``perform_in_slices`` needs of a controller, which dies after so many commits."""

    def __init__(self, world: World, commits: int) -> None:
        self.world = world
        self.commits = commits

    @property
    def cluster(self) -> ClusterState:
        return self.world.cluster

    async def perform(
        self, decide: Callable[[ClusterState], Decision[Any]], applied: Callable[[Any], None]
    ) -> tuple[Any, int]:
        decision = decide(self.cluster)
        for part in journal.parts(decision, MOST_BYTES):
            if not part:
                continue
            if self.commits == 0:
                raise Died
            self.commits -= 1
            self.world.commit(tuple(part))
            assert_sent_as_whole(self.cluster)
        applied(decision.answer)
        return decision.answer, self.cluster.revision


Act = Callable[[Office], Any]


@dataclass
class Kind:
    """One request in slices: ``act`` asks for it, ``done`` says whether all of it stands."""

    act: Act
    done: Callable[[ClusterState], bool]
    first: Sequence[TopicToCreate] = ()
    prepare: Callable[[World], None] = field(default=lambda world: None)


def create(office: Office) -> Any:
    asked = [
        TopicToCreate(f"n{x}", x, 2, configs=(("cleanup.policy", "compact"),)) for x in (1, 9, 2)
    ]
    earlier = Earlier.of(asked)
    return perform_in_slices(
        office,  # type: ignore[arg-type]
        asked,
        lambda topic: cost_of_topic(topic, DEFAULTS),
        lambda cluster, part: create_topics(
            cluster, part, DEFAULTS, office.world.chance, False, earlier
        ),
        earlier.take,
    )


def grow(office: Office) -> Any:
    asked = [Growth("a", 7), Growth("b", 3), Growth("c", 12)]
    return perform_in_slices(
        office,  # type: ignore[arg-type]
        asked,
        lambda growth: cost_of_growth(office.cluster, growth),
        lambda cluster, part: create_partitions(cluster, part, office.world.chance, False, ()),
    )


def alter(office: Office) -> Any:
    asked = [(Resource(2, x), [Alteration("min.insync.replicas", 0, "1")]) for x in "abc"]
    return perform_in_slices(
        office,  # type: ignore[arg-type]
        asked,
        cost_of_change,
        lambda cluster, part: alter_configs(cluster, part, False, ()),
    )


def delete(office: Office) -> Any:
    return perform_in_slices(
        office,  # type: ignore[arg-type]
        [PendingDelete(name) for name in "abc"],
        lambda one: cost_of_deletion(office.cluster, one),
        lambda cluster, part: delete_topics(cluster, part, True, ()),
    )


def elect(office: Office) -> Any:
    def decide(cluster: ClusterState, part: Sequence[TopicPartition]) -> Decision[list[Any]]:
        made = elect_on_request(cluster, ElectionType.PREFERRED, part, True)
        return Decision(list(made.answer.items()), made.writes, made.splits)

    places = list(office.cluster.states)
    return perform_in_slices(office, places, lambda _: 1, decide)  # type: ignore[arg-type]


def let_seconds_lead(world: World) -> None:
    writes = []
    for where, state in world.cluster.states.items():
        second = world.cluster.replicas(where)[1]
        moved = PartitionState(second, state.leader_epoch + 1, state.controller_epoch, state.isr)
        writes.append(put_state(world.cluster, where, moved))
    world.commit(tuple(writes))


def shrink(world: World) -> None:
    """One member left each ISR, and stays eligible: there were fewer than the minimum."""
    configured = [(Resource(2, x), [Alteration("min.insync.replicas", 0, "2")]) for x in "abc"]
    world.do(alter_configs(world.cluster, configured))
    writes = []
    for where, state in world.cluster.states.items():
        first, second = world.cluster.replicas(where)
        shrunk = PartitionState(
            first,
            state.leader_epoch,
            state.controller_epoch,
            [first],
            eligible_replicas=[second],
        )
        writes.append(put_state(world.cluster, where, shrunk))
    world.commit(tuple(writes))


THREE = tuple(TopicToCreate(name, count, 2) for name, count in (("a", 1), ("b", 2), ("c", 9)))


def is_deleted(cluster: ClusterState) -> bool:
    return not cluster.topics and not cluster.deletions and not cluster.marked


KINDS = {
    "create": Kind(create, lambda x: {"n1", "n9", "n2"} <= x.topics.keys()),
    "grow": Kind(grow, lambda x: [len(x.topics[y].partitions) for y in "abc"] == [7, 3, 12], THREE),
    "alter": Kind(
        alter,
        lambda x: not any(state.eligible_replicas for state in x.states.values()),
        THREE,
        shrink,
    ),
    "delete": Kind(delete, is_deleted, THREE),
    "elect": Kind(
        elect,
        lambda x: all(state.leader == x.replicas(where)[0] for where, state in x.states.items()),
        THREE,
        let_seconds_lead,
    ),
}


def assert_sent_as_whole(cluster: ClusterState) -> None:
    """What brokers are sent at any commit: no command to delete a topic that still exists, and no
    lower minimum before the replicas that may lack records have left the eligible ones."""
    for node in cluster.deletions.values():
        topic_id = cluster.topic_id(node.name)
        if node.name in cluster.topics and topic_id in cluster.deletions:
            assert node.name in cluster.marked, f"{node.name} stands, and is on the queue"
    assert_eligible(cluster)


def assert_eligible(cluster: ClusterState) -> None:
    """Promise 17: eligible replicas hold all that was acknowledged, by the minimum that counts."""
    for where, state in cluster.states.items():
        minimum = cluster.min_insync(where.topic, len(cluster.replicas(where)))
        assert not state.eligible_replicas or len(state.isr) < minimum, where


def successor(world: World) -> None:
    """The next controller: it has what is stored, and its brokers register with it."""
    again = ClusterState(brokers=world.cluster.brokers, level=world.cluster.level)
    load(again, world.nodes())
    assert not again.damaged
    world.cluster = again
    world.do(config_effects.of_a_start(again))
    world.do(deletion.take_up(again))
    world.do(complete(again, world.chance))
    world.do(deletion.take_up(again))


def assert_sound(cluster: ClusterState) -> None:
    """No topic is half there, and no partition has another's epoch."""
    assert not cluster.damaged
    for name, node in cluster.topics.items():
        if name in cluster.marked:
            continue
        places = {TopicPartition(name, index) for index in node.partitions}
        assert places == {x for x in cluster.states if x.topic == name}, name
        assert places == {x for x in cluster.partition_nodes if x.topic == name}, name
        assert node.topic_id == cluster.topic_histories[name].topic_id
        assert node.initial_partition_count == len(places)
        if name.startswith("n"):
            assert cluster.topic_configs[name] == {"cleanup.policy": "compact"}
    assert cluster.topic_histories.keys() <= cluster.topics.keys()
    epochs = [life.partition_epoch for life in cluster.partition_nodes.values()]
    assert len(set(epochs)) == len(epochs), "an epoch was given twice"
    assert_eligible(cluster)


def confirm_all(office: Office) -> None:
    """Brokers stop what they are commanded to, and report it to the controller, in slices."""
    for broker in BROKERS:
        stops = stops_of(office.cluster, broker)

        def decide(cluster: ClusterState, part: Sequence[Any], broker: int = broker) -> Any:
            confirmed = [stop for of_topic in part for stop in of_topic]
            deletion.note_confirmed(cluster, broker, confirmed)
            return deletion.confirm(cluster, broker, confirmed)

        asyncio.run(
            perform_in_slices(
                office,  # type: ignore[arg-type]
                deletion.by_topic(stops),
                deletion.cost_of_confirmation,
                decide,
            )
        )


def ask(kind: Kind, office: Office) -> None:
    asyncio.run(kind.act(office))
    confirm_all(office)


def begun(kind: Kind, level: Any) -> World:
    world = World(*BROKERS)
    world.cluster.level = level
    world.create(*kind.first)
    kind.prepare(world)
    assert not kind.done(world.cluster)
    return world


def what_stands(cluster: ClusterState) -> Any:
    """Return all that is stored but ids and counts of changes."""
    states = {
        where: (state.leader, state.isr, state.eligible_replicas)
        for where, state in cluster.states.items()
    }
    placed = {name: node.partitions for name, node in cluster.topics.items()}
    return states, placed, cluster.topic_configs, cluster.topic_histories.keys(), cluster.marked


@pytest.mark.parametrize("level", [LATEST, BELOW_IDS], ids=lambda x: x.name)
@pytest.mark.parametrize("most", [1, 20])
@pytest.mark.parametrize("name", KINDS)
def test_the_next_controller_finishes_what_was_asked_again(
    monkeypatch: pytest.MonkeyPatch, name: str, most: int, level: Any
) -> None:
    monkeypatch.setattr(slices, "SLICE", most)
    # Every decision that may be cut is, whatever its size.
    monkeypatch.setattr(journal, "MANY", 0)
    monkeypatch.setattr(deletion, "AT_ONCE", 0)
    kind = KINDS[name]
    whole = Office(begun(kind, level), 1_000)
    ask(kind, whole)
    assert kind.done(whole.cluster)
    assert_sound(whole.cluster)
    commits = 1_000 - whole.commits
    assert commits > 2, "it is cut"
    for survived in range(commits):
        world = begun(kind, level)
        with pytest.raises(Died):
            ask(kind, Office(world, survived))
        successor(world)
        assert_sound(world.cluster)
        ask(kind, Office(world, 1_000))
        assert kind.done(world.cluster), f"asked again after {survived} commits"
        assert_sound(world.cluster)
        assert what_stands(world.cluster) == what_stands(whole.cluster), survived
        assert world.nodes().keys() == whole.world.nodes().keys(), survived
