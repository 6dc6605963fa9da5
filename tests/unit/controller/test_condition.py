"""What the controller says is wrong: every problem from a cluster that has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.cluster import ClusterState, FenceReport
from tidelog.controller.decisions.condition import (
    condition,
    counts,
)
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.growth import Growth
from tidelog.controller.decisions.moves import Placement, written
from tidelog.controller.decisions.moves_condition import on_record
from tidelog.controller.decisions.problems import NAMES_LISTED
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.controller.decisions.resize_requests import resize_topics
from tidelog.controller.decisions.resizes_condition import plans_on_record, unaware_on_record
from tidelog.controller.decisions.resizing import advance
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.soft_state import (
    ReportedFence,
    note_fences,
    note_misplaced,
)
from tidelog.controller.decisions.unaware_writers import note_unaware
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, PartitionState, UncleanDebt
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import NAMES_SHOWN
from tidelog.model.work import finish

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
RATE = "reassignment.throttled.rate"
LEADER_RATE = "leader.replication.throttled.rate"
LISTED = "leader.replication.throttled.replicas"


def world() -> World:
    made = World(1, 2, 3)
    made.create(TopicToCreate("t", 2, 3, configs=(("min.insync.replicas", "2"),)))
    return made


def in_state(made: World, leader: int, isr: list[int]) -> None:
    made.commit((put_state(made.cluster, T0, PartitionState(leader, 1, 1, isr)),))


def offline(made: World) -> None:
    made.cluster.suspected.add(2)
    in_state(made, -1, [2])


def below(made: World) -> None:
    in_state(made, 1, [1])


def on_one_machine(made: World) -> None:
    for broker in (1, 2):
        made.cluster.brokers[broker] = msgspec.structs.replace(
            made.cluster.brokers[broker], rack="a/m"
        )
    made.commit((Put(layout.topic_configs("t"), ConfigNode({"min.insync.machines": "2"})),))
    in_state(made, 1, [1, 2])


def under(made: World) -> None:
    in_state(made, 1, [1, 2])


def elsewhere(made: World) -> None:
    in_state(made, 2, [1, 2, 3])


def unclean(made: World) -> None:
    history = msgspec.structs.replace(
        made.cluster.topic_histories["t"], unclean={1: UncleanDebt(1, 1)}
    )
    made.commit((Put(layout.topic_history("t"), history),))


def damaged_replica(made: World) -> None:
    made.cluster.broken.add((2, T1))


def damaged_node(made: World) -> None:
    made.cluster.damaged["/x"] = layout.Damaged("/x", "it is torn")


def gone_back(made: World) -> None:
    made.cluster.went_back = "The metadata store has gone back in time."


def without_id(made: World) -> None:
    node = msgspec.structs.replace(made.cluster.topics["t"], topic_id=None)
    made.cluster.topics["t"] = node


def without_state(made: World) -> None:
    del made.cluster.states[T1]


def dead(made: World) -> None:
    del made.cluster.brokers[3]


def suspected(made: World) -> None:
    made.cluster.suspected.add(2)


def leaving(made: World) -> None:
    made.cluster.shutting_down.add(2)


def presumed(made: World) -> None:
    made.cluster.presumed.add(2)


def damaged_everywhere(made: World) -> None:
    in_state(made, -1, [2])
    made.cluster.broken.update((broker, T0) for broker in (1, 2, 3))


def deleted(made: World) -> None:
    made.do(delete_topics(made.cluster, [PendingDelete("t")]))


def deleted_of_the_dead(made: World) -> None:
    deleted(made)
    del made.cluster.brokers[3]


def move(made: World, *targets: int) -> None:
    """Move a partition to brokers, of which 4 has registered since the topic was made."""
    made.cluster.brokers[4] = made.cluster.brokers[3]
    made.do(reassign(made.cluster, [Asked(T0, targets)]))


def moves_to_the_dead(made: World) -> None:
    move(made, 1, 4)
    del made.cluster.brokers[4]


def moves_to_a_damaged_copy(made: World) -> None:
    move(made, 1, 4)
    made.cluster.broken.add((4, T0))


def moves(made: World) -> None:
    throttled(made)
    move(made, 1, 4)


def stopped_moves(made: World) -> None:
    move(made, 1, 4)
    made.commit((Put(layout.broker_configs("2"), ConfigNode({LEADER_RATE: "0"})),))


def resizing(made: World) -> None:
    made.cluster.level = level_of("1.5")
    made.do(resize_topics(made.cluster, [Growth("t", 4)], made.chance, 0))
    made.do(advance(made.cluster, "t"))
    report = FenceReport(2, made.cluster.states[TopicPartition("t", 1)].leader_epoch, 1)
    note_fences(made.cluster, [ReportedFence(made.cluster.topic_id("t"), 1, report)])


def owes_a_stop(made: World) -> None:
    move(made, 1, 4)
    made.do(reassign(made.cluster, [Asked(T0, None)]))
    del made.cluster.brokers[4]


def closed(made: World) -> None:
    node = ConfigNode({"cordoned.log.dirs": "*"})
    made.commit((Put(layout.broker_configs("2"), node),))


def cordoned(made: World) -> None:
    node = msgspec.structs.replace(made.cluster.brokers[2], log_dirs=["/a", "/b"])
    made.cluster.brokers[2] = node
    made.commit((Put(layout.broker_configs("2"), ConfigNode({"cordoned.log.dirs": "/b"})),))


def throttled(made: World) -> None:
    made.commit((Put(layout.broker_configs(layout.ALL_BROKERS), ConfigNode({RATE: "5000"})),))


def listed(made: World) -> None:
    own = {LISTED: "0:1", "min.insync.replicas": "2"}
    made.commit((Put(layout.topic_configs("t"), ConfigNode(own)),))


CASES: list[tuple[Callable[[World], None], str, str, str, str]] = [
    # how it comes about, kind, level, words of the sentence, words of the advice
    (offline, "offline", "bad", "1 partition without a leader", "Start broker 2"),
    (below, "below_min_insync", "bad", "acks=all is refused: t-0", "wait while replicas"),
    (on_one_machine, "below_min_machines", "bad", "acks=all is refused: t-0", "more machines"),
    (under, "under_replicated", "bad", "1 partition under-replicated", "wait while replicas"),
    (elsewhere, "not_preferred", "notice", "not led by the preferred", "elect-leaders"),
    (unclean, "unclean", "bad", "may lack committed records: t-1", "doctor unclean"),
    (damaged_replica, "replicas_damaged", "bad", "damaged replica, on broker 2: t-1", "log"),
    (
        damaged_everywhere,
        "offline_damaged",
        "bad",
        "every replica damaged: neither read nor written: t-0",
        "See the log of brokers 1, 2, 3: an election cannot help",
    ),
    (damaged_node, "node_damaged", "bad", "/x cannot be read: it is torn", "Repair"),
    (gone_back, "store_went_back", "bad", "gone back in time", "recover.md has the steps."),
    (without_id, "topics_without_id", "bad", "no complete commands: t", "Start every broker"),
    (without_state, "partitions_without_state", "bad", "on record: t-1", "put the node back"),
    (dead, "brokers_dead", "bad", "Dead, with replicas: broker 3", "Start"),
    (
        suspected,
        "brokers_suspected",
        "bad",
        "or it was silent: broker 2",
        "log",
    ),
    (leaving, "brokers_shutting_down", "notice", "or stopped by that: broker 2", "Nothing"),
    (
        presumed,
        "brokers_presumed",
        "notice",
        "controller yet: broker 2",
        "Nothing",
    ),
    (moves_to_the_dead, "moves_wait_for_dead", "bad", "is dead: t-0", "Start broker 4, or"),
    (moves_to_a_damaged_copy, "moves_wait_for_damaged", "bad", "damaged replica", "See the log"),
    (moves, "moves_running", "notice", f"being moved, throttled by {RATE}=5000: t-0", "--list"),
    (resizing, "resizes_running", "notice", "(grow): no leader has reported", "resize.timeout.ms"),
    (owes_a_stop, "stops_owed", "notice", "may still hold a copy: t-0", "start broker 4: the"),
    (
        stopped_moves,
        "moves_wait_for_throttle",
        "bad",
        f"wait for ever, as a throttle is 0: {LEADER_RATE}",
        "--cancel-all",
    ),
    (throttled, "throttles_idle", "notice", f"limit nothing now: {RATE}.", "--delete-config"),
    (listed, "throttles_idle", "notice", f"{LISTED}, with lists of the topics t.", "Remove"),
    (closed, "brokers_cordoned", "notice", "Closed to new replicas", "--decommission N --undo"),
    (cordoned, "log_dirs_cordoned", "notice", "(cordoned.log.dirs): /b of broker 2.", "Nothing"),
    (deleted, "deletions_running", "notice", "Being deleted: t", "by itself"),
    (deleted_of_the_dead, "deletions_unconfirmed", "bad", "broker 3 may still hold", "Start"),
]


@pytest.mark.parametrize(
    ("happens", "kind", "level", "what", "advice"), CASES, ids=[case[1] for case in CASES]
)
def test_every_problem_is_named_with_what_to_do(
    happens: Callable[[World], None], kind: str, level: str, what: str, advice: str
) -> None:
    made = world()
    assert finish(condition(made.cluster))["problems"] == []
    happens(made)
    found = finish(condition(made.cluster))
    (problem,) = (each for each in found["problems"] if each["kind"] == kind)
    assert problem["level"] == level
    assert what in problem["what"]
    assert advice in problem["advice"]
    assert json.loads(json.dumps(found)) == found


def test_a_stop_is_owed_by_a_missing_broker_alone() -> None:
    made = world()
    move(made, 1, 4)
    made.do(reassign(made.cluster, [Asked(T0, None)]))
    assert made.cluster.topic_histories["t"].pending_stops[0].keys() == {4}
    assert finish(condition(made.cluster))["problems"] == [], "4 is there, and is about to stop"
    del made.cluster.brokers[4]
    (problem,) = finish(condition(made.cluster))["problems"]
    assert problem["kind"] == "stops_owed" and "start broker 4: the" in problem["advice"]


def test_throttles_of_lists_are_idle_until_a_listed_replica_is_copied() -> None:
    made = world()
    rate = ConfigNode({LEADER_RATE: "5000"})
    made.commit((Put(layout.broker_configs(layout.ALL_BROKERS), rate),))

    def idle() -> list[str]:
        problems = finish(condition(made.cluster))["problems"]
        return [each["what"] for each in problems if each["kind"] == "throttles_idle"]

    assert idle() == [f"Throttles of replication that limit nothing now: {LEADER_RATE}."]
    listed(made)
    (said,) = idle()
    assert LEADER_RATE in said and LISTED in said
    move(made, 1, 4)
    assert idle() == []
    made.do(reassign(made.cluster, [Asked(T0, None)]))
    assert len(idle()) == 1
    in_state(made, 1, [1, 2])
    assert idle() == [], "a replica that fell out of the ISR is limited, too"


def test_brokers_say_whether_they_get_new_replicas() -> None:
    made = world()
    cordoned(made)
    made.commit((Put(layout.broker_configs("3"), ConfigNode({"cordoned.log.dirs": "*"})),))
    del made.cluster.brokers[3]
    found = finish(condition(made.cluster))["brokers"]
    assert {
        broker: (each["cordoned_log_dirs"], each["takes_new_replicas"])
        for broker, each in found.items()
    } == {"1": ([], True), "2": (["/b"], True), "3": (["*"], False)}


def test_replicas_before_a_move_are_on_record_until_they_are_back() -> None:
    made = world()

    def recorded() -> list[dict[str, object]]:
        return finish(on_record(made.cluster))

    assert recorded() == []
    move(made, 1, 4)
    row = {
        "topic": "t",
        "partition": 0,
        "replicas": [1, 2, 3],
        "original_replicas": [1, 2, 3],
        "target_replicas": [1, 4],
    }
    assert recorded() == [row]
    state = msgspec.structs.replace(made.cluster.states[T0], isr=[1, 2, 3, 4])
    joined = replace(Placement.of(made.cluster, T0), replicas=[1, 2, 3, 4], state=state)
    made.commit(tuple(written(made.cluster, {T0: joined})))
    made.do(reassign(made.cluster, [Asked(T0, None)]))
    cancelled = {**row, "replicas": [1, 2, 3, 4], "target_replicas": None}
    assert recorded() == [cancelled]
    assert json.loads(json.dumps(recorded())) == [cancelled]
    # The deletion of a topic ends its moves, also between two steps.
    begun = on_record(made.cluster)
    next(begun)
    next(begun)
    deleted(made)
    assert finish(begun) == []
    assert recorded() == []


def test_writers_without_a_count_and_their_misplaced_records_have_a_row() -> None:
    made = world()
    topic_id = made.cluster.topic_id("t")
    assert unaware_on_record(made.cluster) == []
    note_unaware(made.cluster, 1, [(topic_id, -1), (UUID(int=99), 7)], 99)
    note_misplaced(made.cluster, 1, [(topic_id, 0), (UUID(int=99), 7)])
    assert unaware_on_record(made.cluster) == []
    note_unaware(made.cluster, 1, [(topic_id, 50)], 50)
    note_unaware(made.cluster, 2, [(topic_id, 40)], 50)
    # Broker 1 counts from 0 again after a restart.
    for broker, count in ((1, 8), (2, 5), (1, 3)):
        note_misplaced(made.cluster, broker, [(topic_id, count)])
    row = {"topic": "t", "last_write_ms": 50, "misplaced_records": 13, "client_ids": []}
    row["broker"] = 1
    assert json.loads(json.dumps(unaware_on_record(made.cluster))) == [row]


def all_responded(_name: str) -> set[int]:
    return set()


def test_a_resize_that_has_closed_nothing_names_the_brokers_that_it_waits_for() -> None:
    made = world()
    made.cluster.level = level_of("1.5")
    made.do(resize_topics(made.cluster, [Growth("t", 4)], made.chance, 0))
    leader = made.cluster.states[T0].leader
    (row,) = plans_on_record(made.cluster, {"t": 900}, lambda name: {leader, 9} if name else set())
    assert (row["step"], row["waits_for_brokers"], row["waited_ms"]) == ("fence", [leader], 900)
    assert 0 in row["waits_for_partitions"]
    (note,) = finish(condition(made.cluster, lambda name: {leader, 9} if name else set()))[
        "problems"
    ]
    assert note["brokers"] == [leader] and "t-0" in note["partitions"]
    assert note["what"].endswith(
        f"(grow): broker {leader} did not respond, and no partition is closed before that."
    )
    (row,) = plans_on_record(made.cluster, {"t": 900}, all_responded)
    assert (row["waits_for_partitions"], row["waits_for_brokers"]) == ([], [])


def test_children_that_are_not_born_lack_no_state() -> None:
    made = world()
    resizing(made)
    kinds = [each["kind"] for each in finish(condition(made.cluster))["problems"]]
    assert kinds == ["resizes_running"]
    assert finish(condition(made.cluster))["counts"]["topics_resizing"] == 1
    (note,) = finish(condition(made.cluster))["problems"]
    assert (note["partitions"], note["brokers"]) == (["t-0"], [1])
    assert note["what"].endswith("fence of partition 0 (broker 1).")
    (row,) = json.loads(json.dumps(plans_on_record(made.cluster, {"t": 1_200}, all_responded)))
    assert (row["unpublished"], row["kind"], row["step"]) == ([2, 4], "grow", "fence")
    assert (row["waits_for_partitions"], row["waits_for_brokers"]) == ([0], [1])
    assert row["waited_ms"] == 1_200
    assert "t from 2 to 4 partitions" in note["what"]
    # The one that was reported, and a step that is being written, name no partition.
    made.do(advance(made.cluster, "t", is_late=True))
    (note,) = finish(condition(made.cluster))["problems"]
    assert "t from 4 to 2 partitions (undo)." in note["what"]
    (row,) = plans_on_record(made.cluster, {}, all_responded)
    assert (row["unpublished"], row["waits_for_partitions"], row["waited_ms"]) == ([2, 2], [], 0)


def test_a_throttle_of_moves_is_idle_when_none_runs() -> None:
    made = world()
    moves(made)
    kinds = [each["kind"] for each in finish(condition(made.cluster))["problems"]]
    assert kinds == ["moves_running"]
    made.do(reassign(made.cluster, [Asked(T0, None)]))
    assert "throttles_idle" in [
        each["kind"] for each in finish(condition(made.cluster))["problems"]
    ]


def test_a_partition_is_named_once_by_the_worst_that_is_wrong_with_it() -> None:
    made = world()
    offline(made)
    kinds = [problem["kind"] for problem in finish(condition(made.cluster))["problems"]]
    assert kinds == ["brokers_suspected", "offline"]
    counted = finish(counts(made.cluster))
    names = ("offline", "under_replicated", "below_min_insync")
    assert [counted[f"partitions_{name}"] for name in names] == [1, 1, 1]


def test_no_election_is_advised_where_every_replica_is_damaged() -> None:
    """A damaged replica leads nothing (promise 16); with one that is not, an election helps."""
    made = world()
    damaged_everywhere(made)
    (problem,) = finish(condition(made.cluster))["problems"]
    assert problem["kind"] == "offline_damaged" and "elect-leaders" not in problem["advice"]
    made.cluster.broken.discard((1, T0))
    problems = {
        each["kind"]: each["advice"] for each in finish(condition(made.cluster))["problems"]
    }
    assert problems.keys() == {"offline", "replicas_damaged"}
    assert "--election-type unclean" in problems["offline"]


def test_brokers_with_replicas_are_listed_dead_or_alive() -> None:
    made = world()
    dead(made)
    suspected(made)
    found = finish(condition(made.cluster))["brokers"]
    conditions = {broker: entry["condition"] for broker, entry in found.items()}
    assert conditions == {"1": "alive", "2": "suspected", "3": "dead"}
    assert finish(condition(made.cluster))["counts"]["brokers_dead"] == 1


def test_long_lists_are_counted_in_the_sentence_and_listed_beside_it() -> None:
    made = World(1, 2)
    made.create(TopicToCreate("t", 2 * NAMES_SHOWN, 2))
    del made.cluster.brokers[2]
    states = {where: PartitionState(1, 1, 1, [1]) for where in made.cluster.states}
    made.commit(tuple(put_state(made.cluster, where, each) for where, each in states.items()))
    (_, problem) = finish(condition(made.cluster))["problems"]
    assert problem["what"].endswith(f"and {NAMES_SHOWN} more.")
    assert len(problem["partitions"]) == 2 * NAMES_SHOWN
    assert "Start broker 2" in problem["advice"]


def test_an_empty_cluster_has_no_problem() -> None:
    assert finish(condition(ClusterState()))["problems"] == []


def test_partitions_of_users_are_named_before_internal_ones() -> None:
    """U15: fifty of __consumer_offsets hid them."""
    made = World(1, 2, 3)
    made.create(TopicToCreate("__consumer_offsets", 50, 1), TopicToCreate("zebra", 1, 1))
    for where, state in sorted(made.cluster.states.items()):
        made.commit((put_state(made.cluster, where, msgspec.structs.replace(state, leader=-1)),))
    (problem,) = (x for x in finish(condition(made.cluster))["problems"] if x["kind"] == "offline")
    assert problem["what"].startswith("51 partitions without a leader")
    assert ": zebra-0, __consumer_offsets-0, " in problem["what"]
    assert problem["partitions"][0] == "zebra-0"


MANY = 2_500


def test_a_look_is_made_in_steps_of_the_state_as_it_was() -> None:
    """Of very many partitions it would hold the loop for a second."""
    made = World(1, 2)
    made.create(TopicToCreate("t", MANY, 1))
    states = made.cluster.states
    for where, state in states.items():
        states[where] = msgspec.structs.replace(state, leader=-1)
    expected = finish(condition(made.cluster))
    steps = condition(made.cluster)
    for _ in range(10):
        next(steps)
    states.clear()
    made.cluster.topics.clear()
    made.cluster.suspected.add(1)
    done = 10
    while True:
        try:
            next(steps)
            done += 1
        except StopIteration as end:
            assert end.value == expected
            break
    assert done >= MANY
    (offline,) = (each for each in expected["problems"] if each["kind"] == "offline")
    assert len(offline["partitions"]) == NAMES_LISTED
    assert offline["partitions"][:2] == ["t-0", "t-1"]
    assert offline["what"].endswith(f"and {MANY - NAMES_SHOWN} more.")
