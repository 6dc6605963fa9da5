"""The rules of moves that need no cluster: checks of a plan, its cost, its progress, O."""

from __future__ import annotations

import pytest

from tidelog.cli.reassigning.checks import why_others_run, why_refused
from tidelog.cli.reassigning.cost import Volume, cost_of
from tidelog.cli.reassigning.described import shares, wanted_count
from tidelog.cli.reassigning.directories import verified
from tidelog.cli.reassigning.progress import Samples
from tidelog.cli.reassigning.situation import NOTHING_KNOWN, Dirs, Situation
from tidelog.client.admin.log_dirs import Replica
from tidelog.client.admin.nodes import LogDir, Placements
from tidelog.client.admin.reassignments import Reassignment
from tidelog.client.errors import ConnectionLost, Refused, RequestTimedOut
from tidelog.client.metadata import NO_LEADER, Partition
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RACKS = {1: "a", 2: "b", 3: "c"}


def partition(where: TopicPartition, *replicas: int, leader: int | None = None) -> Partition:
    first = replicas[0] if leader is None else leader
    return Partition(where.partition, first, 5, replicas, replicas, ())


def log_dir(path: str, usable: int, total: int = 1000, **sizes: int) -> LogDir:
    held = {TopicPartition(name[0], int(name[1:])): size for name, size in sizes.items()}
    return LogDir(path, None, held, total, usable)


def situation(
    moves: dict[TopicPartition, Reassignment] | None = None,
    dirs: Dirs | None = None,
    placements: Placements = NOTHING_KNOWN,
) -> Situation:
    partitions = {T0: partition(T0, 1, 2), T1: partition(T1, 2, 3), U0: partition(U0, 3, 9)}
    return Situation(RACKS, partitions, moves or {}, dirs or {}, placements)


def reported(
    originals: dict[TopicPartition, list[int]] | None = None,
    cordoned: dict[int, list[str]] | None = None,
    closed: tuple[int, ...] = (),
) -> Placements:
    """Return what a controller reports, as it comes over the wire."""
    brokers = {
        str(broker): {
            "cordoned_log_dirs": (cordoned or {}).get(broker, []),
            "takes_new_replicas": broker not in closed,
        }
        for broker in (1, 2, 3, 9)
    }
    rows = [
        {"topic": where.topic, "partition": where.partition, "original_replicas": before}
        for where, before in (originals or {}).items()
    ]
    return Placements.of({"brokers": brokers, "reassignments": rows})


MOVING = Reassignment((4, 2, 1), adding=(4,), removing=(1,))
"""t-0 from 1 and 2 to 4 and 2."""


def test_what_a_move_was_and_will_be() -> None:
    assert MOVING.targets == (4, 2)
    assert MOVING.original((1, 2)) == MOVING.original((1, 2, 4)) == (1, 2)
    now = situation({T0: MOVING})
    assert (now.targets(T0), now.original(T0)) == ((4, 2), (1, 2))
    assert now.targets(T1) == now.original(T1) == (2, 3)
    assert now.known_brokers() == {1, 2, 3, 4, 9}
    assert [each.replicas for each in now.assigned()] == [(4, 2), (2, 3), (3, 9)]


def test_the_replicas_on_record_are_those_before_the_first_change() -> None:
    """API 46 cannot say them after a change of targets, and lists no cancelled move."""
    joined = Reassignment((4, 2, 1, 5), adding=(4,), removing=(1, 5))
    now = situation({T0: joined}, placements=reported({T0: [2, 1], T1: [3, 2], U0: [3, 9]}))
    assert [now.original(where) for where in (T0, T1, U0)] == [(2, 1), (3, 2), (3, 9)]
    # U0 has them again: nothing is left to move back.
    assert now.changed() == [T0, T1]
    assert situation({T0: MOVING}).changed() == [T0]
    assert situation(placements=reported({T0: [7, 1]})).known_brokers() == {1, 2, 3, 7, 9}
    gone = reported({TopicPartition("gone", 0): [1]})
    assert situation(placements=gone).changed() == []


