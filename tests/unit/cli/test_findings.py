"""What the doctor makes of what it saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tidelog.cli.cluster_facts import ClusterFacts, Severity
from tidelog.cli.doctor import brokers_shown
from tidelog.cli.findings import (
    OFFSETS_REPLICAS,
    TRANSACTIONS_REPLICAS,
    judge,
    no_way_back,
    readable,
)
from tidelog.client.admin.nodes import LogDir
from tidelog.client.admin.transactions import TransactionDescription
from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.metadata import BrokerAddress, Partition, Topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition


def topic(leader: int, isr: tuple[int, ...]) -> Topic:
    partition = Partition(0, leader, 0, (1, 2, 3), isr, ())
    return Topic("t", UUID(int=1), False, {0: partition})


HEALTHY = ClusterFacts(
    cluster_id="c",
    controller_id=1,
    brokers=[BrokerAddress(n, "h", 9000 + n) for n in (1, 2, 3)],
    topics={"t": topic(1, (1, 2, 3))},
    minimum_isr={"t": 2},
    log_dirs={1: [LogDir("/d", None, {TopicPartition("t", 0): 10}, 1000, 500)]},
)


def said(facts: ClusterFacts, level: Severity) -> str:
    return "\n".join(finding.what for finding in judge(facts) if finding.level is level)


def test_a_healthy_cluster_has_nothing_to_do() -> None:
    findings = judge(HEALTHY)
    assert {finding.level for finding in findings} == {Severity.GOOD}
    assert not any(finding.advice for finding in findings)


def test_a_controller_is_named_as_it_names_itself() -> None:
    """Where controllers are processes of their own, clients get a broker's address: it forwards."""
    facts = replace(HEALTHY, condition={"controller_id": 101, "problems": []})
    assert facts.controller == 101
    assert "controller 101" in said(facts, Severity.GOOD)
    gone = replace(HEALTHY, condition=ConnectionLost("gone"))
    assert HEALTHY.controller == gone.controller == 1


def test_a_transaction_that_holds_readers_back_is_named_with_its_age() -> None:
    def opened(name: str, age_ms: int, state: str = "Ongoing") -> Any:
        places = (TopicPartition("t", 0), TopicPartition("t", 3))
        made = TransactionDescription(name, 1, 7, 0, state, 900_000, 1_000, places)
        return made, age_ms

    facts = replace(HEALTHY, transactions=[opened("young", 60_001), opened("old", 16 * 60_000)])
    notes = [one for one in judge(facts) if one.kind == "transaction_open"]
    assert [one.what.split(" is open")[0] for one in notes] == [
        "transaction of old",
        "transaction of young",
    ]
    assert "16 min" in notes[0].what and "t-0, t-3" in notes[0].what
    assert "force-terminate --transactional-id old" in notes[0].advice
    assert {one.level for one in notes} == {Severity.NOTICE}
    assert notes[0].partitions == ["t-0", "t-3"]
    decided = replace(HEALTHY, transactions=[opened("x", 70_000, "PrepareCommit")])
    (note,) = [one for one in judge(decided) if one.kind == "transaction_open"]
    assert "force-terminate" not in note.advice and "markers" in note.advice
    many = replace(HEALTHY, transactions=[opened(f"x{n}", 70_000) for n in range(12)])
    notes = [one for one in judge(many) if one.kind == "transaction_open"]
    assert len(notes) == 11 and notes[-1].what.startswith("2 more transactions")


def test_missing_brokers_and_controllers() -> None:
    facts = replace(HEALTHY, brokers=HEALTHY.brokers[:2], controller_id=-1)
    assert "broker 3" in said(facts, Severity.BAD)
    assert "no controller" in said(facts, Severity.BAD)


def test_partitions_by_how_bad_it_is() -> None:
    for leader, isr, level, words in [
        (-1, (), Severity.BAD, "t-0: no leader"),
        (1, (1,), Severity.BAD, "min.insync.replicas"),
        (1, (1, 2), Severity.BAD, "under-replicated"),
    ]:
        facts = replace(HEALTHY, topics={"t": topic(leader, isr)})
        assert words in said(facts, level)


