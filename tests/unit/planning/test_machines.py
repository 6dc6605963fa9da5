"""Three machines of eight workers through a drawn course: no two replicas on one machine.

Topics are created and grow, workers leave and come back, all is evened out, proposals are made: the
steps are the planner's, and what one leaves the next begins with.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from tidelog.model.topics import TopicPartition
from tidelog.planning.decommission import empty
from tidelog.planning.generation import generate
from tidelog.planning.placement import place_on
from tidelog.planning.plan import Assigned, Plan
from tidelog.planning.rebalancing import rebalance

MACHINES, WORKERS, STEPS = 3, 8, 25


class Course:
    """The partitions of a cluster, and the brokers that may get replicas."""

    def __init__(self, seed: int, racks: dict[int, str | None]) -> None:
        self.rng = random.Random(seed)
        self.racks = racks
        self.usable = set(racks)
        self.replicas: dict[TopicPartition, tuple[int, ...]] = {}
        self.sizes: dict[TopicPartition, int] = {}
        self.done: list[str] = []

    def machines(self, brokers: Iterable[int]) -> int:
        return len({self.racks[broker] for broker in brokers})

    def assigned(self) -> list[Assigned]:
        return [Assigned(tp, self.replicas[tp], self.sizes[tp]) for tp in self.replicas]

    def take(self, plan: Plan) -> None:
        for change in plan.changes:
            assert self.replicas[change.where] == change.before
            self.replicas[change.where] = change.after

    def add(self, topic: str, first: int, count: int, factor: int) -> None:
        usable = {broker: self.racks[broker] for broker in self.usable}
        start = self.rng.randrange(10_000)
        placed = place_on(usable, self.usable, count, factor, start, first)
        for index, replicas in enumerate(placed, first):
            tp = TopicPartition(topic, index)
            self.replicas[tp] = tuple(replicas)
            self.sizes[tp] = self.rng.choice((0, 1_000, 10**9, self.rng.randrange(10**10)))

    def create(self) -> None:
        topics = {tp.topic for tp in self.replicas}
        self.add(f"t{len(topics)}", 0, self.rng.randint(1, 30), self.rng.randint(1, 3))

    def grow(self) -> None:
        topic = self.rng.choice([tp.topic for tp in self.replicas])
        of_topic = [tp for tp in self.replicas if tp.topic == topic]
        factor = len(self.replicas[of_topic[0]])
        self.add(topic, len(of_topic), self.rng.randint(1, 20), factor)

    def leave(self) -> None:
        """A worker is emptied, while its machine has others."""
        leaving = self.rng.choice(sorted(self.usable))
        machine = [x for x in self.usable if self.racks[x] == self.racks[leaving]]
        if len(machine) > 1:
            self.take(empty(self.assigned(), leaving, self.usable, self.racks))
            self.usable.remove(leaving)
            assert all(leaving not in replicas for replicas in self.replicas.values())

    def come_back(self) -> None:
        self.usable = set(self.racks)

    def even_out(self) -> None:
        self.take(rebalance(self.assigned(), self.usable, self.racks))
        counts = Counter(broker for replicas in self.replicas.values() for broker in replicas)
        if self.usable == set(self.racks):
            assert max(counts.values()) - min(counts[x] for x in self.usable) <= 1, counts

    def propose(self) -> None:
        usable = {broker: self.racks[broker] for broker in self.usable}
        self.take(generate(self.assigned(), usable))

    def check(self) -> None:
        for tp, replicas in self.replicas.items():
            assert len(set(replicas)) == len(replicas), (tp, replicas)
            assert self.machines(replicas) == len(replicas), (tp, replicas)


@pytest.mark.parametrize("rack", [None, "a"])
@pytest.mark.parametrize("seed", range(6))
def test_no_step_puts_two_replicas_on_one_machine(seed: int, rack: str | None) -> None:
    machines = [f"machine-{x}" if rack is None else f"{rack}/machine-{x}" for x in range(MACHINES)]
    # As `tidelog up` numbers them: the first workers of all machines come first.
    course = Course(seed, {x: machines[x % MACHINES] for x in range(MACHINES * WORKERS)})
    course.create()
    course.check()
    steps = (course.create, course.grow, course.leave, course.come_back, course.even_out)
    for _ in range(STEPS):
        step = course.rng.choice((*steps, course.propose))
        course.done.append(step.__name__)
        step()
        course.check()
    assert len(set(course.done)) > 3, course.done


@pytest.mark.parametrize("rack", [None, "a"])
def test_a_machine_that_comes_later_ends_that_two_replicas_share_one(rack: str | None) -> None:
    names = [f"machine-{x}" if rack is None else f"{rack}/machine-{x}" for x in range(MACHINES)]
    course = Course(1, {x: names[x // WORKERS] for x in range(MACHINES * WORKERS)})
    course.usable = {x for x in course.racks if x < 2 * WORKERS}
    course.add("t", 0, 40, 3)
    assert all(course.machines(replicas) == 2 for replicas in course.replicas.values())
    course.come_back()
    course.even_out()
    course.check()