def test_partitions_with_a_replica_on_a_dead_broker() -> None:
    assert situation().on_dead_brokers() == [U0]
    away = Reassignment((1, 3, 9), adding=(1,), removing=(9,))
    assert situation({U0: away, T0: MOVING}).on_dead_brokers() == [T0]


def test_reports_of_older_controllers_close_nothing() -> None:
    for report in (None, {}, {"brokers": {"1": {"condition": "alive"}}}):
        assert Placements.of(report) == NOTHING_KNOWN
    assert reported(cordoned={2: ["*"], 3: ["/a"]}, closed=(2,)) == Placements(
        {}, {2: ("*",), 3: ("/a",)}, frozenset({2})
    )


def test_a_plan_may_not_give_a_closed_broker_what_it_does_not_host() -> None:
    now = situation({T0: Reassignment((3, 2, 1), (3,), (1,))}, placements=reported(closed=(3, 9)))
    assert why_refused({T0: (3, 1), T1: (3, 2), U0: (9, 3)}, now) is None
    assert why_refused({T1: (9, 2), U0: (9, 3)}, now) == (
        "the plan gives t-1 to broker 9, which gets no new replicas: cordoned.log.dirs closes it"
    )


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ({T0: (1, 3)}, None),
        # Dead, but in an assignment: the move waits for it.
        ({T0: (1, 9)}, None),
        ({TopicPartition("v", 0): (1,)}, "the plan names topics that do not exist: v"),
        ({TopicPartition("t", 7): (1,)}, "the plan names partitions that do not exist: t-7"),
        (
            {T0: (1, 8), T1: (7,)},
            "the plan names brokers that are neither alive nor in any assignment: 7, 8",
        ),
        ({T0: (1, 2, 3, 9, 10)}, "t-0 would have 5 replicas, and there are 4 brokers"),
    ],
)
def test_what_a_plan_may_not_name(
    targets: dict[TopicPartition, tuple[int, ...]], said: str | None
) -> None:
    assert why_refused(targets, situation()) == said


def test_a_plan_of_which_a_part_runs_may_be_executed_again() -> None:
    now = situation({T0: MOVING})
    assert why_others_run({T0: (4, 2), T1: (1, 2)}, now) is None
    assert why_others_run({T0: (4, 2)}, situation()) is None
    for other in ({T1: (1, 2)}, {T0: (2, 4)}):
        assert (why_others_run(other, now) or "").startswith("other partitions are being reass")


def test_the_cost_of_a_plan_by_broker_and_directory() -> None:
    dirs: Dirs = {
        1: [log_dir("/a", 500, t0=100)],
        2: [log_dir("/b", 500, t0=90, t1=300)],
        3: [log_dir("/c", 250, t1=300, u0=40), log_dir("/d", 240, total=900)],
    }
    cost = cost_of({T0: (3, 2), T1: (3, 1), U0: (1, 9)}, situation(dirs=dirs))
    assert [(each.where, each.size) for each in cost.partitions] == [(T0, 100), (T1, 300), (U0, 40)]
    # A leader that is no target gives leadership to the first target.
    assert [(each.leader, each.new_leader) for each in cost.partitions] == [(1, 3), (2, 3), (3, 1)]
    assert cost.copied_bytes == 440 and cost.unknown == []
    found = [(x.broker, x.paths, x.replicas, x.arriving, x.left) for x in cost.volumes]
    assert found == [(1, ["/a"], 2, 340, 160), (3, ["/c"], 1, 100, 150)]
    assert cost.why_no_room() is None