def test_disks() -> None:
    failed = LogDir("/d", Refused(ErrorCode.KAFKA_STORAGE_ERROR, "/d"), {}, -1, -1)
    for entry, level, words in [
        (failed, Severity.BAD, "out of service"),
        (LogDir("/d", None, {}, 1000, 90), Severity.NOTICE, "free"),
        (LogDir("/d", None, {}, 1000, 20), Severity.BAD, "free"),
        (LogDir("/d", None, {}, -1, -1), Severity.GOOD, "0 replicas"),
    ]:
        assert words in said(replace(HEALTHY, log_dirs={1: [entry]}), level)
    silent = replace(HEALTHY, log_dirs={1: ConnectionLost("gone")})
    assert "did not describe" in said(silent, Severity.BAD)


def test_groups_with_offsets_of_nothing() -> None:
    committed = {"g": {TopicPartition("old", 0): Position(1)}}
    assert "old" in said(replace(HEALTHY, committed=committed), Severity.NOTICE)


def test_groups_that_no_broker_can_keep_are_named() -> None:
    """The doctor found nothing wrong with one broker of the default configuration."""
    alone = replace(HEALTHY, brokers=HEALTHY.brokers[:1], topics={}, offsets_replicas={1: 3})
    (found,) = [each for each in judge(alone) if each.kind == "groups_impossible"]
    assert found.level is Severity.NOTICE and found.brokers == [1]
    assert "__consumer_offsets cannot be created" in found.what
    assert "3 on broker 1, and 1 broker can get replicas" in found.what
    assert f"{OFFSETS_REPLICAS}=1" in found.advice and "more brokers" in found.advice
    there = replace(topic(1, (1,)), name=OFFSETS_TOPIC)
    silent = ConnectionLost("gone")
    closed = {"problems": [], "brokers": {"3": {"takes_new_replicas": 0}}}
    for facts, impossible in [
        (replace(alone, offsets_replicas={1: 1}), False),
        (replace(alone, offsets_replicas={}), False),
        (replace(alone, topics={OFFSETS_TOPIC: there}), False),
        (replace(alone, topics_later={OFFSETS_TOPIC: there}), False),
        (replace(HEALTHY, offsets_replicas={1: 3, 2: 3}), False),
        (replace(HEALTHY, offsets_replicas={1: 3}, condition=closed), True),
        # How many brokers there are is not known then.
        (replace(alone, condition=silent), False),
    ]:
        kinds = {each.kind for each in judge(facts)}
        assert ("groups_impossible" in kinds) is impossible, facts


def test_transactions_that_no_broker_can_keep_are_named() -> None:
    """The refusal of a transactional producer led to a doctor that found nothing wrong."""
    alone = replace(HEALTHY, brokers=HEALTHY.brokers[:1], topics={}, transactions_replicas={1: 3})
    (found,) = [each for each in judge(alone) if each.kind == "transactions_impossible"]
    assert found.level is Severity.NOTICE and found.brokers == [1]
    assert "__transaction_state cannot be created" in found.what
    assert f"{TRANSACTIONS_REPLICAS} is 3 on broker 1" in found.what
    assert f"{TRANSACTIONS_REPLICAS}=1" in found.advice
    there = replace(topic(1, (1,)), name=TRANSACTIONS_TOPIC)
    for level, topics, impossible in [
        ("1.6", {}, True),
        ("1.6", {TRANSACTIONS_TOPIC: there}, False),
        # Nothing creates the topic there.
        ("1.5", {}, False),
    ]:
        report = {"problems": [], "level": level}
        kinds = {each.kind for each in judge(replace(alone, condition=report, topics=topics))}
        assert ("transactions_impossible" in kinds) is impossible, (level, topics)


def test_what_the_controller_says_is_passed_on_once() -> None:
    problem = {
        "kind": "offline",
        "level": "bad",
        "what": "1 partition without a leader: t-0.",
        "advice": "Start it.",
    }
    facts = replace(HEALTHY, topics={"t": topic(-1, ())}, condition={"problems": [problem]})
    assert said(facts, Severity.BAD) == "1 partition without a leader: t-0"
    assert (judge(facts)[0].advice, judge(facts)[0].kind) == ("Start it", "offline")
    passing = {**problem, "level": "notice"}
    assert "t-0" in said(replace(facts, condition={"problems": [passing]}), Severity.NOTICE)


def test_a_silent_controller_does_not_hide_the_rest() -> None:
    facts = replace(HEALTHY, topics={"t": topic(-1, ())}, condition=ConnectionLost("gone"))
    assert "the controller does not respond: gone" in said(facts, Severity.BAD)
    assert "t-0: no leader" in said(facts, Severity.BAD)


