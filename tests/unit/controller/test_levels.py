"""Levels: what is sent at each, when one is refused, and both deletion queues step by step."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.broker.metadata.cluster_level import ClusterLevel
from tidelog.controller import requests
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions import levels
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.condition import condition
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Remove
from tidelog.controller.decisions.deletion import (
    PendingDelete,
    confirm,
    delete_topics,
    note_confirmed,
    take_up,
)
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import Stop, stops_of, unconfirmed
from tidelog.controller.pending import changes_of
from tidelog.controller.requests import Gone, Sender
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    DeletionMark,
    FormerPartition,
    OfferedTransactions,
    PartitionNode,
    ResizeKind,
    ResizePlan,
)
from tidelog.metadata.store import Create, Delete, Set
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import HIGHEST, LATEST, LEVEL_NAMES, LEVELS, level_of
from tidelog.model.topics import TRANSACTIONS_TOPIC, TopicPartition
from tidelog.model.work import finish

SENDER = Sender(101, "PLAINTEXT")
A, B = UUID(int=1), UUID(int=2)
T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


def world_at(level: str, *brokers: int) -> World:
    world = World(*(brokers or (1, 2)))
    world.cluster.level = level_of(level)
    return world


def moved_to(world: World, level: str) -> None:
    """Another controller takes over at another level: memory is lost, the store stays."""
    again = ClusterState(brokers=world.cluster.brokers, level=level_of(level))
    load(again, world.nodes())
    world.cluster = again


def stopped(world: World, broker: int, *stops: Stop) -> None:
    note_confirmed(world.cluster, broker, stops)
    world.do(confirm(world.cluster, broker, stops))


@pytest.mark.parametrize(
    ("level", "versions", "one_request", "flag", "ids"),
    [
        ("1.0", (2, 2, 5), False, False, False),
        ("1.1", (2, 3, 5), True, False, False),
        ("1.2", (3, 3, 5), True, False, False),
        ("1.3", (4, 3, 5), True, True, False),
        ("1.4", (5, 4, 7), True, True, True),
        ("1.5", (6, 4, 8), True, True, True),
        ("1.6", (6, 4, 8), True, True, True),
    ],
)
def test_what_a_level_sends(
    level: str, versions: tuple[int, int, int], one_request: bool, flag: bool, ids: bool
) -> None:
    found = level_of(level)
    assert (found.leader_and_isr, found.stop_replica, found.update_metadata) == versions
    assert (found.one_stop_request, found.unclean_flag, found.topic_ids) == (one_request, flag, ids)


def test_there_are_seven_levels_and_the_last_one_is_the_default() -> None:
    assert LEVEL_NAMES == ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6")
    assert LATEST is HIGHEST is LEVELS[-1]
    made = from_mapping(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        }
    )
    assert isinstance(made, ServerConfigs), made
    assert made.level.transactions and made.level.name == "1.6"


@pytest.mark.parametrize(
    ("level", "offered"),
    [(level.name, False) for level in LEVELS[:-1]]
    + [("1.6", True), ("1.7", True), ("1.10", True), ("2.0", True), ("", False), ("new", False)],
)
def test_brokers_offer_transactions_by_the_level_of_their_controller(
    level: str, offered: bool
) -> None:
    cluster_level = ClusterLevel()
    cluster_level.take(level)
    assert cluster_level.offers_transactions is offered


@pytest.mark.parametrize("name", ["2.0", "3.9", "1", "", "latest"])
def test_levels_that_are_not_known_are_refused_with_a_line_that_names_those_that_are(
    name: str,
) -> None:
    refused = from_mapping({"node.id": "1", "inter.broker.protocol.version": name})
    assert isinstance(refused, tuple)
    (line,) = [each for each in refused if each.name == "inter.broker.protocol.version"]
    assert "1.0, 1.1, 1.2, 1.3, 1.4" in line.sentence


# -- StopReplica, both kinds


def test_below_1_1_deletes_and_stops_are_two_requests_and_later_one() -> None:
    world = world_at("1.0")
    stops = [
        Stop("t", A, 1, 7, delete=False),
        Stop("t", A, 0, -2),
        Stop("u", B, 3, 5),
    ]
    apart = requests.stop_replica(world.cluster, SENDER, 1, stops)
    assert [
        (each.delete_partitions, [(t.name, t.partition_indexes) for t in each.topics])
        for each in apart
    ] == [(False, [("t", [1])]), (True, [("t", [0]), ("u", [3])])]
    for level in ("1.1", "1.2", "1.3", "1.4"):
        world.cluster.level = level_of(level)
        (one,) = requests.stop_replica(world.cluster, SENDER, 1, stops)
        assert [
            (t.topic_name, t.topic_id, p.partition_index, p.leader_epoch, p.delete_partition)
            for t in one.topic_states
            for p in t.partition_states
        ] == [
            ("t", A, 1, 7, False),
            ("t", A, 0, -2, True),
            ("u", B, 3, 5, True),
        ]


# -- Kafka's queue, below 1.4


@pytest.mark.parametrize("level", ["1.0", "1.1", "1.2", "1.3"])
def test_below_1_4_a_topic_stays_in_the_store_until_every_broker_has_confirmed(level: str) -> None:
    world = world_at(level)
    before = set(world.tree.nodes)
    (created,) = world.create(TopicToCreate("t", 2, 2))
    known = delete_topics(world.cluster, [PendingDelete("t")])
    assert [type(write.record) for write in known.writes if isinstance(write, Put)] == [
        DeletionMark
    ]
    (line,) = audit_lines(world.cluster, known.writes)
    assert str(line) == "topic t marked for deletion, 2 partitions"
    found = changes_of(world.cluster, known.writes)
    assert found.stops
    assert found.gone == {"t": Gone("t", created.topic_id, (0, 1))}
    world.do(known)
    assert world.cluster.deletions == {}
    assert set(world.cluster.topics) == {"t"}
    # Deleted again it is under way already; no broker is sent a command, and it does not grow.
    assert delete_topics(world.cluster, [PendingDelete("t")]).writes == ()
    told = requests.leader_and_isr(world.cluster, SENDER, 1, [T0, T1], requests.UNSPECIFIED)
    assert told.topic_states == []
    assert requests.update_metadata(world.cluster, SENDER, 1, [T0, T1]).topic_states == []
    grown = create_partitions(world.cluster, [Growth("t", 4)], world.chance).answer[0][1]
    assert grown is not None and grown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # Its name is free only after the last confirmation.
    both = [Stop("t", created.topic_id, index, -2) for index in (0, 1)]
    assert stops_of(world.cluster, 1) == stops_of(world.cluster, 2) == both
    stopped(world, 1, *both)
    assert stops_of(world.cluster, 1) == []
    stopped(world, 2, both[0])
    (refused,) = world.create(TopicToCreate("t"))
    assert refused.refusal is not None
    assert refused.refusal.error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert "marked for deletion" in refused.refusal.sentence
    stopped(world, 2, both[1])
    assert set(world.tree.nodes) - before == {layout.PARTITION_EPOCH, layout.REVISION}
    assert world.cluster.confirmed == {}
    (again,) = world.create(TopicToCreate("t"))
    assert again.refusal is None


def test_a_new_controller_asks_all_brokers_again() -> None:
    world = world_at("1.3")
    (created,) = world.create(TopicToCreate("t", 1, 2))
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    (stop,) = stops_of(world.cluster, 1)
    stopped(world, 1, stop)
    assert list(unconfirmed(world.cluster)) == [("t", {2})]
    assert finish(condition(world.cluster))["counts"]["deletions_pending"] == 1
    moved_to(world, "1.3")
    assert stops_of(world.cluster, 1) == stops_of(world.cluster, 2) == [stop]
    assert take_up(world.cluster).writes == ()
    stopped(world, 2, stop)
    assert "t" in world.cluster.topics
    stopped(world, 1, stop)
    assert world.cluster.topics == {} == world.cluster.states
    assert created.topic_id not in world.cluster.names


def test_from_1_4_the_marks_move_to_the_queue_with_ids() -> None:
    world = world_at("1.3")
    (created,) = world.create(TopicToCreate("t", 1, 2))
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    moved_to(world, "1.4")
    assert world.do(take_up(world.cluster)) == ["t"]
    assert world.cluster.marked == set()
    assert world.cluster.deletions[created.topic_id].partitions == {0: [1, 2]}
    assert layout.deletion_mark("t") not in world.tree.nodes
    (again,) = world.create(TopicToCreate("t"))
    assert again.refusal is None


def test_marks_without_a_topic_go_and_so_do_all_while_deletion_is_off() -> None:
    for level in ("1.0", "1.4"):
        world = world_at(level)
        world.create(TopicToCreate("t"), TopicToCreate("u"))
        for name in ("t", "none"):
            world.commit((Put(layout.deletion_mark(name), DeletionMark()),))
        decision = take_up(world.cluster, enabled=False)
        world.do(decision)
        assert world.cluster.marked == set()
        assert set(world.cluster.topics) == {"t", "u"}


def test_a_mark_of_a_topic_that_cannot_be_read_waits() -> None:
    world = world_at("1.4")
    world.create(TopicToCreate("t"))
    world.commit((Put(layout.deletion_mark("t"), DeletionMark()),))
    world.tree.apply(world.session, [Set(layout.topic("t"), b"{")])
    moved_to(world, "1.4")
    assert take_up(world.cluster).writes == ()
    assert world.cluster.marked == {"t"}
    assert stops_of(world.cluster, 1) == []


# -- replicas taken away: pending_stops


def noted(world: World, notes: dict[int, dict[int, int]]) -> None:
    history = msgspec.structs.replace(world.cluster.topic_histories["t"], pending_stops=notes)
    writes = (Put(layout.topic_history("t"), history),)
    assert changes_of(world.cluster, writes).stops
    world.commit(writes)


def test_a_replica_that_was_taken_away_is_stopped_with_the_epoch_of_that_decision() -> None:
    world = world_at("1.4", 1, 2, 3)
    (created,) = world.create(TopicToCreate("t", assignment=((0, (1, 2)), (1, (1, 2)))))
    noted(world, {0: {3: 7}, 1: {2: 5}})
    assert stops_of(world.cluster, 3) == [Stop("t", created.topic_id, 0, 7)]
    # Assigned again since: the older note does not hit it.
    assert stops_of(world.cluster, 2) == []
    in_sync = msgspec.structs.replace(world.cluster.states[T0], isr=[1, 2, 3])
    shrunk = world.cluster.states[T0]
    world.commit((put_state(world.cluster, T0, in_sync),))
    assert stops_of(world.cluster, 3) == [], "the high watermark still waits for it"
    assert changes_of(world.cluster, [put_state(world.cluster, T0, shrunk)]).stops
    in_part = msgspec.structs.replace(in_sync, isr=[1, 3])
    assert not changes_of(world.cluster, [put_state(world.cluster, T0, in_part)]).stops
    assert not changes_of(world.cluster, [put_state(world.cluster, T2, shrunk)]).stops
    world.commit((put_state(world.cluster, T0, shrunk),))
    assert stops_of(world.cluster, 3) == [Stop("t", created.topic_id, 0, 7)]
    targeted = msgspec.structs.replace(shrunk, target_replicas=[1, 3])
    world.commit((put_state(world.cluster, T0, targeted),))
    assert stops_of(world.cluster, 3) == [], "it is wanted again"
    world.commit((put_state(world.cluster, T0, shrunk),))
    stopped(world, 3, Stop("t", created.topic_id, 0, 6))
    assert world.cluster.topic_histories["t"].pending_stops == {0: {3: 7}, 1: {2: 5}}
    stopped(world, 3, Stop("t", created.topic_id, 0, 7))
    assert world.cluster.topic_histories["t"].pending_stops == {1: {2: 5}}


@pytest.mark.parametrize("level", ["1.3", "1.4"])
def test_a_deleted_topic_is_also_deleted_where_it_was_not_stopped_yet(level: str) -> None:
    world = world_at(level, 1, 2, 3)
    (created,) = world.create(TopicToCreate("t", assignment=((0, (1, 2)),)))
    noted(world, {0: {3: 7}})
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    stop = Stop("t", created.topic_id, 0, -2)
    for broker in (1, 2, 3):
        assert stops_of(world.cluster, broker) == [stop]
    for broker in (1, 2):
        stopped(world, broker, stop)
    assert world.cluster.topics or world.cluster.deletions
    stopped(world, 3, stop)
    assert world.cluster.topics == {} == world.cluster.deletions


# -- up and down


def test_a_level_without_ids_is_refused_while_deletions_with_ids_are_not_done() -> None:
    world = world_at("1.4")
    (created,) = world.create(TopicToCreate("t", 1, 2))
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    assert levels.why_refused(world.cluster) is None
    assert list(unconfirmed(world.cluster)) == [("t", {1, 2})]
    moved_to(world, "1.3")
    assert levels.why_refused(world.cluster) == (
        "inter.broker.protocol.version=1.3 is refused: deleted topics (t) still have replicas on "
        "brokers [1, 2]. Start with 1.4 again until these brokers were up and the deletions are "
        "done."
    )
    (refused,) = world.create(TopicToCreate("t"))
    assert refused.refusal is not None
    assert refused.refusal.error is ErrorCode.TOPIC_ALREADY_EXISTS
    for broker in (1, 2):
        stopped(world, broker, Stop("t", created.topic_id, 0, -2))
    assert levels.why_refused(world.cluster) is None
    world.tree.apply(world.session, [Create(layout.deletion(created.topic_id), b"{")])
    moved_to(world, "1.3")
    assert "cannot be read" in (levels.why_refused(world.cluster) or "")


def test_below_1_4_every_topic_is_marked_as_migrated_and_stays_so() -> None:
    world = world_at("1.4")
    world.create(TopicToCreate("old"))
    assert not world.cluster.topic_histories["old"].migrated
    assert list(levels.marks(world.cluster)) == []
    moved_to(world, "1.3")
    for writes in levels.marks(world.cluster):
        world.commit(writes)
    world.create(TopicToCreate("new"))
    moved_to(world, "1.4")
    world.create(TopicToCreate("newest"))
    found = {name: history.migrated for name, history in world.cluster.topic_histories.items()}
    assert found == {"old": True, "new": True, "newest": False}


def test_many_topics_are_marked_in_several_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "MARKS_PER_WRITE", 2)
    world = world_at("1.4")
    world.create(*(TopicToCreate(f"t{number}") for number in range(5)))
    moved_to(world, "1.0")
    sizes = []
    for writes in levels.marks(world.cluster):
        sizes.append(len(writes))
        world.commit(writes)
    assert sizes == [2, 2, 1]
    assert all(history.migrated for history in world.cluster.topic_histories.values())


PLAN = ResizePlan(ResizeKind.GROW, 1, 2, 1, "fence")


@pytest.mark.parametrize(
    ("fields", "node", "refused"),
    [
        ({}, PartitionNode(1), False),
        ({"resize_epoch": 2}, PartitionNode(1), True),
        ({"resize_epoch": 1, "resize": PLAN}, PartitionNode(1), True),
        ({"former": {6: FormerPartition(9, 4)}}, PartitionNode(1), True),
        # The topic's record was lost, or is an old one.
        ({}, PartitionNode(1, birth_epoch=3), True),
        ({}, PartitionNode(1, retirement_epoch=4), True),
    ],
)
def test_a_level_below_1_5_is_refused_if_a_topic_was_resized(
    fields: dict[str, Any], node: PartitionNode, refused: bool
) -> None:
    world = world_at("1.5")
    # A retired partition is not the only one.
    count = 1 + (node.retirement_epoch >= 0)
    world.create(TopicToCreate("t", count, 1), TopicToCreate("u"))
    history = msgspec.structs.replace(world.cluster.topic_histories["t"], **fields)
    topic = msgspec.structs.replace(world.cluster.topics["t"], undeleted_partition_count=1)
    # The older record is damaged when it is loaded.
    world.commit_only(
        (
            Put(layout.topic_history("t"), history),
            Put(layout.topic("t"), topic),
            Put(layout.partition("t", count - 1), node),
        )
    )
    assert levels.why_refused(world.cluster) is None
    for level in ("1.4", "1.0"):
        moved_to(world, level)
        found = levels.why_refused(world.cluster)
        assert (found is not None) == refused
        if found is not None:
            assert found.startswith(
                f"inter.broker.protocol.version={level} is refused: topics (t) were resized, "
            )
    moved_to(world, "1.4")
    if refused:
        # The way back.
        world.do(delete_topics(world.cluster, [PendingDelete("t")]))
        assert levels.why_refused(world.cluster) is None


def with_transactions(world: World) -> None:
    """A controller becomes active at the level of the world, and transactions begin."""
    world.commit(tuple(levels.mark_of_transactions(world.cluster)))
    topic = TopicToCreate(TRANSACTIONS_TOPIC, 1, 1, configs=(("cleanup.policy", "compact"),))
    (made,) = world.create(topic, for_process=True)
    assert made.refusal is None


def test_a_level_below_1_6_is_refused_once_transactions_were_offered_and_begun() -> None:
    world = world_at("1.6")
    with_transactions(world)
    assert levels.why_refused(world.cluster) is None
    for level in ("1.5", "1.0"):
        moved_to(world, level)
        assert levels.why_refused(world.cluster) == (
            f"inter.broker.protocol.version={level} is refused: this cluster has offered "
            "transactions, and below 1.6 nothing would end those that are open. Start with 1.6 "
            "again. To go back, stop all transactional producers, wait until `tidelog transactions "
            "list` shows none that is not Empty or complete, and delete the topic "
            "__transaction_state."
        )
    # The way back.
    moved_to(world, "1.6")
    world.do(delete_topics(world.cluster, [PendingDelete(TRANSACTIONS_TOPIC)]))
    moved_to(world, "1.5")
    assert levels.why_refused(world.cluster) is None


def test_the_topic_of_transactions_without_the_mark_refuses_nothing() -> None:
    """Versions before level 1.6 was offered created it for any client that named it."""
    world = world_at("1.6")
    with_transactions(world)
    world.commit((Remove(layout.OFFERED_TRANSACTIONS),))
    for level in ("1.5", "1.0"):
        moved_to(world, level)
        assert levels.why_refused(world.cluster) is None
        assert levels.mark_of_transactions(world.cluster) == []


@pytest.mark.parametrize("policy", ["compact", "delete", None, "{"])
def test_a_topic_of_transactions_from_before_the_mark_is_compacted_after_it(
    policy: str | None,
) -> None:
    """Its retention would delete the states of ids that are in use."""
    world = world_at("1.6")
    with_transactions(world)
    path = layout.topic_configs(TRANSACTIONS_TOPIC)
    configs = {"segment.bytes": "4000"} | ({} if policy is None else {"cleanup.policy": policy})
    world.commit((Remove(layout.OFFERED_TRANSACTIONS), Put(path, ConfigNode(configs))))
    if policy == "{":
        world.tree.apply(world.session, [Set(path, b"{")])
        configs = {}
    moved_to(world, "1.6")
    writes = levels.mark_of_transactions(world.cluster)
    compacted = Put(path, ConfigNode({**configs, "cleanup.policy": "compact"}))
    assert writes[1:] == ([] if policy == "compact" else [compacted])
    world.commit(tuple(writes))
    assert world.cluster.topic_configs[TRANSACTIONS_TOPIC]["cleanup.policy"] == "compact"
    assert levels.mark_of_transactions(world.cluster) == []


def test_the_mark_of_transactions_goes_when_a_level_is_left_at_which_none_began() -> None:
    world = world_at("1.6")
    world.commit(tuple(levels.mark_of_transactions(world.cluster)))
    assert levels.mark_of_transactions(world.cluster) == []
    moved_to(world, "1.6")
    assert levels.mark_of_transactions(world.cluster) == []
    moved_to(world, "1.5")
    assert levels.why_refused(world.cluster) is None
    removed = levels.mark_of_transactions(world.cluster)
    assert removed == [Remove(layout.OFFERED_TRANSACTIONS)]
    world.commit(tuple(removed))
    assert layout.OFFERED_TRANSACTIONS not in world.nodes()


@pytest.mark.parametrize("path", [layout.OFFERED_TRANSACTIONS, layout.topic(TRANSACTIONS_TOPIC)])
def test_what_cannot_be_read_counts_as_a_mark_and_as_a_topic_of_transactions(path: str) -> None:
    world = world_at("1.6")
    with_transactions(world)
    world.tree.apply(world.session, [Set(path, b"{")])
    moved_to(world, "1.5")
    assert "has offered transactions" in (levels.why_refused(world.cluster) or "")
    moved_to(world, "1.6")
    again = levels.mark_of_transactions(world.cluster)
    is_mark = path == layout.OFFERED_TRANSACTIONS
    assert again == [Put(path, OfferedTransactions("1.6"))] * is_mark
    world.commit(tuple(again))
    assert (path in world.cluster.damaged) is not is_mark


def test_at_1_5_every_partition_gets_its_epoch_before_the_controller_is_active() -> None:
    world = world_at("1.4")
    world.create(TopicToCreate("t", 3))
    assert list(levels.epochs(world.cluster)) == []
    # As Kafka's own nodes, which are empty; and a partition that is not made yet.
    world.commit((Remove(layout.state(*T2)), Remove(layout.partition(*T2))))
    for where in (T0, T1):
        world.tree.apply(world.session, [Set(layout.partition(*where), b"")])
    world.tree.apply(world.session, [Delete(layout.PARTITION_EPOCH)])
    moved_to(world, "1.4")
    assert list(levels.epochs(world.cluster)) == []
    moved_to(world, "1.5")
    for writes in levels.epochs(world.cluster):
        assert changes_of(world.cluster, writes).partitions == {T0, T1}
        world.commit(writes)
    found = {where: node.partition_epoch for where, node in world.cluster.partition_nodes.items()}
    assert found == {T0: 1, T1: 2}
    assert list(levels.epochs(world.cluster)) == []


def test_many_partitions_get_their_epochs_in_several_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(levels, "MARKS_PER_WRITE", 2)
    world = world_at("1.4")
    world.create(TopicToCreate("t", 5))
    for index in range(5):
        world.tree.apply(world.session, [Set(layout.partition("t", index), b"")])
    world.tree.apply(world.session, [Delete(layout.PARTITION_EPOCH)])
    moved_to(world, "1.5")
    sizes = []
    for writes in levels.epochs(world.cluster):
        sizes.append(len(writes) - 1)
        world.commit(writes)
    assert sizes == [2, 2, 1]
    nodes = world.cluster.partition_nodes
    assert [nodes[TopicPartition("t", x)].partition_epoch for x in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("level", "highest", "refused"),
    [
        ("1.4", "1.3", True),
        ("1.4", "1.4", False),
        ("1.4", "1.5", False),
        ("1.4", "1.10", False),
        ("1.0", "1.0", False),
        ("1.3", "1.2", True),
        ("1.4", "", False),
        ("1.4", "x", False),
    ],
)
def test_a_broker_whose_code_knows_less_is_refused(level: str, highest: str, refused: bool) -> None:
    world = world_at(level)
    found = levels.why_broker_refused(world.cluster, 3, highest)
    assert (found is not None) == refused
    if found is not None:
        assert found.startswith(f"Broker 3 knows levels up to {highest}, ")
