"""Reassignments: every step in every state of a move, refusals, the list, and writes per topic."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions import moves
from tidelog.controller.decisions.condition import counts
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Decision, Put
from tidelog.controller.decisions.deletion import PendingDelete, confirm, delete_topics
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.isr import Proposal, alter_isr
from tidelog.controller.decisions.moves import Placement, complete, written
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.reassignments import (
    Asked,
    Listed,
    listed,
    moves_of,
    reassign,
    repeated_places,
)
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import stops_of
from tidelog.controller.pending import changes_of
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, ResizeKind, ResizePlan, ResizeStep, WentBack
from tidelog.metadata.store import Set
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EPOCH = 10

STATES: dict[str, tuple[str, str, str, str, dict[int, int]]] = {
    # name: R, I, T, O, stops owed
    "idle": ("12", "12", "", "", {}),
    "started": ("12", "12", "34", "12", {}),
    "one joined": ("123", "123", "34", "12", {}),
    "joined and fell out": ("123", "12", "34", "12", {}),
    "arrived": ("1234", "1234", "34", "12", {}),
    "completed": ("34", "1234", "", "", {1: 9, 2: 9}),
    "cancelled": ("123", "123", "", "12", {4: 9}),
}

TABLE = """
idle                | start 34 | R=12 I=12 T=34 O=12 epoch+1
idle                | start 13 | R=12 I=12 T=13 O=12 epoch+1
idle                | start R  | R=12 I=12
idle                | start R reversed | R=12 I=12 T=21 O=12 epoch+1
idle                | cancel   | NO_REASSIGNMENT_IN_PROGRESS
idle                | join 3   | INVALID_REQUEST
idle                | complete | R=12 I=12
started             | start 34 | R=12 I=12 T=34 O=12
started             | start 13 | R=12 I=12 T=13 O=12 epoch+1 owes 4@11
started             | start R  | R=12 I=12 epoch+1 owes 3@11 4@11
started             | start R reversed | R=12 I=12 T=21 O=12 epoch+1 owes 3@11 4@11
started             | cancel   | R=12 I=12 epoch+1 owes 3@11 4@11
started             | join 3   | R=123 I=123 T=34 O=12
started             | complete | R=12 I=12 T=34 O=12
one joined          | start 34 | R=123 I=123 T=34 O=12
one joined          | start 13 | R=123 I=123 T=13 O=12 epoch+1 owes 4@11
one joined          | start R  | R=123 I=123 epoch+1 owes 4@11
one joined          | start R reversed | R=123 I=123 T=321 O=12 epoch+1 owes 4@11
one joined          | cancel   | R=123 I=123 O=12 epoch+1 owes 4@11
one joined          | join 4   | R=1234 I=1234 T=34 O=12
one joined          | complete | R=123 I=123 T=34 O=12
joined and fell out | start 34 | R=123 I=12 T=34 O=12
joined and fell out | start 13 | R=123 I=12 T=13 O=12 epoch+1 owes 4@11
joined and fell out | start R  | R=123 I=12 epoch+1 owes 4@11
joined and fell out | start R reversed | R=123 I=12 T=321 O=12 epoch+1 owes 4@11
joined and fell out | cancel   | R=123 I=12 O=12 epoch+1 owes 4@11
joined and fell out | join 3   | R=123 I=123 T=34 O=12
joined and fell out | complete | R=123 I=12 T=34 O=12
arrived             | start 34 | R=1234 I=1234 T=34 O=12
arrived             | start 13 | R=1234 I=1234 T=13 O=12 epoch+1
arrived             | start R  | R=1234 I=1234 epoch+1
arrived             | start R reversed | R=1234 I=1234 T=4321 O=12 epoch+1
arrived             | cancel   | R=1234 I=1234 O=12 epoch+1
arrived             | join 5   | INVALID_REQUEST
arrived             | complete | R=34 I=1234 epoch+1 owes 1@11 2@11
completed           | start 34 | R=34 I=1234 owes 1@9 2@9
completed           | start 13 | R=34 I=34 T=13 O=34 epoch+1 owes 2@9
completed           | start R  | R=34 I=1234 owes 1@9 2@9
completed           | start R reversed | R=34 I=34 T=43 O=34 epoch+1 owes 1@9 2@9
completed           | cancel   | NO_REASSIGNMENT_IN_PROGRESS
completed           | join 5   | INVALID_REQUEST
completed           | complete | R=34 I=1234 owes 1@9 2@9
cancelled           | start 34 | R=123 I=123 T=34 O=12 epoch+1
cancelled           | start 13 | R=123 I=123 T=13 O=12 epoch+1 owes 4@9
cancelled           | start R  | R=123 I=123 owes 4@9
cancelled           | start R reversed | R=123 I=123 T=321 O=12 epoch+1 owes 4@9
cancelled           | cancel   | NO_REASSIGNMENT_IN_PROGRESS
cancelled           | join 4   | INVALID_REQUEST
cancelled           | complete | R=123 I=123 O=12 owes 4@9
"""

ROWS = [tuple(cell.strip() for cell in row.split("|")) for row in TABLE.strip().splitlines()]


def brokers(text: str) -> list[int]:
    return [int(letter) for letter in text]


def prepared(name: str) -> World:
    replicas, isr, targets, original, owed = STATES[name]
    world = World(1, 2, 3, 4, 5)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)), (1, (1, 2)))))
    leader = 3 if name == "completed" else 1
    wanted = brokers(targets) or None
    state = PartitionState(leader, EPOCH, 1, brokers(isr), target_replicas=wanted)
    placed = Placement(brokers(replicas), state, brokers(original) or None, owed)
    world.commit(tuple(written(world.cluster, {T0: placed})))
    return world


def shown(world: World) -> str:
    """Partition 0 in the words of the table; a new leader epoch as its distance."""
    cluster = world.cluster
    state, history = cluster.states[T0], cluster.topic_histories["t"]
    words = [("R", cluster.replicas(T0)), ("I", state.isr), ("T", state.target_replicas or [])]
    words.append(("O", history.original_replicas.get(0, [])))
    found = [f"{name}={''.join(map(str, found))}" for name, found in words if found]
    if state.leader_epoch != EPOCH:
        found.append(f"epoch+{state.leader_epoch - EPOCH}")
    owed = [f"{x}@{epoch}" for x, epoch in sorted(history.pending_stops.get(0, {}).items())]
    return " ".join([*found, "owes", *owed] if owed else found)


def done(world: World, event: str) -> ErrorCode:
    """Carry out an event of the table."""
    cluster, (word, *rest) = world.cluster, event.split()
    if word == "complete":
        world.do(complete(cluster))
        return ErrorCode.NONE
    if word == "join":
        state = cluster.states[T0]
        proposal = Proposal(
            T0, UUID(int=0), EPOCH, (*state.isr, int(rest[0])), cluster.isr_version(T0)
        )
        (outcome,) = world.do(alter_isr(cluster, state.leader, [proposal]))
        return ErrorCode(outcome.error)
    targets: list[int] | None = None
    if word == "start":
        targets = list(cluster.replicas(T0)) if rest[0] == "R" else brokers(rest[0])
        targets = targets[::-1] if "reversed" in rest else targets
    asked = Asked(T0, None if targets is None else tuple(targets))
    ((_, refusal),) = world.do(reassign(cluster, [asked]))
    return ErrorCode.NONE if refusal is None else refusal.error


@pytest.mark.parametrize(("name", "event", "expected"), ROWS, ids=lambda cell: cell)
def test_every_step_in_every_state(name: str, event: str, expected: str) -> None:
    world = prepared(name)
    before = shown(world)
    error = done(world, event)
    if error is not ErrorCode.NONE:
        assert shown(world) == before
    assert (shown(world) if error is ErrorCode.NONE else error.name) == expected


def test_the_table_has_every_pair() -> None:
    events = {"start 34", "start 13", "start R", "start R reversed", "cancel", "join", "complete"}
    pairs = {(name, "join" if event.startswith("join") else event) for name, event, _ in ROWS}
    assert pairs == {(name, event) for name in STATES for event in events}


@pytest.mark.parametrize("name", ["started", "one joined", "arrived"])
def test_the_deletion_of_a_topic_ends_its_moves_and_deletes_all_copies(name: str) -> None:
    world = prepared(name)
    cluster = world.cluster
    topic_id = cluster.topic_id("t")
    world.do(delete_topics(cluster, [PendingDelete("t")]))
    assert cluster.moves == {} and cluster.arrived == set() and moves_of(cluster) == []
    assert set(cluster.deletions[topic_id].partitions[0]) == {1, 2, 3, 4}
    ((_, refusal),) = reassign(cluster, [Asked(T0, (3,))]).answer
    assert refusal is not None and refusal.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_move_in_kafkas_queue_of_deletions_neither_completes_nor_changes() -> None:
    world = prepared("arrived")
    cluster = world.cluster
    cluster.level = level_of("1.3")
    world.do(delete_topics(cluster, [PendingDelete("t")]))
    assert complete(cluster) == Decision([])
    assert moves_of(cluster) == []
    for targets in (None, (1, 2)):
        ((_, refusal),) = reassign(cluster, [Asked(T0, targets)]).answer
        assert refusal is not None
        assert (refusal.error, refusal.sentence) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic t is being deleted.",
        )


@pytest.mark.parametrize(
    "path", [layout.topic("t"), layout.topic_history("t"), layout.state("t", 0)]
)
def test_a_damaged_node_is_named_and_moves_nothing(path: str) -> None:
    world = prepared("arrived")
    world.tree.apply(world.session, [Set(path, b"{")])
    load(world.cluster, world.nodes())
    for targets in (None, (1, 2)):
        ((_, refusal),) = reassign(world.cluster, [Asked(T0, targets)]).answer
        assert refusal is not None and path in refusal.sentence
        assert refusal.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert complete(world.cluster).writes == ()


def test_a_store_that_has_gone_back_completes_no_move() -> None:
    world = prepared("arrived")
    world.commit((Put(layout.WENT_BACK, WentBack("why")),))
    assert complete(world.cluster) == Decision([])


def test_a_move_and_a_change_of_the_partition_count_exclude_each_other() -> None:
    world = prepared("started")
    ((_, refusal),) = create_partitions(world.cluster, [Growth("t", 4)], world.chance).answer
    assert refusal is not None and refusal.error is ErrorCode.REASSIGNMENT_IN_PROGRESS
    world = prepared("idle")
    plan = ResizePlan(ResizeKind.GROW, 2, 4, 1, ResizeStep.FENCE)
    history = msgspec.structs.replace(
        world.cluster.topic_histories["t"], resize=plan, resize_epoch=1
    )
    world.commit((Put(layout.topic_history("t"), history),))
    ((_, refusal),) = reassign(world.cluster, [Asked(T0, (3, 4))]).answer
    assert refusal is not None and "partition count" in refusal.sentence


def test_a_partition_of_a_growth_is_there_for_no_client_before_it_is_published() -> None:
    world = prepared("idle")
    node, history = world.cluster.topics["t"], world.cluster.topic_histories["t"]
    grown = {**node.partitions, 2: [1, 2]}
    plan = ResizePlan(ResizeKind.GROW, 2, 3, 1, ResizeStep.FENCE)
    births = msgspec.structs.replace(plan, step=ResizeStep.BIRTH, leader_epochs=[0, 0])
    for changed in (plan, births):
        world.commit(
            (
                Put(layout.topic("t"), msgspec.structs.replace(node, partitions=grown)),
                Put(
                    layout.topic_history("t"),
                    msgspec.structs.replace(history, resize=changed, resize_epoch=1),
                ),
            )
        )
        for targets in ((3, 4), None):
            asked = [Asked(TopicPartition("t", 2), targets)]
            ((_, refusal),) = reassign(world.cluster, asked).answer
            assert refusal is not None
            assert refusal.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert refusal.sentence == "There is no partition t-2."


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ((), "null cancels"),
        ((1, -2), "-2 is no broker id"),
        ((1, 2, 1), "broker 1 is named twice"),
        ((1, 77), "there is no broker 77, alive or in any assignment"),
        (tuple(range(1, 200_000)), "it names 199999 brokers, and there are 5"),
    ],
)
def test_bad_targets_are_refused_with_the_reason(targets: tuple[int, ...], words: str) -> None:
    ((_, refusal),) = reassign(prepared("idle").cluster, [Asked(T0, targets)]).answer
    assert refusal is not None and words in refusal.sentence
    assert refusal.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("known_by", ["R", "T", "O"])
def test_a_dead_broker_is_a_target_if_an_assignment_has_it(known_by: str) -> None:
    world = prepared("idle")
    state = msgspec.structs.replace(world.cluster.states[T1], leader=1, isr=[1])
    placed = {
        "R": Placement([1, 9], state),
        "T": Placement([1], msgspec.structs.replace(state, target_replicas=[9])),
        "O": Placement([1], state, [9]),
    }[known_by]
    world.commit(tuple(written(world.cluster, {T1: placed})))
    assert done(world, "start 29") is ErrorCode.NONE


def test_each_partition_is_decided_by_itself_and_a_topic_is_written_once() -> None:
    world = prepared("idle")
    cluster = world.cluster
    asked = [Asked(T0, (3, 4)), Asked(TopicPartition("u", 0), (1,)), Asked(T1, (4, 5))]
    decision = reassign(cluster, asked)
    assert [None if x is None else x.error.name for _, x in decision.answer] == [
        None,
        "UNKNOWN_TOPIC_OR_PARTITION",
        None,
    ]
    paths = [write.path for write in decision.writes]
    assert paths == [layout.topic_history("t"), layout.state("t", 0), layout.state("t", 1)]
    world.do(decision)
    joins = [
        Proposal(x, UUID(int=0), cluster.states[x].leader_epoch, isr, cluster.isr_version(x))
        for x, isr in ((T0, (1, 2, 3, 4)), (T1, (1, 2, 4, 5)))
    ]
    for where in (T0, T1):
        state = msgspec.structs.replace(cluster.states[where], leader=1)
        cluster.states[where] = state
    joining = alter_isr(cluster, 1, joins)
    assert [x.error for x in joining.answer] == [ErrorCode.NONE] * 2
    paths = [write.path for write in joining.writes]
    assert paths == [layout.topic("t"), layout.state("t", 0), layout.state("t", 1)]
    world.commit_only(joining.writes)
    ended = complete(cluster)
    assert ended.answer == [T0, T1]
    assert [write.path for write in ended.writes] == [
        layout.topic("t"),
        layout.topic_history("t"),
        layout.state("t", 0),
        layout.state("t", 1),
    ]


def test_one_decision_ends_a_limited_number_of_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, 2)
    topics = [
        TopicToCreate(name, assignment=tuple((x, (1, 2)) for x in range(3))) for name in "abc"
    ]
    world.create(*topics)
    everything = [Asked(where, (2, 1)) for where in world.cluster.all_partitions()]
    world.do(reassign(world.cluster, everything))
    monkeypatch.setattr(moves, "AT_ONCE", 2)
    assert complete(world.cluster).answer == [("a", 0), ("a", 1)]
    monkeypatch.setattr(moves, "AT_ONCE", 100)
    monkeypatch.setattr(moves, "ASSIGNED_AT_ONCE", 6)
    assert [x.topic for x in world.do(complete(world.cluster))] == ["a"] * 3 + ["b"] * 3
    assert [x.topic for x in world.do(complete(world.cluster))] == ["c"] * 3
    assert complete(world.cluster).answer == []


def test_a_partition_named_twice_is_refused() -> None:
    asked = [Asked(T0, (3, 4)), Asked(T1, (3, 4)), Asked(T0, (4, 5))]
    assert repeated_places(asked) == {T0}
    decision = reassign(prepared("idle").cluster, asked, repeated_places(asked))
    codes = [None if x is None else x.error for _, x in decision.answer]
    assert codes == [ErrorCode.INVALID_REQUEST, None, ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("started", ([3, 4, 1, 2], [3, 4], [1, 2])),
        ("one joined", ([3, 4, 1, 2], [3, 4], [1, 2])),
        ("arrived", ([3, 4, 1, 2], [3, 4], [1, 2])),
    ],
)
def test_a_move_is_listed_as_kafkas_tools_show_it(
    name: str, expected: tuple[list[int], list[int], list[int]]
) -> None:
    cluster = prepared(name).cluster
    assert moves_of(cluster) == moves_of(cluster, "t") == moves_of(cluster, "t", [0, 1]) == [T0]
    assert moves_of(cluster, "u") == moves_of(cluster, "t", [1]) == []
    assert listed(cluster, T0) == Listed(T0, *expected)


@pytest.mark.parametrize(
    ("name", "isr", "under"),
    [
        ("started", "12", 0),
        ("started", "1", 1),
        # Replica 3 joined and left again: the partition has as many in sync as before the move.
        ("joined and fell out", "12", 0),
        ("one joined", "13", 0),
        ("one joined", "1", 1),
        ("cancelled", "12", 0),
        ("completed", "34", 0),
        ("completed", "3", 1),
    ],
)
def test_under_replication_is_counted_by_the_replicas_before_the_move(
    name: str, isr: str, under: int
) -> None:
    world = prepared(name)
    state = msgspec.structs.replace(world.cluster.states[T0], isr=brokers(isr))
    world.commit((put_state(world.cluster, T0, state),))
    assert finish(counts(world.cluster))["partitions_under_replicated"] == under


def test_a_join_delays_no_shrink_of_other_partitions() -> None:
    """A leader knows its replicas from the response (``with_joined``), so it needs no command."""
    world = prepared("started")
    changed = world.cluster.configs_changed_at
    assert done(world, "join 3") is ErrorCode.NONE
    assert world.cluster.configs_changed_at == changed


@pytest.mark.parametrize("unfit", ["suspected", "shutting_down", "presumed", "broken", "returned"])
def test_a_target_that_cannot_lead_is_passed_over(unfit: str) -> None:
    world = prepared("arrived")
    cluster = world.cluster
    if unfit == "broken":
        cluster.broken.add((3, T0))
    elif unfit == "returned":
        state = msgspec.structs.replace(cluster.states[T0], unclean_members=[3])
        world.commit((put_state(cluster, T0, state),))
    else:
        getattr(cluster, unfit).add(3)
    world.do(complete(cluster))
    assert cluster.states[T0].leader == 4


def test_a_leader_that_is_a_target_stays_and_keeps_its_flag() -> None:
    for leader, stays in ((4, True), (1, False)):
        world = prepared("arrived")
        state = msgspec.structs.replace(
            world.cluster.states[T0], leader=leader, is_unclean_leader=True, eligible_replicas=[2]
        )
        world.commit((put_state(world.cluster, T0, state),))
        world.do(complete(world.cluster))
        after = world.cluster.states[T0]
        assert (after.leader, after.is_unclean_leader) == ((4, True) if stays else (3, False))
        assert after.eligible_replicas == []


def test_a_completion_forgets_the_uncertain_replicas_that_leave() -> None:
    world = prepared("arrived")
    state = msgspec.structs.replace(world.cluster.states[T0], unclean_members=[2, 4])
    world.commit((put_state(world.cluster, T0, state),))
    world.do(complete(world.cluster))
    assert world.cluster.states[T0].unclean_members == [4], "2 would be unfit if it came back"


Change = Callable[[Placement], Placement]


@pytest.mark.parametrize(
    "step",
    [
        lambda now: moves.started(now, [4, 5]),
        moves.cancelled,
        lambda now: moves.completed(now, 3),
    ],
)
def test_every_step_raises_the_epoch_and_notes_stops_with_it(step: Change) -> None:
    cluster = prepared("arrived").cluster
    now = Placement.of(cluster, T0)
    after = step(now)
    assert after.state.leader_epoch == EPOCH + 1
    assert set(after.stops.values()) <= {EPOCH + 1}


def test_the_stops_of_one_topic_are_looked_for_among_those_of_that_topic() -> None:
    """A plan for thousands of partitions owes as many: each of its steps sends its own."""
    world = World(1, 2, 3)
    for name in "ab":
        world.create(TopicToCreate(name, assignment=((0, (1, 2)), (1, (1, 2)))))
    cluster = world.cluster
    a0, b0 = TopicPartition("a", 0), TopicPartition("b", 0)
    for where in (a0, b0):
        now = Placement.of(cluster, where)
        owing = msgspec.structs.replace(now.state, isr=[1])
        after = Placement([1], owing, None, {2: 0})
        writes = tuple(written(cluster, {where: after}))
        assert changes_of(cluster, writes).stops == {where.topic}
        world.commit(writes)
    found = {name: stops_of(cluster, 2, {name}) for name in "abc"}
    assert [[stop.name for stop in found[name]] for name in "abc"] == [["a"], ["b"], []]
    assert stops_of(cluster, 2) == [*found["a"], *found["b"]] and stops_of(cluster, 1) == []
    # What a broker confirmed leaves nothing to send.
    confirmed = confirm(cluster, 2, found["a"]).writes
    assert confirmed and not changes_of(cluster, confirmed).stops
    world.commit(confirmed)
    doomed = delete_topics(cluster, [PendingDelete("b")]).writes
    assert changes_of(cluster, doomed).stops == {"b"}
    world.commit(doomed)
    assert {stop.partition for stop in stops_of(cluster, 2, {"b"})} == {0, 1}
    assert stops_of(cluster, 2, {"a"}) == []


def test_a_broker_that_hosts_again_owes_no_stop() -> None:
    world = prepared("cancelled")
    assert [x.leader_epoch for x in stops_of(world.cluster, 4)] == [9]
    done(world, "start 34")
    assert stops_of(world.cluster, 4) == []
    done(world, "cancel")
    assert [x.leader_epoch for x in stops_of(world.cluster, 4)] == [EPOCH + 2]
