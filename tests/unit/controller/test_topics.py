"""Creating, growing and deleting topics: decisions as tables, applied as they would be stored."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest

from tests.support.controller_world import DEFAULTS, World
from tidelog.controller.decisions import creation, deletion, new_partitions
from tidelog.controller.decisions.cluster import NO_ID
from tidelog.controller.decisions.creation import TopicToCreate, create_topics
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.stops import Stop, stops_of
from tidelog.metadata import layout
from tidelog.metadata import records as nodes
from tidelog.metadata.store import Create
from tidelog.model.errors import ErrorCode as E
from tidelog.model.levels import LEVEL_NAMES, level_of
from tidelog.model.topics import TopicPartition


def test_a_topic_is_made_of_its_nodes() -> None:
    world = World(1, 2, 3)
    (created,) = world.create(TopicToCreate("t", 2, 3, configs=(("retention.ms", "5"),)))
    assert created.refusal is None
    assert (created.partitions, created.replication_factor) == (2, 3)
    cluster = world.cluster
    text = layout.id_text(created.topic_id)
    assert cluster.topics["t"] == nodes.TopicNode(
        {0: [1, 2, 3], 1: [2, 3, 1]},
        topic_id=text,
        initial_partition_count=2,
        undeleted_partition_count=2,
    )
    assert cluster.topic_histories["t"] == nodes.TopicHistory(text, 2)
    assert cluster.topic_configs["t"] == {"retention.ms": "5"}
    state = nodes.PartitionState(2, 0, 1, [2, 3, 1])
    assert cluster.states[TopicPartition("t", 1)] == state
    assert [cluster.partition_nodes[TopicPartition("t", i)].partition_epoch for i in (0, 1)] == [
        1,
        2,
    ]
    assert cluster.counters[layout.PARTITION_EPOCH] == 2
    assert cluster.revision == 1
    values = {entry.name: entry.value for entry in created.configs}
    assert values["retention.ms"] == "5"
    # The next partition of the cluster goes on counting.
    world.create(TopicToCreate("u"))
    assert cluster.partition_nodes[TopicPartition("u", 0)].partition_epoch == 3


def assigned(*replicas: tuple[int, ...]) -> TopicToCreate:
    return TopicToCreate("t", assignment=tuple(enumerate(replicas)))


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (TopicToCreate(""), E.INVALID_TOPIC_EXCEPTION),
        (TopicToCreate("."), E.INVALID_TOPIC_EXCEPTION),
        (TopicToCreate(".."), E.INVALID_TOPIC_EXCEPTION),
        (TopicToCreate("a/b"), E.INVALID_TOPIC_EXCEPTION),
        (TopicToCreate("é"), E.INVALID_TOPIC_EXCEPTION),
        (TopicToCreate("x" * 250), E.INVALID_TOPIC_EXCEPTION),
        (TopicToCreate("x" * 249), None),
        (TopicToCreate("__cluster_metadata"), E.INVALID_REQUEST),
        (TopicToCreate("known"), E.TOPIC_ALREADY_EXISTS),
        (TopicToCreate("with.dot"), E.TOPIC_ALREADY_EXISTS),
        (TopicToCreate("with_dot"), E.INVALID_TOPIC_EXCEPTION),
        (TopicToCreate("damaged"), E.TOPIC_ALREADY_EXISTS),
        (TopicToCreate("t", 0), E.INVALID_PARTITIONS),
        (TopicToCreate("t", -2), E.INVALID_PARTITIONS),
        (TopicToCreate("t", 50_001), E.INVALID_PARTITIONS),
        (TopicToCreate("t", 2**31 - 1), E.INVALID_PARTITIONS),
        (TopicToCreate("t", 1, 0), E.INVALID_REPLICATION_FACTOR),
        (TopicToCreate("t", 1, -2), E.INVALID_REPLICATION_FACTOR),
        (TopicToCreate("t", 1, 4), E.INVALID_REPLICATION_FACTOR),
        (TopicToCreate("t", 1, 3), None),
        (TopicToCreate("t"), None),
        (TopicToCreate("t", configs=(("no.such", "1"),)), E.INVALID_CONFIG),
        (TopicToCreate("t", configs=(("retention.ms", "x"),)), E.INVALID_CONFIG),
        (TopicToCreate("t", configs=(("retention.ms", None),)), E.INVALID_CONFIG),
        (
            TopicToCreate("t", configs=(("retention.ms", "1"), ("retention.ms", "2"))),
            E.INVALID_CONFIG,
        ),
        (assigned((1, 2), (2, 3)), None),
        (assigned((1,), (2, 3)), E.INVALID_REPLICA_ASSIGNMENT),
        (assigned((1, 1)), E.INVALID_REPLICA_ASSIGNMENT),
        (assigned((9,)), E.INVALID_REPLICA_ASSIGNMENT),
        (assigned(()), E.INVALID_REPLICA_ASSIGNMENT),
        (TopicToCreate("t", assignment=((1, (1,)),)), E.INVALID_REPLICA_ASSIGNMENT),
        (TopicToCreate("t", assignment=((0, (1,)), (0, (2,)))), E.INVALID_REPLICA_ASSIGNMENT),
        (TopicToCreate("t", 1, assignment=((0, (1,)),)), E.INVALID_REQUEST),
        (TopicToCreate("t", -1, 1, assignment=((0, (1,)),)), E.INVALID_REQUEST),
    ],
)
def test_what_is_refused_and_how(topic: TopicToCreate, error: E | None) -> None:
    world = World(1, 2, 3)
    world.create(TopicToCreate("known"), TopicToCreate("with.dot"))
    damage = [Create(layout.topic("damaged"), b"{")]
    assert world.tree.apply(world.session, damage) is None
    load(world.cluster, world.nodes())
    before = dict(world.cluster.topics)
    (answer,) = world.create(topic, validate_only=True)
    assert (None if answer.refusal is None else answer.refusal.error) == error
    assert answer.topic_id == NO_ID
    assert world.cluster.topics == before
    (answer,) = world.create(topic)
    assert (None if answer.refusal is None else answer.refusal.error) == error
    assert (topic.name in world.cluster.topics) == (error is None or topic.name in before)
    if answer.refusal is not None:
        assert answer.refusal.sentence.endswith(".")
        assert len(answer.refusal.sentence) < 500


def test_topics_of_one_request_are_judged_each_and_together() -> None:
    world = World(1)
    answers = world.create(
        TopicToCreate("twice"),
        TopicToCreate("a.b"),
        TopicToCreate("twice"),
        TopicToCreate("a_b"),
        TopicToCreate("fine"),
    )
    found = [(x.name, None if x.refusal is None else x.refusal.error) for x in answers]
    assert found == [
        ("twice", E.INVALID_REQUEST),
        ("a.b", None),
        ("a_b", E.INVALID_TOPIC_EXCEPTION),
        ("fine", None),
    ]
    assert set(world.cluster.topics) == {"a.b", "fine"}


def test_one_request_cannot_create_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "MAX_PARTITIONS", 5)
    world = World(1)
    answers = world.create(*(TopicToCreate(f"t{i}", 2, 1) for i in range(4)))
    found = [None if x.refusal is None else x.refusal.error for x in answers]
    assert found == [None, None, E.INVALID_PARTITIONS, E.INVALID_PARTITIONS]


def test_a_topic_gets_so_many_partitions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_partitions, "MOST_AT_ONCE", 5)
    world = World(1)
    large, fits = world.create(TopicToCreate("large", 6, 1), TopicToCreate("fits", 5, 1))
    assert fits.refusal is None
    assert large.refusal is not None
    assert large.refusal.error is E.INVALID_PARTITIONS
    assert large.refusal.sentence == (
        "Excessively large number of partitions per request: a topic gets at most 5 at once. "
        "Add more of them later (CreatePartitions)."
    )

    def grow(count: int) -> RequestRefusal | None:
        ((_, refusal),) = world.do(
            create_partitions(world.cluster, [Growth("fits", count)], world.chance)
        )
        return refusal

    assert grow(11) == large.refusal
    assert grow(10) is None
    assert grow(15) is None
    assert len(world.cluster.topics["fits"].partitions) == 15


def test_suspected_brokers_are_not_in_the_first_isr() -> None:
    world = World(1, 2, 3)
    world.cluster.suspected.add(1)
    world.create(TopicToCreate("t", 1, 3))
    state = world.cluster.states[TopicPartition("t", 0)]
    assert (state.leader, state.isr) == (2, [2, 3])


@pytest.mark.parametrize(
    ("count", "assignments", "error"),
    [
        (3, None, None),
        (3, ((2,),), None),
        (2, None, E.INVALID_PARTITIONS),
        (1, None, E.INVALID_PARTITIONS),
        (0, None, E.INVALID_PARTITIONS),
        (-1, None, E.INVALID_PARTITIONS),
        (50_001, None, E.INVALID_PARTITIONS),
        (3, ((2,), (1,)), E.INVALID_REPLICA_ASSIGNMENT),
        (3, ((9,),), E.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 2),), E.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growing(count: int, assignments: Any, error: E | None) -> None:
    world = World(1, 2)
    world.create(TopicToCreate("t", 2, 1))
    asked = [Growth("t", count, assignments)]
    for validate_only in (True, False):
        ((name, refusal),) = world.do(
            create_partitions(world.cluster, asked, world.chance, validate_only)
        )
        assert name == "t"
        assert (None if refusal is None else refusal.error) == error
        # U14: it named a level with which no server starts.
        named = re.findall(r"\b\d+\.\d+\b", "" if refusal is None else refusal.sentence)
        assert set(named) <= set(LEVEL_NAMES)
    node = world.cluster.topics["t"]
    if error is not None:
        assert len(node.partitions) == 2
        return
    assert node.partitions[2] == [2 if assignments else 1]
    assert (node.initial_partition_count, node.undeleted_partition_count) == (3, 3)
    assert world.cluster.topic_histories["t"].initial_partition_count == 3
    assert world.cluster.partition_nodes[TopicPartition("t", 2)].partition_epoch == 3
    assert world.cluster.states[TopicPartition("t", 2)].leader_epoch == 0


def test_shrinking_below_level_1_5_says_which_level_can() -> None:
    world = World(1)
    world.create(TopicToCreate("t", 2, 1))
    decision = create_partitions(world.cluster, [Growth("t", 1), Growth("u", 1)], world.chance)
    (_, shrink), (_, unknown) = decision.answer
    assert shrink is not None
    assert "to remove partitions needs inter.broker.protocol.version=1.5" in shrink.sentence
    assert unknown is not None
    assert unknown.error is E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_topics_of_coordinators_do_not_grow(name: str) -> None:
    world = World(1)
    world.cluster.level = level_of("1.6")
    assert world.create(TopicToCreate(name, 2, 1), for_process=True)[0].refusal is None
    world.cluster.level = level_of("1.4")
    decision = create_partitions(world.cluster, [Growth(name, 3)], world.chance)
    ((_, refusal),) = decision.answer
    assert refusal is not None
    assert refusal.error is E.INVALID_PARTITIONS
    assert not decision.writes


@pytest.mark.parametrize(
    ("level", "for_process", "words"),
    [
        ("1.5", False, "comes with level 1.6"),
        ("1.5", True, "comes with level 1.6"),
        ("1.6", False, "Clients must not create the topic __transaction_state"),
        ("1.6", True, None),
    ],
)
def test_only_coordinators_create_the_topic_of_transactions(
    level: str, for_process: bool, words: str | None
) -> None:
    """Not in another form: with one replica it would lose what it says."""
    world = World(1)
    world.cluster.level = level_of(level)
    asked = TopicToCreate("__transaction_state", 7, 1, configs=(("cleanup.policy", "delete"),))
    ((made),) = world.create(asked, for_process=for_process)
    if words is None:
        assert made.refusal is None
        assert len(world.cluster.topics["__transaction_state"].partitions) == 7
    else:
        assert made.refusal is not None
        assert made.refusal.error is E.INVALID_REQUEST
        assert words in made.refusal.sentence
        assert not world.cluster.topics
    # A topic beside it is not concerned.
    ((made),) = world.create(TopicToCreate("t"), for_process=for_process)
    assert made.refusal is None


def errors(answers: list[deletion.Deleted]) -> list[E | None]:
    return [None if x.refusal is None else x.refusal.error for x in answers]


def test_what_can_be_deleted() -> None:
    world = World(1)
    known, other = world.create(TopicToCreate("known"), TopicToCreate("other"))
    rows: list[tuple[list[PendingDelete], list[E | None]]] = [
        ([PendingDelete("none")], [E.UNKNOWN_TOPIC_OR_PARTITION]),
        ([PendingDelete(None, UUID(int=99))], [E.UNKNOWN_TOPIC_ID]),
        ([PendingDelete("known", known.topic_id)], [E.INVALID_REQUEST]),
        ([PendingDelete(None)], [E.INVALID_REQUEST]),
        ([PendingDelete("known"), PendingDelete(None, known.topic_id)], [E.INVALID_REQUEST] * 2),
    ]
    for asked, expected in rows:
        decision = delete_topics(world.cluster, asked)
        assert errors(decision.answer) == expected
        assert decision.writes == ()
    disabled = delete_topics(world.cluster, [PendingDelete("known")], enabled=False)
    assert errors(disabled.answer) == [E.TOPIC_DELETION_DISABLED]
    answer = world.do(
        delete_topics(world.cluster, [PendingDelete(None, other.topic_id), PendingDelete("known")])
    )
    assert [(x.name, x.topic_id, x.refusal) for x in answer] == [
        ("other", other.topic_id, None),
        ("known", known.topic_id, None),
    ]


def test_a_deleted_topic_leaves_nothing_but_its_place_in_the_queue() -> None:
    world = World(1, 2)
    before = set(world.tree.nodes)
    (created,) = world.create(TopicToCreate("t", 2, 2, configs=(("retention.ms", "1"),)))
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    path = layout.deletion(created.topic_id)
    counters = {layout.PARTITION_EPOCH, layout.REVISION}
    assert set(world.tree.nodes) - before == {path} | counters
    assert world.cluster.deletions[created.topic_id].partitions == {0: [1, 2], 1: [2, 1]}
    assert world.cluster.topic_configs == {}
    # Its name is free, and the next life of the name has another id.
    (again,) = world.create(TopicToCreate("t"))
    assert again.refusal is None
    assert again.topic_id != created.topic_id
    # Broker 1 deleted one partition, then the other; a FULL was answered by broker 2.
    first, second = (Stop("t", created.topic_id, index, -2) for index in (0, 1))
    assert stops_of(world.cluster, 1) == [first, second]
    steps: list[tuple[int, list[Stop], dict[int, list[int]] | None]] = [
        (1, [first], {0: [2], 1: [2, 1]}),
        (1, [first], {0: [2], 1: [2, 1]}),
        (3, [first], {0: [2], 1: [2, 1]}),
        (1, [Stop("t", UUID(int=77), 1, -2)], {0: [2], 1: [2, 1]}),
        (2, [first, second], {1: [1]}),
        (1, [second], None),
    ]
    for broker, gone, left in steps:
        world.do(deletion.confirm(world.cluster, broker, gone))
        found = world.cluster.deletions.get(created.topic_id)
        assert (None if found is None else found.partitions) == left
    assert set(world.cluster.topics) == {"t"}


def test_a_next_incarnation_begins_above_the_leader_epochs_of_former_ones_that_are_not_gone() -> (
    None
):
    # Below level 1.4 a follower fetches without a topic id: epochs must tell incarnations apart.
    world = World(1, 2)

    def epochs() -> list[int]:
        return [world.cluster.states[TopicPartition("t", i)].leader_epoch for i in (0, 1)]

    (first,) = world.create(TopicToCreate("t", 2, 2))
    state = world.cluster.states[TopicPartition("t", 1)]
    moved = nodes.PartitionState(2, 4, state.controller_epoch, state.isr)
    world.do(Decision(None, (Put(layout.state("t", 1), moved),)))
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    assert world.cluster.deletions[first.topic_id].leader_epochs == {0: 0, 1: 4}
    (second,) = world.create(TopicToCreate("t", 2, 2))
    assert epochs() == [1, 5]
    # The second one is gone everywhere, the first one not from broker 2.
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    for broker in (1, 2):
        gone = [Stop("t", second.topic_id, index, -2) for index in (0, 1)]
        world.do(deletion.confirm(world.cluster, broker, gone))
    gone = [Stop("t", first.topic_id, index, -2) for index in (0, 1)]
    world.do(deletion.confirm(world.cluster, 1, gone))
    world.create(TopicToCreate("t", 1, 2), TopicToCreate("u"))
    world.do(create_partitions(world.cluster, [Growth("t", 2)], world.chance))
    assert epochs() == [1, 5]
    assert world.cluster.states[TopicPartition("u", 0)].leader_epoch == 0
    world.do(deletion.confirm(world.cluster, 2, gone))
    assert world.cluster.deletions_by_name == {}


@pytest.mark.parametrize("kind", ["suspected", "shutting_down"])
def test_a_suspected_or_leaving_broker_gets_no_new_replicas(kind: str) -> None:
    world = World(1, 2, 3)
    world.create(TopicToCreate("old", 1, 2))
    getattr(world.cluster, kind).add(2)
    world.create(TopicToCreate("new", 12, 2))
    world.do(create_partitions(world.cluster, [Growth("old", 13)], world.chance))
    old, new = (world.cluster.topics[name].partitions for name in ("old", "new"))
    added = [*new.values(), *(old[index] for index in range(1, 13))]
    assert len(added) == 24
    assert all(set(replicas) == {1, 3} for replicas in added)


def test_unknown_topic_node_ids_never_match() -> None:
    assert isinstance(
        delete_topics(World(1).cluster, [PendingDelete(None, NO_ID)]).answer[0].refusal,
        RequestRefusal,
    )


def paths_of(decision: Decision[Any], name: str) -> list[str]:
    """Return what a decision writes of one topic, in order; a removal has a minus."""
    own = (layout.topic(name), layout.topic_configs(name), layout.deletion_mark(name))
    return [
        f"-{write.path}" if isinstance(write, Remove) else write.path
        for write in decision.writes
        if write.path in own
    ]


def test_a_deletion_that_may_be_cut_marks_every_topic_and_the_next_controller_finishes_it() -> None:
    world = World(1)
    names = [f"t{number}" for number in range(3)]
    half = deletion.AT_ONCE // 2
    world.create(*(TopicToCreate(name, half, 1) for name in names))
    small = delete_topics(world.cluster, [PendingDelete(name) for name in names[:2]])
    assert not any(write.path == layout.deletion_mark("t0") for write in small.writes)
    decision = delete_topics(world.cluster, [PendingDelete(name) for name in names])
    for name in names:
        topic, configs, mark = (
            layout.topic(name),
            layout.topic_configs(name),
            layout.deletion_mark(name),
        )
        assert configs not in world.cluster.versions
        assert paths_of(decision, name) == [mark, f"-{topic}", f"-{mark}"]
    # Cut anywhere: a topic that is also on the queue is marked, so no broker is sent it.
    everything = decision.writes
    for position in range(1, len(everything), half // 2):
        world = World(1)
        world.create(*(TopicToCreate(name, half, 1) for name in names))
        world.commit(everything[:position])
        cluster = world.cluster
        leaving = {node.name for node in cluster.deletions.values()}
        assert leaving & cluster.topics.keys() <= cluster.marked
        begun = leaving | cluster.marked
        world.do(deletion.take_up(cluster))
        assert cluster.topics.keys() == set(names) - begun
        assert not cluster.marked
        assert {node.name for node in cluster.deletions.values()} == begun


def test_a_topic_never_stands_without_its_configurations_nor_with_those_of_a_cut_creation() -> None:
    world = World(1)
    compacted = TopicToCreate("t", 1, 1, configs=(("cleanup.policy", "compact"),))
    decision = create_topics(world.cluster, [compacted], DEFAULTS, world.chance)
    configs, topic = layout.topic_configs("t"), layout.topic("t")
    assert paths_of(decision, "t") == [configs, topic]
    world.commit(decision.writes[: [write.path for write in decision.writes].index(topic)])
    assert "t" not in world.cluster.topics
    assert world.cluster.topic_configs["t"] == {"cleanup.policy": "compact"}
    (created,) = world.create(TopicToCreate("t"))
    assert created.refusal is None
    assert world.cluster.topic_configs == {}
    assert configs not in world.tree.nodes