def test_a_full_directory_is_not_hidden_by_an_unknown_one() -> None:
    silent = RequestTimedOut("broker 3 did not answer")
    dirs: Dirs = {1: [log_dir("/a", 500, t0=100)], 2: [log_dir("/b", 30)], 3: silent}
    cost = cost_of({T0: (1, 3), T1: (2, 9), U0: (2, 3)}, situation(dirs=dirs))
    assert cost.unknown == [3, 9]
    # No broker says the size of t-1 and u-0.
    assert [each.size for each in cost.partitions] == [100, None, None]
    assert cost.why_no_room() is None
    more = cost_of({U0: (2, 3), T0: (1, 2)}, situation(dirs={**dirs, 3: [log_dir("/c", 9, u0=31)]}))
    assert more.why_no_room() == "there is no room for the copies: broker 2 /b lacks 1 B"


def test_a_failed_directory_takes_nothing_and_running_moves_need_room() -> None:
    failed = LogDir("/x", Refused(ErrorCode.KAFKA_STORAGE_ERROR, "/x"), {}, -1, -1)
    dirs: Dirs = {
        1: [log_dir("/a", 500, t0=100)],
        3: [failed, log_dir("/c", 250, u0=40)],
        # Half of t-0 is there already, in the smaller directory.
        4: [log_dir("/e", 80, total=90, t0=50), log_dir("/f", 500)],
    }
    racks = {**RACKS, 4: None}
    now = Situation(racks, situation().partitions, {T0: MOVING}, dirs)
    cost = cost_of({U0: (3, 4)}, now)
    assert [(each.where, each.size) for each in cost.partitions] == [(U0, 40)]
    assert {(x.broker, *x.paths): x.arriving for x in cost.volumes} == {
        (4, "/e"): 50,
        (4, "/f"): 40,
    }


def test_a_broker_whose_log_directories_have_all_failed_gets_nothing() -> None:
    failed = LogDir("/x", Refused(ErrorCode.KAFKA_STORAGE_ERROR, "/x"), {}, -1, -1)
    silent = ConnectionLost("broker 9 is away")
    dirs: Dirs = {1: [failed, failed], 2: [failed, log_dir("/c", 250)], 3: [], 9: silent}
    assert situation(dirs=dirs).diskless() == {1}


def test_directories_of_one_volume_share_its_room() -> None:
    dirs: Dirs = {
        1: [log_dir("/a", 500, t0=60, t1=60)],
        3: [log_dir("/c/1", 100), log_dir("/c/2", 100)],
    }
    cost = cost_of({T0: (3, 2), T1: (3, 1)}, situation(dirs=dirs))
    assert [(x.broker, x.paths, x.left) for x in cost.volumes if x.broker == 3] == [
        (3, ["/c/1", "/c/2"], 40)
    ]
    assert Volume(1, ["/a"], -1, -1, arriving=7).left is None


def test_a_cordoned_directory_is_left_out_unless_all_are() -> None:
    dirs: Dirs = {
        1: [log_dir("/a", 500, t0=60, t1=60)],
        3: [log_dir("/c", 300), log_dir("/d/", 200, total=900), log_dir("/e", 400, total=800)],
    }

    def taken(*cordoned: str) -> list[str]:
        placements = reported(cordoned={3: list(cordoned)})
        cost = cost_of({T0: (3, 2)}, situation(dirs=dirs, placements=placements))
        return [path for each in cost.volumes if each.replicas for path in each.paths]

    assert taken() == ["/e"]
    assert taken("/e") == ["/c"]
    assert taken("/e", "/c") == ["/d/"]
    assert taken("/c", "/d", "/e") == taken("*") == ["/e"]


DIRS: Dirs = {
    1: [log_dir("/a", 500, t0=60), log_dir("/b/", 400, total=900)],
    2: RequestTimedOut("broker 2 did not answer"),
    3: [log_dir("/c", 300), log_dir("/d", 200, total=900)],
}


