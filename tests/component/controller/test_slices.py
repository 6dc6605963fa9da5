"""Long requests in slices: each element is answered as if the whole were one decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from tests.support.controller_world import DEFAULTS, World
from tidelog.controller import slices
from tidelog.controller.decisions import creation
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.configuration import (
    Alteration,
    Resource,
    alter_configs,
    cost_of_change,
    repeated_resources,
)
from tidelog.controller.decisions.creation import (
    Created,
    Earlier,
    TopicToCreate,
    cost_of_topic,
    create_topics,
)
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.deletion import (
    PendingDelete,
    cost_of_deletion,
    delete_topics,
    repeated_names,
)
from tidelog.controller.decisions.growth import (
    Growth,
    cost_of_growth,
    create_partitions,
    repeated_growths,
)
from tidelog.controller.pending import Changes
from tidelog.controller.requests import Gone
from tidelog.controller.slices import SLICE, cut, perform_in_slices
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


class Shell:
    """What ``perform_in_slices`` needs of a controller: decides, writes, counts the decisions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.writes: list[int] = []

    @property
    def cluster(self) -> ClusterState:
        return self.world.cluster

    async def perform(
        self, decide: Callable[[ClusterState], Decision[Any]], applied: Callable[[Any], None]
    ) -> tuple[Any, int]:
        # Decided twice, as when a node had changed: the first one leaves no trace.
        decide(self.cluster)
        decision = decide(self.cluster)
        self.world.commit(decision.writes)
        self.writes.append(len(decision.writes))
        applied(decision.answer)
        return decision.answer, self.cluster.revision


def in_slices(world: World, asked: Sequence[Any], *how: Any) -> tuple[list[Any], list[int]]:
    shell = Shell(world)
    answers, _ = asyncio.run(perform_in_slices(shell, asked, *how))  # type: ignore[arg-type]
    return answers, shell.writes


def without_ids(answers: Sequence[Created]) -> list[Any]:
    return [(x.name, x.refusal, x.partitions, x.replication_factor, x.configs) for x in answers]


ASKED = [
    TopicToCreate("a", 2),
    TopicToCreate("again"),
    TopicToCreate("a.b"),
    TopicToCreate("a_b"),
    TopicToCreate("no/name"),
    TopicToCreate("again"),
    TopicToCreate("own", 3, configs=(("retention.ms", "7"),)),
    TopicToCreate("there"),
    TopicToCreate("again"),
    TopicToCreate("wrong", configs=(("retention.ms", "soon"),)),
    TopicToCreate("last", 4, 2),
]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("most", [1, 7, 20, 10_000])
def test_topics_are_created_in_slices_as_at_once(
    monkeypatch: pytest.MonkeyPatch, most: int, validate_only: bool
) -> None:
    monkeypatch.setattr(slices, "SLICE", most)
    whole, sliced = World(1, 2), World(1, 2)
    for world in (whole, sliced):
        world.create(TopicToCreate("there"))
    decision = create_topics(whole.cluster, ASKED, DEFAULTS, whole.chance, validate_only)
    whole.commit(decision.writes)
    earlier = Earlier.of(ASKED)
    answers, writes = in_slices(
        sliced,
        ASKED,
        lambda topic: cost_of_topic(topic, DEFAULTS),
        lambda cluster, part: create_topics(
            cluster, part, DEFAULTS, sliced.chance, validate_only, earlier
        ),
        earlier.take,
    )
    assert without_ids(answers) == without_ids(decision.answer)
    assert len(writes) == 1 or most < 10_000
    assert sliced.cluster.topics.keys() == whole.cluster.topics.keys()
    assert sliced.cluster.partition_nodes == whole.cluster.partition_nodes, (
        "no epoch is given twice"
    )


