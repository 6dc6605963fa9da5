"""To which incarnation of a topic offsets of a group belong: stories, and many at random (B5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

import pytest

from tests.support.group_driver import GROUP, Driver, assignment, one_protocol
from tidelog.groups.events import (
    DeleteGroup,
    DeleteOffsets,
    Expire,
    Leaver,
    RemoveFormerTopicIds,
    RemoveTopics,
)
from tidelog.groups.group import GroupState
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


def test_the_first_commit_on_a_topic_names_its_id() -> None:
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


def test_before_the_offsets_of_a_next_incarnation_all_of_the_former_one_go() -> None:
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


def test_a_refused_write_leaves_the_former_incarnation_the_last_one() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1}, topic_id=FORMER)
    pending_response = d.commit_offsets({("t", 0): 2}, topic_id=PRESENT)
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert d.error_of(pending_response) is E.COORDINATOR_NOT_AVAILABLE
    d.commit_offsets({("t", 1): 3}, topic_id=PRESENT)
    d.commit()
    assert shown(d, 2) == ["t-0 at -", "t is 2", "t-1 at 3"]
    assert not d.group.sights_in_flight


def test_after_a_refused_write_a_deletion_takes_what_is_in_flight_of_the_former_incarnation() -> (
    None
):
    """Found at random: the refused commit had left its topic id for the one before it."""
    d = Driver(hold=True)
    d.commit_offsets({("t", 1): 1}, topic_id=FORMER)
    d.commit_offsets({("t", 1): 2}, topic_id=PRESENT)
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    d.send(RemoveTopics(frozenset({"t"}), life(PRESENT)))
    d.commit()
    assert shown(d) == ["t is 1", "t-1 at 1", "t-1 at -", "t is -"]


def test_offsets_without_a_first_sight_are_of_any_incarnation() -> None:
    """An older version wrote them: what is committed now does not take them away."""
    d = Driver()
    d.commit_offsets({("t", 0): 1, ("t", 1): 2})
    d.commit_offsets({("t", 1): 3}, topic_id=PRESENT)
    assert shown(d, 2) == ["t is 2", "t-1 at 3"]
    for each in (d, d.reloaded()):
        assert found(each, PRESENT) == {0: 1, 1: 3}
        each.send(RemoveFormerTopicIds(life(PRESENT)))
        assert found(each, PRESENT) == {0: 1, 1: 3}
        # That the topic was deleted is proof: what was there may be of the former incarnation.
        each.send(RemoveTopics(frozenset({"t"}), life(PRESENT)))
        assert found(each, PRESENT) == {1: 3}
        assert found(each.reloaded(), PRESENT) == {1: 3}
        assert "t" in each.group.first_sights


# Joins and assignments ------------------------------------------------------------------------


def at_epoch(d: Driver, epoch: int, topic_id: UUID = PRESENT, topic: str = "t") -> None:
    """What the coordinator knows of a topic from now on."""
    d.topics[topic] = FirstSight(topic_id, epoch, -1)


def generation(d: Driver, *shares: bytes, sees: tuple[str, ...] = ("t",)) -> list[int]:
    """Members join, and their leader assigns; return the pending responses of their syncs."""
    joins = [d.new_member(protocols=one_protocol(*sees)) for _ in shares]
    d.advance(d.settings.group_initial_rebalance_delay_ms * (len(shares) + 1))
    results = [d.joined(pending_response) for _, pending_response in joins]
    given = {member_id: share for (member_id, _), share in zip(joins, shares, strict=True)}
    leads = results[0].leader
    return [
        d.sync(member_id, results[0].generation, given if member_id == leads else None)
        for member_id, _ in joins
    ]


def test_the_first_assignment_brings_the_first_sight_before_any_member_has_it() -> None:
    d = Driver(hold=True)
    at_epoch(d, 2)
    syncs = generation(d, assignment(t=[0, 2]), assignment(t=[1, 3]))
    assert not d.group.first_sights and not any(sync in d.answers for sync in syncs)
    d.commit()
    assert shown(d) == ["t is 2", "group"]
    assert all(d.synced(sync).error is E.NONE for sync in syncs)
    for each in (d, d.reloaded()):
        assert each.group.first_sights == {"t": FirstSight(PRESENT, 2, 4)}
    assert not d.group.first_joins


def test_the_resize_epoch_is_that_of_the_first_join() -> None:
    d = Driver()
    at_epoch(d, 0)
    member_id, pending_response = d.new_member()
    at_epoch(d, 1)  # it grows while the rebalance waits for more members
    d.advance(d.settings.group_initial_rebalance_delay_ms * 2)
    at_epoch(d, 2)
    joined = d.joined(pending_response)
    d.sync(member_id, joined.generation, {member_id: assignment(t=range(16))})
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 0, 16)}


def test_a_long_subscription_is_read_when_the_generation_begins() -> None:
    d = Driver()
    at_epoch(d, 0)
    others = tuple(f"another topic {at}" for at in range(2_000))
    member_id, pending_response = d.new_member(protocols=one_protocol("t", *others))
    assert not d.group.first_joins
    at_epoch(d, 1)
    d.advance(d.settings.group_initial_rebalance_delay_ms * 2)
    joined = d.joined(pending_response)
    d.sync(member_id, joined.generation, {member_id: assignment(t=range(8))})
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 1, 8)}


def test_later_assignments_write_no_first_sight() -> None:
    d = Driver()
    at_epoch(d, 0)
    generation(d, assignment(t=range(4)))
    at_epoch(d, 1)
    (member_id,) = d.group.members
    joined = d.joined(d.join(member_id))
    d.sync(member_id, joined.generation, {member_id: assignment(t=range(8))})
    assert shown(d) == ["t is 2", "group", "group"]
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 0, 4)}
    assert not d.group.first_joins, "nothing is kept of a topic that was seen"


def test_a_topic_without_a_first_sight_has_none_to_remove() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1, ("u", 0): 2})
    places = (TopicPartition("t", 0), TopicPartition("u", 0))
    d.send(DeleteOffsets(d.pending_response(), places))
    assert shown(d, 2) == ["t-0 at -", "u-0 at -"]


def test_a_commit_that_was_first_gets_its_assignment_later() -> None:
    d = Driver()
    at_epoch(d, 3)
    d.commit_offsets({("t", 0): 5}, topic_id=PRESENT)
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 3, -1)}
    at_epoch(d, 4)
    generation(d, assignment(t=range(4)))
    assert shown(d) == ["t is 2", "t-0 at 5", "t is 2", "group"]
    # The cleaner leaves the last record of each key: the offset still is of its topic id.
    d.log = d.log[1:]
    for each in (d, d.reloaded()):
        assert each.group.first_sights == {"t": FirstSight(PRESENT, 3, 4)}
        each.send(RemoveTopics(frozenset({"t"}), life(PRESENT)))
        assert found(each, PRESENT) == {0: 5}


def test_a_commit_that_was_first_in_a_group_whose_join_was_earlier() -> None:
    d = Driver(hold=True)
    at_epoch(d, 0)
    member_id, pending_response = d.new_member()
    d.advance(d.settings.group_initial_rebalance_delay_ms * 2)
    joined = d.joined(pending_response)
    d.sync(member_id, joined.generation, {member_id: b"no assignment"})
    d.commit()
    # Of bytes that cannot be read the count stays unknown, and the resize epoch is known.
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 0, -1)}
    at_epoch(d, 1)
    d.commit_offsets({("t", 0): 5}, member_id, joined.generation, topic_id=PRESENT)
    d.commit()
    assert shown(d) == ["t is 2", "group", "t-0 at 5"]


def test_topics_that_the_leader_does_not_assign_wait() -> None:
    d = Driver()
    at_epoch(d, 0)
    at_epoch(d, 0, UUID(int=9), "u")
    generation(d, assignment(t=range(2)), sees=("t", "u", "unknown"))
    at_epoch(d, 1, UUID(int=9), "u")
    assert list(d.group.first_sights) == ["t"]
    (member_id,) = d.group.members
    joined = d.joined(d.join(member_id, protocols=one_protocol("t", "u")))
    shares = {member_id: assignment(t=range(2), u=range(6))}
    d.sync(member_id, joined.generation, shares)
    assert d.group.first_sights["u"] == FirstSight(UUID(int=9), 0, 6)


def test_below_level_1_5_joins_and_assignments_write_none() -> None:
    d = Driver()
    generation(d, assignment(t=range(4)))
    assert shown(d) == ["group"]
    assert not d.group.first_joins


def test_an_assignment_of_a_topic_that_was_created_again_removes_the_former_offsets() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", at): at for at in range(3)}, topic_id=FORMER)
    d.commit()
    at_epoch(d, 0)
    generation(d, assignment(t=range(4)))
    d.commit()
    assert shown(d, 4) == ["t-0 at -", "t-1 at -", "t-2 at -", "t is 2", "group"]
    assert found(d.reloaded(), PRESENT) == {}
    # The name is removed while members read the present topic: what they have seen of it stays.
    d.send(RemoveTopics(frozenset({"t"}), life(PRESENT)))
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 0, 4)}


def test_very_many_offsets_of_a_former_topic_are_removed_before_the_next_sync() -> None:
    d = Driver()
    d.commit_offsets({("t", at): at for at in range(600)}, topic_id=FORMER)
    at_epoch(d, 5)
    (sync,) = generation(d, assignment(t=range(4)))
    assert d.synced(sync).error is E.REBALANCE_IN_PROGRESS
    assert d.group.offset_count == 0 and not d.group.first_sights
    at_epoch(d, 6)
    (member_id,) = d.group.members
    joined = d.joined(d.join(member_id))
    sync = d.sync(member_id, joined.generation, {member_id: assignment(t=range(4))})
    assert d.synced(sync).error is E.NONE
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 5, 4)}


def test_members_that_read_on_see_the_topic_that_was_created_again() -> None:
    d = Driver()
    at_epoch(d, 7)
    generation(d, assignment(t=range(4)))
    at_epoch(d, 0, UUID(int=8))
    d.send(RemoveTopics(frozenset({"t"}), life(UUID(int=8))))
    assert not d.group.first_sights
    at_epoch(d, 1, UUID(int=8))
    (member_id,) = d.group.members
    joined = d.joined(d.join(member_id))
    d.sync(member_id, joined.generation, {member_id: assignment(t=range(8))})
    assert d.group.first_sights == {"t": FirstSight(UUID(int=8), 0, 8)}


def test_a_refused_generation_leaves_the_epoch_of_the_first_join() -> None:
    d = Driver(hold=True)
    at_epoch(d, 0)
    generation(d, assignment(t=range(4)))
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    at_epoch(d, 1)
    (member_id,) = d.group.members
    joined = d.joined(d.join(member_id))
    d.sync(member_id, joined.generation, {member_id: assignment(t=range(8))})
    d.commit()
    assert d.group.first_sights == {"t": FirstSight(PRESENT, 0, 8)}


# What goes -----------------------------------------------------------------------------------


def test_a_coordinator_that_begins_removes_the_offsets_of_former_incarnations() -> None:
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
    """One topic of many incarnations, and one group, whose coordinator moves at any time.

    Each offset is larger than all before: so it shows its incarnation, and none may be below an
    acked one.
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
        kinds += [self.expire, self.assign]
        self.random.choices(kinds, [8, 8, 3, 2, 1, 1, 0.3, 2])[0]()
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

    def assign(self) -> None:
        """Members come, get their assignment if the group is not busy, and leave."""
        group = self.driver.table.get(GROUP)
        if group is not None and group.state is GroupState.DEAD:
            return
        if group is None or not group.members:
            at_epoch(self.driver, 0, self.present)
            generation(self.driver, assignment(t=range(4)))
        self.driver.leave(*map(Leaver, self.driver.group.members))

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
        assert all(x > self.born_at for x in answers.values()), "an offset of a former incarnation"
        for at, offset in self.acked.items():
            assert answers.get(at, -1) >= offset, "an acked offset is lost"


@pytest.mark.parametrize("seed", range(100))
def test_no_incarnation_has_the_offsets_of_another(seed: int) -> None:
    lives = Lives(seed)
    for step in range(150):
        lives.step()
        try:
            lives.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}: {error}") from error