@pytest.mark.parametrize(
    ("log_dirs", "cordoned", "said"),
    [
        ({Replica(T0, 1): "/b", Replica(T0, 3): "/d/"}, [], None),
        # Of a broker that is silent or dead nothing is known: it refuses by itself.
        ({Replica(T0, 2): "/x", Replica(T0, 9): "/x"}, [], None),
        (
            {Replica(T0, 1): "/x"},
            [],
            "the plan names the log directory /x of broker 1, which it does not have",
        ),
        (
            {Replica(T0, 1): "/b"},
            ["/b"],
            "the plan gives t-0 to the log directory /b of broker 1, which is cordoned",
        ),
        ({Replica(T0, 1): "/a"}, ["/a"], None),
    ],
)
def test_which_log_directories_a_plan_may_name(
    log_dirs: dict[Replica, str], cordoned: list[str], said: str | None
) -> None:
    now = situation(dirs=DIRS, placements=reported(cordoned={1: cordoned}))
    assert why_refused({T0: (1, 2, 3)}, now, log_dirs) == said


def test_the_cost_of_a_plan_with_log_directories() -> None:
    now = situation(dirs=DIRS)

    def arriving(log_dirs: dict[Replica, str]) -> dict[str, int]:
        cost = cost_of({T0: (1, 3)}, now, log_dirs)
        return {path: x.arriving for x in cost.volumes if x.replicas for path in x.paths}

    assert arriving({}) == {"/c": 60}
    assert arriving({Replica(T0, 3): "/d"}) == {"/d": 60}
    # From one directory of broker 1 to another.
    assert arriving({Replica(T0, 1): "/b", Replica(T0, 3): "/d"}) == {"/b/": 60, "/d": 60}
    assert arriving({Replica(T0, 1): "/a/"}) == {"/c": 60}


def test_how_far_replicas_are_on_the_way_to_a_log_directory() -> None:
    copy = LogDir("/b", None, {}, 900, 400, {T0: 10})
    now = situation(dirs={**DIRS, 1: [log_dir("/a", 500, t0=60), copy]})
    wanted = {
        Replica(T0, 1): "/b",
        Replica(T0, 3): "/d",
        Replica(T1, 1): "/a",
    }
    rows = {(row["partition"], row["broker"]): row for row in verified(wanted, now)}
    assert {place: row["state"] for place, row in rows.items()} == {
        (0, 1): "in_progress",
        (0, 3): "missing",
        (1, 1): "missing",
    }
    assert rows[0, 1]["log_dir"] == "/a" and rows[0, 1]["target_log_dir"] == "/b"
    now = situation(dirs=DIRS)
    states = [row["state"] for row in verified({Replica(T0, 1): "/a/"}, now)]
    assert states == ["completed"]
    assert [row["state"] for row in verified({Replica(T0, 1): "/b"}, now)] == ["different"]


def test_replicas_that_a_partition_should_have_are_those_before_its_move() -> None:
    for original, wanted in ((None, 3), ([1, 2], 2)):
        assert wanted_count({"replicas": [1, 2, 3], "original_replicas": original}) == wanted


def watched(dirs: Dirs, *, leader: int = 1, live: tuple[int, ...] = (1, 2, 4)) -> Situation:
    partitions = {T0: partition(T0, 1, 2, leader=leader)}
    return Situation(dict.fromkeys(live), partitions, {T0: MOVING}, dirs)


