"""Gates in random histories of one topic: the order of a key holds, and no reader is stuck.

The model writes records of a few keys while its topic grows, shrinks, has resizes undone, loses
fences in unclean elections and removes partitions. A reader takes what the gates allow, in any
order and in pieces; it must receive each key's records in the order of their writing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.partitioning.gates import (
    Fence,
    Gate,
    GroupPosition,
    Prerequisite,
    ResizedPartition,
    deliverable_ends,
    gates_of,
)
from tidelog.partitioning.hashing import partition_of

KEYS = 24
MOST = 14
"""The largest partition count of the model."""


@dataclass
class ModelPartition:
    """A partition through all of its incarnations: a record's place in the list is its offset."""

    records: list[tuple[int, int] | None] = field(default_factory=list)
    """(key, number of the record in its key); None for a control record."""
    listed: ResizedPartition = field(default_factory=ResizedPartition)
    exists: bool = False

    def append_fence(self, resize_epoch: int) -> None:
        end = len(self.records)
        fence = Fence(resize_epoch, end, self.data_end())
        self.records.append(None)
        self.listed = replace(self.listed, fences=(*self.listed.fences, fence))

    def data_end(self) -> int:
        end = len(self.records)
        while end and self.records[end - 1] is None:
            end -= 1
        return end


