"""The batch planner in random histories: no key loses its order, no record is skipped or repeated.

Topics grow, shrink and grow again; some resizes are undone; partitions are removed and come back
where they ended; brokers answer of former times, name ends of later ones, leave partitions out, or
say nothing of them; transactions hold back what may be read; a query begins in the middle and goes
through Spark's JSON between two batches.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.partitioning.gates import Fence, Gate, GroupPosition, ResizedPartition, gates_of
from tidelog.partitioning.hashing import partition_of
from tidelog.pipeline.planning import planner
from tidelog.pipeline.planning.admission import AdmissionLimits
from tidelog.pipeline.planning.losses import LossVerdict, judge
from tidelog.pipeline.planning.planner import plan
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.ranges import OffsetRange, ranges_between, without_former_tails
from tidelog.pipeline.planning.snapshot import FormerEnd, PartitionSnapshot, Snapshot

IDS = {"t": "id"}
KEYS = 16
MOST_PARTITIONS = 9
LIVE_STEPS = 40
STEPS = 600

Forget = Callable[[Positions, Snapshot], Positions]


def pid_of(number: int) -> Pid:
    return Pid("t", number, "id")


Place = tuple[int, int, int]
"""Of a record: its key, its number within the key, and the resize epoch that it was written in."""


@dataclass
class Part:
    """A partition through all of its lives: a record's place in the list is its offset."""

    records: list[Place | None] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    start: int = 0
    first: int = 0
    birth_epoch: int = 0
    retirement_epoch: int = 0
    exists: bool = True
    stable: int = 0
    leader_epoch: int = 0
    former: FormerEnd | None = None

    def fence(self, epoch: int) -> None:
        at = len(self.records)
        data_end = max((n + 1 for n, each in enumerate(self.records) if each), default=self.first)
        self.fences.append(Fence(epoch, at, max(data_end, self.first)))
        self.records.append(None)

    def end_before(self, epoch: int) -> int:
        """Where a leader ends a look-up of a client that knows this resize epoch."""
        newer = [each.offset for each in self.fences if each.resize_epoch > epoch]
        return min([len(self.records), *newer])

    def described(self) -> ResizedPartition:
        return ResizedPartition(
            self.birth_epoch, self.first, self.retirement_epoch, tuple(self.fences)
        )


