"""What the controller knows of writers without a partition count, and which brokers it awaits."""

from __future__ import annotations

import msgspec

from tests.support.resizing_world import NOW_MS, ResizingWorld
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.unaware_writers import (
    NEVER,
    ON_RECORD,
    RECORDED_MS,
    last_seen,
    note_unaware,
    recorded,
    unaware_writers,
)
from tidelog.metadata import layout

HOUR_MS = 3_600_000


class Reporting(ResizingWorld):
    """A topic that grew, and heartbeats of its brokers."""

    def __init__(self) -> None:
        super().__init__(2)
        assert self.ask(4) is None
        self.settle()
        self.now_ms = NOW_MS

    def say(self, broker: int, at_ms: int, epoch: int | None = None) -> list[int]:
        """Broker and time of the report; return what the store then has, if it was written."""
        if epoch is not None:
            node = self.cluster.brokers[broker]
            self.cluster.brokers[broker] = msgspec.structs.replace(node, broker_epoch=epoch)
        topic_id = self.cluster.topic_id("t")
        late = note_unaware(self.cluster, broker, [(topic_id, at_ms)], self.now_ms)
        if late:
            self.do(recorded(self.cluster, late))
        return [self.history.unaware_ms] if late else []

    @property
    def seen(self) -> int:
        return last_seen(self.cluster, self.cluster.topic_id("t"))


def test_the_latest_time_of_all_brokers_counts() -> None:
    world = Reporting()
    assert world.seen == NEVER
    world.say(3, NEVER)
    assert world.seen == NEVER
    world.say(2, NOW_MS - 5)
    world.say(1, NOW_MS - 9)
    assert world.seen == NOW_MS - 5
    # Broker 2 restarted on another disk: what it saw counts all the same.
    world.say(2, NEVER, epoch=99)
    assert world.seen == NOW_MS - 5


def test_a_wrong_clock_of_a_broker_hides_no_writer() -> None:
    """A time that changes is of a batch since the last report, whatever it says."""
    world = Reporting()
    world.say(1, NOW_MS + HOUR_MS)
    assert world.seen == NOW_MS, "no write is after its report"
    world.now_ms += HOUR_MS
    world.say(1, NOW_MS - HOUR_MS)
    assert world.seen == NOW_MS + HOUR_MS
    # The same again, as with the rates of a topic: nothing has happened since.
    world.now_ms += HOUR_MS
    world.say(1, NOW_MS - HOUR_MS)
    assert world.seen == NOW_MS + HOUR_MS
    # After a restart its time is what its disk says: not a batch since the last report.
    world.say(1, NOW_MS + HOUR_MS + 1, epoch=99)
    assert world.seen == NOW_MS + HOUR_MS + 1


def test_what_is_reported_of_a_resized_topic_is_written_now_and_then() -> None:
    world = Reporting()
    assert world.say(1, NEVER) == []
    assert world.say(1, NOW_MS) == [NOW_MS + RECORDED_MS]
    world.now_ms += RECORDED_MS
    assert world.say(1, world.now_ms) == [], "the record covers it"
    world.now_ms += 1
    assert world.say(1, world.now_ms) == [world.now_ms + RECORDED_MS]


def test_a_topic_that_was_never_resized_costs_no_write_and_its_growth_takes_all_with_it() -> None:
    world = ResizingWorld(2)
    topic_id = world.cluster.topic_id("t")
    assert note_unaware(world.cluster, 1, [(topic_id, NOW_MS - 7)], NOW_MS) == []
    assert recorded(world.cluster, [topic_id]).writes == ()
    assert world.ask(4) is None
    assert world.history.unaware_ms == NOW_MS - 7


def test_the_next_controller_knows_what_is_on_record_and_awaits_live_brokers() -> None:
    world = Reporting()
    world.say(3, NOW_MS)
    world.next_controller()
    assert unaware_writers(world.cluster, "t") == ({}, [1, 2, 3])
    world.say(1, NEVER)
    assert unaware_writers(world.cluster, "t") == (
        {ON_RECORD: NOW_MS + RECORDED_MS, 1: NEVER},
        [2, 3],
    )
    # A broker that is dead and leads nothing is not waited for: what it reported is on record.
    for where, state in list(world.cluster.states.items()):
        if state.leader == 3:
            elected = msgspec.structs.replace(state, leader=1)
            world.commit((Put(layout.state(*where), elected),))
    del world.cluster.brokers[3]
    assert unaware_writers(world.cluster, "t")[1] == [2]


def test_a_record_that_is_too_far_ahead_does_not_stop_shrinks_for_ever() -> None:
    world = Reporting()
    world.say(3, NOW_MS)
    world.next_controller()
    world.now_ms -= HOUR_MS
    world.say(1, NEVER)
    assert world.seen == world.now_ms + RECORDED_MS


def test_a_report_of_an_unknown_topic_or_broker_changes_nothing() -> None:
    world = Reporting()
    topic_id = world.cluster.topic_id("t")
    assert note_unaware(ClusterState(), 1, [(topic_id, NOW_MS)], NOW_MS) == []
    assert note_unaware(world.cluster, 1, [(topic_id, -2)], NOW_MS) == []
    assert world.seen == NEVER
    # A broker that just died: what it says is true.
    note_unaware(world.cluster, 9, [(topic_id, NOW_MS)], NOW_MS)
    assert world.seen == NOW_MS
