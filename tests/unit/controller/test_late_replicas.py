"""Brokers that register after the acceptance of a restored store: which replicas are stale, what
becomes of the others (promise 20, docs/decisions/0103).

The store was lost, and accepted with what brokers 1 and 2 hold. Broker 3 comes later.
"""

from __future__ import annotations

from itertools import count
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import late_commands, requests
from tidelog.controller.decisions import ended_data
from tidelog.controller.decisions.cluster import LoadedStore, LogEnd
from tidelog.controller.decisions.condition import condition
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.deletion import (
    PendingDelete,
    confirm,
    delete_topics,
    note_confirmed,
)
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.late_replicas import Fate, forget_stale, late_replicas
from tidelog.controller.decisions.lost_store import adopt
from tidelog.controller.decisions.moves import complete
from tidelog.controller.decisions.nodes import judge_reports, take
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.controller.decisions.registration import Address, Registration, register
from tidelog.controller.decisions.rejoining import bring_back, rejoin
from tidelog.controller.decisions.restoration import JUMP, accept
from tidelog.controller.decisions.restoration_report import report
from tidelog.controller.decisions.settlement import settle_all
from tidelog.controller.decisions.soft_state import take_report
from tidelog.controller.decisions.stops import stops_of
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionNode, TopicHistory, UncleanDebt, WentBack
from tidelog.metadata.store import Node
from tidelog.model.errors import ErrorCode
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish

Held = dict[tuple[UUID, int], LogEnd]

T, U, V = UUID(int=91), UUID(int=92), UUID(int=93)
NAMES = {T: "t", U: "u", V: "v"}
T0 = TopicPartition("t", 0)
CLUSTER = "anothercluster00000000"
_incarnations = count(1)


def end(leader_epoch: int = 5, offset: int = 100, partition_epoch: int = 7) -> LogEnd:
    return LogEnd(partition_epoch, leader_epoch, offset, record_epoch=leader_epoch)


def comes(
    world: World,
    broker: int,
    held: Held,
    names: dict[UUID, str] = NAMES,
) -> None:
    """A broker registers with these replicas."""
    told = Registration(
        broker,
        "",
        UUID(int=next(_incarnations)),
        UUID(int=broker),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        None,
        FormerRegistration.CLEAN,
        held,
        held={topic_id: names[topic_id] for topic_id, _ in held},
        kept_configs={topic_id: {"retention.ms": "-1"} for topic_id, _ in held},
        seen=(4, 10),
    )
    take_report(world.cluster, told)
    world.do(register(world.cluster, told, 1))


def accepted(*held: Held, dropped: tuple[str, ...] = ()) -> World:
    """A lost store, accepted with what brokers 1, 2 and so on hold."""
    world = World()
    world.do(adopt(world.cluster, CLUSTER, "broker 1 says so"))
    for broker, found in enumerate(held, 1):
        comes(world, broker, found)
    answer = world.do(accept(world.cluster, (), dropped, world.chance))
    assert isinstance(answer, dict), answer
    return world


def ended_at(world: World, where: TopicPartition, epoch: int, offset: int) -> None:
    """The leader of an acceptance reports where its log ended."""
    history = world.cluster.topic_histories[where.topic]
    debt = history.unclean[where.partition]
    said = UncleanDebt(debt.leader, debt.leader_epoch, offset, epoch)
    changed = TopicHistory(history.topic_id, 1, unclean={**history.unclean, where.partition: said})
    world.commit((Put(layout.topic_history(where.topic), changed),))


def fates(world: World) -> dict[str, Fate]:
    return {f"{x.where} of {x.broker}": x.fate for x in late_replicas(world.cluster)}


def kept(world: World, broker: int) -> list[tuple[UUID, int]]:
    """What a FULL names without a command: such replicas do not become stale."""
    cluster, sender = world.cluster, requests.Sender(9, "PLAINTEXT")
    places = list(cluster.partitions_of(broker))
    made = requests.leader_and_isr(cluster, sender, broker, places, requests.FULL)
    made = late_commands.with_late(made, late_replicas(cluster, broker))
    return [
        (topic.topic_id, each.partition_index)
        for topic in made.topic_states
        for each in topic.partition_states
        if each.leader_epoch == -1
    ]


