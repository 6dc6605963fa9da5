"""Which requests begin a resize: each refusal with its reason and a way out (KIP-253)."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.resizing_world import NOW_MS, ResizingWorld
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions import new_partitions, resize_requests
from tidelog.controller.decisions.cluster import NO_ID, NO_LEADER
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Remove, RequestRefusal
from tidelog.controller.decisions.growth import Growth
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.controller.decisions.rebalance import imbalanced
from tidelog.controller.decisions.registration import expire
from tidelog.controller.decisions.resize_requests import (
    MOST_CLIENTS,
    UNAWARE_MS,
    begun_again,
    resize_topics,
    unaware_clients,
)
from tidelog.controller.decisions.resizing import advance
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.soft_state import note_clients
from tidelog.controller.decisions.unaware_writers import ON_RECORD, unaware_writers
from tidelog.metadata import layout
from tidelog.metadata.records import (
    DeletionMark,
    FormerPartition,
    ResizeKind,
    TopicHistory,
    UncleanDebt,
)
from tidelog.model.errors import ErrorCode as E
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition


def small() -> ResizingWorld:
    return ResizingWorld(2)


def grown() -> ResizingWorld:
    world = ResizingWorld(2)
    world.ask(6)
    world.settle()
    return world


def retiring() -> ResizingWorld:
    world = grown()
    world.ask(4)
    world.settle()
    return world


def under_way() -> ResizingWorld:
    world = small()
    world.ask(4)
    return world


def moving() -> ResizingWorld:
    world = small()
    world.do(reassign(world.cluster, [Asked(TopicPartition("t", 0), (3,))]))
    return world


def marked() -> ResizingWorld:
    world = small()
    world.commit((Put(layout.deletion_mark("t"), DeletionMark()),))
    return world


def leaderless() -> ResizingWorld:
    world = ResizingWorld(2, factor=1)
    world.do(expire(world.cluster, [world.state(0).leader]))
    return world


def suspected() -> ResizingWorld:
    world = ResizingWorld(2, factor=1)
    world.cluster.suspected.add(world.state(0).leader)
    return world


def below_minimum() -> ResizingWorld:
    world = small()
    world.cluster.topic_configs["t"] = {"min.insync.replicas": "2"}
    state = world.state(1)
    changed = msgspec.structs.replace(state, isr=[state.leader])
    world.commit_only((put_state(world.cluster, TopicPartition("t", 1), changed),))
    return world


def test_the_request_of_a_resize_under_way_joins_it() -> None:
    """What is sent again has the answer of the first; no request joins an undo."""
    made = under_way()
    decision = resize_topics(made.cluster, [Growth("t", 4, None)], made.chance, NOW_MS)
    assert decision.answer == [("t", None)]
    assert not decision.writes
    placed = Growth("t", 4, ((1, 2), (2, 3)))
    ((_, refusal),) = resize_topics(made.cluster, [placed], made.chance, NOW_MS).answer
    assert refusal is not None
    assert refusal.error is E.REASSIGNMENT_IN_PROGRESS
    made.advance(is_late=True)
    assert made.plan.kind is ResizeKind.UNDO
    ((_, refusal),) = resize_topics(
        made.cluster, [Growth("t", 2, None)], made.chance, NOW_MS
    ).answer
    assert refusal is not None
    assert refusal.error is E.REASSIGNMENT_IN_PROGRESS


def on_one_machine() -> ResizingWorld:
    world = small()
    world.cluster.topic_configs["t"] = {"min.insync.machines": "2"}
    for broker in world.state(0).isr:
        node = world.cluster.brokers[broker]
        world.cluster.brokers[broker] = msgspec.structs.replace(node, rack="a/m")
    return world


@pytest.mark.parametrize(
    ("world", "count", "error", "words"),
    [
        (small, 2, E.INVALID_PARTITIONS, "has 2 partitions already"),
        (small, 1, E.INVALID_PARTITIONS, "the smallest count is 2"),
        (small, 0, E.INVALID_PARTITIONS, "the smallest count is 2"),
        (small, -1, E.INVALID_PARTITIONS, "the smallest count is 2"),
        (small, 50_001, E.INVALID_PARTITIONS, "at most 50000"),
        (small, 10_003, E.INVALID_PARTITIONS, "Add more of them later"),
        (grown, 6, E.INVALID_PARTITIONS, "has 6 partitions already"),
        (retiring, 8, E.INVALID_PARTITIONS, "while its retired partitions 4 to 5 are listed"),
        (retiring, 5, E.INVALID_PARTITIONS, "What is left there is not known yet"),
        (retiring, 4, E.INVALID_PARTITIONS, "has 4 partitions already"),
        (under_way, 8, E.REASSIGNMENT_IN_PROGRESS, "from 2 to 4 partitions is under way"),
        (moving, 4, E.REASSIGNMENT_IN_PROGRESS, "cancel their moves"),
        (marked, 4, E.UNKNOWN_TOPIC_OR_PARTITION, "There is no topic t."),
        (leaderless, 4, E.LEADER_NOT_AVAILABLE, "t-0 has no live leader"),
        (suspected, 4, E.LEADER_NOT_AVAILABLE, "t-0 has no live leader"),
        (below_minimum, 4, E.NOT_ENOUGH_REPLICAS, "1 replicas in sync and needs 2"),
        (on_one_machine, 4, E.NOT_ENOUGH_REPLICAS, "sync on 1 machines and needs 2"),
    ],
)
def test_what_is_refused_and_how(world: object, count: int, error: E, words: str) -> None:
    assert callable(world)
    made: ResizingWorld = world()
    for validate_only in (True, False):
        growth = Growth("t", count, None, True)
        decision = resize_topics(
            made.cluster, [growth], made.chance, NOW_MS, validate_only=validate_only
        )
        ((_, refusal),) = decision.answer
        assert refusal is not None
        assert refusal.error is error
        assert words in refusal.sentence
        assert not decision.writes


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_keep_their_count(name: str) -> None:
    world = small()
    world.cluster.level = level_of("1.6")
    world.create(TopicToCreate(name, 2, 1), for_process=True)
    refusal = world.ask(4, name=name)
    assert refusal is not None
    assert refusal.error is E.INVALID_PARTITIONS
    assert refusal.sentence.startswith(f"{name} keeps its partition count")
    unknown = world.ask(4, name="nowhere")
    assert unknown is not None
    assert unknown.error is E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("count", "assignments", "words"),
    [
        (4, ((1, 2), (2, 3)), None),
        (4, ((1, 2),), "it has 1 entries, but 2 are new"),
        (4, ((1, 2), (2, 9)), "there is no live broker 9"),
        (4, ((1, 2), (2,)), "the same number of replicas"),
        (4, ((1, 2), ()), "a partition has no replicas"),
        (4, ((1, 2), (2, 2)), "a broker is named twice"),
    ],
)
def test_assignments_of_new_partitions(
    count: int, assignments: tuple[tuple[int, ...], ...], words: str | None
) -> None:
    world = small()
    refusal = world.ask(count, assignments)
    if words is not None:
        assert refusal is not None
        assert refusal.error is E.INVALID_REPLICA_ASSIGNMENT
        assert words in refusal.sentence
        assert world.history.resize is None
        return
    assert refusal is None
    world.settle()
    found = [world.cluster.replicas(TopicPartition("t", index)) for index in (2, 3)]
    assert found == [list(replicas) for replicas in assignments]


def test_a_shrink_takes_no_assignment() -> None:
    refusal = grown().ask(4, ())
    assert refusal is not None
    assert refusal.error is E.INVALID_REPLICA_ASSIGNMENT
    assert "a shrink has no new partitions" in refusal.sentence


@pytest.mark.parametrize(
    ("seen_ms", "words"),
    [
        # Every leader says that it saw none, or none within the hour.
        ({1: -1, 2: -1, 3: -1}, None),
        ({1: NOW_MS - UNAWARE_MS, 2: -1, 3: -1}, None),
        # A former controller wrote it down, of a broker that is gone.
        ({1: -1, 2: -1, 3: -1, ON_RECORD: NOW_MS - 60_000}, "wrote to it 1 minutes ago"),
        ({1: NOW_MS - UNAWARE_MS + 1, 2: -1, 3: -1}, "wrote to it 59 minutes ago"),
        # A broker that no longer leads has seen one.
        ({1: -1, 2: -1, 3: -1, 9: NOW_MS}, "wrote to it 0 minutes ago"),
        # What is not known counts as seen.
        ({1: -1, 3: -1}, "broker 2 has not said"),
        ({}, "broker 1, 2, 3 has not said"),
    ],
)
def test_writers_without_a_count_prevent_a_shrink(seen_ms: dict[int, int], words: str) -> None:
    world = grown()
    world.cluster.unaware[world.cluster.topic_id("t")] = seen_ms
    refusal = world.ask(4, force=False)
    if words is None:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.error is E.POLICY_VIOLATION
    assert words in refusal.sentence
    assert "--force" in refusal.sentence
    # A growth takes no key from them, and force passes.
    assert world.ask(4) is None


def test_a_refusal_names_the_clients_that_prevent_a_shrink() -> None:
    """As far as they are known, bounded, and without control characters for a terminal."""
    world = grown()
    topic_id = world.cluster.topic_id("t")
    world.cluster.unaware[topic_id] = {1: NOW_MS, 2: -1, 3: -1}
    note_clients(world.cluster, 1, [(topic_id, ["rdkafka", "a\x1b[2J\n"]), (NO_ID, ["other"])])
    note_clients(world.cluster, 2, [(topic_id, ["", "x" * 200]), (topic_id, [])])
    refusal = world.ask(4, force=False)
    assert refusal is not None
    named = f"(client ids: (none), a?[2J?, rdkafka, {'x' * 100})"
    assert f"wrote to it 0 minutes ago {named}. Move them" in refusal.sentence
    note_clients(world.cluster, 3, [(topic_id, [f"c{number:03}" for number in range(999)])])
    assert len(unaware_clients(world.cluster, "t")) == MOST_CLIENTS
    assert world.cluster.unaware_clients.keys() == {topic_id}


def test_each_topic_is_judged_by_itself_and_no_name_may_repeat() -> None:
    world = small()
    world.create(TopicToCreate("u", 1, 1))
    asked = [Growth("t", 4), Growth("u", 2), Growth("t", 8)]
    answers = dict(resize_topics(world.cluster, asked, world.chance, NOW_MS).answer)
    assert answers["u"] is None
    assert answers["t"] is not None
    assert answers["t"].error is E.INVALID_REQUEST


def test_a_check_alone_writes_nothing() -> None:
    world = small()
    assert world.ask(4, validate_only=True) is None
    assert world.history.resize is None


def test_the_largest_count_that_fits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize_requests, "MOST_BYTES", 2_000)
    world = small()
    refusal = world.ask(500)
    assert refusal is not None
    assert refusal.error is E.INVALID_PARTITIONS
    largest = int(refusal.sentence.rpartition(" ")[2].rstrip("."))
    assert 50 < largest < 500
    assert world.ask(largest, validate_only=True) is None
    assert world.ask(round(1.1 * largest), validate_only=True) is not None


def test_a_topic_grows_only_so_far_that_the_ends_of_all_removed_partitions_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resize_requests, "MOST_RECORD_BYTES", 3_000)
    world = small()
    refusal = world.ask(200)
    assert refusal is not None
    assert refusal.error is E.INVALID_PARTITIONS
    assert "created with 2, and the largest count is" in refusal.sentence
    largest = int(refusal.sentence.rpartition(" ")[2].rstrip("."))
    assert 30 < largest < 60
    assert world.ask(largest + 2) is not None
    assert world.ask(largest) is None
    world.settle()
    # All that can be removed is, with the largest numbers; the topic can grow as far again.
    ends = [FormerPartition(9 * 10**12, 9_999, 9 * 10**12, 9_999_999, 999)] * largest
    history = msgspec.structs.replace(world.history, former=dict(enumerate(ends[2:], 2)))
    assert len(layout.encode(history)) <= 3_000
    node = msgspec.structs.replace(
        world.cluster.topics["t"],
        partitions={0: [1, 2], 1: [2, 3]},
        undeleted_partition_count=2,
    )
    gone = [TopicPartition("t", index) for index in range(2, largest)]
    removes = [Remove(path(*where)) for where in gone for path in (layout.state, layout.partition)]
    writes = (Put(layout.topic("t"), node), Put(layout.topic_history("t"), history), *removes)
    world.commit(writes)
    assert world.ask(largest + 9, validate_only=True) is not None
    assert world.ask(largest - 1, validate_only=True) is None


def test_handled_elections_make_room_in_the_record_and_debts_refuse_the_resize(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resize_requests, "MOST_RECORD_BYTES", 1_000)
    elections = [UncleanDebt(1, epoch) for epoch in range(50)]
    world = small()
    history = msgspec.structs.replace(world.history, unclean_past={0: elections})
    world.commit((Put(layout.topic_history("t"), history),))
    assert world.ask(4) is None
    assert 0 < len(world.history.unclean_past[0]) < 50
    assert world.history.unclean_past[0][-1] == elections[-1], "the oldest go first"
    world = small()
    debts = dict(enumerate(elections))
    history = msgspec.structs.replace(world.history, unclean=debts)
    world.commit((Put(layout.topic_history("t"), history),))
    refusal = world.ask(4)
    assert refusal is not None
    assert "its own record in the metadata store has" in refusal.sentence


def test_the_limits_of_a_creation_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_partitions, "MOST_AT_ONCE", 2)
    world = small()
    assert world.ask(5) is not None
    assert world.ask(4) is None


def test_no_partition_moves_and_no_leader_is_rebalanced_during_a_resize() -> None:
    world = under_way()
    ((_, refusal),) = reassign(world.cluster, [Asked(TopicPartition("t", 0), (3,))]).answer
    assert refusal is not None
    assert "move it afterwards" in refusal.sentence
    where = TopicPartition("t", 0)
    preferred, other = world.cluster.replicas(where)
    elsewhere = msgspec.structs.replace(world.state(0), leader=other)
    world.commit((put_state(world.cluster, where, elsewhere),))
    assert imbalanced(world.cluster, 0) == []
    world.settle()
    assert where in imbalanced(world.cluster, 0)
    assert preferred != other


def test_an_epoch_of_its_own_needs_what_a_resize_needs() -> None:
    refusal = begun_again(under_way().cluster, "t")
    assert not isinstance(refusal, list)
    assert refusal.error is E.REASSIGNMENT_IN_PROGRESS
    refusal = begun_again(leaderless().cluster, "t")
    assert not isinstance(refusal, list)
    assert refusal.error is E.LEADER_NOT_AVAILABLE


def test_each_resize_leaves_audit_lines() -> None:
    world = small()
    said: list[str] = []

    def step(is_late: bool = False) -> None:
        decision = advance(world.cluster, "t", is_late=is_late, is_known=True)
        said.extend(map(str, audit_lines(world.cluster, decision.writes)))
        world.do(decision)

    begun = resize_topics(world.cluster, [Growth("t", 4)], world.chance, NOW_MS)
    said.extend(map(str, audit_lines(world.cluster, begun.writes)))
    world.do(begun)
    step()
    step(is_late=True)
    step()
    step()
    assert said == [
        "resize of topic t started: from 2 to 4 partitions, resize epoch 1",
        "undo of the resize of topic t started: from 4 to 2 partitions, resize epoch 2",
        "resize of topic t undone: it has 2 partitions, after 4, resize epoch 2",
    ]
    said.clear()
    world.ask(3)
    while world.history.resize is not None:
        step()
        if world.history.resize is not None and not world.plan.published:
            world.report()
    assert said == ["resize of topic t done: it has 3 partitions, after 2, resize epoch 3"]


def test_an_epoch_of_its_own_waits_for_the_moves_of_its_topic() -> None:
    refusal = begun_again(moving().cluster, "t")
    assert isinstance(refusal, RequestRefusal)
    assert refusal.error is E.REASSIGNMENT_IN_PROGRESS


def test_a_partition_without_a_leader_has_none_to_ask_for_writers() -> None:
    world = leaderless()
    leaders = {world.state(index).leader for index in range(2)}
    assert NO_LEADER in leaders
    assert unaware_writers(world.cluster, "t")[1] == sorted(leaders - {NO_LEADER})


def test_the_limit_of_a_topic_is_a_count_that_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize_requests, "MAX_PARTITIONS", 6)
    world = small()
    refusal = world.ask(7)
    assert refusal is not None
    assert refusal.sentence == (
        "The number of partitions must be at most 6; the largest count of the topic t is now 6."
    )
    assert world.ask(6) is None


def test_a_record_has_room_for_a_leader_epoch_of_each_partition_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first step of a shrink from 6 to 4 partitions adds four epochs of six digits to it."""
    world = grown()
    assert world.ask(4, validate_only=True) is None
    growth = [Growth("t", 4, force=True)]
    written = resize_topics(world.cluster, growth, world.chance, NOW_MS).writes
    (planned,) = (x.record for x in written if isinstance(x, Put) and "/tidelog/" in x.path)
    assert isinstance(planned, TopicHistory) and planned.resize is not None
    noted = msgspec.structs.replace(planned.resize, leader_epochs=[999_999] * 4)
    with_epochs = msgspec.structs.replace(planned, resize=noted)
    bare = msgspec.structs.replace(noted, leader_epochs=[0])
    around = len(layout.encode(msgspec.structs.replace(planned, resize=bare))) - len("0")
    assert len(layout.encode(with_epochs)) == around + 4 * resize_requests.EPOCH_BYTES - len(",")
    least = len(layout.encode(planned)) + 4 * resize_requests.EPOCH_BYTES
    monkeypatch.setattr(resize_requests, "MOST_RECORD_BYTES", least - 1)
    refusal = world.ask(4)
    assert refusal is not None
    assert "its own record in the metadata store has" in refusal.sentence
    monkeypatch.setattr(resize_requests, "MOST_RECORD_BYTES", least)
    assert world.ask(4) is None
