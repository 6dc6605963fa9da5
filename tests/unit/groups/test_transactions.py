"""TxnOffsetCommit and markers: what is pending, what counts after the marker, what is refused."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.group_driver import GROUP, assignment
from tests.support.transaction_driver import Entry, TransactionDriver
from tidelog.groups import limits, pending_removal
from tidelog.groups.events import (
    DeleteGroup,
    DeleteOffsets,
    Expire,
    Leaver,
    RemoveFormerTopicIds,
    RemoveTopics,
)
from tidelog.groups.group import GroupState
from tidelog.groups.records import FirstSight, FirstSightRecord, decode, encode
from tidelog.groups.settings import GroupSettings
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition

A, B = (1, 0), (2, 0)
T0, T1 = ("t", 0), ("t", 1)
OLD, NEW = UUID(int=1), UUID(int=2)


def offset(d: TransactionDriver, topic: str = "t", partition: int = 0) -> int | None:
    committed = d.offset(topic, partition)
    return None if committed is None else committed.offset


def unstable(d: TransactionDriver, topic: str = "t") -> set[int]:
    return set(d.table.unstable(GROUP, topic))


def both_ways(d: TransactionDriver) -> None:
    """A coordinator that reads the log has the same."""
    other = d.reloaded()
    assert other.committed() == d.committed()
    assert other.pending() == d.pending()


# Pending, and what becomes of it ---------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_an_offset_counts_once_its_transaction_commits(committed: bool) -> None:
    d = TransactionDriver()
    d.commit_offsets({T0: 5})
    asked = d.commit_in_transaction({T0: 9, T1: 3}, metadata="m")
    assert d.done(asked).partitions == (
        (TopicPartition(*T0), E.NONE),
        (TopicPartition(*T1), E.NONE),
    )
    assert (offset(d), offset(d, "t", 1)) == (5, None)
    assert unstable(d) == {0, 1}
    both_ways(d)
    assert d.ended(d.end(committed=committed)) is E.NONE
    assert (offset(d), offset(d, "t", 1)) == ((9, 3) if committed else (5, None))
    assert unstable(d) == set()
    assert d.group.flying.pending is None
    assert d.group.offset_count == (2 if committed else 1)
    both_ways(d)


def test_the_last_offset_of_a_transaction_counts() -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1})
    d.commit_in_transaction({T0: 2})
    d.end()
    assert offset(d) == 2
    both_ways(d)


def test_an_offset_is_unstable_from_its_write_on() -> None:
    """A reader that comes before the log has committed it must wait: it may be committed later."""
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1})
    assert unstable(d) == {0}
    d.commit()
    d.end()
    # The marker is not durable either.
    assert unstable(d) == {0} and offset(d) is None
    d.commit()
    assert unstable(d) == set() and offset(d) == 1


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("tombstone", [True, False])
def test_a_later_plain_record_wins_however_the_transaction_ends(
    committed: bool, tombstone: bool
) -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 100, T1: 7})
    if tombstone:
        d.send(DeleteOffsets(d.pending_response(), (TopicPartition(*T0),)))
    else:
        d.commit_offsets({T0: 50})
    assert unstable(d) == {1}
    both_ways(d)
    d.end(committed=committed)
    assert offset(d) == (None if tombstone else 50)
    assert offset(d, "t", 1) == (7 if committed else None)
    both_ways(d)


@pytest.mark.parametrize(
    ("first", "second", "wins"),
    [
        ((A, True), (B, True), 20),
        ((B, True), (A, True), 20),
        ((A, True), (B, False), 10),
        ((A, False), (B, True), 20),
        ((B, False), (A, True), 10),
        ((B, True), (A, False), 20),
        ((B, False), (A, False), 5),
    ],
)
def test_of_two_transactions_the_later_offset_wins_not_the_later_marker(
    first: tuple[tuple[int, int], bool], second: tuple[tuple[int, int], bool], wins: int
) -> None:
    d = TransactionDriver()
    d.commit_offsets({T0: 5})
    d.commit_in_transaction({T0: 10}, A)
    d.commit_in_transaction({T0: 20}, B)
    for producer, committed in (first, second):
        both_ways(d)
        d.end(producer, committed=committed)
    assert offset(d) == wins
    assert unstable(d) == set()
    both_ways(d)


def test_a_transaction_may_commit_offsets_of_several_groups() -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1}, group_id="g")
    d.commit_in_transaction({T0: 2}, group_id="h")
    d.commit_in_transaction({T0: 3}, B, group_id="h")
    d.end(A)
    assert d.committed() == {
        ("g", TopicPartition(*T0)): (1, ""),
        ("h", TopicPartition(*T0)): (2, ""),
    }
    assert d.pending() == {2: {("h", TopicPartition(*T0)): (3, "")}}
    both_ways(d)


def test_the_next_transaction_waits_for_its_own_marker() -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1})
    d.end()
    d.commit_in_transaction({T0: 2})
    d.commit()
    assert offset(d) == 1 and unstable(d) == {0}
    both_ways(d)


def test_an_aborted_transaction_leaves_no_group() -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1})
    d.end(committed=False)
    assert len(d.table) == 0
    assert len(d.reloaded().table) == 0


# Markers ---------------------------------------------------------------------------------------


def test_a_marker_is_written_as_often_as_it_comes() -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1})
    d.end()
    assert d.ended(d.end()) is E.NONE
    assert len(d.markers) == 2 and offset(d) == 1
    other = d.reloaded()
    assert other.ended(other.end(coordinator=4)) is E.NONE
    assert len(other.markers) == 3 and offset(other) == 1
    both_ways(other)


def test_a_deposed_leader_says_of_no_marker_that_it_is_written() -> None:
    """The marker of the next transaction looks as the last one: a producer keeps its epoch."""
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1})
    d.end()
    d.commit()
    # Another broker leads, and has the next transaction; this one does not know it.
    leader = d.reloaded()
    leader.commit_in_transaction({T0: 2})
    leader.commit()
    asked = d.end()
    assert asked not in d.answers
    d.refuse(E.NOT_LEADER_OR_FOLLOWER)
    assert d.ended(asked) is E.NOT_LEADER_OR_FOLLOWER
    leader.end()
    leader.commit()
    assert offset(leader) == 2 and unstable(leader) == set()


def test_a_marker_of_what_has_nothing_open_fences_former_coordinators() -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1}, (1, 5))
    d.end((1, 5), coordinator=3)
    assert d.ended(d.end((1, 5), coordinator=4)) is E.NONE
    d.commit_in_transaction({T0: 2}, (1, 5))
    for one in (d.reloaded(), d):
        asked = one.end((1, 5), coordinator=3)
        assert one.ended(asked) is E.TRANSACTION_COORDINATOR_FENCED
        assert offset(one) == 1 and unstable(one) == {0}


def test_the_highest_epochs_in_flight_count() -> None:
    d = TransactionDriver(hold=True)
    d.end((1, 5), coordinator=7)
    d.commit_in_transaction({T0: 1}, (1, 6))
    assert d.ended(d.end((1, 6), coordinator=6)) is E.TRANSACTION_COORDINATOR_FENCED
    d.commit(1)
    assert d.ended(d.end((1, 6), coordinator=6)) is E.TRANSACTION_COORDINATOR_FENCED
    assert d.error_of(d.commit_in_transaction({T0: 1}, (1, 5))) is E.INVALID_PRODUCER_EPOCH
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert d.ended(d.end((1, 5), coordinator=6)) is E.TRANSACTION_COORDINATOR_FENCED
    d.end((1, 5), coordinator=7)
    assert len(d.in_flight) == 1


def test_a_marker_in_flight_is_written_again_and_does_no_harm() -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1})
    first, second = d.end(), d.end()
    d.commit_in_transaction({T0: 2})
    d.commit()
    assert (d.ended(first), d.ended(second)) == (E.NONE, E.NONE)
    assert offset(d) == 1 and unstable(d) == {0}
    both_ways(d)


def test_a_marker_without_offsets_fences_what_comes_late() -> None:
    """Its transaction added the group, timed out, and its TxnOffsetCommit was on its way."""
    d = TransactionDriver()
    assert d.ended(d.end((1, 1), committed=False)) is E.NONE
    assert d.error_of(d.commit_in_transaction({T0: 1}, (1, 0))) is E.INVALID_PRODUCER_EPOCH
    assert len(d.table) == 0
    other = d.reloaded()
    assert other.error_of(other.commit_in_transaction({T0: 1}, (1, 0))) is E.INVALID_PRODUCER_EPOCH


def test_a_marker_of_a_higher_epoch_ends_what_the_lower_has_open() -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1}, (1, 3))
    assert d.ended(d.end((1, 4), committed=False)) is E.NONE
    assert unstable(d) == set() and offset(d) is None
    both_ways(d)


@pytest.mark.parametrize(
    ("producer", "coordinator", "error"),
    [
        ((1, 4), 7, E.INVALID_PRODUCER_EPOCH),
        ((1, 5), 6, E.TRANSACTION_COORDINATOR_FENCED),
        ((1, 5), 7, E.NONE),
        ((1, 6), 8, E.NONE),
        ((-1, 0), 8, E.INVALID_PRODUCER_EPOCH),
        ((3, -1), 8, E.INVALID_PRODUCER_EPOCH),
        ((3, 0), -1, E.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_markers_of_a_deposed_coordinator_or_producer_are_refused(
    producer: tuple[int, int], coordinator: int, error: E
) -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1}, (1, 5))
    d.end((1, 5), coordinator=7)
    d.commit_in_transaction({T0: 2}, (1, 5))
    for one in (d.reloaded(), d):
        assert one.ended(one.end(producer, coordinator=coordinator)) is error
        assert offset(one) == (1 if error else 2)


def test_epochs_count_from_the_write_on_and_not_if_it_is_refused() -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1}, (1, 5))
    assert d.error_of(d.commit_in_transaction({T0: 1}, (1, 4))) is E.INVALID_PRODUCER_EPOCH
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    d.commit_in_transaction({T0: 2}, (1, 4))
    d.commit()
    assert d.pending() == {1: {(GROUP, TopicPartition(*T0)): (2, "")}}


@pytest.mark.parametrize("error", [E.NOT_ENOUGH_REPLICAS, E.MESSAGE_TOO_LARGE])
def test_a_refused_marker_changes_nothing_and_may_come_again(error: E) -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1})
    d.commit()
    asked = d.end()
    d.refuse(error)
    assert d.ended(asked) is error
    assert unstable(d) == {0}
    again = d.end()
    d.commit()
    assert d.ended(again) is E.NONE and offset(d) == 1


def test_a_marker_that_is_late_gets_an_error_and_counts_later() -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1})
    d.commit()
    asked = d.end()
    d.late()
    assert d.ended(asked) is E.REQUEST_TIMED_OUT
    d.commit()
    assert offset(d) == 1


def test_a_sender_of_markers_looks_for_the_leader_again() -> None:
    d = TransactionDriver(hold=True)
    asked = d.end()
    result = d.in_flight[0].answers[0].result
    for error in (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE):
        assert result.refused(error).error is E.NOT_LEADER_OR_FOLLOWER
    assert asked not in d.answers


# Checks of TxnOffsetCommit ---------------------------------------------------------------------


def test_members_are_checked_as_in_kafka() -> None:
    d = TransactionDriver()
    (member,) = d.stable(1)
    generation = d.group.generation

    def error(member_id: str, generation: int, instance_id: str | None = None) -> E:
        asked = d.commit_in_transaction({T0: 1}, A, member_id, generation, instance_id=instance_id)
        return d.error_of(asked)

    assert error(member, generation) is E.NONE
    assert error(member, generation - 1) is E.ILLEGAL_GENERATION
    assert error(member, -1) is E.ILLEGAL_GENERATION
    assert error("other", generation) is E.UNKNOWN_MEMBER_ID
    assert error("", generation) is E.UNKNOWN_MEMBER_ID
    assert error(member, generation, "i") is E.UNKNOWN_MEMBER_ID
    # Clients before v3 name neither; a plain commit like this one is refused.
    assert error("", -1) is E.NONE
    assert d.error_of(d.commit_offsets({T0: 1})) is E.UNKNOWN_MEMBER_ID


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    d = TransactionDriver()
    d.join(instance_id="i")
    d.advance(d.settings.group_initial_rebalance_delay_ms)
    d.sync(d.group.leader or "", 1, {d.group.leader or "": b""})
    asked = d.commit_in_transaction({T0: 1}, A, "old", 1, instance_id="i")
    assert d.error_of(asked) is E.FENCED_INSTANCE_ID


def test_a_member_that_has_joined_may_commit_before_it_has_its_assignment() -> None:
    d = TransactionDriver()
    (member,) = d.stable(1)
    d.join(member, protocols=(("range", b"x"),))
    assert d.group.state is GroupState.COMPLETING_REBALANCE
    generation = d.group.generation
    assert d.error_of(d.commit_offsets({T0: 1}, member, generation)) is E.REBALANCE_IN_PROGRESS
    assert d.error_of(d.commit_in_transaction({T0: 1}, A, member, generation)) is E.NONE


def test_requests_to_unknown_groups() -> None:
    d = TransactionDriver()
    assert d.error_of(d.commit_in_transaction({T0: 1}, A, "m", 3)) is E.ILLEGAL_GENERATION
    assert d.error_of(d.commit_in_transaction({T0: 1}, group_id="")) is E.INVALID_GROUP_ID
    long = "g" * (limits.MAX_ID_BYTES + 1)
    assert d.error_of(d.commit_in_transaction({T0: 1}, group_id=long)) is E.INVALID_GROUP_ID
    assert len(d.table) == 0 and not d.journal


@pytest.mark.parametrize("producer", [(-1, 0), (1, -1)])
def test_a_transaction_needs_a_producer(producer: tuple[int, int]) -> None:
    d = TransactionDriver()
    asked = d.commit_in_transaction({T0: 1}, producer)
    assert d.error_of(asked) is E.INVALID_PRODUCER_ID_MAPPING
    assert not d.journal


def test_a_fenced_producer_is_refused() -> None:
    d = TransactionDriver()
    d.commit_in_transaction({T0: 1}, (1, 5))
    assert d.error_of(d.commit_in_transaction({T0: 2}, (1, 4))) is E.INVALID_PRODUCER_EPOCH
    d.end((1, 5))
    assert d.error_of(d.commit_in_transaction({T0: 2}, (1, 4))) is E.INVALID_PRODUCER_EPOCH
    assert d.error_of(d.commit_in_transaction({T0: 2}, (1, 6))) is E.NONE


def test_too_much_metadata_is_refused_for_its_partition() -> None:
    d = TransactionDriver(GroupSettings(offset_metadata_max_bytes=3))
    asked = d.commit_in_transaction({T0: 1}, metadata="long")
    assert d.error_of(asked) is E.OFFSET_METADATA_TOO_LARGE
    assert len(d.table) == 0 and not d.journal


def test_a_refused_or_late_commit_is_answered_as_a_plain_one() -> None:
    d = TransactionDriver(hold=True)
    asked = d.commit_in_transaction({T0: 1})
    d.refuse(E.MESSAGE_TOO_LARGE)
    assert d.error_of(asked) is E.INVALID_COMMIT_OFFSET_SIZE
    assert len(d.table) == 0
    asked = d.commit_in_transaction({T0: 1})
    d.late()
    assert d.error_of(asked) is E.COORDINATOR_NOT_AVAILABLE
    assert unstable(d) == {0}


# Limits ----------------------------------------------------------------------------------------


def test_pending_offsets_count_among_those_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OFFSETS", 3)
    d = TransactionDriver()
    d.commit_offsets({T0: 1})
    d.commit_in_transaction({T0: 2, T1: 2}, A)
    too_many = d.commit_in_transaction({T0: 3, T1: 3}, B)
    assert {error for _, error in d.done(too_many).partitions} == {E.INVALID_COMMIT_OFFSET_SIZE}
    # What it has already may be replaced.
    assert d.error_of(d.commit_in_transaction({T0: 4, T1: 4}, A)) is E.NONE
    assert d.error_of(d.commit_offsets({("t", 2): 1})) is E.INVALID_COMMIT_OFFSET_SIZE
    assert d.error_of(d.commit_offsets({T1: 1})) is E.NONE
    d.end(A)
    assert d.error_of(d.commit_in_transaction({T0: 3}, B)) is E.NONE


def test_so_many_transactions_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OPEN_TRANSACTIONS", 2)
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1}, (1, 0))
    d.commit(1)
    d.commit_in_transaction({T0: 1}, (2, 0))
    refused = d.commit_in_transaction({T0: 1}, (3, 0), group_id="h")
    assert d.error_of(refused) is E.COORDINATOR_NOT_AVAILABLE
    assert list(d.table) == [GROUP]
    d.commit_in_transaction({T1: 1}, (2, 0))
    d.end((1, 0))
    d.commit()
    taken = d.commit_in_transaction({T0: 1}, (3, 0))
    d.commit()
    assert d.error_of(taken) is E.NONE
    assert len(d.reloaded().pending()) == 2


def test_a_producer_with_an_open_transaction_and_a_write_in_flight_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_OPEN_TRANSACTIONS", 2)
    d = TransactionDriver(hold=True)

    def error(producer_id: int) -> E:
        asked = d.commit_in_transaction({T0: 1}, (producer_id, 0), group_id="h")
        if asked in d.answers:
            return d.error_of(asked)
        # It is taken.
        d.refuse(E.NOT_ENOUGH_REPLICAS)
        return E.NONE

    d.commit_in_transaction({T0: 1}, (1, 0))
    d.commit_in_transaction({T0: 1}, (1, 0))
    assert error(2) is E.NONE
    d.commit(1)
    assert (len(d.in_flight), error(2)) == (1, E.NONE)
    d.end((1, 0))
    d.commit_in_transaction({T0: 1}, (1, 0))
    d.commit_in_transaction({T0: 1}, (2, 0))
    assert error(3) is E.COORDINATOR_NOT_AVAILABLE
    d.commit(2)
    # The first has ended and begins again.
    assert (len(d.table.transactions), error(3)) == (0, E.COORDINATOR_NOT_AVAILABLE)
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert error(3) is E.NONE
    d.commit()
    d.end((1, 0))
    d.commit()
    assert (len(d.table.transactions), error(3), error(4)) == (0, E.NONE, E.NONE)


def test_so_many_ended_producers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ENDED_PRODUCERS", 2)
    d = TransactionDriver()
    for producer_id in (1, 2, 1, 3):
        d.end((producer_id, 5), committed=producer_id == 1, coordinator=len(d.markers))
    for one in (d, d.reloaded()):
        fenced = [
            one.error_of(one.commit_in_transaction({T0: 1}, (producer_id, 4), group_id="h"))
            for producer_id in (1, 2, 3)
        ]
        # The second marker of 1 is a later end than that of 2.
        assert fenced == [E.INVALID_PRODUCER_EPOCH, E.NONE, E.INVALID_PRODUCER_EPOCH]


# Removals --------------------------------------------------------------------------------------


def test_a_group_with_pending_offsets_is_deleted_with_them() -> None:
    d = TransactionDriver()
    d.commit_offsets({T0: 1})
    d.commit_in_transaction({T0: 2, T1: 2})
    asked = d.pending_response()
    d.send(DeleteGroup(asked))
    assert d.status(asked) is E.NONE
    assert len(d.table) == 0
    d.end()
    assert len(d.table) == 0 and len(d.reloaded().table) == 0
    assert d.committed() == {}


def test_the_marker_comes_between_the_parts_of_a_removal() -> None:
    count = pending_removal.PART + 5
    d = TransactionDriver(in_parts=True)
    d.commit_in_transaction({("t", at): at for at in range(count)})
    d.send(DeleteGroup(d.pending_response()))
    d.end()
    while d.table.removes(GROUP):
        d.go_on()
    assert len(d.table) == 0 and len(d.reloaded().table) == 0


def test_offsets_in_flight_and_after_a_marker_in_flight_are_removed_too() -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 2}, A)
    d.commit()
    d.end(A)
    d.commit_in_transaction({T1: 2}, B)
    d.send(DeleteGroup(d.pending_response()))
    d.commit()
    d.end(B)
    d.commit()
    assert len(d.table) == 0 and len(d.reloaded().table) == 0


def test_nothing_expires_that_is_pending_nor_its_group() -> None:
    d = TransactionDriver(GroupSettings(offsets_retention_minutes=1))
    d.commit_offsets({T0: 1, T1: 1})
    d.commit_in_transaction({T0: 2})
    d.advance(60_001)
    d.send(Expire())
    assert (offset(d), offset(d, "t", 1)) == (1, None)
    d.end()
    assert offset(d) == 2
    both_ways(d)
    d.send(Expire())
    assert len(d.table) == 0 and len(d.reloaded().table) == 0


def test_positions_that_a_hanging_transaction_keeps_take_no_room_of_those_that_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_EXPIRED_AT_ONCE", 2)
    d = TransactionDriver(GroupSettings(offsets_retention_minutes=1))
    d.commit_offsets({T0: 1, T1: 1, ("t", 2): 1})
    d.commit_in_transaction({T0: 2, T1: 2})
    d.advance(60_001)
    d.send(Expire())
    assert d.committed().keys() == {(GROUP, TopicPartition(*T0)), (GROUP, TopicPartition(*T1))}
    both_ways(d)


@pytest.mark.parametrize("in_flight", [True, False])
def test_first_sights_that_a_hanging_transaction_keeps_take_no_room_of_those_that_expire(
    monkeypatch: pytest.MonkeyPatch, in_flight: bool
) -> None:
    monkeypatch.setattr(limits, "MAX_EXPIRED_AT_ONCE", 1)
    d = TransactionDriver(GroupSettings(offsets_retention_minutes=1))
    held = {f"t{number}": UUID(int=number) for number in range(1, 50)}
    for topic, topic_id in {**held, "left": NEW}.items():
        # As a write leaves them that was cut short after the first sight.
        sight = FirstSightRecord(GROUP, topic, FirstSight(topic_id, 3, -1))
        d.journal.append(Entry(*encode(sight)))
    d = d.reloaded()
    d.hold = in_flight
    for topic, topic_id in held.items():
        d.commit_in_transaction({(topic, 0): 2}, topic_id=topic_id)
    d.advance(60_001)
    d.send(Expire())
    d.commit()
    assert d.group.first_sights.keys() == held.keys()
    both_ways(d)


def test_a_group_of_pending_offsets_alone_does_not_expire() -> None:
    d = TransactionDriver(GroupSettings(offsets_retention_minutes=1))
    d.topics["t"] = FirstSight(OLD, 3, -1)
    d.commit_in_transaction({T0: 2}, topic_id=OLD)
    d.advance(60_001)
    d.send(Expire())
    assert list(d.group.first_sights) == ["t"]
    d.end()
    assert offset(d) == 2


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_deleted_topic_takes_its_pending_offsets_along(in_flight: bool) -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 2, ("u", 0): 3})
    if not in_flight:
        d.commit()
    d.send(RemoveTopics(frozenset({"t"})))
    d.commit()
    assert unstable(d) == set() and unstable(d, "u") == {0}
    both_ways(d)
    d.end()
    d.commit()
    assert offset(d) is None and offset(d, "u") == 3
    both_ways(d)


# First sights and topic ids --------------------------------------------------------------------


def test_a_first_sight_precedes_pending_offsets_and_stays_when_they_are_aborted() -> None:
    d = TransactionDriver()
    d.topics["t"] = FirstSight(OLD, 3, -1)
    d.commit_in_transaction({T0: 2}, topic_id=OLD)
    assert isinstance(decode(*d.journal[0][:2]), FirstSightRecord)
    assert d.journal[0].producer_id == -1 and d.journal[1].producer_id == 1
    d.end(committed=False)
    assert d.group.first_sights["t"] == FirstSight(OLD, 3, -1)
    assert d.reloaded().group.first_sights == d.group.first_sights


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_topic_of_a_name_gets_nothing_of_the_former_one(committed: bool) -> None:
    d = TransactionDriver()
    d.topics["t"] = FirstSight(OLD, 0, -1)
    d.commit_in_transaction({T0: 100}, A, topic_id=OLD)
    d.topics["t"] = FirstSight(NEW, 0, -1)
    d.commit_in_transaction({T1: 5}, B, topic_id=NEW)
    assert d.pending() == {2: {(GROUP, TopicPartition(*T1)): (5, "")}}
    both_ways(d)
    d.end(A, committed=True)
    d.end(B, committed=committed)
    assert offset(d) is None and offset(d, "t", 1) == (5 if committed else None)
    both_ways(d)


def test_pending_offsets_of_a_former_topic_hold_the_next_one_up_for_no_reader() -> None:
    d = TransactionDriver()
    d.topics["t"] = FirstSight(OLD, 0, -1)
    d.commit_in_transaction({T0: 100}, A, topic_id=OLD)
    assert set(d.table.unstable(GROUP, "t", lambda _: OLD)) == {0}
    assert set(d.table.unstable(GROUP, "t", lambda _: NEW)) == set()
    # A deletion that the writer did not know of.
    other = d.reloaded()
    other.send(RemoveFormerTopicIds(lambda _: NEW))
    assert other.pending() == {}
    other.end(A)
    assert offset(other) is None


def test_very_many_former_offsets_are_removed_before_the_commit_is_tried_again() -> None:
    count = pending_removal.PART + 1
    d = TransactionDriver()
    d.topics["t"] = FirstSight(OLD, 0, -1)
    d.commit_in_transaction({("t", at): 1 for at in range(count)}, A, topic_id=OLD)
    d.topics["t"] = FirstSight(NEW, 0, -1)
    asked = d.commit_in_transaction({T0: 5}, B, topic_id=NEW)
    assert d.error_of(asked) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert d.pending() == {}
    again = d.commit_in_transaction({T0: 5}, B, topic_id=NEW)
    assert d.error_of(again) is E.NONE
    d.end(B)
    assert d.committed() == {(GROUP, TopicPartition(*T0)): (5, "")}
    both_ways(d)


def test_a_first_sight_with_an_assignment_names_the_topic_of_pending_offsets() -> None:
    """The earlier first sight was compacted away: pending offsets come before it in the log."""
    d = TransactionDriver()
    d.topics["t"] = FirstSight(OLD, 0, -1)
    d.commit_in_transaction({T0: 5}, topic_id=OLD)
    first, *rest = d.journal
    sight = FirstSightRecord(GROUP, "t", FirstSight(OLD, 0, 4))
    d.journal = rest
    other = d.reloaded()
    other.table.replay(*encode(sight), other.now)
    assert dict(other.group.flying.unstable("t")) == {0: OLD}
    assert first.marker is None


# Members that swap -----------------------------------------------------------------------------


def test_two_members_swap_partitions_in_mid_transaction() -> None:
    """Each waits for the transaction of the other; none reads a record twice or skips one."""
    d = TransactionDriver()
    one, two = d.stable(2)
    before = d.group.generation
    leader = d.group.leader
    d.commit_in_transaction({T0: 10}, A, one, before)
    d.commit_in_transaction({T1: 20}, B, two, before)
    # Partition 0 goes to the second member and partition 1 to the first.
    d.join(one, protocols=(("range", b"again"),))
    d.join(two, protocols=(("range", b"again"),))
    after = d.group.generation
    assert after == before + 1
    shares = {one: assignment(t=[1]), two: assignment(t=[0])}
    d.sync(one, after, shares if leader == one else None)
    d.sync(two, after, shares if leader == two else None)
    assert d.group.state is GroupState.STABLE
    assert unstable(d) == {0, 1}
    # A commit of the former generation is too late for the group, not for the transaction.
    late = d.commit_in_transaction({T0: 11}, A, one, before)
    assert d.error_of(late) is E.ILLEGAL_GENERATION
    d.end(A, committed=True)
    assert unstable(d) == {1} and offset(d) == 10
    moved = d.reloaded()
    for here in (moved, d):
        here.end(B, committed=False)
        assert unstable(here) == set()
        assert (offset(here), offset(here, "t", 1)) == (10, None)
    # The new owners go on in transactions of their own.
    assert d.error_of(d.commit_in_transaction({T1: 20}, A, one, after)) is E.NONE
    assert d.error_of(d.commit_in_transaction({T0: 15}, B, two, after)) is E.NONE
    d.end(B)
    d.end(A)
    assert (offset(d), offset(d, "t", 1)) == (15, 20)
    both_ways(d)


def test_a_member_that_leaves_keeps_its_transaction_open() -> None:
    d = TransactionDriver()
    (member,) = d.stable(1)
    d.commit_in_transaction({T0: 10}, A, member, d.group.generation)
    d.leave(Leaver(member))
    assert d.group.state is GroupState.EMPTY and unstable(d) == {0}
    d.end(A)
    assert offset(d) == 10


def test_a_coordinator_that_loses_the_partition_forgets_what_is_open() -> None:
    d = TransactionDriver(hold=True)
    d.commit_in_transaction({T0: 1}, (1, 5))
    d.commit()
    d.table.unload()
    assert len(d.table) == 0
    d.end((1, 4))
    assert len(d.in_flight) == 1
