"""The advice of every refusal of a resize, followed: then the same request succeeds.

A case names the words of the advice, so that it cannot say one thing while the test does another.
``test_no_refusal_is_left_out`` finds each place in the code that refuses a resize, and expects a
case that reaches it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
import pytest

from tests.support.resize_troubles import (
    READ,
    T1,
    Ask,
    Follow,
    Retiring,
    World,
    asked_again,
    below_minimum,
    cancelled,
    caught_up,
    changed,
    committed,
    compacted,
    completed,
    cordoned,
    created,
    created_again,
    damage,
    damaged_in_sync,
    dead_leader,
    delay_over,
    elected,
    elected_unclean,
    few_brokers,
    full_disk,
    full_elsewhere,
    full_follower,
    gone_unread,
    grown,
    handled,
    incomplete,
    large_record,
    largest,
    leaving_leader,
    led,
    looked,
    lost_disk,
    made_room,
    moved_to_more_machines,
    moving,
    not_elected_yet,
    on_machines,
    opened,
    read_just_now,
    records_deleted,
    reported,
    retiring,
    setting,
    small,
    started,
    started_and_caught_up,
    stateless,
    suspected_leader,
    unaware,
    under_way,
    unheard,
    waited,
)
from tests.support.resizing_world import NOW_MS
from tidelog.controller.decisions import (
    growth,
    new_partitions,
    obstacles,
    reassignments,
    resize_requests,
    resizing,
)
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.registration import (
    expire,
)
from tidelog.controller.decisions.resize_requests import UNAWARE_MS
from tidelog.controller.decisions.resize_sentences import why_undone
from tidelog.controller.decisions.resizing import Progress
from tidelog.controller.decisions.settlement import put_state


@dataclass(frozen=True)
class Case:
    """``words`` of the refusal say what ``follow`` does."""

    name: str
    make: Callable[[], World]
    ask: Ask
    words: tuple[str, ...]
    follow: Follow | None


AGAIN = "send the request again"
CASES = (
    Case("no topic", small, Ask(name="nowhere"), ("There is no topic nowhere",), created),
    Case("incomplete", incomplete, Ask(), ("not complete yet", AGAIN), completed),
    Case("under way", under_way, Ask(), ("under way", f"{AGAIN} when it is done"), waited),
    Case("moving", moving, Ask(), ("being reassigned", "cancel their moves"), cancelled),
    Case("the same count", small, Ask(2), ("has 2 partitions already",), None),
    Case("below the first count", grown, Ask(1), ("the smallest count is 2",), changed(count=2)),
    Case("too many", small, Ask(50_001), ("must be at most 50000",), largest),
    Case("too many at once", small, Ask(20_000), ("at most 10000 at once",), largest),
    Case(
        "a compacted topic",
        compacted,
        Ask(4),
        ("it is compacted", "never grows again", "--force"),
        changed(force=True),
    ),
    Case(
        "not looked at yet",
        lambda: Retiring(retired_purge="retention", retention_ms="5"),
        Ask(8),
        ("retired partitions 4 to 5 are listed", "not known yet", "leaders live"),
        looked(records_deleted),
    ),
    Case(
        "retention keeps them",
        lambda: retiring({"g": READ}, retired_purge="retention", retention_ms="5000"),
        Ask(8),
        ("at most 160 records: retention removes them retention.ms (5000)", "Wait for that"),
        looked(records_deleted),
    ),
    Case(
        "retention keeps them for ever",
        lambda: retiring({"g": READ}, retired_purge="retention", retention_ms="-1"),
        Ask(8),
        ("no time limit removes them", "set retired.purge=drained"),
        looked(setting("retired.purge", "drained")),
    ),
    Case(
        "a group has not read them",
        lambda: retiring({"g": {4: 7}}, retired_purge="drained"),
        Ask(8),
        (
            "have not committed past them: g (its offsets expire at 1970-01-01T02:46:40Z)",
            "When no group has committed offsets of the topic, retention removes them",
            "Let these groups read them. Or",
        ),
        looked(committed({"g": READ})),
    ),
    Case(
        "a group has not read them, by hand",
        lambda: retiring({"g": {4: 7}}, retired_purge="drained"),
        Ask(8),
        ("Or set retired.purge=retention and delete their records (`tidelog delete-records`",),
        looked(setting("retired.purge", "retention"), records_deleted),
    ),
    Case(
        "one of two groups has not read them",
        lambda: retiring({"g": {4: 7}, "done": READ}, retired_purge="drained"),
        Ask(8),
        ("past them: g (", "delete those without members (tidelog groups --delete)"),
        looked(committed({"done": READ})),
    ),
    Case(
        "a group has not committed past what is gone",
        gone_unread,
        Ask(8),
        ("They hold no records, but groups have not committed past them: g (", "--delete"),
        looked(committed({})),
    ),
    Case(
        "all groups have read them just now",
        read_just_now,
        Ask(8),
        (
            "They hold 160 records, which all groups have read. Before 1970-01-01T02:48:40Z none",
            "(retired.purge.delay.ms): a producer may ask",
            "Wait until then.",
        ),
        looked(delay_over),
    ),
    Case(
        "they are empty, and retired just now",
        lambda: read_just_now(start=100),
        Ask(8),
        ("They hold no records. Before 1970-01-01T02:48:40Z none is removed", "Wait until then."),
        looked(delay_over),
    ),
    Case(
        "no group has committed",
        lambda: retiring({}, retired_purge="drained"),
        Ask(8),
        ("no group has committed offsets of the topic", "Have a group read and commit them"),
        looked(committed({"new": READ})),
    ),
    Case(
        "no group has committed, by hand",
        lambda: retiring({}, retired_purge="drained"),
        Ask(8),
        ("Or delete their records (`tidelog delete-records`",),
        looked(records_deleted),
    ),
    Case(
        "groups cannot be asked",
        lambda: retiring(None, retired_purge="drained"),
        Ask(8),
        ("not all groups can be asked", "__consumer_offsets has its leaders"),
        looked(committed({"g": READ})),
    ),
    Case(
        "compaction keeps them",
        lambda: retiring({"g": READ}, cleanup_policy="compact"),
        Ask(8),
        ("which compaction keeps for good", "set cleanup.policy=compact,delete and delete their"),
        looked(setting("cleanup.policy", "compact,delete"), records_deleted),
    ),
    Case("no state", stateless, Ask(), ("t-1 has no nodes yet", f"{AGAIN} when it has"), led),
    Case("a dead leader", dead_leader, Ask(), ("t-0", "broker 1", "start it"), started(1)),
    Case(
        "a lost disk",
        lost_disk,
        Ask(),
        ("t-0", "broker 1 had its records last", "--election-type unclean"),
        elected_unclean,
    ),
    Case(
        "not elected yet",
        not_elected_yet,
        Ask(),
        ("t-0 has no leader now", f"{AGAIN} when one is elected"),
        elected,
    ),
    Case(
        "a suspected leader",
        suspected_leader,
        Ask(),
        ("t-0 has no live leader (broker 1", "suspected", "see whether it runs"),
        started(1),
    ),
    Case(
        "a leader that leaves",
        leaving_leader,
        Ask(),
        ("t-0 loses its leader (broker 1", "start it again"),
        started(1),
    ),
    Case(
        "damaged everywhere",
        lambda: damage(small(factor=1), 1),
        Ask(),
        ("t-0 has no leader", "broker 1, is damaged", "delete the topic and create it again"),
        created_again,
    ),
    Case(
        "damaged in sync",
        damaged_in_sync,
        Ask(),
        ("t-0 has no leader (what was in sync, on broker 1", "--election-type unclean"),
        elected_unclean,
    ),
    Case(
        "a full disk",
        full_disk,
        Ask(),
        ("broker 2 cannot write t-0 (/data: the disk is full)", "make room there"),
        made_room,
    ),
    Case("a full follower", full_follower, Ask(), ("(/data: the disk is full)",), made_room),
    Case(
        "a full disk of a child",
        full_elsewhere,
        Ask(4, ((3,), (1,))),
        ("broker 3 has no room for the new t-2 (/data: the disk is full)", "make room there"),
        made_room,
    ),
    Case(
        "a full disk of a child, elsewhere",
        full_elsewhere,
        Ask(4, ((3,), (1,))),
        ("name other brokers (--replica-assignment)",),
        changed(assignments=((2,), (1,))),
    ),
    Case(
        "too few in sync",
        lambda: below_minimum(dead=False),
        Ask(),
        ("t-1 has 1 replicas in sync and needs 2", "wait until broker 3 has caught up"),
        caught_up,
    ),
    Case(
        "too few alive",
        lambda: below_minimum(dead=True),
        Ask(),
        ("t-1 has 1 replicas in sync and needs 2", "start broker 3, and wait until"),
        started_and_caught_up,
    ),
    Case(
        "in sync on too few machines",
        lambda: on_machines(lagging=True),
        Ask(),
        ("t-1 has replicas in sync on 1 machines and needs 2", "start broker 3, and wait until"),
        caught_up,
    ),
    Case(
        "placed on too few machines",
        lambda: on_machines(lagging=False),
        Ask(),
        ("t-1 has replicas in sync on 1 machines", "move the partition to more machines"),
        moved_to_more_machines,
    ),
    Case(
        "unaware writers",
        unaware,
        Ask(4),
        ("wrote to it 0 minutes ago", "wait for an hour"),
        changed(now_ms=NOW_MS + UNAWARE_MS),
    ),
    Case(
        "unaware writers, forced",
        unaware,
        Ask(4),
        # U: what forcing costs was in the documentation alone.
        ("--force) loses records", "refused for good, and their producers give it up"),
        changed(force=True),
    ),
    Case("leaders are silent", unheard, Ask(4), ("has not said", "loses records"), reported),
    Case(
        "an assignment of a shrink",
        grown,
        Ask(4, ()),
        ("a shrink has no new partitions; leave it out",),
        changed(assignments=None),
    ),
    Case(
        "too few entries",
        small,
        Ask(4, ((1, 2),)),
        ("it has 1 entries, but 2 are new",),
        changed(assignments=((1, 2), (2, 3))),
    ),
    Case(
        "no replicas",
        small,
        Ask(4, ((1, 2), ())),
        ("a partition has no replicas",),
        changed(assignments=((1, 2), (2, 3))),
    ),
    Case(
        "a broker twice",
        small,
        Ask(4, ((1, 2), (2, 2))),
        ("a broker is named twice",),
        changed(assignments=((1, 2), (2, 3))),
    ),
    Case(
        "a broker that is not there",
        small,
        Ask(4, ((1, 2), (2, 9))),
        ("there is no live broker 9",),
        started(9),
    ),
    Case(
        "a cordoned broker is named",
        lambda: cordoned(2),
        Ask(4, ((1, 2), (2, 1))),
        ("broker 2 gets no new replicas", "cordoned"),
        opened,
    ),
    Case(
        "another factor",
        small,
        Ask(4, ((1, 2), (2,))),
        ("the same number of replicas",),
        changed(assignments=((1, 2), (2, 3))),
    ),
    Case("too few brokers", few_brokers, Ask(), ("factor of 2 needs as many",), started(2)),
    Case("cordoned brokers", lambda: cordoned(2), Ask(), ("cordoned.log.dirs closes 2",), opened),
    Case(
        "a large record",
        large_record,
        Ask(),
        ("20 unclean elections that are not handled", "Start the brokers"),
        handled,
    ),
    Case("large nodes", small, Ask(500), ("The largest count is",), largest),
    Case("many ends", small, Ask(400), ("created with 2, and the largest count is",), largest),
)
LIMITS = {
    "a large record": ("MOST_RECORD_BYTES", 500),
    "large nodes": ("MOST_BYTES", 2_000),
    "many ends": ("MOST_RECORD_BYTES", 3_000),
}


def refused_first(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[World, Ask]:
    world, ask = case.make(), msgspec_copy(case.ask)
    if case.name in LIMITS:
        monkeypatch.setattr(resize_requests, *LIMITS[case.name])
    refusal = asked_again(world, ask)
    assert refusal is not None, case.name
    for words in case.words:
        assert words in refusal.sentence, refusal.sentence
    assert "\n" not in refusal.sentence
    return world, ask


def msgspec_copy(ask: Ask) -> Ask:
    return Ask(ask.count, ask.assignments, ask.force, ask.name, ask.now_ms)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_advice_followed_makes_the_request_succeed(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, ask = refused_first(case, monkeypatch)
    if case.follow is not None:
        case.follow(world, ask)
        again = asked_again(world, ask)
        assert again is None, again.sentence


def test_internal_topics_get_their_count_when_they_are_created() -> None:
    """The one refusal whose advice is for the time before."""
    world = small()
    name = "__consumer_offsets"
    world.create(TopicToCreate(name, 2, 1))
    refusal = asked_again(world, Ask(name=name))
    assert refusal is not None
    assert "Set the count before the topic is created." in refusal.sentence
    world.do(delete_topics(world.cluster, [PendingDelete(name)]))
    world.create(TopicToCreate(name, 4, 1))
    assert len(world.cluster.topics[name].partitions) == 4


# A resize that was undone ------------------------------------------------------------------------


def begun(world: World) -> World:
    assert asked_again(world, Ask()) is None
    world.ask(4)
    world.write_all()
    return world


def at_births(world: World) -> World:
    begun(world)
    world.report()
    world.advance()
    return world


@pytest.mark.parametrize(
    ("make", "break_it", "words", "follow"),
    [
        (
            lambda: begun(small(factor=1)),
            lambda world: world.do(expire(world.cluster, [1])),
            "t-0 has no live leader (broker 1 had its records last). It has 2 partitions as "
            "before: start it, then send the request again",
            started(1),
        ),
        (
            lambda: begun(small(factor=1)),
            lambda world: world.fill_disk(1),
            "broker 1 cannot write t-0 (/data: the disk is full). It has 2 partitions as before: "
            "make room there",
            made_room,
        ),
        (
            lambda: at_births(small(factor=1, brokers=4)),
            lambda world: world.do(expire(world.cluster, [world.state(2).leader])),
            "t-2 has no live leader",
            lambda *_: None,
        ),
        (
            lambda: at_births(small(factor=1, brokers=4)),
            lambda world: world.fill_disk(world.state(2).leader),
            "new partitions go to brokers that are alive and have room",
            lambda *_: None,
        ),
        (
            lambda: at_births(small(factor=1, brokers=4)),
            lambda world: world.fill_disk(world.state(2).leader, held=()),
            "has no room for the new t-2 (/data: the disk is full)",
            lambda *_: None,
        ),
    ],
)
def test_an_undo_comes_at_once_and_names_the_remedy_of_its_cause(
    make: Callable[[], World], break_it: Callable[[World], object], words: str, follow: Follow
) -> None:
    world = make()
    plan = world.plan
    assert world.advance().progress is Progress.WAITS
    assert not resizing.is_stuck(world.cluster, "t")
    break_it(world)
    assert resizing.is_stuck(world.cluster, "t") or plan.step == "birth"
    undone = world.advance()
    assert undone.progress is Progress.UNDONE
    refusal = why_undone("t", plan, undone, 10_000)
    assert words in refusal.sentence, refusal.sentence
    world.settle()
    follow(world, Ask())
    assert world.ask(4) is None
    world.settle()
    assert world.shown[0] == 4


def test_what_passes_by_itself_ends_no_resize_before_its_time() -> None:
    """A follower that lives, and catches up."""
    world = below_minimum(dead=False)
    caught_up(world, Ask())
    begun(world)
    plan = world.plan
    lagging = msgspec.structs.replace(world.state(1), isr=[world.state(1).leader])
    world.commit((put_state(world.cluster, T1, lagging),))
    assert world.advance().progress is Progress.WAITS
    assert not resizing.is_stuck(world.cluster, "t")
    undone = world.advance(is_late=True)
    assert undone.progress is Progress.UNDONE
    refusal = why_undone("t", plan, undone, 10_000)
    assert "because t-1 has 1 replicas in sync and needs 2" in refusal.sentence
    assert "wait until broker 3 has caught up" in refusal.sentence


# All refusals ------------------------------------------------------------------------------------

ASKED: dict[ModuleType, set[str] | None] = {
    resize_requests: None,
    growth: {"replicas_of_new"},
    new_partitions: {"why_not_numbers", "why_too_many", "why_not_assigned"},
    obstacles: None,
    reassignments: {"why_resize_waits"},
}
"""The functions that refuse a resize; None for all of a module."""

ELSEWHERE = {
    "is named more than once": "test_resize_requests: the name once",
    "There is no topic {name}": "a case",
    "keeps its partition count": "a test of its own above",
    "must be from 1 to": "a resize has checked the count",
    "must be larger than 0": "the topic has a factor",
    "did not respond, and no": "test_resize_beginnings: it responds, and the same request succeeds",
    "no broker of the new": "test_resizing: a child that has no nodes yet",
}
"""Refusals that no case meets, and why."""

MAKE = {"RequestRefusal", "Obstacle", "bad_assignment"}


def refusals_in(module: ModuleType) -> Iterator[tuple[int, int, str]]:
    """Yield the first and last lines of each statement that makes a refusal, and its function."""
    wanted = ASKED[module]
    for function in ast.parse(inspect.getsource(module)).body:
        if not isinstance(function, ast.FunctionDef) or function.name == "bad_assignment":
            continue
        for node in ast.walk(function) if wanted is None or function.name in wanted else ():
            named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if named and node.func.id in MAKE:
                yield node.lineno, node.end_lineno or node.lineno, function.name


def test_no_refusal_is_left_out() -> None:
    """Each place that makes a refusal is reached by a case, or named above."""
    seen: dict[str, set[int]] = {str(module.__file__): set() for module in ASKED}

    def note(frame: Any, _event: str, _argument: object) -> Any:
        lines = seen.get(frame.f_code.co_filename)
        if lines is None:
            return None
        lines.add(frame.f_lineno)
        return note

    before = sys.gettrace()
    for case in CASES:
        with pytest.MonkeyPatch.context() as patch:
            sys.settrace(note)
            try:
                refused_first(case, patch)
            finally:
                sys.settrace(before)
    left = []
    for module in ASKED:
        lines = inspect.getsource(module).splitlines()
        for first, last, function in refusals_in(module):
            if seen[str(module.__file__)].isdisjoint(range(first, last + 1)):
                around = " ".join(lines[max(0, first - 8) : last])
                if not any(words in around for words in ELSEWHERE):
                    left.append((module.__name__, function, first))
    assert not left