def taken_back(world: World, *dropped: str) -> list[str]:
    answer = world.do(bring_back(world.cluster, dropped, world.chance))
    assert isinstance(answer, list), answer
    while world.do(rejoin(world.cluster, dropped)):
        pass
    return answer


def refusal(world: World, *dropped: str) -> str:
    answer = bring_back(world.cluster, dropped, world.chance).answer
    assert isinstance(answer, RequestRefusal) and answer.error is ErrorCode.INVALID_REQUEST
    return answer.sentence


# What is kept, and what a decision has taken ------------------------------------------------------


def test_a_store_that_was_never_accepted_knows_no_late_replicas() -> None:
    world = World()
    comes(world, 1, {(T, 0): end()})
    assert (fates(world), kept(world, 1), report(world.cluster)["late"]) == ({}, [], [])


def test_what_the_acceptance_did_not_know_is_kept_and_listed() -> None:
    world = accepted({(T, 0): end()}, {(T, 0): end()})
    ended_at(world, T0, 5, 100)
    comes(world, 3, {(T, 0): end(), (U, 0): end()})
    assert fates(world) == {"t-0 of 3": Fate.REJOINS, "u-0 of 3": Fate.COMES_BACK}
    assert kept(world, 3) == [(T, 0), (U, 0)] and kept(world, 1) == []
    (found,) = [
        x for x in finish(condition(world.cluster))["problems"] if x["kind"] == "replicas_late"
    ]
    assert (found["partitions"], found["brokers"]) == (["t-0", "u-0"], [3])
    assert "2 replicas on broker 3" in found["what"] and "doctor restored" in found["advice"]
    late = {x["topic"]: x for x in report(world.cluster)["late"]}
    assert late["u"]["configs"] == {"retention.ms": "-1"} and not late["u"]["is_known"]
    assert (late["t"]["broker"], late["t"]["end_offset"], late["t"]["is_known"]) == (3, 100, True)


def test_a_topic_that_was_deleted_since_is_stale() -> None:
    world = accepted({(T, 0): end()}, {(T, 0): end()})
    cluster = world.cluster
    world.do(delete_topics(cluster, [PendingDelete("t")]))
    comes(world, 3, {(T, 0): end()})
    assert fates(world) == {}, "its deletion is running"
    for broker in (1, 2):
        stops = stops_of(cluster, broker)
        note_confirmed(cluster, broker, stops)
        world.do(confirm(cluster, broker, stops))
    assert not cluster.deletions
    assert fates(world) == {}, "its deletion is remembered; and what 1 and 2 had is gone"
    assert kept(world, 3) == []
    world.create(TopicToCreate("t", 1, 2))
    assert kept(world, 3) == []


def test_a_later_acceptance_of_a_copy_brings_back_nothing_that_ended() -> None:
    world = accepted({(T, 0): end()}, {})
    cluster = world.cluster
    world.do(delete_topics(cluster, [PendingDelete("t")]))
    stops = stops_of(cluster, 1)
    note_confirmed(cluster, 1, stops)
    world.do(confirm(cluster, 1, stops))
    world.commit((Put(layout.WENT_BACK, WentBack("why")),))
    comes(world, 3, {(T, 0): end(), (U, 0): end()})
    assert [x["topic"] for x in report(cluster)["unknown"]] == ["u"]
    assert isinstance(world.do(accept(cluster, (), (), world.chance)), dict)
    assert set(cluster.topics) == {"u"} and kept(world, 3) == []


def test_the_memory_of_deletions_has_a_limit_and_forgets_to_the_safe_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ended_data, "MOST_ENDED", 2)
    world = accepted({}, {})
    for ended in (T, U, V):
        world.commit(tuple(ended_data.remembered(world.cluster, [ended])))
    assert len(world.cluster.past.ended.topics) == 2
    comes(world, 3, {(T, 0): end(), (U, 0): end(), (V, 0): end()})
    assert set(fates(world)) == {"t-0 of 3"}, "kept, and listed"


@pytest.mark.parametrize("content", [b"{", None], ids=["damaged", "missing"])
def test_without_the_memory_nothing_is_stale(content: bytes | None) -> None:
    world = accepted({}, {})
    world.commit(tuple(ended_data.remembered(world.cluster, [T])))
    node = None if content is None else Node(content, 1, ephemeral=False)
    take(world.cluster, layout.ENDED_DATA, node)
    world.cluster.inventories[2] = {(T, 0): end()}
    world.cluster.held[T] = "t"
    assert set(fates(world)) == {"t-0 of 2"}


