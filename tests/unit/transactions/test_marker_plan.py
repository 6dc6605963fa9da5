"""What the plan of a sender gives to which leader next, and when a transaction is done."""

from __future__ import annotations

import random

import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition
from tidelog.transactions import marker_plan
from tidelog.transactions.marker_plan import NO_LEADER, UNKNOWN, MarkerBatch, MarkerPlan
from tidelog.transactions.markers import Marker
from tidelog.transactions.state import IdAndEpoch

MOST = 1_000
P = [TopicPartition("t", index) for index in range(2_000)]


class World:
    """A plan, the leaders that it knows, and the time."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {}
        self.plan = MarkerPlan(lambda where: self.leaders.get(where, 1))
        self.now = 0
        self.done: list[str] = []

    def add(self, name: str, *partitions: TopicPartition, state_partition: int = 0) -> bool:
        producer = IdAndEpoch(sum(map(ord, name)), 0)
        marker = Marker(producer, committed=True, coordinator_epoch=0)
        return self.plan.add(state_partition, marker, partitions, name, self.now)

    def take(self, leader: int = 1, most: int = MOST) -> list[tuple[str, int]]:
        """Take a batch that is never answered; return its transactions and partitions."""
        batch = self.plan.take(leader, most)
        return [] if batch is None else shown(batch)

    def answer(self, batch: MarkerBatch, *errors: E) -> None:
        """Answer the first entries of a batch."""
        found = self.plan.answered(batch, list(enumerate(errors)), self.now)
        self.done += [sending.token for sending in found]

    def batch(self, leader: int = 1, most: int = MOST) -> MarkerBatch:
        batch = self.plan.take(leader, most)
        assert batch is not None
        return batch

    def move(self, where: TopicPartition, leader: int) -> None:
        self.leaders[where] = leader
        self.plan.moved(self.now)

    def pause(self) -> int:
        """Let the time pass until something is due; return how long that was."""
        until = self.plan.next_ms
        assert until is not None
        paused, self.now = until - self.now, until
        return paused


def shown(batch: MarkerBatch) -> list[tuple[str, int]]:
    return [(sending.token, place.where.partition) for sending, place in batch.entries]


def test_a_transaction_is_done_when_each_partition_is() -> None:
    world = World()
    world.leaders[P[2]] = 2
    assert world.add("a", P[0], P[1], P[2], P[1])
    assert not world.add("none")
    one, two = world.batch(1), world.batch(2)
    assert (shown(one), shown(two)) == ([("a", 0), ("a", 1)], [("a", 2)])
    assert world.plan.take(1, MOST) is None
    world.answer(one, E.NONE, E.NONE)
    # A second response to the same batch changes nothing.
    world.answer(one, E.NONE, E.NONE)
    assert world.done == [] and world.plan.entries == 1
    world.answer(two, E.NONE)
    assert world.done == ["a"]
    assert (len(world.plan), world.plan.entries, list(world.plan.places)) == (0, 0, [])


def test_a_request_names_each_producer_and_topic_once() -> None:
    world = World()
    world.add("a", P[0], TopicPartition("u", 3), P[1])
    world.add("b", P[1])
    batch = world.batch()
    marker = batch.entries[0][0].marker
    grouped = batch.grouped()
    assert grouped[0] == (marker, [("t", [0, 1]), ("u", [3])])
    assert [topics for _, topics in grouped[1:]] == [[("t", [1])]]
    # The errors of a response are in this order.
    assert shown(batch) == [("a", 0), ("a", 1), ("a", 3), ("b", 1)]


def test_a_long_transaction_holds_no_short_one_up() -> None:
    world = World()
    world.add("long", *P[:1_500])
    world.add("short", P[1_999])
    world.add("middle", *P[1_600:1_620])
    batch = world.take(most=100)
    assert len(batch) == 100
    assert {name for name, _ in batch} == {"long", "short", "middle"}
    assert len([1 for name, _ in batch if name == "middle"]) == 20
    taken = batch
    while more := world.take(most=100):
        assert len(more) <= 100
        taken += more
    assert len(taken) == len(set(taken)) == 1_521


@pytest.mark.parametrize(
    "error",
    [E.REQUEST_TIMED_OUT, E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.NOT_ENOUGH_REPLICAS],
)
def test_a_partition_with_an_error_pauses_and_holds_no_other_up(error: E) -> None:
    world = World()
    world.add("a", P[0])
    pauses = []
    for _ in range(10):
        batch = world.batch()
        world.answer(batch, *[error] * len(batch.entries))
        world.add(f"other{len(pauses)}", P[0], P[1])
        assert (f"other{len(pauses)}", 1) in world.take()
        pauses.append(world.pause())
        assert world.plan.due(world.now) == []
    assert pauses == [20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000, 1_000]
    # What came meanwhile goes along.
    batch = world.batch()
    assert len(shown(batch)) == 11
    world.answer(batch, *[E.NONE] * 11)
    assert world.done == ["a"]
    world.add("b", P[0])
    world.answer(world.batch(), error)
    assert world.pause() == 20


@pytest.mark.parametrize("error", [E.TRANSACTION_COORDINATOR_FENCED, E.INVALID_PRODUCER_EPOCH])
def test_a_fenced_marker_pauses_alone(error: E) -> None:
    world = World()
    world.add("fenced", P[0])
    world.answer(world.batch(), error)
    world.add("b", P[0])
    assert world.take() == [("b", 0)]
    assert world.pause() == marker_plan.FENCED_PAUSE_MS
    world.plan.due(world.now)
    assert world.take() == [("fenced", 0)]


def test_markers_go_to_the_next_leader_at_once() -> None:
    world = World()
    world.add("waits", P[0])
    world.add("flies", P[1])
    flying = world.batch(1, 1)
    late = world.batch(1, 1)
    assert shown(flying) + shown(late) == [("waits", 0), ("flies", 1)]
    world.answer(flying, E.NOT_LEADER_OR_FOLLOWER)
    world.move(P[0], 2)
    world.move(P[1], 3)
    assert (world.take(1), world.take(2), world.take(3)) == ([], [("waits", 0)], [("flies", 1)])
    # The former leader's error means nothing now; its success does.
    world.answer(late, E.REQUEST_TIMED_OUT)
    assert world.take(3) == [] and world.plan.next_ms is not None
    world.answer(late, E.NONE)
    assert world.done == ["flies"]


def test_a_batch_without_a_response_is_ready_again() -> None:
    world = World()
    world.add("a", P[0], P[1])
    batch = world.batch()
    world.move(P[1], 2)
    world.plan.lost(batch, world.now)
    assert (world.take(1), world.take(2)) == ([("a", 0)], [("a", 1)])


def test_a_partition_without_a_leader_waits_for_one() -> None:
    world = World()
    world.leaders[P[0]] = NO_LEADER
    world.add("a", P[0])
    assert world.plan.leaders() == []
    for _ in range(3):
        world.pause()
        assert world.plan.due(world.now) == []
    world.move(P[0], 4)
    assert world.plan.leaders() == [4] and world.take(4) == [("a", 0)]


def test_a_partition_that_is_not_known_is_a_question() -> None:
    world = World()
    world.leaders[P[0]] = UNKNOWN
    world.add("a", P[0])
    world.pause()
    (question,) = world.plan.due(world.now)
    assert question.where == P[0]
    # Its end was decided after the question: the answer says nothing of it.
    world.add("b", P[0])
    found = world.plan.gone(question, world.now)
    assert [sending.token for sending in found] == ["a"]
    assert world.plan.gone(question, world.now) == []
    assert len(world.plan) == 1
    world.pause()
    (question,) = world.plan.due(world.now)
    found = world.plan.gone(question, world.now)
    assert [sending.token for sending in found] == ["b"]


def test_so_many_questions_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_plan, "MOST_QUESTIONS", 3)
    world = World()
    world.leaders.update(dict.fromkeys(P[:5], UNKNOWN))
    world.add("a", *P[:5])
    world.pause()
    assert [len(world.plan.due(world.now)) for _ in range(3)] == [3, 2, 0]


def test_nothing_is_done_after_a_stop() -> None:
    world = World()
    world.add("a", P[0], P[1], state_partition=1)
    world.add("b", P[0], state_partition=2)
    batch = world.batch()
    world.add("c", P[0], P[2], state_partition=1)
    world.plan.stop(1, world.now)
    world.answer(batch, *[E.NONE] * 3)
    assert world.done == ["b"] and world.take() == []
    assert (len(world.plan), world.plan.entries, list(world.plan.places)) == (0, 0, [])
    world.add("d", P[0], state_partition=1)
    assert world.take() == [("d", 0)]


def test_so_many_markers_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_plan, "MAX_ENTRIES", 3)
    world = World()
    world.add("a", P[0], P[1])
    world.add("b", *P[2:7])
    world.add("c", P[0], state_partition=1)
    world.add("d", P[0])
    assert world.plan.entries == 7 and len(world.plan) == 4
    batch = world.batch()
    assert {name for name, _ in shown(batch)} == {"a", "b"}
    world.answer(batch, *[E.NONE] * 4)
    assert world.take() == []
    world.plan.stop(1, world.now)
    world.answer(batch, *[E.NONE] * 5)
    assert world.plan.entries == 3 and world.take() == [("d", 0)]


def test_every_transaction_ends_once_whatever_the_leaders_answer() -> None:
    """Leaders move, vanish, refuse, answer late, twice or not at all; coordinators are deposed."""
    draw = random.Random(drawn_seed())
    for _ in range(300):
        play(draw)


def play(draw: random.Random) -> None:
    world = World()
    flying: list[MarkerBatch] = []
    expected: dict[str, int] = {}
    durable: dict[str, set[TopicPartition]] = {}
    wanted: dict[str, set[TopicPartition]] = {}
    errors = [E.NONE, E.NONE, E.NONE, E.REQUEST_TIMED_OUT, E.NOT_LEADER_OR_FOLLOWER]

    def answer(batch: MarkerBatch) -> None:
        answers = [(at, draw.choice(errors)) for at in range(len(batch.entries))]
        for at, error in answers:
            sending, place = batch.entries[at]
            if error is E.NONE:
                durable[sending.token].add(place.where)
        found = [each.token for each in world.plan.answered(batch, answers, world.now)]
        world.done += found

    def check() -> None:
        for name in world.done:
            assert expected.pop(name, None) is not None, f"{name} is done twice or was stopped"
            assert durable[name] >= wanted[name], f"{name} is done too early"
        world.done.clear()
        assert len(world.plan) == len(expected)

    for step in range(draw.randrange(50, 200)):
        world.now += draw.randrange(30)
        kind = draw.randrange(10)
        if kind < 3:
            name = f"{step}"
            parts = draw.sample(P[:12], draw.randrange(1, 8))
            expected[name], durable[name], wanted[name] = draw.randrange(3), set(), set(parts)
            world.add(name, *parts, state_partition=expected[name])
        elif kind < 6:
            batch = world.plan.take(draw.randrange(1, 4), draw.randrange(1, 6))
            if batch is not None:
                flying.append(batch)
        elif kind == 6 and flying:
            # It may be answered again.
            answer(draw.choice(flying))
        elif kind == 7 and flying:
            world.plan.lost(flying.pop(draw.randrange(len(flying))), world.now)
        elif kind == 8:
            world.move(draw.choice(P[:12]), draw.choice([1, 2, 3, NO_LEADER, UNKNOWN]))
        else:
            for question in world.plan.due(world.now):
                if draw.random() < 0.3:
                    for sending in question.sendings:
                        durable[sending.token].add(question.where)
                    world.done += [x.token for x in world.plan.gone(question, world.now)]
        check()
        if draw.random() < 0.01:
            stopped = draw.randrange(3)
            world.plan.stop(stopped, world.now)
            expected = {name: at for name, at in expected.items() if at != stopped}
    # In the end all leaders are there.
    errors[:] = [E.NONE]
    for where in P[:12]:
        world.move(where, 1)
    for batch in flying:
        world.plan.lost(batch, world.now)
    while expected:
        world.now += 1_000
        world.plan.due(world.now)
        while (batch := world.plan.take(1, 5)) is not None:
            answer(batch)
        check()
    assert (len(world.plan), world.plan.entries, list(world.plan.places)) == (0, 0, [])