class Log:
    """One topic; fences and seals occupy an offset, as in docs/design/elastic.md."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.initial = self.count = rng.choice((1, 1, 2, 3))
        self.epoch = 0
        self.parts: dict[int, Part] = {number: Part() for number in range(self.count)}
        self.sent: dict[int, int] = defaultdict(int)

    def produce(self) -> None:
        for _ in range(self.rng.randrange(30)):
            key = self.rng.randrange(KEYS)
            home = partition_of(key, self.initial, self.count)
            self.parts[home].records.append((key, self.sent[key], self.epoch))
            self.sent[key] += 1

    def resize(self) -> None:
        luck = self.rng.random()
        retirees = [part for part in self.parts.values() if part.exists and part.retirement_epoch]
        if luck < 0.1:
            self._undo()
        elif luck < 0.6 and self.count < MOST_PARTITIONS and not retirees:
            self._grow(self.rng.randint(self.count + 1, MOST_PARTITIONS))
        elif self.count > self.initial:
            self._shrink(self.rng.randint(self.initial, self.count - 1))

    def _undo(self) -> None:
        for _ in range(2):
            self.epoch += 1
            for number in range(self.count):
                self.parts[number].fence(self.epoch)

    def _grow(self, count: int) -> None:
        self.epoch += 1
        for number in range(self.count):
            self.parts[number].fence(self.epoch)
        for number in range(self.count, count):
            child = self.parts.setdefault(number, Part())
            # It comes back where it ended.
            child.first = child.start = len(child.records)
            child.exists, child.birth_epoch, child.retirement_epoch = True, self.epoch, 0
            child.fences = []
            child.leader_epoch += 1
            child.fence(self.epoch)
        self.count = count

    def _shrink(self, count: int) -> None:
        self.epoch += 1
        for number in range(count, self.count):
            self.parts[number].fence(self.epoch)
            self.parts[number].retirement_epoch = self.epoch
        for number in range(count):
            self.parts[number].fence(self.epoch)
        self.count = count

    def tidy(self, read_to: Callable[[int], int]) -> None:
        """Remove drained retirees, delete what was read, move leaders, end transactions."""
        for number, part in sorted(self.parts.items(), reverse=True):
            if not part.exists:
                continue
            is_last = not any(each.exists for n, each in self.parts.items() if n > number)
            ended = part.fences[-1] if part.retirement_epoch else None
            if ended is not None and is_last and read_to(number) >= ended.data_end:
                if self.rng.random() < 0.5:
                    part.exists = False
                    part.former = FormerEnd(ended.data_end, len(part.records), self.epoch)
            elif self.rng.random() < 0.1:
                part.start = max(part.start, min(read_to(number), len(part.records)))
            part.leader_epoch += self.rng.random() < 0.1
            if self.rng.random() < 0.5:
                part.stable = self.rng.randint(part.stable, len(part.records))

    def commit_all(self) -> None:
        for part in self.parts.values():
            part.stable = len(part.records)

    def snapshot(self, *, read_committed: bool) -> Snapshot:
        listed = {number: part for number, part in self.parts.items() if part.exists}
        states = {}
        for number, part in listed.items():
            end = max(part.start, part.stable) if read_committed else len(part.records)
            states[pid_of(number)] = PartitionSnapshot(
                part.start, end, part.first, part.leader_epoch, len(part.records)
            )
        former = {pid_of(n): part.former for n, part in self.parts.items() if part.former}
        return Snapshot(IDS, states, former, self.gates(listed), {"t": self.epoch})

    def gates(self, listed: dict[int, Part]) -> dict[str, dict[int, list[Gate]]]:
        described = {number: part.described() for number, part in listed.items()}
        return {"t": gates_of(self.initial, self.epoch, described)}


@dataclass
class Query:
    """What a query has read; `complaint` is the first broken promise."""

    position: Positions
    begin: dict[int, int]
    """Where it begins in each partition that there was; others it reads whole."""
    read: list[Place] = field(default_factory=list)
    last: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    complaint: str | None = None

    def run_batch(self, log: Log, ranges: list[OffsetRange]) -> None:
        homes: dict[int, Pid] = {}
        for part in ranges:
            for offset in range(part.start, part.end):
                record = log.parts[part.pid.partition].records[offset]
                if record is None:
                    continue
                key, number, epoch = record
                if homes.setdefault(key, part.pid) != part.pid:
                    self.complaint = f"key {key} came from two partitions in one batch"
                # Each batch follows the one before it, and (epoch, offset) orders a key as well.
                place = number, epoch, offset
                before = self.last.get(key, (-1, -1, -1))
                if number <= before[0] or (epoch, offset) <= before[1:]:
                    self.complaint = f"key {key}: {place} after {before}"
                self.last[key] = place
                self.read.append(record)


def through_json(positions: Positions) -> Positions:
    return Positions.from_json(json.loads(json.dumps(positions.to_json())))


def begin_somewhere(log: Log, rng: random.Random) -> Query:
    """At the beginning, or anywhere in each partition, before or after any fence."""
    states = log.snapshot(read_committed=False).partitions
    anywhere = rng.random() < 0.6
    at = {
        pid: rng.randint(state.start, state.end) if anywhere else state.start
        for pid, state in states.items()
    }
    epochs = {pid: state.leader_epoch for pid, state in states.items()}
    # A partition that is removed at that time comes back where it ended.
    at |= {
        pid_of(number): len(part.records) for number, part in log.parts.items() if not part.exists
    }
    begin = {number: len(part.records) for number, part in log.parts.items()}
    begin.update((pid.partition, offset) for pid, offset in at.items())
    return Query(Positions(at, IDS, epochs, {"t": log.epoch}), begin)


def look(
    log: Log,
    rng: random.Random,
    seen: list[Snapshot],
    known: Positions,
    *,
    fresh: bool,
    read_committed: bool,
) -> Snapshot:
    """What some broker answers: of now, of former times, with gaps among what the query knows."""
    now = log.snapshot(read_committed=read_committed)
    seen.append(now)
    if fresh:
        return now
    luck = rng.random()
    if luck < 0.2:
        former = rng.choice(seen)
        return replace(
            former,
            partitions={
                # A leader of then was not asked where the epoch of a position of now ends.
                pid: replace(state, epoch_end=-1)
                for pid, state in former.partitions.items()
            },
        )
    if luck < 0.4:
        return of_later_leaders(log, rng.choice(seen), now)
    left_out = {pid for pid in now.partitions if rng.random() < 0.3}
    rest = {pid: state for pid, state in now.partitions.items() if pid not in left_out}
    if luck < 0.6:
        left_out &= known.at.keys()
        rest = {pid: state for pid, state in now.partitions.items() if pid not in left_out}
        shown = {pid.partition: log.parts[pid.partition] for pid in rest}
        if shown.keys() >= set(range(log.initial)):
            ended = {pid: end for pid, end in now.former.items() if pid not in left_out}
            return replace(now, partitions=rest, former=ended, gates=log.gates(shown))
    if luck < 0.7:
        return replace(now, partitions=rest, silent=dict.fromkeys(left_out, "no leader"))
    if luck < 0.8:
        return replace(now, unread={"t": "the controller does not say where partitions ended"})
    return now


def of_later_leaders(log: Log, former: Snapshot, now: Snapshot) -> Snapshot:
    """Metadata and gates of former times, ends of now: leaders end them at the next fence."""
    states, silent = {}, {}
    for pid, state in former.partitions.items():
        newest = now.partitions.get(pid)
        if newest is None or newest.first != state.first:
            # Removed, or another incarnation: the request carries its partition epoch.
            silent[pid] = "no leader"
            continue
        end = min(newest.end, log.parts[pid.partition].end_before(former.resize_epochs["t"]))
        states[pid] = replace(newest, start=min(newest.start, end), end=end, first=state.first)
    return replace(former, partitions=states, silent=silent)


def settled(
    first: Snapshot, position: Positions, rng: random.Random, look_again: Callable[[], Snapshot]
) -> Snapshot:
    """As `Brokers.settled`: what is doubted is looked at again, where another broker responds; that
    one is up to date."""
    doubted = judge(position, first).doubted
    if not doubted or rng.random() < 0.3:
        return first
    second = look_again()
    return replace(second, proven=frozenset(doubted & judge(position, second).doubted))


def run_history(seed: int, *, gates: bool = True, forget: Forget | None = None) -> str | None:
    """One random history, read to its end in micro-batches; the first broken promise, or None."""
    rng = random.Random(seed)
    log = Log(rng)
    read_committed = rng.random() < 0.5
    seen: list[Snapshot] = []
    query: Query | None = None
    begins_at = rng.choice((0, rng.randrange(LIVE_STEPS)))

    def read_to(number: int) -> int:
        if query is None:
            return len(log.parts[number].records)
        return query.position.at.get(pid_of(number), 0)

    for step in range(STEPS):
        live = step < LIVE_STEPS
        if live:
            log.produce()
            if rng.random() < 0.3:
                log.resize()
            log.tidy(read_to)
        else:
            log.commit_all()
        if query is None and step >= begins_at:
            query = begin_somewhere(log, rng)
        if query is None or (live and rng.random() < 0.5):
            continue
        look_now = partial(look, log, rng, seen, query.position, read_committed=read_committed)
        sight = look_now(fresh=not live)
        sight = settled(sight, query.position, rng, partial(look_now, fresh=True))
        if not gates:
            sight = replace(sight, gates={})
        made = plan(
            query.position, sight, AdmissionLimits(max_offsets=rng.choice((None, 5, 50))), 0
        )
        if made.losses:
            return f"a loss without one: {made.losses[0]}"
        # A restart needs the two offsets alone.
        start, end = through_json(query.position), through_json(made.end)
        ranges = without_former_tails(ranges_between(start, end, pytest.fail), sight.former)
        query.run_batch(log, ranges)
        if query.complaint:
            return query.complaint
        if not live and made.end.at == query.position.at:
            break
        query.position = forget(end, sight) if forget else end
    assert query is not None
    return what_is_wrong(log, query)


def what_is_wrong(log: Log, query: Query) -> str | None:
    """Compare what was read with all records from where the query began."""
    wanted = [
        record
        for number, part in log.parts.items()
        for record in part.records[query.begin.get(number, 0) :]
        if record is not None
    ]
    if sorted(wanted) == sorted(query.read):
        return None
    return f"{len(wanted)} records follow the beginning, {len(query.read)} were read"


def test_no_key_loses_its_order_and_no_record_is_skipped() -> None:
    first = drawn_seed()
    for seed in range(first, first + 150):
        assert run_history(seed) is None, f"seed {seed}"


def found(run: Callable[[int], str | None], seeds: int = 60) -> list[str]:
    return [complaint for seed in range(seeds) if (complaint := run(seed)) is not None]


def test_without_gates_order_is_lost() -> None:
    complaints = found(lambda seed: run_history(seed, gates=False))
    assert len(complaints) > 45
    assert any("came from two partitions" in each for each in complaints)


def test_an_unknown_prerequisite_that_counts_as_met_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P22: a partition that a look does not show was not read to where it has to be."""
    right = planner.shut_ends

    def lenient(judged: LossVerdict, snapshot: Snapshot) -> dict[Pid, int]:
        return right(replace(judged, doubted=set()), snapshot)

    monkeypatch.setattr(planner, "shut_ends", lenient)
    complaints = found(run_history)
    assert complaints, "no history has an unknown prerequisite"
    assert all("key" in each for each in complaints), complaints


