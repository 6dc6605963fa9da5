"""Removal of retired partitions: which go, what is left of them, and what brokers are sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.controller_world import World
from tests.support.resizing_world import ResizingWorld
from tests.support.retired_topic import EMPTY, T4, T5, TOPIC, changed, held, shrunk
from tidelog.controller import requests
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions.cluster import LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.deletion import confirm
from tidelog.controller.decisions.moves import Placement, started, written
from tidelog.controller.decisions.removal import (
    Held,
    offsets_leaders,
    remove_retired,
    retired_from_the_top,
    to_close,
    to_purge,
    topics_with_retired,
    undrained,
    why_none_goes,
)
from tidelog.controller.decisions.stops import Stop, stops_of
from tidelog.controller.pending import Changes, changes_of
from tidelog.controller.requests import Gone, Sender
from tidelog.metadata import layout
from tidelog.metadata.records import (
    DeletionMark,
    FormerPartition,
    PartitionNode,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    UncleanDebt,
    WentBack,
)
from tidelog.model.levels import level_of
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition

SENDER = Sender(101, "PLAINTEXT")


def test_the_highest_empty_partitions_go_in_one_write_that_says_where_they_end() -> None:
    world = shrunk()
    cluster = world.cluster
    assert topics_with_retired(cluster) == [TOPIC]
    assert list(retired_from_the_top(cluster, TOPIC)) == [5, 4]
    answers = {4: held(log_end=44, stable_end=44, data_end=40), 5: EMPTY}
    decision = remove_retired(cluster, TOPIC, answers, (), {})
    assert decision.answer == [5, 4]
    assert not decision.splits
    (line,) = audit_lines(cluster, decision.writes)
    assert str(line) == "retired partitions of topic t removed, they end: 4 at 44, 5 at 100"
    changes = changes_of(cluster, decision.writes)
    assert changes.stops == {TOPIC}
    gone = Gone(TOPIC, cluster.topic_id(TOPIC), (4, 5), is_whole=False)
    assert changes.gone == {TOPIC: gone}
    world.do(decision)
    history = cluster.topic_histories[TOPIC]
    assert history.former == {
        4: FormerPartition(44, 3, 40, 5, 3),
        5: FormerPartition(100, 3, 90, 6, 3),
    }
    assert history.pending_stops == {4: {1: 3, 2: 3}, 5: {1: 3, 2: 3}}
    assert history.stop_partition_epochs == {4: {1: 5, 2: 5}, 5: {1: 6, 2: 6}}
    assert sorted(cluster.topics[TOPIC].partitions) == [0, 1, 2, 3]
    assert not {T4, T5} & (cluster.states.keys() | cluster.partition_nodes.keys())
    assert topics_with_retired(cluster) == []
    # Brokers forget just these partitions, and stop them with the epochs of that incarnation.
    request = requests.update_metadata(cluster, SENDER, 1, [], [gone])
    (topic,) = request.topic_states
    assert [(x.partition_index, x.leader) for x in topic.partition_states] == [(4, -2), (5, -2)]
    assert topic.undeleted_partition_count == -1, "the counts are not this entry's"
    topic_id = cluster.topic_id(TOPIC)
    stops = [
        Stop(TOPIC, topic_id, 4, 3, partition_epoch=5),
        Stop(TOPIC, topic_id, 5, 3, partition_epoch=6),
    ]
    assert stops_of(cluster, 1) == stops
    world.do(confirm(cluster, 1, stops))
    world.do(confirm(cluster, 2, stops))
    assert cluster.topic_histories[TOPIC].pending_stops == {}


@pytest.mark.parametrize(
    ("four", "five", "gone"),
    [
        (EMPTY, EMPTY, [5, 4]),
        # The ids stay contiguous: 4 waits for 5.
        (EMPTY, held(log_start=89), []),
        (EMPTY, None, []),
        (held(log_start=89), EMPTY, [5]),
        (None, EMPTY, [5]),
        # A transaction is open, or not all of the log is committed.
        (EMPTY, held(stable_end=99), []),
        # A marker may come after its end.
        (EMPTY, held(is_closed=False), []),
        # No committed seal of its retirement was found.
        (EMPTY, held(data_end=-1), []),
        # Another leader, or another leader epoch: its log may end elsewhere.
        (EMPTY, held(leader=2), []),
        (EMPTY, held(leader_epoch=2), []),
        # All of it was deleted, the seal included.
        (EMPTY, held(log_start=100), [5, 4]),
        # It never had data.
        (EMPTY, held(log_start=10, data_end=10, stable_end=12, log_end=12), [5, 4]),
    ],
)
def test_which_partitions_go(four: Held | None, five: Held | None, gone: list[int]) -> None:
    world = shrunk()
    answers = {index: x for index, x in ((4, four), (5, five)) if x is not None}
    assert world.do(remove_retired(world.cluster, TOPIC, answers, (), {})) == gone


def test_what_may_go_is_closed_first() -> None:
    world = shrunk()
    is_open = dict.fromkeys((4, 5), held(is_closed=False))
    assert to_close(world.cluster, TOPIC, is_open, (), {}) == [5, 4]
    assert to_close(world.cluster, TOPIC, {**is_open, 5: held(stable_end=99)}, (), {}) == []
    assert remove_retired(world.cluster, TOPIC, is_open, (), {}).writes == ()


PLAN = ResizePlan(ResizeKind.SHRINK, 4, 3, 4, ResizeStep.SEAL)


def resized(world: World) -> None:
    changed(world, resize=PLAN, resize_epoch=4)


def published(world: World) -> None:
    changed(world, resize=msgspec.structs.replace(PLAN, published=True), resize_epoch=4)


def moving(world: World) -> None:
    where = TopicPartition(TOPIC, 0)
    placed = started(Placement.of(world.cluster, where), [3])
    world.commit(tuple(written(world.cluster, {where: placed})))


def marked(world: World) -> None:
    world.commit((Put(layout.deletion_mark(TOPIC), DeletionMark()),))


def went_back(world: World) -> None:
    world.commit((Put(layout.WENT_BACK, WentBack("older")),))


def lowered(world: World) -> None:
    world.cluster.level = level_of("1.4")


def damaged(world: World) -> None:
    path = layout.topic_history(TOPIC)
    world.cluster.damaged[path] = layout.Damaged(path, "a test")


@pytest.mark.parametrize(
    "disturb", [resized, published, moving, marked, went_back, lowered, damaged]
)
def test_nothing_goes_meanwhile(disturb: Any) -> None:
    world = shrunk(retired_purge="drained")
    disturb(world)
    assert why_none_goes(world.cluster, TOPIC) is not None
    assert remove_retired(world.cluster, TOPIC, {4: EMPTY, 5: EMPTY}, (), {}).writes == ()
    assert to_purge(world.cluster, TOPIC, {5: held(log_start=0)}, (), {}) == {}


def test_a_damaged_state_or_an_unhandled_unclean_election_keeps_its_partition() -> None:
    world = shrunk()
    changed(world, unclean={5: UncleanDebt(1, 3)})
    assert remove_retired(world.cluster, TOPIC, {4: EMPTY, 5: EMPTY}, (), {}).answer == []
    changed(world, unclean={})
    path = layout.state(*T4)
    world.cluster.damaged[path] = layout.Damaged(path, "a test")
    assert remove_retired(world.cluster, TOPIC, {4: EMPTY, 5: EMPTY}, (), {}).answer == [5]


def test_partitions_that_take_records_never_go_whatever_leaders_say() -> None:
    world = shrunk()
    answers = {index: held(leader_epoch=0) for index in range(4)} | {4: EMPTY, 5: EMPTY}
    assert world.do(remove_retired(world.cluster, TOPIC, answers, (), {})) == [5, 4]
    assert world.do(remove_retired(world.cluster, TOPIC, answers, (), {})) == []


def test_brokers_that_owed_a_stop_owe_this_one_and_of_a_former_incarnation_that_one() -> None:
    world = shrunk()
    changed(
        world,
        pending_stops={5: {3: 2, 4: 1, 6: 2}},
        # 3 hosted this incarnation until it was moved away, 4 a former one; 6 is from below 1.5.
        stop_partition_epochs={5: {3: 6, 4: 2}},
    )
    world.do(remove_retired(world.cluster, TOPIC, {5: EMPTY}, (), {}))
    history = world.cluster.topic_histories[TOPIC]
    assert history.pending_stops == {5: {1: 3, 2: 3, 3: 3, 4: 1, 6: 3}}
    assert history.stop_partition_epochs == {5: {1: 6, 2: 6, 3: 6, 4: 2, 6: 6}}


def test_a_removal_has_a_limit_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.controller.decisions.removal.AT_ONCE", 1)
    world = shrunk()
    answers = {4: EMPTY, 5: EMPTY}
    found = [world.do(remove_retired(world.cluster, TOPIC, answers, (), {})) for _ in range(3)]
    assert found == [[5], [4], []]


def test_the_next_incarnation_is_another_than_what_the_former_one_left() -> None:
    world = shrunk()
    world.do(remove_retired(world.cluster, TOPIC, {5: EMPTY}, (), {}))
    cluster, topic_id = world.cluster, world.cluster.topic_id(TOPIC)
    node = msgspec.structs.replace(
        cluster.topics[TOPIC], partitions={**cluster.topics[TOPIC].partitions, 5: [1, 3]}
    )
    state = msgspec.structs.replace(cluster.states[T4], leader_epoch=4, isr=[1, 3])
    # Retired again, for the one below it still is.
    born = PartitionNode(20, birth_epoch=4, birth_offset=100, retirement_epoch=5)
    history = msgspec.structs.replace(cluster.topic_histories[TOPIC], resize_epoch=5)
    world.commit(
        (
            Put(layout.topic_history(TOPIC), history),
            Put(layout.topic(TOPIC), node),
            Put(layout.partition(*T5), born),
            Put(layout.state(*T5), state),
        )
    )
    # The former one is stopped at 1, too, which hosts the new one.
    for broker in (1, 2):
        assert stops_of(cluster, broker) == [Stop(TOPIC, topic_id, 5, 3, partition_epoch=6)]
    cluster.inventories = {
        1: {(topic_id, 5): LogEnd(6, 3, 100)},
        2: {(topic_id, 5): LogEnd(-1, 3, 100)},
        3: {(topic_id, 5): LogEnd(20, 4, 101)},
    }
    assert [cluster.log_end(broker, T5) is not None for broker in (1, 2, 3)] == [False, False, True]


# -- purging what is drained


@pytest.mark.parametrize(
    ("commits", "waited"),
    [
        ({"a": {0: 5, 4: 90, 5: 90}}, set()),
        ({"a": {0: 5, 4: 90, 5: 89}}, {5}),
        ({"a": {4: 90, 5: 90}, "b": {0: 1}}, {4, 5}),
        # A coordinator could not be asked.
        (None, {4, 5}),
    ],
)
def test_every_live_group_has_committed_past_the_data(
    commits: dict[str, dict[int, int]] | None, waited: set[int]
) -> None:
    world = shrunk(retired_purge="drained")
    full = held(log_start=20)
    answers = {4: full, 5: full}
    found = undrained(world.cluster, TOPIC, answers, commits)
    assert found == waited
    assert set(to_purge(world.cluster, TOPIC, answers, found, {})) == {4, 5} - waited
    # Checked again at the removal.
    empty = {4: EMPTY, 5: EMPTY}
    found = undrained(world.cluster, TOPIC, empty, commits)
    gone = remove_retired(world.cluster, TOPIC, empty, found, {}).answer
    assert gone == ([] if 5 in waited else [5, 4])


def test_without_any_group_retention_decides() -> None:
    world = shrunk(retired_purge="drained")
    full, empty = held(log_start=20), EMPTY
    assert undrained(world.cluster, TOPIC, {4: full, 5: empty}, {}) == {4}
    assert to_purge(world.cluster, TOPIC, {4: full, 5: empty}, {4}, {}) == {}


def test_a_group_that_has_joined_and_not_committed_holds_up_what_is_left_to_read() -> None:
    """Some groups never commit: what retention has emptied goes all the same."""
    world = shrunk(retired_purge="drained")
    full, empty = held(log_start=20), EMPTY
    done = {"done": {4: 90, 5: 90}}
    assert undrained(world.cluster, TOPIC, {4: full, 5: full}, done) == set()
    assert undrained(world.cluster, TOPIC, {4: full, 5: empty}, {**done, "joined": {}}) == {4}
    assert undrained(world.cluster, TOPIC, {4: full, 5: empty}, {"joined": {}}) == {4}


def test_a_partition_that_never_had_data_waits_for_no_group() -> None:
    world = shrunk(retired_purge="drained")
    never = held(log_start=10, data_end=10, stable_end=12, log_end=12)
    assert undrained(world.cluster, TOPIC, {5: never}, {"a": {0: 3}}) == set()
    unknown = held(data_end=-1)
    assert undrained(world.cluster, TOPIC, {5: unknown}, {"a": {0: 3}}) == {5}
    assert to_purge(world.cluster, TOPIC, {5: unknown}, (), {}) == {}


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"retired_purge": "retention"},
        # The latest values of their keys are in there.
        {"retired_purge": "drained", "cleanup_policy": "compact"},
        {"retired_purge": "drained", "cleanup_policy": "compact,delete"},
    ],
)
def test_nothing_is_purged_without_the_setting_or_on_a_compacted_topic(
    configs: dict[str, str],
) -> None:
    world = shrunk(**configs)
    assert to_purge(world.cluster, TOPIC, {5: held(log_start=20)}, (), {}) == {}
    # Retention does not ask groups.
    assert remove_retired(world.cluster, TOPIC, {5: EMPTY}, {5}, {}).answer == [5]


def test_groups_can_be_asked_only_while_every_coordinator_leads() -> None:
    world = shrunk()
    assert offsets_leaders(world.cluster) == {}
    world.create(TopicToCreate(OFFSETS_TOPIC, assignment=((0, (1,)), (1, (2,)))))
    assert offsets_leaders(world.cluster) == {0: (1, 0), 1: (2, 0)}
    where = TopicPartition(OFFSETS_TOPIC, 1)
    state = msgspec.structs.replace(world.cluster.states[where], leader=-1)
    world.commit((Put(layout.state(*where), state),))
    assert offsets_leaders(world.cluster) is None


# -- what a slow channel has still to send


def test_partitions_that_are_gone_add_up_until_they_are_sent() -> None:
    topic_id, other = world_ids()
    changes = Changes(gone={"t": Gone("t", topic_id, (5,), is_whole=False)})
    changes.add(Changes(gone={"t": Gone("t", topic_id, (4,), is_whole=False)}))
    assert changes.gone == {"t": Gone("t", topic_id, (4, 5), is_whole=False)}
    changes.add(Changes(gone={"t": Gone("t", topic_id, (0, 1))}))
    assert changes.gone == {"t": Gone("t", topic_id, (0, 1, 4, 5))}
    changes.add(Changes(gone={"t": Gone("t", other, (7,), is_whole=False)}))
    assert changes.gone == {"t": Gone("t", topic_id, (0, 1, 4, 5))}


def world_ids() -> tuple[Any, Any]:
    world = World(1)
    first, second = world.create(TopicToCreate("t"), TopicToCreate("u"))
    return first.topic_id, second.topic_id


# -- over several lives, with real resizes


def test_offsets_and_leader_epochs_go_on_through_the_incarnations_of_a_partition() -> None:
    world = ResizingWorld(2)
    ended = dict.fromkeys((2, 3), 0)
    led = dict.fromkeys((2, 3), -1)
    lives = dict.fromkeys((2, 3), -1)
    for life in range(3):
        assert world.ask(4) is None
        world.settle()
        for index in (2, 3):
            node, state = world.node(index), world.state(index)
            assert node.birth_offset == ended[index]
            assert state.leader_epoch > led[index]
            assert node.partition_epoch > lives[index]
        assert world.ask(2) is None
        world.settle()
        assert why_none_goes(world.cluster, "t") is None
        refusal = world.ask(4)
        assert refusal is not None, "the retired ones are listed"
        answers = {}
        for index in (2, 3):
            state = world.state(index)
            ended[index] += 10 + index
            at = ended[index]
            answers[index] = Held(state.leader, state.leader_epoch, at - 1, at, at, at - 1, True)
            led[index], lives[index] = state.leader_epoch, world.node(index).partition_epoch
        assert world.do(remove_retired(world.cluster, "t", answers, (), {})) == [3, 2]
        former = world.history.former
        assert {x: y.end_offset for x, y in former.items()} == ended
        assert {one.resize_epoch for one in former.values()} == {2 * life + 2}
        # No broker confirms: the stops of this life must not hit the next.
        owed = {x: set(y.values()) for x, y in world.history.stop_partition_epochs.items()}
        assert all(owed[index] >= {lives[index]} for index in (2, 3))
        assert world.shown == (2, 2 * life + 2, 2)


def test_a_partition_is_retired_when_its_node_says_so_and_not_before() -> None:
    """The count alone is the first write of a shrink: the leaders have not sealed anything."""
    world = ResizingWorld(2)
    world.ask(4)
    world.settle()
    assert world.ask(2) is None
    assert topics_with_retired(world.cluster) == ["t"]
    assert list(retired_from_the_top(world.cluster, "t")) == []
    world.advance()
    assert list(retired_from_the_top(world.cluster, "t")) == [3, 2]