def test_a_replica_that_was_moved_away_since_is_stale() -> None:
    """An older backup: the store knew broker 3, and went on without it."""
    world = accepted({(T, 0): end()}, {(T, 0): end()})
    ended_at(world, T0, 5, 100)
    cluster = world.cluster
    comes(world, 3, {(T, 0): end()})
    taken_back(world)
    assert cluster.moves == {T0: [1, 2, 3]} and fates(world) == {}
    world.do(reassign(cluster, [Asked(T0, (1, 2))]))
    assert cluster.topic_histories["t"].pending_stops == {0: {3: cluster.states[T0].leader_epoch}}
    assert (fates(world), kept(world, 3)) == ({}, [])
    stops = stops_of(cluster, 3)
    note_confirmed(cluster, 3, stops)
    world.do(confirm(cluster, 3, stops))
    assert fates(world) == {}, "the replica is gone, and no longer counted as one of the broker's"


def test_a_move_between_others_took_nothing_from_a_late_broker() -> None:
    world = accepted({(T, 0): end()}, {(T, 0): end()})
    ended_at(world, T0, 5, 100)
    world.do(reassign(world.cluster, [Asked(T0, (1,))]))
    comes(world, 3, {(T, 0): end()})
    assert fates(world) == {"t-0 of 3": Fate.REJOINS}
    taken_back(world)
    assert world.cluster.moves == {T0: [1, 3]}


def test_a_removed_incarnation_is_stale() -> None:
    world = accepted({(T, 0): end(), (T, 1): end()}, {})
    for epoch, birth, stale in ((8, 2, True), (8, 0, False), (7, 2, False)):
        node = PartitionNode(epoch, birth_epoch=birth)
        history = world.cluster.topic_histories["t"]
        resized = msgspec.structs.replace(history, resize_epoch=max(2, history.resize_epoch))
        world.commit((Put(layout.topic_history("t"), resized), Put(layout.partition("t", 1), node)))
        world.cluster.inventories[2] = {(T, 1): end()}
        assert (fates(world) == {}) is stale, node


def test_what_was_given_up_by_name_is_stale_and_nothing_else() -> None:
    world = accepted({(T, 0): end(), (U, 0): end()}, {}, dropped=("u",))
    assert world.cluster.past.ended.topics == {layout.id_text(U): [(0, 1)]}
    comes(world, 1, {(T, 0): end(), (U, 0): end()})
    assert (fates(world), kept(world, 1)) == ({}, [])
    comes(world, 3, {(U, 0): end()})
    assert set(fates(world)) == {"u-0 of 3"}, "no list had that one"


def test_what_a_full_left_out_is_forgotten() -> None:
    world = accepted({(T, 0): end()}, {})
    cluster = world.cluster
    comes(world, 3, {(T, 0): end(), (U, 0): end(), (V, 0): end()})
    forget_stale(cluster, 3, {(T, 0): 8, (U, 0): -1}, {(V, 0)})
    assert set(cluster.inventories[3]) == {(U, 0), (V, 0)}


# What comes back ---------------------------------------------------------------------------------


def test_a_topic_of_the_late_broker_alone_comes_back() -> None:
    world = accepted({(T, 0): end()}, {})
    cluster = world.cluster
    comes(world, 3, {(U, 0): end(5, 40), (U, 1): end(6, 30, 8)})
    before, epoch = dict(cluster.states), cluster.controller_epoch
    assert taken_back(world) == []
    assert cluster.topic_id("u") == U and cluster.topics["u"].partitions == {0: [3], 1: [3]}
    state = cluster.states[TopicPartition("u", 1)]
    assert (state.leader, state.isr, state.leader_epoch) == (3, [3], 6 + JUMP)
    assert cluster.partition_nodes[TopicPartition("u", 1)].partition_epoch == 8
    assert cluster.topic_configs["u"] == {"retention.ms": "-1"}
    assert set(cluster.topic_histories["u"].unclean) == {0, 1}
    assert (cluster.states[T0], cluster.controller_epoch) == (before[T0], epoch), "untouched"
    assert (fates(world), kept(world, 3)) == ({}, [])
    assert "gone back" in refusal(world)