def test_a_broker_counts_as_alive_only_when_a_controller_says_so() -> None:
    """A stopped broker was alive on the page while the only controller was down."""
    dirs = {1: HEALTHY.log_dirs[1], 2: ConnectionLost("gone")}
    facts = replace(HEALTHY, log_dirs=dirs, condition=ConnectionLost("gone"))
    shown = {row["broker"]: row["condition"] for row in brokers_shown(facts)}
    assert shown == {1: "responds", 2: "silent", 3: "silent"}
    assert "what the brokers last received from it" in said(facts, Severity.BAD)
    assert "broker 2 did not describe" in said(facts, Severity.BAD)
    of_kafka = replace(HEALTHY, log_dirs=dirs, condition=None)
    assert {row["condition"] for row in brokers_shown(of_kafka)} == {"alive"}
    gone = replace(facts, brokers=HEALTHY.brokers[:2])
    assert "is not alive by the last word of a controller" in said(gone, Severity.BAD)


def controller(node_id: int, active: bool | None, why: str | None = None) -> dict[str, Any]:
    known = None if active is None else node_id
    return {"address": f"h:{node_id}", "controller_id": known, "active": active, "why": why}


def test_controllers_that_stand_by_or_are_missing_are_named() -> None:
    three = [controller(101, True), controller(102, False), controller(103, False)]
    well = replace(HEALTHY, controllers=three)
    assert "controllers that stand by: 102, 103" in said(well, Severity.GOOD)
    assert not said(well, Severity.BAD)
    facts = replace(HEALTHY, controllers=[*three[:2], controller(103, None)])
    (found,) = [each for each in judge(facts) if each.kind == "controllers_silent"]
    assert found.level is Severity.BAD
    assert found.what == "1 of 3 controllers do not respond: h:103"


def test_a_store_that_does_not_answer_is_named_and_not_its_controllers() -> None:
    why = "the metadata store zookeeper://z:2181 does not answer"
    three = [controller(101, True, why), controller(102, False, why), controller(103, False, why)]
    facts = replace(HEALTHY, condition=ConnectionLost("gone"), controllers=three)
    (found,) = [each for each in judge(facts) if each.level is Severity.BAD]
    assert (found.kind, found.what) == ("store_silent", f"no controller can be active: {why}")
    assert "role controller" not in found.advice


def test_unassigned_replicas() -> None:
    def held(*places: TopicPartition) -> ClusterFacts:
        entry = LogDir("/d", None, dict.fromkeys(places, 10), 1000, 500)
        return replace(HEALTHY, log_dirs={4: [entry]})

    for stray in (TopicPartition("t", 0), TopicPartition("t", 7), TopicPartition("gone", 0)):
        assert f"{stray} on broker 4" in said(held(stray), Severity.BAD)
    just_created = replace(
        held(TopicPartition("new", 0)),
        topics_later={"new": replace(topic(1, (1,)), partitions={0: assigned_to_4()})},
    )
    assert said(just_created, Severity.BAD) == ""


MOVE = {
    "topic": "t",
    "partition": 0,
    "replicas": [1, 2, 3],
    "original_replicas": [1, 2],
    "target_replicas": [4, 2],
}


def moving(dirs: list[LogDir] | ClientError, isr: tuple[int, ...] = (1, 2, 3)) -> ClusterFacts:
    """Return the facts while t-0 moves to 4 and 2, and 3 has joined by an earlier request."""
    condition = {"controller_id": 1, "problems": [], "brokers": {}, "reassignments": [MOVE]}
    return replace(
        HEALTHY,
        topics={"t": topic(1, isr)},
        condition=condition,
        log_dirs={**HEALTHY.log_dirs, 4: dirs},
    )


def room(usable: int, *, holds: int | None = None, path: str = "/e") -> LogDir:
    replicas = {} if holds is None else {TopicPartition("t", 0): holds}
    return LogDir(path, None, replicas, 1000, usable)


def test_a_target_of_a_move_is_no_stray() -> None:
    assert said(moving([room(500, holds=3)]), Severity.BAD) == ""


