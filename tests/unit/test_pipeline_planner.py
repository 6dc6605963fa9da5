"""The batch planner: limits, losses, gates, places and tasks, as tables and as a random model."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping

import pytest

from tidelog.pipeline.errors import OptionRefused, PipelineError
from tidelog.pipeline.places import Place, PlaceKind
from tidelog.pipeline.planning.admission import Limits, admit
from tidelog.pipeline.planning.losses import LossKind
from tidelog.pipeline.planning.planner import plan
from tidelog.pipeline.planning.positions import SENTINEL, Pid, Positions, is_sentinel
from tidelog.pipeline.planning.ranges import OffsetRange, ranges_between, split
from tidelog.pipeline.planning.resolve import resolve
from tidelog.pipeline.planning.snapshot import Gate, PartitionState, Snapshot

P = [Pid("t", number) for number in range(8)]
IDS = {"t": "id"}
NO_LIMITS = Limits()


def at(*offsets: int) -> Positions:
    return Positions(dict(zip(P, offsets, strict=False)), IDS)


def log(*bounds: tuple[int, int], gone: Mapping[Pid, int] | None = None) -> Snapshot:
    states = {pid: PartitionState(*bound) for pid, bound in zip(P, bounds, strict=False)}
    return Snapshot(IDS, states, gone or {})


# Offsets


def test_an_offset_is_the_same_text_however_it_was_made() -> None:
    one = Positions({Pid("b", 10): 1, Pid("b", 9): 2, Pid("a", 0, 3): 4}, {"b": "y", "a": "x"})
    two = Positions({Pid("a", 0, 3): 4, Pid("b", 9): 2, Pid("b", 10): 1}, {"a": "x", "b": "y"})
    text = json.dumps(one.to_json())
    assert text == json.dumps(two.to_json())
    assert Positions.from_json(json.loads(text)) == one
    assert '"0@3": 4' in text
    assert is_sentinel(SENTINEL) and not is_sentinel(one.to_json())


def test_an_offset_of_another_source_is_refused_in_one_line() -> None:
    with pytest.raises(PipelineError, match="another source") as refused:
        Positions.from_json({"t": {"0": 5}})
    assert "\n" not in str(refused.value)


# Limits


def test_without_limits_a_batch_takes_all_that_is_readable() -> None:
    assert plan(at(3, 0), log((0, 10), (0, 4)), NO_LIMITS, 0).end == at(10, 4)


def test_nothing_new_gives_the_same_positions() -> None:
    start = at(10, 4)
    assert plan(start, log((0, 10), (0, 4)), NO_LIMITS, 0).end == start


def test_a_new_partition_is_read_from_its_beginning() -> None:
    assert plan(at(10), log((0, 10), (0, 7)), NO_LIMITS, 0).end == at(10, 7)


@pytest.mark.parametrize(
    ("sizes", "limit", "taken"),
    [
        ((100, 300), 40, (10, 30)),
        ((1000, 1), 10, (9, 1)),
        ((10, 10, 10), 1, (1, 1, 1)),
        ((5, 0), 100, (5,)),
        ((7, 7), 14, (7, 7)),
    ],
)
def test_the_limit_is_shared_in_proportion(
    sizes: tuple[int, ...], limit: int, taken: tuple[int, ...]
) -> None:
    ready = dict(zip(P, sizes, strict=False))
    assert admit(ready, limit) == dict(zip(P, taken, strict=False))


def test_half_of_the_limit_goes_first_to_those_that_hold_others_back() -> None:
    taken = admit({P[0]: 100, P[1]: 10_000}, 100, {P[0]})
    assert taken[P[0]] >= 50
    assert sum(taken.values()) <= 101


def test_min_offsets_waits_but_not_for_ever() -> None:
    limits = Limits(min_offsets=20, max_trigger_delay_ms=1000)
    start, snapshot = at(0), log((0, 5))
    assert plan(start, snapshot, limits, 999).end == start
    assert plan(start, snapshot, limits, 1000).end == at(5)
    assert plan(start, log((0, 20)), limits, 0).end == at(20)


def test_gated_records_count_as_available() -> None:
    states = {
        P[0]: PartitionState(0, 15),
        P[1]: PartitionState(0, 15, gates=(Gate(1, 0, ((P[0], 10),)),)),
    }
    limits = Limits(min_offsets=20, max_trigger_delay_ms=1000)
    assert plan(at(0, 0), Snapshot(IDS, states), limits, 0).end == at(15, 0)


# Losses


def test_retention_passed_the_position() -> None:
    made = plan(at(5), log((8, 10)), NO_LIMITS, 0)
    assert [(loss.kind, loss.position, loss.resumes_at) for loss in made.losses] == [
        (LossKind.RETENTION, 5, 8)
    ]
    assert made.end == at(10)
    assert "offsets 5 to 7 were removed" in str(made.losses[0])


def test_a_new_partition_that_lost_its_beginning() -> None:
    assert plan(at(), log((2, 5)), NO_LIMITS, 0).losses[0].kind is LossKind.RETENTION


def test_a_partition_is_gone() -> None:
    made = plan(at(5, 6), log((0, 10)), NO_LIMITS, 0)
    assert [(loss.pid, loss.kind) for loss in made.losses] == [(P[1], LossKind.DELETED)]
    assert made.end == at(10)


def test_a_drained_partition_that_is_gone_is_no_loss() -> None:
    made = plan(at(5, 6), log((0, 5), gone={P[1]: 6}), NO_LIMITS, 0)
    assert made.losses == ()
    assert made.end == at(5)
    assert plan(at(5, 4), log((0, 5), gone={P[1]: 6}), NO_LIMITS, 0).losses


def test_a_log_that_was_cut() -> None:
    made = plan(at(12), log((0, 10)), NO_LIMITS, 0)
    assert made.losses[0].kind is LossKind.REWOUND
    assert made.end == at(10)


# Gates (KIP-253): the model keys by key mod count with counts that double and halve.


def test_a_gate_opens_one_batch_after_its_prerequisite() -> None:
    states = {
        P[0]: PartitionState(0, 30),
        P[1]: PartitionState(0, 9, gates=(Gate(1, 0, ((P[0], 20),)),)),
    }
    snapshot = Snapshot(IDS, states)
    first = plan(at(0, 0), snapshot, NO_LIMITS, 0).end
    assert first == at(30, 0)
    assert plan(first, snapshot, NO_LIMITS, 0).end == at(30, 9)


class Log:
    """Partitions as lists of (key, number); fences and seals occupy an offset, as in elastic.md."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count, self.epoch = 1, 0
        self.records: dict[Pid, list[tuple[int, int] | None]] = {P[0]: []}
        self.gates: dict[Pid, list[Gate]] = defaultdict(list)
        self.live = {0: P[0]}
        self.sent: dict[int, int] = defaultdict(int)
        self.lives = 0

    def produce(self) -> None:
        for _ in range(self.rng.randrange(30)):
            key = self.rng.randrange(16)
            self.records[self.live[key % self.count]].append((key, self.sent[key]))
            self.sent[key] += 1

    def grow(self) -> None:
        old, self.count = self.count, self.count * 2
        self.epoch += 1
        for number in range(old):
            parent = self.live[number]
            fence = len(self.records[parent])
            self.records[parent].append(None)
            self.lives += 1
            child = Pid("t", number + old, self.lives)
            self.live[number + old] = child
            self.records[child] = [None]
            self.gates[child].append(Gate(self.epoch, 0, ((parent, fence + 1),)))

    def shrink(self) -> None:
        self.count //= 2
        self.epoch += 1
        for number in range(self.count):
            retiree = self.live.pop(number + self.count)
            self.records[retiree].append(None)
            survivor = self.live[number]
            fence = len(self.records[survivor])
            self.records[survivor].append(None)
            needs = ((retiree, len(self.records[retiree])),)
            self.gates[survivor].append(Gate(self.epoch, fence, needs))

    def snapshot(self, gates: bool) -> Snapshot:
        states = {
            pid: PartitionState(0, len(records), gates=tuple(self.gates[pid]) if gates else ())
            for pid, records in self.records.items()
        }
        return Snapshot(IDS, states)