def test_a_late_replica_rejoins_its_partition() -> None:
    world = accepted({(T, 0): end()}, {(T, 0): end()})
    ended_at(world, T0, 5, 100)
    cluster = world.cluster
    comes(world, 3, {(T, 0): end(5, 90)})
    taken_back(world)
    state = cluster.states[T0]
    assert (list(cluster.hosts(T0)), cluster.original(T0)) == ([1, 2, 3], [1, 2])
    assert (state.leader, state.isr) == (1, [1])
    assert kept(world, 3) == []
    # It is in sync: the leader has said so.
    world.commit(
        (
            Put(
                layout.state("t", 0),
                type(state)(1, state.leader_epoch, 1, [1, 2, 3], target_replicas=[1, 2, 3]),
            ),
        )
    )
    assert world.do(complete(cluster)) == [T0]
    assert cluster.topics["t"].partitions == {0: [1, 2, 3]}


@pytest.mark.parametrize(
    ("reported", "fate"),
    [
        (end(5, 100), Fate.REJOINS),
        (end(4, 500), Fate.REJOINS),
        (end(5, 101), Fate.AHEAD),
        (end(6, 100), Fate.AHEAD),
        # A leader that began an epoch and wrote nothing in it.
        (LogEnd(7, 6, 100, record_epoch=5), Fate.REJOINS),
        # An older version does not say of which epoch its last record is.
        (LogEnd(7, 6, 100), Fate.AHEAD),
        (LogEnd(7, 6, 0), Fate.REJOINS),
    ],
)
def test_what_no_other_replica_has_is_not_cut_unless_it_is_named(
    reported: LogEnd, fate: Fate
) -> None:
    world = accepted({(T, 0): end()}, {})
    ended_at(world, T0, 5, 100)
    comes(world, 3, {(T, 0): reported})
    assert fates(world) == {"t-0 of 3": fate}
    if fate is Fate.REJOINS:
        assert "lists no t-0" in refusal(world, "t-0"), "there is nothing to give up"
        return
    taken_back(world)
    assert (fates(world), kept(world, 3)) == ({"t-0 of 3": fate}, [(T, 0)])
    assert "from offset 100 of leader epoch 5" in report(world.cluster)["late"][0]["why"]
    assert taken_back(world, "t-0") == [f"t-0 of {layout.id_text(T)} on broker 3"]
    assert list(world.cluster.hosts(T0)) == [1, 3] and fates(world) == {}


def test_what_a_partition_went_on_with_is_not_guessed() -> None:
    world = accepted({(T, 0): end()}, {})
    comes(world, 3, {(T, 0): end()})
    assert fates(world) == {"t-0 of 3": Fate.AHEAD}
    assert "not on record" in report(world.cluster)["late"][0]["why"]


def test_a_partition_that_only_the_late_broker_has_takes_its_place() -> None:
    """One replica each, on three brokers: t-1 is on the late one, and t-3 too."""
    world = accepted({(T, 0): end()}, {(T, 2): end()})
    cluster = world.cluster
    t1, t3 = TopicPartition("t", 1), TopicPartition("t", 3)
    assert (cluster.states[t1].leader, cluster.states[t1].isr) == (-1, [])
    assert cluster.partition_nodes[t1].partition_epoch != 7
    before = cluster.states[T0].leader_epoch
    comes(world, 3, {(T, 1): end(5, 40), (T, 3): end(5, 30)})
    assert set(fates(world).values()) == {Fate.COMES_BACK}
    taken_back(world)
    node = cluster.topics["t"]
    assert (cluster.states[t1].leader, cluster.states[t3].leader) == (3, 3)
    assert 3 in node.partitions[1] and node.partitions[3] == [3]
    assert {cluster.partition_nodes[x].partition_epoch for x in (t1, t3)} == {7}
    assert (node.initial_partition_count, node.undeleted_partition_count) == (4, 4)
    # Its leader learns the new count.
    assert cluster.states[T0].leader_epoch == before + 1
    assert cluster.states[T0].leader == 1
    assert fates(world) == {}


def test_a_partition_that_began_empty_by_request_is_in_conflict() -> None:
    world = accepted({(T, 0): end()}, {(T, 2): end()})
    cluster = world.cluster
    t1 = TopicPartition("t", 1)
    world.commit(tuple(settle_all(cluster, [t1], Standing.of(cluster), allow_unclean=True)))
    comes(world, 3, {(T, 1): end(5, 40)})
    assert fates(world) == {"t-1 of 3": Fate.IN_CONFLICT}
    taken_back(world)
    assert cluster.hosts(t1) == [2] and kept(world, 3) == [(T, 1)]
    taken_back(world, "t-1")
    assert (fates(world), kept(world, 3)) == ({}, [])


