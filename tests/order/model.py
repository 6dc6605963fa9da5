"""A model of a topic that breathes, its writers and its groups: it makes histories that are legal.

Owns the model. The tests of the checker change one thing in such a history (``mutations``) and
demand that the checker finds it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.order.history import (
    Commit,
    Delivery,
    History,
    KeyState,
    LeaderSeen,
    LogStart,
    MetadataSeen,
    Outcome,
    Registration,
    Resize,
    Rewind,
    Send,
    Stored,
)
from tidelog.partitioning.gates import (
    Fence,
    GroupPosition,
    ResizedPartition,
    deliverable_ends,
    gates_of,
)
from tidelog.partitioning.hashing import hash_of_key, partition_of

MOST = 10
WRITERS = 3
KEYS = 6
BROKERS = 3


@dataclass
class _Partition:
    records: list[int | None] = field(default_factory=list)
    """The uid at each offset; None for a control record."""
    resized: ResizedPartition = field(default_factory=ResizedPartition)
    exists: bool = False
    start: int = 0

    def data_end(self) -> int:
        return next(
            (at + 1 for at in range(len(self.records) - 1, -1, -1) if self.records[at] is not None),
            0,
        )

    def fence(self, resize_epoch: int) -> int:
        offset = len(self.records)
        fence = Fence(resize_epoch, offset, self.data_end())
        self.records.append(None)
        self.resized = replace(self.resized, fences=(*self.resized.fences, fence))
        return offset


class Model:
    """One run; ``history`` is complete after ``finish``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randint(1, 3)
        self.history = History(self.count)
        self.resize_epoch = 0
        self.now = 0.0
        self.partitions = [_Partition(exists=each < self.count) for each in range(MOST)]
        self.sends: list[Send] = []
        self.open: dict[str, list[int]] = {f"w{each}": [] for each in range(WRITERS)}
        """Sends of each writer that are not in the log yet, in their order."""
        self.numbers: dict[tuple[str, str], int] = {}
        self.positions: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.states: dict[str, int] = {}
        """The number of the state of each key that the application has."""
        self.note(Registration("g", self.tick()))

    def tick(self) -> float:
        self.now += 1
        return self.now

    def note(self, event: object) -> None:
        self.history.events.append(event)  # type: ignore[arg-type]

    def run(self, steps: int) -> History:
        """Take random steps, then let everything come to rest."""
        weighted = (
            (self.send, 8),
            (self.append, 8),
            (self.deliver, 8),
            (self.commit, 2),
            (self.rewind, 1),
            (self.resize, 1),
            (self.remove, 1),
            (self.see_metadata, 1),
        )
        for _ in range(steps):
            choice = self.rng.choices(
                [step for step, _ in weighted], [weight for _, weight in weighted]
            )[0]
            choice()
        while any(self.open.values()):
            self.append()
        while self.deliver():
            pass
        self._note_all()
        return self.history

    def send(self) -> None:
        writer, key = f"w{self.rng.randrange(WRITERS)}", f"k{self.rng.randrange(KEYS)}"
        number = self.numbers.get((writer, key), 0)
        self.numbers[writer, key] = number + 1
        uid = len(self.sends)
        self.sends.append(
            Send(uid, key, writer, number, self.resize_epoch, self.tick(), Outcome.INFO)
        )
        self.open[writer].append(uid)

    def append(self) -> None:
        """The oldest open send of a writer ends: appended or not, answered or not."""
        waiting = [each for each in self.open.values() if each]
        if not waiting:
            return
        uid = self.rng.choice(waiting).pop(0)
        send = self.sends[uid]
        fate = self.rng.random()
        if fate < 0.1:
            self.sends[uid] = replace(send, outcome=Outcome.FAIL, done_at=self.tick())
            return
        if fate < 0.15:
            return
        home = partition_of(hash_of_key(send.key.encode()), self.history.initial_count, self.count)
        records = self.partitions[home].records
        records.append(uid)
        if fate < 0.9:
            self.sends[uid] = replace(
                send,
                outcome=Outcome.OK,
                done_at=self.tick(),
                partition=home,
                offset=len(records) - 1 if fate < 0.8 else -1,
            )

    def resize(self) -> None:
        retired = any(each.exists for each in self.partitions[self.count :])
        counts = [
            each
            for each in range(self.history.initial_count, MOST + 1)
            if each < self.count or (each > self.count and not retired)
        ]
        if not counts:
            return
        count = self.rng.choice(counts)
        self.resize_epoch += 1
        if self.rng.random() < 0.2:
            for each in self.partitions[: self.count]:
                each.fence(self.resize_epoch)
            self.note(Resize(self.resize_epoch, count, self.tick(), is_undone=True))
            self.resize_epoch += 1
            for each in self.partitions[: self.count]:
                each.fence(self.resize_epoch)
            self.note(Resize(self.resize_epoch, self.count, self.tick()))
            return
        cuts = {}
        for number in range(max(count, self.count)):
            each = self.partitions[number]
            if number >= self.count:
                each.exists = True
                each.resized = ResizedPartition(self.resize_epoch, len(each.records))
            elif number >= count:
                each.resized = replace(each.resized, retirement_epoch=self.resize_epoch)
            cuts[number] = each.fence(self.resize_epoch)
        self.count = count
        self.note(Resize(self.resize_epoch, count, self.tick(), cuts))

    def remove(self) -> None:
        """Remove the highest retired partition, once the group has committed all of it."""
        highest = max(number for number, each in enumerate(self.partitions) if each.exists)
        each = self.partitions[highest]
        if highest >= self.count and self.committed.get(highest, 0) >= each.data_end():
            each.exists = False
            each.start = len(each.records)
            self.positions[highest] = self.committed[highest] = len(each.records)

    def deliver(self) -> bool:
        """One open partition hands some records to the application."""
        listed = {n: each.resized for n, each in enumerate(self.partitions) if each.exists}
        gates = gates_of(self.history.initial_count, self.resize_epoch, listed)
        ends = deliverable_ends(
            gates, {number: GroupPosition(offset) for number, offset in self.positions.items()}
        )
        ready = []
        for number, resized in listed.items():
            at = self.positions.setdefault(number, resized.first_offset)
            length = len(self.partitions[number].records)
            if at < min(length, ends.get(number, length)):
                ready.append((number, at, min(length, ends.get(number, length))))
        if not ready:
            return False
        number, at, end = self.rng.choice(ready)
        end = min(end, at + self.rng.randint(1, 8))
        for offset in range(at, end):
            uid = self.partitions[number].records[offset]
            if uid is not None:
                key, state, member = self.sends[uid].key, int(self.tick()), f"m{number % 2}"
                self.note(KeyState("g", state, self.states.get(key, -1), uid))
                self.states[key], begun_at = state, self.tick()
                self.note(Delivery("g", member, number, offset, uid, begun_at, self.tick(), state))
        self.positions[number] = end
        return True

    def commit(self) -> None:
        if self.positions:
            number = self.rng.choice(sorted(self.positions))
            self.committed[number] = self.positions[number]
            self.note(Commit("g", number, self.positions[number], self.tick()))

    def rewind(self) -> None:
        """A member ends: its partition is delivered again from the last commit on."""
        known = [number for number in self.positions if self.partitions[number].exists]
        if known:
            number = self.rng.choice(known)
            first = self.partitions[number].resized.first_offset
            self.positions[number] = max(first, self.committed.get(number, first))
            self.note(Rewind("g", number, self.positions[number], self.tick()))

    def see_metadata(self) -> None:
        self.note(
            MetadataSeen(self.rng.randrange(BROKERS), self.resize_epoch, self.count, self.tick())
        )

    def _note_all(self) -> None:
        for number, each in enumerate(self.partitions):
            self.note(LeaderSeen(number, 0, number % BROKERS))
            if each.start:
                self.note(LogStart(number, each.start))
            for offset, uid in enumerate(each.records):
                if uid is not None and offset >= each.start:
                    for reader in ("a", "b"):
                        self.note(Stored(number, offset, uid, reader))
        self.history.events += self.sends