def test_a_move_whose_copy_has_no_room_is_reported() -> None:
    failed = LogDir("/x", Refused(ErrorCode.KAFKA_STORAGE_ERROR, "/x"), {}, -1, -1)
    for dirs, waits in [
        ([room(10)], False),
        ([room(9)], True),
        ([room(9), room(10, path="/f")], False),
        # A copy that has begun stays in its directory.
        ([room(6, holds=3), room(500, path="/f")], True),
        ([room(7, holds=3)], False),
        ([failed], True),
        ([failed, room(10)], False),
        ([LogDir("/x", None, {}, -1, -1)], False),
        ([], False),
    ]:
        found = [each for each in judge(moving(dirs)) if each.kind == "moves_wait_for_room"]
        assert bool(found) is waits, dirs
        for finding in found:
            assert finding.what == "t-0: the move waits for room in a log directory of broker 4"
            assert (finding.partitions, finding.brokers) == (["t-0"], [4])
    assert "waits for room" not in said(moving(ConnectionLost("gone")), Severity.BAD)


def test_under_replication_is_counted_by_the_replicas_before_a_move() -> None:
    facts = moving([room(500)], isr=(1, 2))
    assert "all lead, all in sync" in said(facts, Severity.GOOD)
    facts = moving([room(500)], isr=(1,))
    assert "all lead, all in sync" not in said(facts, Severity.GOOD)


@pytest.mark.parametrize(
    "condition", [ConnectionLost("gone"), {"problems": [{"kind": "store_went_back"}]}]
)
def test_what_no_controller_confirms_is_not_reported_as_good(condition: Any) -> None:
    facts = replace(moving([room(500)]), condition=condition)
    good = said(facts, Severity.GOOD)
    assert "in sync" not in good and "brokers:" not in good
    assert "1 partition of 1 topic: all in sync when a controller last" in said(
        facts, Severity.NOTICE
    )


def assigned_to_4() -> Partition:
    return Partition(0, 4, 0, (4,), (4,), ())


def test_topics_with_one_replica_among_three_brokers_are_noted() -> None:
    def single(name: str) -> Topic:
        return Topic(name, UUID(int=2), False, {0: Partition(0, 1, 0, (1,), (1,), ())})

    facts = replace(HEALTHY, topics={**HEALTHY.topics, "u": single("u"), "v": single("v")})
    (note,) = [each for each in judge(facts) if each.kind == "one_replica"]
    assert note.level is Severity.NOTICE
    assert note.what == "topics with one replica alone: u, v"
    assert "default.replication.factor" in note.advice
    assert note.partitions == ["u-0", "v-0"]
    # Two brokers may be all that there is room for.
    assert not said(replace(facts, brokers=HEALTHY.brokers[:2]), Severity.NOTICE)


def test_the_worst_comes_first() -> None:
    facts = replace(HEALTHY, controller_id=-1, topics={"t": topic(1, (1, 2))})
    levels = [finding.level for finding in judge(facts)]
    assert levels == sorted(levels, key=[Severity.BAD, Severity.NOTICE, Severity.GOOD].index)


def test_sizes() -> None:
    assert [readable(n) for n in (0, 1023, 1536, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]


TOLD_WELL: dict[str, Any] = {
    "brokers": {str(n): {"condition": "alive"} for n in (1, 2, 3)},
    "problems": [],
}


def test_brokers_are_not_ok_beside_a_suspected_one() -> None:
    """U15: "ok brokers" stood beside a suspected one."""
    well = replace(HEALTHY, condition=TOLD_WELL)
    assert "brokers: 1 at h:9001, 2 at" in said(well, Severity.GOOD)
    for condition in ("suspected", "shutting_down", "presumed", "dead"):
        brokers = {**TOLD_WELL["brokers"], "2": {"condition": condition}}
        facts = replace(HEALTHY, condition={"brokers": brokers, "problems": []})
        assert "brokers:" not in said(facts, Severity.GOOD)


def test_partitions_of_users_come_first() -> None:
    """U15: fifty internal ones hid them."""
    places = [TopicPartition("__consumer_offsets", n) for n in range(50)]
    held = dict.fromkeys([*places, TopicPartition("zebra", 0)], 1)
    facts = replace(HEALTHY, log_dirs={4: [LogDir("/d", None, held, 1000, 500)]})
    (finding,) = (each for each in judge(facts) if each.kind == "strays")
    assert finding.what.startswith(
        "replicas that are not assigned to their broker: zebra-0 on broker 4, __con"
    )
    assert (finding.partitions[0], len(finding.partitions)) == ("zebra-0", 51)
    assert finding.brokers == [4]


def test_children_of_a_growth_that_is_not_published_are_no_strays() -> None:
    held = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 1, TopicPartition("t", 2): 1}
    row = {"topic": "t", "unpublished": [1, 2]}
    condition = {"problems": [], "resizes": [row, {"topic": "u", "unpublished": [0, 0]}]}
    dirs = {1: [LogDir("/d", None, held, 1000, 500)]}
    facts = replace(HEALTHY, log_dirs=dirs, condition=condition)
    (finding,) = (each for each in judge(facts) if each.kind == "strays")
    assert finding.partitions == ["t-2"]