def run_history(seed: int, *, gates: bool) -> str | None:
    """One random history, read to its end in micro-batches; the first broken promise, or None."""
    rng = random.Random(seed)
    made = Log(rng)
    position = Positions({}, IDS)
    seen: dict[int, int] = defaultdict(int)
    for step in range(200):
        if step < 40:
            made.produce()
            if rng.random() < 0.3:
                if made.count < 8 and (made.count == 1 or rng.random() < 0.5):
                    made.grow()
                elif made.count > 1:
                    made.shrink()
            if rng.random() < 0.5:
                continue
        limits = Limits(max_offsets=rng.choice((None, 5, 50)))
        end = plan(position, made.snapshot(gates), limits, 0).end
        homes: dict[int, Pid] = {}
        for part in ranges_between(position, end, lambda pid: 0):
            for record in made.records[part.pid][part.start : part.end]:
                if record is None:
                    continue
                key, number = record
                if homes.setdefault(key, part.pid) != part.pid:
                    return f"key {key} came from two partitions in one batch"
                if number != seen[key]:
                    return f"key {key}: {number} after {seen[key] - 1}"
                seen[key] += 1
        if end == position and step >= 40:
            break
        position = end
    return None if seen == made.sent else "records are missing"


def test_no_key_loses_its_order_over_resizes() -> None:
    first = random.randrange(1 << 30)
    print("first seed", first)
    for seed in range(first, first + 150):
        assert run_history(seed, gates=True) is None, f"seed {seed}"


