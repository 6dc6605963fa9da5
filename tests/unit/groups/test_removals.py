"""Removals of very many positions, in parts: of groups, and of topics that are gone."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.group_driver import GROUP, Driver
from tidelog.groups import limits, pending_removal, removals
from tidelog.groups.events import DeleteGroup, Expire, RemoveFormerTopicIds, RemoveTopics
from tidelog.groups.group import GroupState
from tidelog.groups.records import NO_TOPIC_ID, GroupRecord
from tidelog.groups.retention import check, found_by
from tidelog.model.errors import ErrorCode

E = ErrorCode
PART = 4
WEEK_MS = 7 * 86_400_000
FORMER, PRESENT = UUID(int=1), UUID(int=2)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_removal, "PART", PART)


def driver(positions: int = 3 * PART, topic_id: UUID = FORMER) -> Driver:
    """A group with positions of "t" and one of "u"."""
    d = Driver(hold=True, in_parts=True)
    d.commit_offsets({("t", at): 7 for at in range(positions)}, topic_id=topic_id)
    d.commit_offsets({("u", 0): 8})
    d.commit()
    return d


def delete_group(d: Driver) -> int:
    pending_response = d.pending_response()
    d.send(DeleteGroup(pending_response))
    return pending_response


def positions(d: Driver) -> set[tuple[str, int]]:
    return {(topic, at) for topic, found in d.table.offsets(GROUP, None) for at, _ in found}


def rest(d: Driver) -> None:
    while d.table.removes(GROUP):
        d.go_on()


@pytest.mark.parametrize("committed", [False, True])
def test_a_group_with_many_positions_is_deleted_in_parts(committed: bool) -> None:
    """200,000 positions were one decision, and one turn of the loop of more than a second."""
    d = driver()
    pending_response = delete_group(d)
    parts = 1
    while d.table.removes(GROUP):
        if committed:
            d.commit()
        assert d.group.state is GroupState.DEAD, "no request sees half of its positions"
        assert positions(d) == set() and pending_response not in d.answers
        d.go_on()
        parts += 1
    written = [len(write.records) for write in d.in_flight]
    assert max(written) <= PART
    assert parts == 4, "13 positions, a first sight, the group"
    d.commit()
    assert d.status(pending_response) is E.NONE
    assert len(d.table) == len(d.reloaded().table) == 0


def test_a_coordinator_that_dies_between_two_parts_leaves_what_a_second_request_ends() -> None:
    for parts in range(1, 4):
        d = driver()
        delete_group(d)
        for _ in range(parts - 1):
            d.go_on()
        d.commit(parts)
        other = d.reloaded()
        assert other.group.state is GroupState.EMPTY
        assert len(positions(other)) == 13 - min(13, parts * PART)
        pending_response = delete_group(other)
        other.commit()
        rest(other)
        other.commit()
        assert other.status(pending_response) is E.NONE
        assert len(other.table) == len(other.reloaded().table) == 0


def test_a_first_part_that_the_log_refuses_leaves_the_group_as_it_was() -> None:
    d = driver()
    pending_response = delete_group(d)
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert d.status(pending_response) is E.COORDINATOR_NOT_AVAILABLE
    assert not d.table.removes(GROUP)
    assert d.group.state is GroupState.EMPTY and len(positions(d)) == 13
    again = delete_group(d)
    rest(d)
    d.commit()
    assert d.status(again) is E.NONE and len(d.reloaded().table) == 0


@pytest.mark.parametrize("how", ["time", "request"])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_later_part_that_the_log_refuses_is_written_again(how: str, parts: int) -> None:
    """Half a group is nothing that a consumer may begin with."""
    d = driver()
    first = delete_group(d)
    for _ in range(parts - 1):
        d.commit()
        d.go_on()
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert d.status(first) is E.COORDINATOR_NOT_AVAILABLE
    assert not d.table.removes(GROUP) and d.group.state is GroupState.DEAD
    assert d.error_of(d.commit_offsets({("t", 0): 9})) is E.COORDINATOR_NOT_AVAILABLE
    assert positions(d) == set()
    if how == "time":
        d.in_parts = False
        d.advance(removals.AGAIN_MS)
    else:
        second = delete_group(d)
        rest(d)
    d.commit()
    if how == "request":
        assert d.status(second) is E.NONE
    assert len(d.table) == len(d.reloaded().table) == 0


def test_requests_that_wait_for_a_removal_are_sent_elsewhere_with_the_leadership() -> None:
    d = driver()
    pending_response = delete_group(d)
    d.perform(d.table.unload())
    assert d.status(pending_response) is E.NOT_COORDINATOR
    assert not d.table.removes(GROUP)


def test_a_bug_in_a_part_leaves_the_rest_and_the_group_can_be_deleted_again() -> None:
    d = driver()
    pending_response = delete_group(d)
    d.commit()
    d.perform(d.table.interrupted(GROUP))
    assert d.status(pending_response) is E.UNKNOWN_SERVER_ERROR
    assert d.group.state is GroupState.EMPTY and len(positions(d)) == 13 - PART
    again = delete_group(d)
    rest(d)
    d.commit()
    assert d.status(again) is E.NONE and len(d.table) == 0


@pytest.mark.parametrize(
    "event",
    [
        RemoveTopics(frozenset({"t"})),
        RemoveTopics(frozenset({"t"}), lambda _: PRESENT),
        RemoveFormerTopicIds(lambda topic: PRESENT if topic == "t" else NO_TOPIC_ID),
    ],
)
def test_the_positions_of_a_topic_that_is_gone_go_in_parts(event: RemoveTopics) -> None:
    """The first sight goes last: what is left follows it, and belongs to no other incarnation."""
    d = driver()
    d.send(event)
    while d.table.removes(GROUP):
        assert len(d.in_flight[-1].records) == PART
        d.commit()
        seen = d.reloaded().group
        left = len(seen.offsets.get("t", ()))
        assert bool(left) <= ("t" in seen.first_sights)
        d.go_on()
    d.commit()
    assert positions(d) == positions(d.reloaded()) == {("u", 0)}
    assert not d.group.first_sights


def test_what_is_left_of_a_topic_when_the_log_refuses_a_part_keeps_its_first_sight() -> None:
    d = driver()
    d.send(RemoveTopics(frozenset({"t"})))
    d.commit()
    d.go_on()
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert not d.table.removes(GROUP)
    assert "t" in d.group.first_sights and len(d.group.offsets["t"]) == 3 * PART - PART
    d.send(RemoveTopics(frozenset({"t"})))
    rest(d)
    d.commit()
    assert positions(d) == {("u", 0)}


def test_positions_in_flight_go_with_their_group_in_parts() -> None:
    d = driver()
    d.commit_offsets({("t", at): 9 for at in range(2 * PART, 5 * PART)}, topic_id=FORMER)
    delete_group(d)
    while d.table.removes(GROUP):
        d.commit(1)
        d.go_on()
    d.commit()
    assert len(d.table) == len(d.reloaded().table) == 0


def test_a_short_removal_is_one_write() -> None:
    d = driver(1)
    delete_group(d)
    (write,) = d.in_flight
    assert isinstance(write.records[-1], GroupRecord) and len(write.records) == PART


# -- a commit in the next incarnation of a topic


def commit_in_next_incarnation(d: Driver) -> int:
    return d.commit_offsets({("t", 0): 9, ("u", 1): 9, ("t", 1): 9}, topic_id=PRESENT)


def test_the_first_commit_in_a_topics_next_incarnation_follows_all_parts_of_the_former() -> None:
    """50,000 positions were removed in one decision, and one turn of the loop."""
    d = driver()
    pending_response = commit_in_next_incarnation(d)
    parts = 1
    while d.table.removes(GROUP):
        assert len(d.in_flight[-1].records) == PART
        d.commit()
        assert pending_response not in d.answers
        # Whatever a crash leaves: no position of a former incarnation under a later first sight.
        seen = d.reloaded().group
        lives = {x.topic_id for x in seen.offsets.get("t", {}).values()}
        assert lives <= {seen.first_sights["t"].topic_id}
        d.go_on()
        parts += 1
    assert parts == 5, "12 tombstones, 2 first sights, 3 positions"
    d.commit()
    assert d.error_of(pending_response) is E.NONE
    expected = {("t", 0), ("t", 1), ("u", 0), ("u", 1)}
    assert positions(d) == positions(d.reloaded()) == expected
    assert d.reloaded().group.first_sights["t"].topic_id == PRESENT
    again = commit_in_next_incarnation(d)
    d.commit()
    assert d.error_of(again) is E.NONE and not d.table.removes(GROUP)


@pytest.mark.parametrize("error", [E.NOT_ENOUGH_REPLICAS, E.MESSAGE_TOO_LARGE])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
def test_a_commit_in_a_next_incarnation_of_which_a_part_is_refused_is_refused(
    parts: int, error: ErrorCode
) -> None:
    d = driver()
    pending_response = commit_in_next_incarnation(d)
    for _ in range(parts - 1):
        d.commit()
        d.go_on()
    d.refuse(error)
    told = (
        E.COORDINATOR_NOT_AVAILABLE
        if error is E.NOT_ENOUGH_REPLICAS
        else E.INVALID_COMMIT_OFFSET_SIZE
    )
    assert {code for _, code in d.done(pending_response).partitions} == {told}
    assert not d.table.removes(GROUP) and d.group.state is GroupState.EMPTY
    again = commit_in_next_incarnation(d)
    rest(d)
    d.commit()
    assert d.error_of(again) is E.NONE
    assert positions(d.reloaded()) == {("t", 0), ("t", 1), ("u", 0), ("u", 1)}


def test_a_commit_in_a_next_incarnation_is_sent_elsewhere_with_the_leadership() -> None:
    d = driver()
    pending_response = commit_in_next_incarnation(d)
    d.perform(d.table.unload())
    assert {code for _, code in d.done(pending_response).partitions} == {E.NOT_COORDINATOR}


# -- retention


def test_what_has_expired_goes_in_parts_and_its_first_sight_last() -> None:
    d = driver()
    d.advance(WEEK_MS)
    d.commit_offsets({("u", 1): 9})
    d.commit()
    d.send(Expire())
    assert d.table.removes(GROUP)
    while d.table.removes(GROUP):
        d.commit()
        seen = d.reloaded().group
        assert ("t" in seen.first_sights) >= ("t" in seen.offsets)
        d.go_on()
    d.commit()
    assert positions(d) == positions(d.reloaded()) == {("u", 1)}
    assert not d.group.first_sights


def test_what_a_look_found_is_looked_at_again() -> None:
    """The group goes on while very many positions are looked at."""
    d = driver()
    d.advance(WEEK_MS)
    found = found_by(check(d.group, d.now))
    assert found.positions is not None and len(found.positions) == 13
    d.commit_offsets({("t", 1): 9}, topic_id=FORMER)
    d.commit()
    # In flight: its tombstone would follow it.
    d.commit_offsets({("t", 2): 9}, topic_id=FORMER)
    d.send(found)
    rest(d)
    d.commit()
    assert positions(d) == positions(d.reloaded()) == {("t", 1), ("t", 2)}
    assert "t" in d.group.first_sights
    # Members have come, and read it: nothing of it expires.
    other = driver()
    other.advance(WEEK_MS)
    found = found_by(check(other.group, other.now))
    other.hold = False
    other.new_member()
    other.send(found)
    assert len(positions(other)) == 13


def test_so_much_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EXPIRED_AT_ONCE", 5)
    d = driver()
    d.advance(WEEK_MS)
    left = 13
    while left:
        d.send(Expire())
        rest(d)
        d.commit()
        left = max(0, left - 5)
        assert len(positions(d)) == left
    assert len(d.table) == len(d.reloaded().table) == 0


def test_positions_in_flight_count_among_those_that_a_commit_in_a_next_incarnation_removes() -> (
    None
):
    d = Driver(hold=True, in_parts=True)
    d.commit_offsets({("t", at): 7 for at in range(3 * PART)}, topic_id=FORMER)
    pending_response = commit_in_next_incarnation(d)
    rest(d)
    assert max(len(write.records) for write in list(d.in_flight)[1:]) <= PART
    d.commit()
    assert d.error_of(pending_response) is E.NONE
    assert positions(d) == positions(d.reloaded()) == {("t", 0), ("u", 1), ("t", 1)}
