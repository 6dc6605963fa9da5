"""How long retired partitions stay for producers that may ask whether a batch was written."""

from __future__ import annotations

import msgspec

from tests.support.resizing_world import ResizingWorld
from tests.support.retired_topic import EMPTY, TOPIC, changed, held, shrunk
from tidelog.controller.decisions.open_requests import note_retirements, open_until
from tidelog.controller.decisions.removal import remove_retired, to_purge
from tidelog.metadata import layout
from tidelog.metadata.soundness import why_impossible

NOW_MS, DELAY_MS = 1_000_000_000, 120_000
ANSWERS = {4: EMPTY, 5: EMPTY}


def test_nothing_is_purged_or_removed_before_the_last_try_of_a_producer() -> None:
    world = shrunk(retired_purge="drained")
    assert world.do(note_retirements(world.cluster, [TOPIC], NOW_MS)) == [TOPIC]
    last = NOW_MS + DELAY_MS - 1
    full = {4: held(log_start=20), 5: held(log_start=20)}
    for now_ms, gone in ((NOW_MS, []), (last, []), (last + 1, [5, 4])):
        kept = open_until(world.cluster, TOPIC, now_ms, DELAY_MS)
        assert kept == ({} if gone else {4: last + 1, 5: last + 1})
        # Read by all groups, emptied by retention or DeleteRecords, or never with a record.
        assert set(to_purge(world.cluster, TOPIC, full, (), kept)) == set(gone)
        assert remove_retired(world.cluster, TOPIC, ANSWERS, (), kept).answer == gone
        never = dict.fromkeys((4, 5), held(log_start=10, data_end=10, stable_end=12, log_end=12))
        assert remove_retired(world.cluster, TOPIC, never, (), kept).answer == gone


def test_a_time_that_is_unknown_or_in_the_future_is_now_and_is_written_once() -> None:
    world = shrunk()
    later = NOW_MS + DELAY_MS
    # An older version has dropped it, or the clock of the controller was set back.
    for times in ({}, {3: NOW_MS + 1}, {2: NOW_MS - 5, 3: 10 * NOW_MS}):
        changed(world, retired_ms=times)
        assert open_until(world.cluster, TOPIC, NOW_MS, DELAY_MS) == {4: later, 5: later}
        assert open_until(world.cluster, TOPIC, NOW_MS, 0) == {}
        assert world.do(note_retirements(world.cluster, [TOPIC], NOW_MS)) == [TOPIC]
        assert world.cluster.topic_histories[TOPIC].retired_ms == {3: NOW_MS}
        # Neither a look nor another controller begins the time again.
        assert note_retirements(world.cluster, [TOPIC], NOW_MS + 7).writes == ()
        assert open_until(world.cluster, TOPIC, later, DELAY_MS) == {}


def test_nothing_is_written_before_the_publication_or_of_what_cannot_be_read() -> None:
    world = ResizingWorld(2)
    seen = set()

    def noted() -> None:
        plan, found = world.history.resize, note_retirements(world.cluster, ["t"], NOW_MS)
        is_published = plan is None or plan.published
        assert bool(found.writes) == (target == 4 and is_published)
        seen.add(is_published)

    for target in (6, 4):
        assert world.ask(target) is None
        world.settle(noted)
    assert seen == {True, False}
    world.do(note_retirements(world.cluster, ["t"], NOW_MS))
    assert world.history.retired_ms == {world.history.resize_epoch: NOW_MS}
    path = layout.topic_history("t")
    world.cluster.damaged[path] = layout.Damaged(path, "a test")
    assert note_retirements(world.cluster, ["t"], 0).writes == ()


def test_two_shrinks_have_a_time_each_and_what_is_gone_leaves_none() -> None:
    world = ResizingWorld(2)
    for now_ms, count in ((0, 6), (NOW_MS, 4), (NOW_MS + 50, 2)):
        assert world.ask(count) is None
        world.settle()
        world.do(note_retirements(world.cluster, ["t"], now_ms))
    first, second = sorted(world.history.retired_ms)
    assert world.history.retired_ms == {first: NOW_MS, second: NOW_MS + 50}
    found = open_until(world.cluster, "t", NOW_MS + 50, DELAY_MS)
    assert set(found.values()) == {NOW_MS + DELAY_MS, NOW_MS + 50 + DELAY_MS}
    assert set(open_until(world.cluster, "t", NOW_MS + DELAY_MS, DELAY_MS)) == {2, 3}


def test_a_stored_time_that_is_none_is_damage() -> None:
    history = shrunk().cluster.topic_histories[TOPIC]
    for times in ({-1: 5}, {3: -5}, {3: 2**63}):
        wrong = msgspec.structs.replace(history, retired_ms=times)
        assert "retired_ms" in (why_impossible(wrong) or "")