def test_a_name_that_another_topic_has_since_is_in_conflict() -> None:
    world = accepted({}, {})
    world.create(TopicToCreate("t", 1, 1))
    other = world.cluster.topic_id("t")
    comes(world, 3, {(T, 0): end()})
    assert fates(world) == {"t-0 of 3": Fate.IN_CONFLICT}
    assert layout.id_text(other) in report(world.cluster)["late"][0]["why"]
    # It gets no replica of the other topic in that place: that would make this one stale.
    world.do(reassign(world.cluster, [Asked(T0, (3,))]))
    assert kept(world, 3) == [(T, 0)]
    cluster, sender = world.cluster, requests.Sender(9, "PLAINTEXT")
    made = requests.leader_and_isr(cluster, sender, 3, [T0], requests.INCREMENTAL)
    assert [len(x.partition_states) for x in made.topic_states] == [1]
    less = late_commands.without_places(made, late_replicas(cluster, 3))
    assert [len(x.partition_states) for x in less.topic_states] == [0]
    taken_back(world, layout.id_text(T))
    assert (fates(world), kept(world, 3)) == ({}, [])


def test_a_topic_of_the_copy_can_be_deleted_for_the_late_one_of_its_name() -> None:
    """Its node counted as damaged, so that the deletion was refused: the copy had a topic that was
    deleted and created again, and no broker has replicas of the older one."""
    world = accepted({}, {})
    comes(world, 3, {})
    world.create(TopicToCreate("t", assignment=((0, (3,)),)))
    cluster = world.cluster
    cluster.loaded = LoadedStore(cluster.revision, cluster.counters[layout.PARTITION_EPOCH])
    comes(world, 3, {(T, 0): end()})
    assert judge_reports(cluster, {(T, 0): end()}, {T: "t"}) == [] and not cluster.damaged
    assert fates(world) == {"t-0 of 3": Fate.IN_CONFLICT}
    world.do(delete_topics(cluster, [PendingDelete("t")]))
    assert "t" not in cluster.topics
    assert fates(world) == {"t-0 of 3": Fate.COMES_BACK}


def test_a_name_that_late_replicas_have_is_not_given_to_another_topic() -> None:
    world = accepted({}, {})
    comes(world, 3, {(T, 0): end()})
    (refused,) = world.create(TopicToCreate("t", 1, 1))
    assert refused.refusal is not None and "doctor restored" in refused.refusal.sentence
    assert refused.refusal.error is ErrorCode.POLICY_VIOLATION
    (made,) = world.create(TopicToCreate("other", 1, 1))
    assert made.refusal is None
    taken_back(world, "t")
    (made,) = world.create(TopicToCreate("t", 1, 1))
    assert made.refusal is None


def test_of_two_topics_of_one_name_one_must_be_named() -> None:
    world = accepted({}, {})
    names = {U: "x", V: "x"}
    comes(world, 2, {(U, 0): end()}, names)
    comes(world, 3, {(V, 0): end()}, names)
    assert set(fates(world).values()) == {Fate.IN_CONFLICT}
    taken_back(world, layout.id_text(U))
    taken_back(world)
    assert world.cluster.topic_id("x") == V


def test_a_topic_that_was_resized_gets_no_partition_by_a_second_acceptance() -> None:
    world = accepted({(T, 0): end()}, {})
    history = world.cluster.topic_histories["t"]
    changed = TopicHistory(history.topic_id, 1, resize_epoch=3, unclean=history.unclean)
    world.commit((Put(layout.topic_history("t"), changed),))
    comes(world, 3, {(T, 1): end()})
    assert fates(world) == {"t-1 of 3": Fate.IN_CONFLICT}
    assert "was resized" in report(world.cluster)["late"][0]["why"]
    taken_back(world)
    assert sorted(world.cluster.topics["t"].partitions) == [0] and kept(world, 3) == [(T, 1)]


def test_only_what_is_late_can_be_given_up() -> None:
    world = accepted({(T, 0): end()}, {})
    comes(world, 3, {(U, 0): end()})
    for name in ("t", "t-0", "u-1", "missing", ""):
        assert f"lists no {name}" in refusal(world, name)
