"""To which life of a topic a group's offsets belong: stories, and many lives at random (B5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

import pytest

from tests.support.group_driver import GROUP, Driver
from tidelog.groups.events import (
    DeleteGroup,
    DeleteOffsets,
    Expire,
    RemoveFormerTopicIds,
    RemoveTopics,
)
from tidelog.groups.records import (
    NO_TOPIC_ID,
    FirstSight,
    FirstSightRecord,
    OffsetRecord,
    UnknownRecord,
    decode,
)
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition

FORMER, PRESENT = UUID(int=1), UUID(int=2)
WEEK_MS = 7 * 86_400_000


def shown(d: Driver, first: int = 0) -> list[str]:
    """What the log has from a place on, a word for each record."""
    words = []
    for key, value in d.log[first:]:
        record = decode(key, value)
        assert not isinstance(record, UnknownRecord)
        if isinstance(record, FirstSightRecord):
            life = "-" if record.value is None else record.value.topic_id.int
            words.append(f"{record.topic} is {life}")
        elif isinstance(record, OffsetRecord):
            offset = "-" if record.value is None else record.value.offset
            words.append(f"{record.topic}-{record.partition} at {offset}")
        else:
            words.append("group" if record.value is not None else "no group")
    return words


def life(topic_id: UUID) -> Callable[[str], UUID]:
    return lambda _: topic_id


def found(d: Driver, topic_id: UUID, topic: str = "t", partitions: int = 3) -> dict[int, int]:
    """The offsets that are answered while a topic is known under this id."""
    asked = [(topic, range(partitions))]
    ((_, answer),) = d.table.offsets(GROUP, asked, life(topic_id))
    return {at: each.offset for at, each in answer if each is not None}


# What is written -----------------------------------------------------------------------------


def test_the_first_commit_on_a_topic_names_its_life() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1, ("t", 1): 2}, topic_id=FORMER)
    d.commit_offsets({("t", 1): 3, ("u", 0): 4}, topic_id=FORMER)
    d.commit_offsets({("v", 0): 5}, topic_id=NO_TOPIC_ID)
    assert shown(d) == [
        *("t is 1", "t-0 at 1", "t-1 at 2"),
        *("t-1 at 3", "u is 1", "u-0 at 4"),
        "v-0 at 5",
    ]
    assert d.group.first_sights["t"] == FirstSight(FORMER, 0, -1)


def test_before_the_offsets_of_a_next_life_all_of_the_former_one_go() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1, ("t", 1): 2}, topic_id=FORMER)
    d.commit()
    d.commit_offsets({("t", 2): 3}, topic_id=FORMER)
    # Decided while the one before is in flight, and after it in the log.
    d.commit_offsets({("t", 0): 9}, topic_id=PRESENT)
    d.commit_offsets({("t", 1): 8}, topic_id=PRESENT)
    d.commit()
    assert shown(d, 3) == [
        "t-2 at 3",
        *("t-0 at -", "t-1 at -", "t-2 at -", "t is 2", "t-0 at 9"),
        "t-1 at 8",
    ]
    for each in (d, d.reloaded()):
        assert found(each, PRESENT) == {0: 9, 1: 8}
        # Where the name exists again no commit has been made yet.
        assert found(each, UUID(int=3)) == {}
        assert each.table.offsets(GROUP, None, life(UUID(int=3))) == []


def test_a_refused_write_leaves_the_former_life_the_last_one() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1}, topic_id=FORMER)
    pending_response = d.commit_offsets({("t", 0): 2}, topic_id=PRESENT)
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert d.error_of(pending_response) is E.COORDINATOR_NOT_AVAILABLE
    d.commit_offsets({("t", 1): 3}, topic_id=PRESENT)
    d.commit()
    assert shown(d, 2) == ["t-0 at -", "t is 2", "t-1 at 3"]
    assert not d.group.sights_in_flight


def test_offsets_without_a_first_sight_are_of_any_life() -> None:
    """An older version wrote them: what is committed now does not take them away."""
    d = Driver()
    d.commit_offsets({("t", 0): 1, ("t", 1): 2})
    d.commit_offsets({("t", 1): 3}, topic_id=PRESENT)
    assert shown(d, 2) == ["t is 2", "t-1 at 3"]
    for each in (d, d.reloaded()):
        assert found(each, PRESENT) == {0: 1, 1: 3}
        each.send(RemoveFormerTopicIds(life(PRESENT)))
        assert found(each, PRESENT) == {0: 1, 1: 3}
        # That the topic was deleted is proof: what was there before may be of the former life.
        each.send(RemoveTopics(frozenset({"t"}), life(PRESENT)))
        assert found(each, PRESENT) == {1: 3}
        assert found(each.reloaded(), PRESENT) == {1: 3}
        assert "t" in each.group.first_sights


# What goes -----------------------------------------------------------------------------------


def test_a_coordinator_that_begins_removes_the_offsets_of_lives_that_are_over() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1, ("t", 1): 2, ("u", 0): 3}, topic_id=FORMER)
    other = d.reloaded()
    known = {"t": PRESENT, "u": NO_TOPIC_ID}.__getitem__
    assert found(other, PRESENT) == {}
    other.send(RemoveFormerTopicIds(known))
    assert shown(other, 5) == ["t-0 at -", "t-1 at -", "t is -"]
    # That a topic is not known is no proof that it was deleted (promise 20).
    assert [name for name, _ in other.reloaded().table.offsets(GROUP, None)] == ["u"]
    other.send(RemoveFormerTopicIds(life(FORMER)))
    assert len(other.log) == 8


def remove(d: Driver) -> None:
    d.send(DeleteGroup(d.pending_response()))


def delete_all(d: Driver) -> None:
    d.send(DeleteOffsets(d.pending_response(), (TopicPartition("t", 0), TopicPartition("t", 1))))


def expire_all(d: Driver) -> None:
    d.advance(WEEK_MS)
    d.send(Expire())


def forget(d: Driver) -> None:
    d.send(RemoveTopics(frozenset({"t"})))


@pytest.mark.parametrize("end", [remove, delete_all, expire_all, forget])
@pytest.mark.parametrize("in_flight", [False, True])
def test_nothing_is_left_of_a_group_whose_last_offset_goes(
    end: Callable[[Driver], None], in_flight: bool
) -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1, ("t", 1): 2}, topic_id=FORMER)
    if not in_flight or end is expire_all:
        d.commit()
    end(d)
    d.commit()
    assert len(d.table) == 0
    assert len(d.reloaded().table) == 0


def test_a_first_sight_stays_while_something_of_its_topic_does() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1}, topic_id=FORMER)
    d.commit()
    d.commit_offsets({("t", 1): 2}, topic_id=FORMER)
    d.send(DeleteOffsets(d.pending_response(), (TopicPartition("t", 0),)))
    d.advance(WEEK_MS)
    d.send(Expire())
    d.commit()
    for each in (d, d.reloaded()):
        assert found(each, FORMER) == {1: 2}
        assert "t" in each.group.first_sights


def test_one_that_a_torn_write_left_alone_goes_at_the_next_look() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1}, topic_id=FORMER)
    del d.log[1:]
    other = d.reloaded()
    assert len(other.table) == 1
    other.send(Expire())
    assert len(other.table) == len(other.reloaded().table) == 0


# At random -----------------------------------------------------------------------------------


class Lives:
    """One topic of many lives, and one group, whose coordinator moves at any time.

    Each offset is larger than all before: so it tells its life, and none may be below an acked one.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = Driver(hold=True)
        self.present = UUID(int=1)
        self.offset = self.born_at = 0
        self.acked: dict[int, int] = {}
        self.waiting: dict[int, dict[int, int]] = {}

    def step(self) -> None:
        kinds = [self.commit, self.store, self.move, self.recreate, self.sweep, self.delete]
        self.random.choices([*kinds, self.expire], [8, 8, 3, 2, 1, 1, 0.3])[0]()
        for pending_response, offsets in list(self.waiting.items()):
            if pending_response in self.driver.answers:
                del self.waiting[pending_response]
                if self.driver.error_of(pending_response) is E.NONE:
                    self.acked.update(
                        {at: max(self.acked.get(at, 0), offsets[at]) for at in offsets}
                    )

    def commit(self) -> None:
        chosen = self.random.sample(range(4), self.random.randint(1, 3))
        offsets = {at: self.offset + 1 + at for at in chosen}
        self.offset += 5
        pending_response = self.driver.commit_offsets(
            {("t", at): offset for at, offset in offsets.items()}, topic_id=self.present
        )
        if self.random.random() < 0.1 and self.driver.in_flight:
            self.driver.refuse(E.NOT_ENOUGH_REPLICAS)
        else:
            self.waiting[pending_response] = offsets

    def store(self) -> None:
        self.driver.commit(self.random.randint(1, 3))

    def recreate(self) -> None:
        # What is acked after this for commits of the former incarnation does not count.
        self.present = UUID(int=self.present.int + 1)
        self.born_at = self.offset
        self.acked.clear()
        self.waiting.clear()

    def sweep(self) -> None:
        self.driver.send(RemoveTopics(frozenset({"t"}), life(self.present)))

    def delete(self) -> None:
        at = self.random.randrange(4)
        self.driver.send(DeleteOffsets(self.driver.pending_response(), (TopicPartition("t", at),)))
        self.acked.pop(at, None)
        for offsets in self.waiting.values():
            offsets.pop(at, None)

    def expire(self) -> None:
        self.driver.commit()
        self.driver.advance(WEEK_MS)
        self.driver.send(Expire())
        self.acked.clear()
        self.waiting.clear()

    def move(self) -> None:
        """Any prefix of what is in flight survives, and the log may have been compacted."""
        former = self.driver
        stored = len(former.log)
        former.commit()
        former.log = self.compacted(former.log[: self.random.randint(stored, len(former.log))])
        self.driver = former.reloaded()
        self.waiting.clear()
        if self.random.random() < 0.7:
            self.driver.send(RemoveFormerTopicIds(life(self.present)))

    def compacted(self, log: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
        for _ in range(self.random.randint(0, 2)):
            end = self.random.randint(0, len(log))
            last = {key: at for at, (key, _) in enumerate(log[:end])}
            drops = self.random.random() < 0.5
            cleaned = [
                (key, value)
                for at, (key, value) in enumerate(log[:end])
                if last[key] == at and not (drops and value is None)
            ]
            log = cleaned + log[end:]
        return log

    def check(self) -> None:
        answers = found(self.driver, self.present, partitions=4)
        assert all(x > self.born_at for x in answers.values()), "an offset of a former life"
        for at, offset in self.acked.items():
            assert answers.get(at, -1) >= offset, "an acked offset is lost"


@pytest.mark.parametrize("seed", range(100))
def test_no_life_has_the_offsets_of_another(seed: int) -> None:
    lives = Lives(seed)
    for step in range(150):
        lives.step()
        try:
            lives.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}: {error}") from error