def test_the_check_sees_what_happens_without_gates() -> None:
    assert sum(run_history(seed, gates=False) is not None for seed in range(40)) > 30


# Places


def resolved(place: Place, snapshot: Snapshot, *, latest: bool = False) -> Positions:
    def by_time(times: Mapping[Pid, int]) -> Mapping[Pid, int]:
        return {pid: (7 if ms < 100 else -1) for pid, ms in times.items()}

    return resolve(
        place,
        snapshot,
        option="startingOffsets",
        latest_if_no_match=latest,
        by_time=by_time,
        committed=lambda: {P[0]: 4},
    )


def test_places() -> None:
    snapshot = log((2, 10), (3, 20))
    assert resolved(Place(PlaceKind.EARLIEST), snapshot) == at(2, 3)
    assert resolved(Place(PlaceKind.LATEST), snapshot) == at(10, 20)
    assert resolved(Place(PlaceKind.GROUP), snapshot) == at(4, 3)
    given = Place(PlaceKind.OFFSETS, by_partition={"t": {0: -2, 1: -1}})
    assert resolved(given, snapshot) == at(2, 20)
    given = Place(PlaceKind.OFFSETS, by_partition={"t": {0: 5, 1: 6}})
    assert resolved(given, snapshot) == at(5, 6)
    assert resolved(Place(PlaceKind.TIMESTAMP, timestamp_ms=5), snapshot) == at(7, 7)
    late = Place(PlaceKind.TIMESTAMPS, by_partition={"t": {0: 5, 1: 500}})
    assert resolved(late, snapshot, latest=True) == at(7, 20)
    with pytest.raises(OptionRefused, match="no record at or after 500"):
        resolved(late, snapshot)


@pytest.mark.parametrize("parts", [{0: 5}, {0: 5, 1: 5, 2: 5}])
def test_offsets_must_name_all_partitions_and_no_other(parts: dict[int, int]) -> None:
    with pytest.raises(OptionRefused, match=r"name all|names t-2"):
        resolved(Place(PlaceKind.OFFSETS, by_partition={"t": parts}), log((0, 9), (0, 9)))


# Tasks


def test_ranges_and_their_splits() -> None:
    found = ranges_between(at(0, 5), at(100, 5), lambda pid: 0)
    assert found == [OffsetRange(P[0], 0, 100)]
    assert [part.size for part in split(found, None, 30)] == [25, 25, 25, 25]
    assert [part.size for part in split(found, 3, None)] == [33, 33, 34]
    assert ranges_between(at(), at(9), lambda pid: 4) == [OffsetRange(P[0], 4, 9)]
    two = [OffsetRange(P[0], 0, 900), OffsetRange(P[1], 0, 100)]
    parts = split(two, 10, None)
    assert sum(part.size for part in parts) == 1000
    assert [part.pid for part in parts].count(P[0]) == 9
    assert split(two, 1, None) == two