def test_late_replicas_have_a_finding_of_their_own() -> None:
    """ "wait: the controller will have them removed" is the opposite of what becomes of them."""
    held = {TopicPartition("new", 0): 1, TopicPartition("new", 1): 1}
    late = {"kind": "replicas_late", "what": "x", "partitions": ["new-0"], "brokers": [1]}
    dirs = {1: [LogDir("/d", None, held, 1000, 500)]}
    facts = replace(HEALTHY, log_dirs=dirs, condition={"problems": [late]})
    found = {each.kind: each.partitions for each in judge(facts) if each.kind}
    assert (found["replicas_late"], found["strays"]) == (["new-0"], ["new-1"])


def test_findings_name_what_they_concern_for_scripts() -> None:
    problem = {"kind": "offline", "what": "x", "partitions": ["t-0"], "brokers": [3]}
    (first, *_) = judge(replace(HEALTHY, condition={"problems": [problem]}))
    assert (first.partitions, first.brokers) == (["t-0"], [3])
    committed = {"g": {TopicPartition("old", 0): Position(1)}}
    (about,) = (x for x in judge(replace(HEALTHY, committed=committed)) if x.groups)
    assert about.groups == ["g"]
    silent = judge(replace(HEALTHY, log_dirs={1: ConnectionLost("gone")}))[0]
    assert (silent.kind, silent.brokers) == ("broker_silent", [1])


def itself(version: str = "1", level: str = "1.4", *, kept: tuple[str, ...] = ()) -> dict[str, Any]:
    aside = [{"path": path, "removed_at_ms": None} for path in kept]
    aside.append({"path": "/d/passes-stray", "removed_at_ms": 5})
    return {"version": version, "level": level, "set_aside": aside}


def test_a_quarantined_directory_that_stays_is_reported() -> None:
    """U15: a broker that restarted within the delay kept them, and no report named them."""
    facts = replace(HEALTHY, own={1: itself(), 2: itself(kept=("/d/t-0-stray",)), 3: None})
    (finding,) = (each for each in judge(facts) if each.level is Severity.NOTICE)
    assert finding.what == "broker 2 keeps quarantined replicas: /d/t-0-stray"
    assert (finding.kind, finding.brokers) == ("set_aside", [2])


def test_half_of_an_upgrade_is_reported() -> None:
    for own, told, expected in [
        ({1: itself(), 2: itself()}, {"version": "1", "level": "1.4"}, []),
        ({1: itself(), 2: None, 3: ConnectionLost("gone")}, {}, []),
        (
            {1: itself("1"), 2: itself("2"), 3: itself("1")},
            {"version": "1"},
            ["several code versions: 1 on broker 1, broker 3, the controller; 2 on broker 2"],
        ),
        (
            {1: itself(level="1.3")},
            {"level": "1.4"},
            [
                "several values of inter.broker.protocol.version: 1.3 on broker 1; "
                "1.4 on the controller"
            ],
        ),
    ]:
        facts = replace(HEALTHY, own=own, condition={"problems": [], **told})
        found = [each.what for each in judge(facts) if each.level is Severity.NOTICE]
        assert found == expected
    topics = {"t": replace(HEALTHY.topics["t"], resize_epoch=1)}
    (found,) = (x for x in judge(replace(facts, topics=topics)) if x.kind == "levels_differ")
    assert "go up to 1.5: t resized, there is no way back" in found.advice


@pytest.mark.parametrize(
    ("topic", "levels", "advice"),
    [
        (TRANSACTIONS_TOPIC, ("1.5", "1.6"), "go up to 1.6: transactions may be open"),
        (TRANSACTIONS_TOPIC, ("1.4", "1.5"), ""),
        ("t", ("1.5", "1.6"), ""),
    ],
)
def test_half_of_a_roll_below_1_6_names_the_transactions(
    topic: str, levels: tuple[str, str], advice: str
) -> None:
    facts = replace(HEALTHY, topics={topic: HEALTHY.topics["t"]})
    found = no_way_back(facts, levels)
    assert found.startswith(advice) and bool(found) is bool(advice)
