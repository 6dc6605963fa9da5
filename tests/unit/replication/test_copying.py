"""The queue of copies: a limit, the smallest first, and no place for what stands still."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidelog.replication.copying import STALLED_MS, CopyQueue


def queue_of(sizes: dict[str, int]) -> CopyQueue[str]:
    queue: CopyQueue[str] = CopyQueue()
    for key, size in sizes.items():
        queue.add(key, size)
    return queue


def test_the_smallest_begin_first_and_at_most_the_limit() -> None:
    queue = queue_of({"c": 30, "a": 10, "d": 40, "b": 20})
    assert queue.turn(2, 0).begin == ["a", "b"]
    assert queue.turn(2, 1).begin == []
    queue.remove("a")
    assert queue.turn(2, 2).begin == ["c"]
    assert (queue.running, queue.waiting) == (2, 1)


def test_equal_sizes_begin_in_the_order_in_which_they_came() -> None:
    queue = queue_of(dict.fromkeys("zyx", 5))
    assert queue.turn(3, 0).begin == ["z", "y", "x"]


def test_a_copy_that_stands_still_gives_its_place_to_the_next_and_waits_after_all() -> None:
    queue = queue_of({"dead": 1, "b": 2, "c": 3})
    assert queue.turn(1, 0).begin == ["dead"]
    assert queue.turn(1, STALLED_MS - 1).end == []
    turn = queue.turn(1, STALLED_MS)
    assert (turn.end, turn.begin) == (["dead"], ["b"])
    queue.progressed("b", STALLED_MS + 1)
    queue.remove("b")
    assert queue.turn(1, STALLED_MS + 2).begin == ["c"]
    queue.remove("c")
    assert queue.turn(1, STALLED_MS + 3).begin == ["dead"]


def test_a_copy_that_left_the_queue_and_comes_again_has_its_turn_by_its_size() -> None:
    queue = queue_of({"dead": 1, "b": 2})
    queue.turn(1, 0)
    assert queue.turn(1, STALLED_MS).end == ["dead"]
    queue.remove("dead")
    queue.add("c", 3)
    queue.add("dead", 1)
    queue.remove("b")
    assert queue.turn(1, STALLED_MS + 1).begin == ["dead"]


def test_a_copy_that_comes_again_larger_has_its_turn_by_its_new_size() -> None:
    queue = queue_of({"a": 1})
    queue.remove("a")
    queue.add("a", 9)
    queue.add("b", 5)
    assert queue.turn(1, 0).begin == ["b"]


def test_without_others_that_wait_a_copy_keeps_its_place() -> None:
    queue = queue_of({"slow": 1})
    queue.turn(8, 0)
    assert queue.turn(8, 100 * STALLED_MS).end == []
    queue.add("next", 1)
    assert queue.turn(1, 100 * STALLED_MS).end == ["slow"]


def test_eight_dead_copies_let_all_others_finish() -> None:
    """Eight copies from a stopped leader, and the others finish."""
    queue = queue_of({f"dead-{at}": 1 for at in range(8)} | {f"live-{at}": 9 for at in range(100)})
    now_ms, finished = 0, set()
    while len(finished) < 100:
        for key in queue.turn(8, now_ms).begin:
            if key.startswith("live"):
                queue.remove(key)
                finished.add(key)
        now_ms += 1000
        assert now_ms <= 3 * STALLED_MS, finished


def test_a_lower_limit_lets_running_copies_end() -> None:
    queue = queue_of(dict.fromkeys("abc", 1))
    assert len(queue.turn(3, 0).begin) == 3
    queue.add("d", 1)
    assert queue.turn(1, 1).begin == []
    for key in "ab":
        queue.remove(key)
    assert queue.turn(1, 2).begin == []
    queue.remove("c")
    assert queue.turn(1, 3).begin == ["d"]


class Queue(RuleBasedStateMachine):
    """Random events; places are never more than the limit, and every copy has a place or waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: CopyQueue[int] = CopyQueue()
        self.known: set[int] = set()
        self.running: set[int] = set()
        self.now_ms = 0

    @rule(key=st.integers(0, 15), size=st.integers(0, 3))
    def add(self, key: int, size: int) -> None:
        self.queue.add(key, size)
        self.known.add(key)

    @rule(key=st.integers(0, 15))
    def remove(self, key: int) -> None:
        self.queue.remove(key)
        self.known.discard(key)
        self.running.discard(key)

    @rule(key=st.integers(0, 15))
    def progress(self, key: int) -> None:
        self.queue.progressed(key, self.now_ms)

    @rule(limit=st.integers(1, 4), passed_ms=st.sampled_from((0, 500, STALLED_MS)))
    def turn(self, limit: int, passed_ms: int) -> None:
        self.now_ms += passed_ms
        before = len(self.running)
        found = self.queue.turn(limit, self.now_ms)
        assert not set(found.begin) & set(found.end)
        assert set(found.end) <= self.running and not set(found.begin) & self.running
        self.running = self.running - set(found.end) | set(found.begin)
        assert len(self.running) <= max(limit, before)
        assert len(self.running) >= min(limit, len(self.known))

    @invariant()
    def all_are_there(self) -> None:
        assert {key for key in self.known if key in self.queue} == self.known
        assert {key for key in self.known if self.queue.has_place(key)} == self.running
        assert len(self.queue) == len(self.known)


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=30)