def test_the_progress_of_a_copy() -> None:
    samples = Samples()
    source = [log_dir("/a", 1, t0=1000)]
    found = [
        samples.copies(watched({1: source, 4: [log_dir("/d", 999, t0=copied)]}), at)
        for at, copied in ((10.0, 100), (12.0, 300), (14.0, 500), (16.0, 1000))
    ]
    assert all(len(rows) == 1 for rows in found), "broker 2 is a replica already"
    first, second, third, last = (rows[0] for rows in found)
    assert (first.where, first.broker, first.copied, first.total) == (T0, 4, 100, 1000)
    assert (first.rate, first.left_s, first.waits_for) == (None, None, "")
    assert (second.rate, second.left_s) == (100.0, 7.0)
    assert (third.rate, third.left_s) == (100.0, 5.0)
    assert (last.rate, last.left_s) == (150.0, 0.0)
    assert last.waits_for == "the in-sync replicas to take it in"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (watched({}, live=(1, 2)), "broker 4 to start: it is not alive"),
        (watched({}, leader=NO_LEADER), "a leader"),
        (watched({4: RequestTimedOut("x")}), "broker 4 to respond"),
        (watched({1: [log_dir("/a", 1, t0=9)], 4: [log_dir("/d", 9)]}), "its turn"),
        # As tidelog doctor judges it, before the copy begins and in mid-copy.
        (
            watched({1: [log_dir("/a", 1, t0=9)], 4: [log_dir("/d", 1)]}),
            "room in a log directory of broker 4",
        ),
        (
            watched({1: [log_dir("/a", 1, t0=9)], 4: [log_dir("/d", 3, t0=5)]}),
            "room in a log directory of broker 4",
        ),
        (
            watched({4: [LogDir("/d", Refused(ErrorCode.KAFKA_STORAGE_ERROR, ""), {}, -1, -1)]}),
            "a log directory: /d failed",
        ),
    ],
)
def test_what_a_copy_waits_for(now: Situation, said: str) -> None:
    (row,) = Samples().copies(now, 1.0)
    assert (row.waits_for, row.left_s) == (said, None)


def test_a_move_waits_for_a_target_that_is_a_replica_and_out_of_sync() -> None:
    """The other targets have joined: without this row nothing says why the move goes on."""
    joined = Partition(0, 4, 5, (4, 2, 1), (4, 1), ())
    now = Situation(dict.fromkeys((1, 4)), {T0: joined}, {T0: MOVING}, {})
    (row,) = Samples().copies(now, 1.0)
    assert (row.broker, row.waits_for) == (2, "broker 2 to start: it is not alive")


def test_the_share_of_a_move_that_is_copied() -> None:
    source, target = [log_dir("/a", 1, t0=1000)], [log_dir("/d", 1, t0=250)]
    assert shares(watched({1: source, 4: target})) == {T0: 0.25}
    # A target that is ahead of what was said of the leader has all of it.
    assert shares(watched({1: source, 4: [log_dir("/d", 1, t0=1001)]})) == {T0: 1.0}
    assert shares(watched({1: source}, live=(1, 2))) == {T0: 0.0}
    assert shares(watched({})) == {}, "no broker says the size"
    nothing_new = Reassignment((2, 1), adding=(), removing=())
    assert shares(situation({T0: nothing_new})) == {T0: 1.0}


def test_the_rate_of_a_copy_that_comes_in_bursts_is_that_of_a_minute() -> None:
    """1 MB each 10 s, as under a throttle of 100 kB/s: neither the burst nor the pause counts."""
    samples = Samples()
    source = [log_dir("/a", 1, t0=100_000_000)]
    for second in range(0, 120, 2):
        copied = (second // 10 + 1) * 1_000_000
        now = watched({1: source, 4: [log_dir("/d", 1, t0=copied)]})
        (row,) = samples.copies(now, float(second), throttle=100_000)
        if second >= 60:
            assert row.rate is not None and 80_000 <= row.rate <= 120_000


def test_a_copy_that_stands_still_says_so() -> None:
    samples = Samples()
    now = watched({1: [log_dir("/a", 1, t0=9)], 4: [log_dir("/d", 9, t0=5)]})
    samples.copies(now, 1.0)
    (row,) = samples.copies(now, 3.0)
    assert row.waits_for == "progress: nothing was copied lately"
    (row,) = samples.copies(now, 3.5, throttle=100_000)
    assert row.waits_for == "the throttle: 100,000 bytes per second, in bursts"
    # A replica that began again has no rate below zero.
    (row,) = samples.copies(watched({1: [log_dir("/a", 1, t0=9)], 4: [log_dir("/d", 1, t0=1)]}), 4)
    assert row.rate == 0
