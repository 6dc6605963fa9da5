"""The table of a resize: each step, each event (KIP-253, docs/design/elastic.md)."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from tests.support.resizing_world import ResizingWorld
from tidelog.controller.decisions import resizing
from tidelog.controller.decisions.decision import Put, Remove
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.registration import expire
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.controller.decisions.resize_requests import begun_again
from tidelog.controller.decisions.resize_sentences import why_waiting
from tidelog.controller.decisions.resizing import Advanced, Progress, advance, waits
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.pending import changes_of
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import (
    Counter,
    DeletionNode,
    FormerPartition,
    PartitionNode,
    ResizeKind,
    ResizeStep,
)
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

GROW, SHRINK, UNDO, SAME = ResizeKind
FENCE, BIRTH, SEAL, REOPEN = ResizeStep


def test_a_growth_fences_then_makes_the_children_then_is_published() -> None:
    world = ResizingWorld(3)
    before = [world.state(index).leader_epoch for index in range(3)]
    assert world.ask(5) is None
    assert world.shown == (3, 0, 3)
    assert sorted(world.cluster.topics["t"].partitions) == [0, 1, 2, 3, 4]
    assert world.cluster.topics["t"].initial_partition_count == 3

    assert world.write_all() == Advanced(Progress.WAITS, (0, 1, 2))
    assert [world.state(index).leader_epoch for index in range(3)] == [x + 1 for x in before]
    assert world.plan.leader_epochs == before
    assert TopicPartition("t", 3) not in world.cluster.partition_nodes

    world.report([0, 2])
    assert world.advance() == Advanced(Progress.WAITS, (1,))
    world.report([1])
    assert world.advance() == Advanced(Progress.WROTE)
    assert world.plan.step is BIRTH
    assert world.node(3) == PartitionNode(4, 1, {0: before[0]}, birth_epoch=1)
    assert world.node(4) == PartitionNode(5, 1, {1: before[1]}, birth_epoch=1)
    assert (world.state(4).leader, world.state(4).leader_epoch) == (world.state(4).isr[0], 0)
    assert world.shown == (3, 0, 3)

    assert world.advance() == Advanced(Progress.WAITS, (3, 4))
    world.report()
    assert world.advance() == Advanced(Progress.PUBLISHED)
    assert world.shown == (5, 1, 5)
    assert world.advance() == Advanced(Progress.WAITS)
    assert world.advance(is_known=True) == Advanced(Progress.REMOVED)
    assert world.shown == (5, 1, 5)
    assert world.advance() == Advanced(Progress.NONE)


def test_a_child_is_led_by_a_broker_that_has_a_log_directory() -> None:
    """The others are enough for its birth fence; such growths were undone every ten seconds."""
    world = ResizingWorld(3, factor=3)
    world.cluster.diskless.add(2)
    assert world.ask(6) is None
    world.write_all()
    world.report()
    assert world.advance() == Advanced(Progress.WROTE)
    for child in (3, 4, 5):
        assert set(world.cluster.replicas(TopicPartition("t", child))) == {1, 2, 3}
        assert world.state(child).leader in (1, 3) and set(world.state(child).isr) == {1, 3}


def test_a_shrink_seals_then_fences_the_survivors_then_is_published() -> None:
    world = ResizingWorld(2)
    assert world.ask(5) is None
    world.settle()
    epochs = [world.state(index).leader_epoch for index in range(5)]
    births = [world.node(index).birth_epoch for index in range(5)]

    assert world.ask(3) is None
    assert world.write_all() == Advanced(Progress.WAITS, (3, 4))
    assert [world.node(index).retirement_epoch for index in range(5)] == [-1, -1, -1, 2, 2]
    raised = [0, 0, 0, 1, 1]
    assert [world.state(x).leader_epoch for x in range(5)] == [
        epoch + more for epoch, more in zip(epochs, raised, strict=True)
    ]
    assert world.shown == (5, 1, 5)

    world.report()
    assert world.write_all() == Advanced(Progress.WAITS, (0, 1, 2))
    # 3 was split from 1 and 4 from 0: of the counts 2, then 4.
    assert world.node(3).leader_epoch_before_deletion == {1: epochs[1]}
    assert world.node(4).leader_epoch_before_deletion == {0: epochs[0]}
    assert [world.state(x).leader_epoch for x in range(5)] == [x + 1 for x in epochs]
    world.report()
    assert world.advance() == Advanced(Progress.PUBLISHED)
    assert world.shown == (3, 2, 5)
    assert [world.node(index).birth_epoch for index in range(5)] == births
    assert world.advance(is_known=True) == Advanced(Progress.REMOVED)


def test_an_epoch_with_the_same_count_fences_all_partitions() -> None:
    world = ResizingWorld(2)
    writes = begun_again(world.cluster, "t")
    assert isinstance(writes, list)
    world.commit(tuple(writes))
    assert world.write_all() == Advanced(Progress.WAITS, (0, 1))
    world.report()
    assert world.advance() == Advanced(Progress.PUBLISHED)
    assert world.shown == (2, 1, 2)
    assert world.node(0) == PartitionNode(1)


@pytest.mark.parametrize("reported", [[], [1]])
def test_a_growth_that_is_late_is_undone(reported: list[int]) -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report(reported)
    missing = tuple(index for index in (0, 1) if index not in reported)
    undone = world.advance(is_late=True)
    assert (undone.progress, undone.missing) == (Progress.UNDONE, missing)
    assert (world.plan.kind, world.plan.resize_epoch) == (UNDO, 2)
    assert sorted(world.cluster.topics["t"].partitions) == [0, 1]
    assert world.shown == (2, 0, 2)
    epochs = [world.state(index).leader_epoch for index in range(2)]
    # It waits for no report.
    assert world.advance() == Advanced(Progress.PUBLISHED)
    assert [world.state(index).leader_epoch for index in range(2)] == [x + 1 for x in epochs]
    assert world.shown == (2, 2, 2)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_shrink_that_is_late_is_undone_and_the_sealed_partitions_reopen(sealed: bool) -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.settle()
    world.ask(3)
    world.write_all()
    if sealed:
        world.report()
        world.write_all()
        assert world.plan.step is FENCE
    assert world.advance(is_late=True).progress is Progress.UNDONE
    assert world.node(3).retirement_epoch == 2
    assert world.write_all() == Advanced(Progress.PUBLISHED)
    assert world.node(3).retirement_epoch == -1
    assert world.node(3).leader_epoch_before_deletion == {}
    assert world.shown == (4, 3, 4)
    assert world.advance(is_known=True) == Advanced(Progress.REMOVED)
    # The next one begins as any other.
    assert world.ask(3) is None
    world.settle()
    assert world.shown == (3, 4, 4)


@pytest.mark.parametrize("reported", [(), (3,)])
def test_a_growth_whose_children_are_late_is_undone_and_they_are_removed(
    reported: tuple[int, ...],
) -> None:
    """Their leaders are dead, or have no room for a birth fence."""
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report()
    world.advance()
    assert world.plan.step is BIRTH
    world.report(reported)
    missing = tuple(index for index in (2, 3) if index not in reported)
    assert world.advance() == Advanced(Progress.WAITS, missing)
    epochs = [world.state(index).leader_epoch for index in range(2)]
    isr = world.state(3).isr
    undone = world.advance(is_late=True)
    assert (undone.progress, undone.missing) == (Progress.UNDONE, missing)
    assert (world.plan.kind, world.plan.resize_epoch) == (UNDO, 2)
    assert world.shown == (2, 0, 2)
    # Each child is stopped as a removed partition is, and the next one begins after its fence.
    assert world.write_all() == Advanced(Progress.PUBLISHED)
    assert [world.state(index).leader_epoch for index in range(2)] == [x + 1 for x in epochs]
    assert sorted(world.cluster.topics["t"].partitions) == [0, 1]
    assert TopicPartition("t", 3) not in world.cluster.states
    assert world.history.former[3] == FormerPartition(1, 0, 0, 4, 2)
    assert world.history.pending_stops[3] == dict.fromkeys(isr, 0)
    assert world.history.stop_partition_epochs[3] == dict.fromkeys(isr, 4)
    assert world.shown == (2, 2, 2)
    assert world.advance(is_known=True) == Advanced(Progress.REMOVED)
    world.ask(4)
    world.settle()
    assert (world.node(3).birth_offset, world.state(3).leader_epoch) == (1, 1)


def test_no_leader_is_elected_on_request_for_a_child_that_is_not_published() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report()
    world.advance()
    child, parent = TopicPartition("t", 3), TopicPartition("t", 0)
    state = world.state(3)
    leaderless = msgspec.structs.replace(state, leader=-1, leader_epoch=state.leader_epoch + 1)
    world.commit((put_state(world.cluster, child, leaderless),))
    for kind in ElectionType:
        answer = elect_on_request(world.cluster, kind, [child, parent]).answer
        refusals = {where: None if why is None else why.error for where, why in answer.items()}
        assert refusals[child] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refusals[parent] is ErrorCode.ELECTION_NOT_NEEDED
        assert elect_on_request(world.cluster, kind, None).answer == {}


def test_an_undone_birth_keeps_what_counted_as_lost_before() -> None:
    world = ResizingWorld(2)
    former = {2: FormerPartition(70, 8, 69, 3, 1)}
    history = msgspec.structs.replace(world.history, former=former)
    # The counter is an older copy: the next load raises it.
    counter = Put(layout.PARTITION_EPOCH, Counter(2))
    world.commit_only((counter, Put(layout.topic_history("t"), history)))
    world.next_controller()
    world.ask(3)
    world.write_all()
    world.report()
    world.advance()
    world.advance(is_late=True)
    world.settle()
    assert world.history.former[2] == FormerPartition(71, 9, 69, 4, 2)


def test_children_that_reported_in_time_are_published() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report()
    world.advance()
    world.report()
    assert world.advance(is_late=True) == Advanced(Progress.PUBLISHED)


def test_children_without_a_live_broker_are_not_born_and_the_growth_is_undone() -> None:
    world = ResizingWorld(2, brokers=3, factor=1)
    assert world.ask(4, ((3,), (3,))) is None
    world.write_all()
    world.report()
    # Its controller has just begun: the broker may register.
    world.cluster.presumed.add(3)
    assert world.advance() == Advanced(Progress.WAITS, (2, 3))
    assert world.plan.step is FENCE
    world.do(expire(world.cluster, [3]))
    undone = world.advance()
    assert (undone.progress, undone.missing) == (Progress.UNDONE, (2, 3))
    assert undone.obstacle is not None
    assert undone.obstacle.what == "no broker of the new t-2 (3) is alive"


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_child_waits_for_a_broker_once_births_have_begun_unless_it_is_dead(
    is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "WRITES_AT_ONCE", 2)
    world = ResizingWorld(2, brokers=3, factor=1)
    assert world.ask(4, ((2,), (3,))) is None
    world.write_all()
    world.report()
    assert world.advance() == Advanced(Progress.WROTE)
    if is_dead:
        world.do(expire(world.cluster, [3]))
    else:
        world.cluster.presumed.add(3)
    progress = Progress.UNDONE if is_dead else Progress.WAITS
    advanced = world.advance()
    assert (advanced.progress, advanced.missing) == (progress, (3,))
    if is_dead:
        assert sorted(world.cluster.topics["t"].partitions) == [0, 1, 2]
    else:
        world.cluster.presumed.clear()
        assert world.advance() == Advanced(Progress.WROTE)
        assert world.state(3).isr == [3]
    world.settle()
    assert world.shown == ((2, 2, 2) if is_dead else (4, 1, 4))


def test_a_child_begins_where_a_former_partition_ended() -> None:
    world = ResizingWorld(2)
    former = {2: FormerPartition(70, 8, 69, 3, 1)}
    history = msgspec.structs.replace(world.history, former=former)
    counter = Put(layout.PARTITION_EPOCH, Counter(3))
    world.commit((counter, Put(layout.topic_history("t"), history)))
    world.ask(4)
    world.settle()
    assert (world.node(2).birth_offset, world.state(2).leader_epoch) == (70, 9)
    assert (world.node(3).birth_offset, world.state(3).leader_epoch) == (0, 0)
    assert world.history.former == former


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({}, True),
        # Of an earlier leader that was elected cleanly: what it committed stands.
        ({"leader_epoch": 0}, True),
        ({"leader_epoch": 9}, False),
        ({"resize_epoch": 0}, False),
        ({"resize_epoch": 2}, False),
        ({"partition_epoch": 9}, False),
    ],
)
def test_which_reports_count(changed: dict[str, int], counts: bool) -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report([1])
    assert world.report([0], **changed) == counts
    assert world.missing() == ([] if counts else [0])
    # A late one changes nothing.
    assert world.report([1], leader_epoch=0) == 0
    assert 1 not in world.missing()


def test_an_unclean_election_takes_a_report_back() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report()
    state = world.state(0)
    unclean = msgspec.structs.replace(
        state, leader_epoch=state.leader_epoch + 1, is_unclean_leader=True
    )
    world.commit((put_state(world.cluster, TopicPartition("t", 0), unclean),))
    assert world.advance() == Advanced(Progress.WAITS, (0,))
    world.report([0])
    assert world.advance() == Advanced(Progress.WROTE)


def test_an_election_keeps_a_report_and_a_new_controller_knows_none() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report()
    dead = world.state(0).leader
    world.do(expire(world.cluster, [dead]))
    assert world.missing() == []
    world.next_controller()
    assert world.advance() == Advanced(Progress.WAITS, (0, 1))
    world.report()
    world.settle()
    assert world.shown == (4, 1, 4)


def test_a_deletion_ends_the_plan_and_a_mark_lets_it_rest() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report()
    world.cluster.marked.add("t")
    assert advance(world.cluster, "t").answer == Advanced(Progress.NONE)
    world.cluster.marked.discard("t")
    decision = delete_topics(world.cluster, [PendingDelete("t")])
    assert Remove(layout.topic_history("t")) in decision.writes
    world.do(decision)
    assert not world.cluster.resizing
    assert advance(world.cluster, "t").answer == Advanced(Progress.NONE)
    assert waits(world.cluster, "t", is_late=True, is_known=True)


def test_a_damaged_node_makes_a_resize_wait() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    state = world.cluster.states.pop(TopicPartition("t", 1))
    decision = advance(world.cluster, "t")
    assert decision.answer == Advanced(Progress.WROTE)
    world.commit_only(decision.writes)
    assert advance(world.cluster, "t").answer == Advanced(Progress.WAITS, (1,))
    world.cluster.states[TopicPartition("t", 1)] = state
    assert world.write_all() == Advanced(Progress.WAITS, (0, 1))


def test_each_commit_of_a_step_concerns_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "WRITES_AT_ONCE", 1)
    world = ResizingWorld(2)
    world.ask(4)
    for index in range(2):
        decision = advance(world.cluster, "t")
        found = changes_of(world.cluster, decision.writes)
        assert found.partitions == {TopicPartition("t", index)}
        world.do(decision)
        assert world.plan.cursor == index + 1


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ((3,), "no leader has reported a committed fence of partition 3"),
        ((1, 2), "no leader has reported a committed fence of partitions 1, 2"),
        (
            tuple(range(8)),
            "no leader has reported a committed fence of partitions 0, 1, 2, 3, 4 and 3 more",
        ),
    ],
)
def test_the_reason_names_partitions(sides: tuple[int, ...], expected: str) -> None:
    world = ResizingWorld(2)
    world.ask(4)
    assert why_waiting(world.plan, sides) == expected


def test_a_waiting_plan_is_seen_without_a_walk() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    assert not waits(world.cluster, "t", is_late=False, is_known=False)
    world.write_all()
    assert waits(world.cluster, "t", is_late=False, is_known=False)
    assert not waits(world.cluster, "t", is_late=True, is_known=False)
    world.report()
    assert not waits(world.cluster, "t", is_late=False, is_known=False)


def test_a_growth_of_1000_partitions_takes_linear_writes() -> None:
    written: dict[int, tuple[int, int, int]] = {}
    for count in (500, 1000):
        world = ResizingWorld(count, brokers=6, factor=3)
        commits = writes = size = 0
        assert world.ask(2 * count) is None
        while world.history.resize is not None:
            decision = advance(world.cluster, "t", is_known=True)
            commits += bool(decision.writes)
            writes += len(decision.writes)
            found = [x for x in decision.writes if isinstance(x, Put)]
            commit = sum(len(layout.encode(x.record)) + 3 * (len(x.path) + 64) for x in found)
            assert commit < 1_000_000
            size += sum(len(layout.encode(x.record)) for x in found)
            world.commit_only(decision.writes)
            if decision.answer.progress is Progress.WAITS:
                assert world.report()
        assert world.shown == (2 * count, 1, 2 * count)
        written[count] = commits, writes, size
    # One write per old partition, two per new one; a plan and a counter with each commit.
    assert written[1000][0] <= 9
    assert written[1000][1] <= 3 * 1000 + 2 * written[1000][0]
    assert written[1000][2] < 2.2 * written[500][2] < 1_000_000


def test_a_plan_rests_while_its_store_cannot_be_believed() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.cluster.went_back = "it is a copy of yesterday"
    assert advance(world.cluster, "t").answer == Advanced(Progress.NONE)
    world.cluster.went_back = None
    path = layout.topic_history("t")
    world.cluster.damaged[path] = Damaged(path, "torn")
    assert advance(world.cluster, "t").answer == Advanced(Progress.NONE)
    del world.cluster.damaged[path]
    assert world.advance() == Advanced(Progress.WROTE)


def test_a_child_begins_above_the_leader_epochs_of_a_deleted_topic_of_the_name() -> None:
    """A stop of that one's partition may still be on its way (decision 0016)."""
    world = ResizingWorld(2)
    gone = DeletionNode("t", {2: [1]}, {2: 7})
    world.commit((Put(layout.deletion(UUID(int=9)), gone),))
    world.ask(4)
    world.write_all()
    world.report()
    assert world.advance() == Advanced(Progress.WROTE)
    assert [world.state(index).leader_epoch for index in (2, 3)] == [8, 0]


def test_an_undo_waits_for_a_child_whose_state_cannot_be_read() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.write_all()
    world.report()
    world.write_all()
    assert world.advance(is_late=True).progress is Progress.UNDONE
    while world.plan.cursor < world.plan.to_count:
        world.advance()
    kept = world.cluster.states.pop(TopicPartition("t", 3))
    decided = advance(world.cluster, "t")
    assert (decided.answer, decided.writes) == (Advanced(Progress.WAITS, (3,)), ())
    world.cluster.states[TopicPartition("t", 3)] = kept
    assert world.write_all() == Advanced(Progress.PUBLISHED)