def test_ends_beyond_a_fence_that_metadata_do_not_know_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What retired partitions hold comes before what follows such a fence."""
    monkeypatch.setattr(Part, "end_before", lambda part, epoch: len(part.records))
    complaints = found(run_history)
    assert complaints and all("key" in each for each in complaints), complaints


def test_a_position_that_is_forgotten_is_found() -> None:
    """P3: what one answer leaves out is read again from its beginning."""

    def forget(end: Positions, sight: Snapshot) -> Positions:
        return replace(end, at={pid: at for pid, at in end.at.items() if pid in sight.partitions})

    complaints = found(lambda seed: run_history(seed, forget=forget))
    assert len(complaints) > 10


def test_gates_below_a_position_that_do_not_count_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P22: a query that begins in the middle may begin after a gate that is shut."""

    right = planner.deliverable_ends

    def from_the_position_on(
        gates: dict[int, list[Gate]], positions: dict[int, GroupPosition]
    ) -> dict[int, int]:
        above = {
            number: [
                gate
                for gate in each
                if gate.offset >= positions.get(number, GroupPosition(0)).offset
            ]
            for number, each in gates.items()
        }
        return right(above, positions)

    monkeypatch.setattr(planner, "deliverable_ends", from_the_position_on)
    assert found(run_history)