def test_one_request_creates_so_many_partitions_in_all_its_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(creation, "MAX_PARTITIONS", 5)
    monkeypatch.setattr(slices, "SLICE", 1)
    world = World(1)
    asked = [TopicToCreate("a", 3), TopicToCreate("b", 3), TopicToCreate("c", 2)]
    earlier = Earlier.of(asked)
    answers, _ = in_slices(
        world,
        asked,
        lambda topic: cost_of_topic(topic, DEFAULTS),
        lambda cluster, part: create_topics(cluster, part, DEFAULTS, world.chance, earlier=earlier),
        earlier.take,
    )
    errors = [None if x.refusal is None else x.refusal.error for x in answers]
    assert errors == [None, ErrorCode.INVALID_PARTITIONS, None]


def test_what_repeats_is_refused_in_whatever_slice_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "SLICE", 1)
    world = World(1)
    world.create(TopicToCreate("t"), TopicToCreate("u"))
    repeats = ErrorCode.INVALID_REQUEST

    growths = [Growth("t", 2), Growth("u", 2), Growth("t", 3)]
    grown, _ = in_slices(
        world,
        growths,
        lambda one: cost_of_growth(world.cluster, one),
        lambda cluster, part: create_partitions(
            cluster, part, world.chance, False, repeated_growths(growths)
        ),
    )
    assert [refusal and refusal.error for _, refusal in grown] == [repeats, None, repeats]

    t, u = Resource(2, "t"), Resource(2, "u")
    changes = [(x, [Alteration("retention.ms", 0, "7")]) for x in (t, u, t)]
    altered, _ = in_slices(
        world,
        changes,
        cost_of_change,
        lambda cluster, part: alter_configs(cluster, part, False, repeated_resources(changes)),
    )
    assert [refusal and refusal.error for _, refusal in altered] == [repeats, None, repeats]
    assert world.cluster.topic_configs == {"u": {"retention.ms": "7"}}

    named = repeated_names(
        world.cluster,
        doomed := [
            PendingDelete("t"),
            PendingDelete("u"),
            PendingDelete(None, world.cluster.topic_id("t")),
            PendingDelete("x"),
        ],
    )
    gone, _ = in_slices(
        world,
        doomed,
        lambda one: cost_of_deletion(world.cluster, one),
        lambda cluster, part: delete_topics(cluster, part, True, named),
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [x.refusal and x.refusal.error for x in gone] == [repeats, None, repeats, unknown]
    assert world.cluster.topics.keys() == {"t"}


def test_a_slice_costs_so_much_and_one_element_is_never_cut() -> None:
    costs = [1, SLICE - 1, 1, 5 * SLICE, 1, 1]
    assert [list(part) for part in cut(costs, lambda cost: cost)] == [
        [1, SLICE - 1],
        [1],
        [5 * SLICE],
        [1, 1],
    ]
    assert [list(part) for part in cut([], lambda cost: 1)] == [[]], "also what asks for nothing"


def test_thousands_of_topics_are_many_small_writes() -> None:
    world = World(1)
    asked = [TopicToCreate(f"t{number}") for number in range(1000)]
    earlier = Earlier.of(asked)
    answers, writes = in_slices(
        world,
        asked,
        lambda topic: cost_of_topic(topic, DEFAULTS),
        lambda cluster, part: create_topics(cluster, part, DEFAULTS, world.chance, earlier=earlier),
        earlier.take,
    )
    assert not [x for x in answers if x.refusal]
    assert max(writes) <= SLICE + 1
    assert len(writes) == 10


def test_brokers_are_sent_whole_topics_in_slices() -> None:
    places = {TopicPartition(f"t{number}", index) for number in range(5) for index in range(3)}
    large = {TopicPartition("large", index) for index in range(20)}
    gone = {"old": Gone("old", UUID(int=1), (0,))}
    changes = Changes(partitions=places | large, gone=gone, brokers=True)
    parts = list(changes.slices(6))
    assert set().union(*(part.partitions for part in parts)) == changes.partitions
    assert sum(len(part.partitions) for part in parts) == len(changes.partitions)
    assert [len(part.partitions) for part in parts] == [20, 6, 6, 3]
    assert [(part.gone, part.brokers) for part in parts] == [(gone, True), *[({}, False)] * 3]
    assert [part.partitions for part in changes.slices(100)] == [changes.partitions]
    (nothing,) = Changes(gone=gone).slices(6)
    assert nothing.gone == gone