class Topic:
    """The model of a topic."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.initial = self.count = rng.randint(1, 4)
        self.resize_epoch = 0
        self.partitions = [ModelPartition() for _ in range(MOST)]
        for each in self.partitions[: self.count]:
            each.exists = True
        self.written = [0] * KEYS

    def write(self) -> None:
        for _ in range(self.rng.randint(0, 12)):
            key = self.rng.randrange(KEYS)
            home = partition_of(key * 2_654_435_761 % 2**31, self.initial, self.count)
            self.partitions[home].records.append((key, self.written[key]))
            self.written[key] += 1

    def resize(self) -> None:
        retired = any(each.exists for each in self.partitions[self.count :])
        if self.rng.random() < 0.5 and not retired and self.count < MOST:
            self._grow(self.rng.randint(self.count + 1, MOST))
        elif self.count > self.initial:
            self._shrink(self.rng.randint(self.initial, self.count - 1))

    def _grow(self, count: int) -> None:
        self.resize_epoch += 1
        for each in self.partitions[: self.count]:
            each.append_fence(self.resize_epoch)
        if self.rng.random() < 0.25:
            self._undo(self.partitions[: self.count])
            return
        for each in self.partitions[self.count : count]:
            # Fences of a former incarnation are not those of this one.
            each.listed = ResizedPartition(self.resize_epoch, len(each.records))
            each.exists = True
            each.append_fence(self.resize_epoch)
        self.count = count

    def _shrink(self, count: int) -> None:
        self.resize_epoch += 1
        retired = self.partitions[count : self.count]
        if self.rng.random() < 0.25:
            sealed = [each for each in retired if self.rng.random() < 0.5]
            for each in sealed:
                each.append_fence(self.resize_epoch)
            self._undo([*self.partitions[:count], *retired])
            return
        for each in retired:
            each.listed = replace(each.listed, retirement_epoch=self.resize_epoch)
            each.append_fence(self.resize_epoch)
        for each in self.partitions[:count]:
            each.append_fence(self.resize_epoch)
        self.count = count

    def _undo(self, existing: list[ModelPartition]) -> None:
        self.resize_epoch += 1
        for each in existing:
            each.append_fence(self.resize_epoch)

    def remove(self, positions: dict[int, int], undrained: bool) -> None:
        """Remove the highest retired partition; ``undrained``: also if the reader needs it."""
        listed = [number for number, each in enumerate(self.partitions) if each.exists]
        highest = listed[-1]
        each = self.partitions[highest]
        if highest >= self.count and (undrained or positions.get(highest, 0) >= each.data_end()):
            each.exists = False
            positions[highest] = len(each.records)

    def listing(self) -> dict[int, ResizedPartition]:
        return {number: each.listed for number, each in enumerate(self.partitions) if each.exists}


class Reader:
    """A group: it holds one position per partition, and what it has received of each key."""

    def __init__(self, topic: Topic, may_skip: bool = False) -> None:
        self.topic = topic
        self.may_skip = may_skip
        """Whether partitions are removed before they were read to their end."""
        self.positions: dict[int, int] = {}
        self.received = [0] * KEYS

    def ends(self) -> dict[int, int]:
        topic = self.topic
        gates = gates_of(topic.initial, topic.resize_epoch, topic.listing())
        return deliverable_ends(
            gates, {number: GroupPosition(offset) for number, offset in self.positions.items()}
        )

    def read(self, most: int) -> int:
        """Read a part of one partition that may go on; return how many offsets it passed."""
        ends = self.ends()
        open_ones = []
        for number, each in enumerate(self.topic.partitions):
            if each.exists:
                at = self.positions.setdefault(number, each.listed.first_offset)
                end = min(len(each.records), ends.get(number, len(each.records)))
                if at < end:
                    open_ones.append((number, at, end))
        if not open_ones:
            return 0
        number, at, end = self.topic.rng.choice(open_ones)
        end = min(end, at + most)
        for record in self.topic.partitions[number].records[at:end]:
            if record is not None:
                key, place = record
                expected = self.received[key]
                assert place == expected or (self.may_skip and place > expected), (
                    f"key {key}: record {place} of partition {number}, expected {expected}"
                )
                self.received[key] = place + 1
        self.positions[number] = end
        return end - at


def breathe(seed: int, undrained: bool) -> tuple[Topic, Reader]:
    """Write, resize, remove and read at random; then read all that is left."""
    rng = random.Random(seed)
    topic = Topic(rng)
    reader = Reader(topic, may_skip=undrained)
    for _ in range(60):
        choice = rng.random()
        if choice < 0.4:
            topic.write()
        elif choice < 0.6:
            topic.resize()
        elif choice < 0.7:
            topic.remove(reader.positions, undrained)
        else:
            reader.read(rng.randint(1, 20))
    while reader.read(1_000):
        pass
    return topic, reader


@given(st.integers(0, 2**32))
def test_the_order_of_each_key_holds_and_all_is_read(seed: int) -> None:
    topic, reader = breathe(seed, undrained=False)
    assert reader.received == topic.written


@given(st.integers(0, 2**32))
def test_a_removal_before_a_partition_was_read_blocks_no_reader(seed: int) -> None:
    """Retention takes what was not read; the rest is delivered in order, to the end."""
    topic, reader = breathe(seed, undrained=True)
    for number, each in enumerate(topic.partitions):
        if each.exists:
            assert reader.positions[number] == len(each.records)


def test_without_gates_the_order_breaks() -> None:
    """The control: a reader that takes what it wants receives keys out of order."""

    class Ungated(Reader):
        def ends(self) -> dict[int, int]:
            return {}

    broken = 0
    for seed in range(30):
        rng = random.Random(seed)
        topic = Topic(rng)
        reader = Ungated(topic)
        for _ in range(20):
            topic.write()
            topic.resize()
        try:
            while reader.read(20):
                pass
        except AssertionError:
            broken += 1
    assert broken >= 20


def grown(fence: Fence | None, first: int = 0) -> dict[int, ResizedPartition]:
    """A topic that grew from 1 to 2 partitions at resize epoch 1."""
    return {
        0: ResizedPartition(fences=(fence,) if fence else ()),
        1: ResizedPartition(1, first, fences=(Fence(1, first, first),)),
    }


def shrunk() -> dict[int, ResizedPartition]:
    """A topic of 2 partitions that shrank to 1 at resize epoch 2."""
    return {
        0: ResizedPartition(fences=(Fence(1, 10, 10), Fence(2, 20, 19))),
        1: ResizedPartition(1, 0, 2, (Fence(1, 0, 0), Fence(2, 5, 5))),
    }


@pytest.mark.parametrize("position", range(8, 13))
def test_condition_8_4_of_the_document_is_a_special_case(position: int) -> None:
    """A child is consumed when the position of its parent is above the last old offset."""
    last_offset_of_the_old_epoch = 9
    ends = deliverable_ends(gates_of(1, 1, grown(Fence(1, 10, 10))), {0: GroupPosition(position)})
    assert (1 not in ends) == (position > last_offset_of_the_old_epoch)


@pytest.mark.parametrize("position", range(3, 8))
def test_condition_8_5_of_the_document_is_a_special_case(position: int) -> None:
    """Later offsets of a survivor than the threshold wait until the other one is read."""
    last_offset_of_the_old_epoch, data_of_the_retired = 19, 5
    positions = {0: GroupPosition(12), 1: GroupPosition(position)}
    ends = deliverable_ends(gates_of(1, 2, shrunk()), positions)
    if position < data_of_the_retired:
        assert ends == {0: last_offset_of_the_old_epoch + 1}
    else:
        assert ends == {}


def test_what_is_not_known_keeps_a_gate_shut() -> None:
    far = {0: GroupPosition(1_000), 1: GroupPosition(1_000)}
    assert deliverable_ends(gates_of(1, 1, grown(None)), far) == {1: 0}
    # A position that is not known.
    assert deliverable_ends(gates_of(1, 1, grown(Fence(1, 10, 10))), {1: GroupPosition(9)}) == {
        1: 0
    }
    # The parent is not listed.
    listed = grown(Fence(1, 10, 10))
    del listed[0]
    assert deliverable_ends(gates_of(1, 1, listed), far) == {1: 0}
    # The seal of a retired partition.
    listed = shrunk()
    listed[1] = replace(listed[1], fences=listed[1].fences[:1])
    assert deliverable_ends(gates_of(1, 2, listed), far) == {0: 20}


def test_a_survivor_whose_fence_is_not_known_waits_as_a_whole() -> None:
    listed = shrunk()
    listed[0] = replace(listed[0], fences=listed[0].fences[:1])
    gates = gates_of(1, 2, listed)
    assert deliverable_ends(gates, {0: GroupPosition(12), 1: GroupPosition(3)}) == {0: 0}
    assert deliverable_ends(gates, {0: GroupPosition(12), 1: GroupPosition(5)}) == {}


def test_a_fence_that_metadata_does_not_know_yet_is_a_shut_gate() -> None:
    """The listing is older than the fences: which partitions came or went is not known."""
    listed = {0: ResizedPartition(fences=(Fence(1, 10, 10),))}
    assert gates_of(1, 0, listed) == {0: [Gate(1, 10, (Prerequisite(0, None),))]}
    assert deliverable_ends(gates_of(1, 0, listed), {0: GroupPosition(50)}) == {0: 10}
    # Newer metadata lists no partition that was born then: the growth was undone.
    assert gates_of(1, 2, listed) == {}


def test_a_later_fence_stands_in_for_one_that_an_unclean_election_cut() -> None:
    gates = gates_of(1, 3, grown(Fence(3, 30, 30)))
    assert gates[1] == [Gate(1, 0, (Prerequisite(0, Fence(3, 30, 30)),))]


def test_a_commit_counts_up_to_the_end_of_the_data() -> None:
    """A stock member never commits past trailing control records."""
    gates = gates_of(1, 1, grown(Fence(1, 10, 8)))
    assert deliverable_ends(gates, {0: GroupPosition(8)}) == {1: 0}
    assert deliverable_ends(gates, {0: GroupPosition(8, is_commit=True)}) == {}
    assert deliverable_ends(gates, {0: GroupPosition(7, is_commit=True)}) == {1: 0}


def test_a_position_beyond_a_shut_gate_does_not_count() -> None:
    """A reader that began in the middle: 3 waits for 1, and 1 waits for 0."""
    listed = {
        0: ResizedPartition(fences=(Fence(1, 10, 10), Fence(2, 20, 20))),
        1: ResizedPartition(1, 0, fences=(Fence(1, 0, 0), Fence(2, 5, 5))),
        2: ResizedPartition(2, 0, fences=(Fence(2, 0, 0),)),
        3: ResizedPartition(2, 0, fences=(Fence(2, 0, 0),)),
    }
    gates = gates_of(1, 2, listed)
    assert deliverable_ends(gates, {0: GroupPosition(4), 1: GroupPosition(9)}) == {1: 0, 2: 0, 3: 0}
    assert deliverable_ends(gates, {0: GroupPosition(10), 1: GroupPosition(9)}) == {2: 0}
    assert deliverable_ends(gates, {0: GroupPosition(20), 1: GroupPosition(9)}) == {}


def test_one_entry_for_each_partition_that_comes_or_goes() -> None:
    """4 -> 128 -> 4: the needs grow with the partitions, not with their square."""
    count = 128
    listed = {
        each: ResizedPartition(fences=(Fence(1, 1, 1), Fence(2, 2, 1))) for each in range(4)
    } | {
        each: ResizedPartition(1, 0, 2, (Fence(1, 0, 0), Fence(2, 1, 1)))
        for each in range(4, count)
    }
    gates = gates_of(4, 2, listed)
    assert sum(len(gate.needs) for each in gates.values() for gate in each) == 2 * (count - 4)
    assert {len(gates[each][0].needs) for each in range(4)} == {31}


def test_a_shut_gate_one_offset_before_a_prerequisite_shuts_the_next_one() -> None:
    """A shrink and a growth with no record in between: the fences of partition 0 are neighbours.

    A reader began above both, and has not read the partition that retired.
    """
    listed = {
        0: ResizedPartition(fences=(Fence(1, 10, 10), Fence(2, 20, 20), Fence(3, 21, 20))),
        1: ResizedPartition(1, 0, 2, (Fence(1, 0, 0), Fence(2, 5, 5))),
    }
    gates = gates_of(1, 3, listed) | {2: [Gate(3, 0, (Prerequisite(0, Fence(3, 21, 20)),))]}
    assert deliverable_ends(gates, {0: GroupPosition(30), 1: GroupPosition(4)}) == {0: 20, 2: 0}
    assert deliverable_ends(gates, {0: GroupPosition(30), 1: GroupPosition(5)}) == {}
