"""The table of membership: each state, each event; and what can never happen."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tidelog.client.errors import ClientError
from tidelog.client.groups.membership import (
    HEARTBEATS,
    TABLE,
    Event,
    MemberState,
    MemberStatus,
    after_error,
    named,
    step,
)
from tidelog.model.errors import ErrorCode

LETTERS = dict(zip("oijrcl", MemberState, strict=True))
"""out, joining, joined, reading, recalled, leaving."""

EXPECTED = """
                 out  joining  joined  reading  recalled  leaving
JOIN             i    i        i       i        i         l
ASSIGNED         o    j        j       r        c         l
POSITIONED       o    i        r       r        c         l
REBALANCE        o    i        c       c        c         l
GENERATION_LOST  o    i        o       o        o         l
UNKNOWN          o    i        o       o        o         l
SILENCE          o    i        o       o        o         l
FAILED           o    o        o       o        o         l
INTERRUPTED      o    o        j       r        c         o
LEAVE            l    l        l       l        l         l
LEFT             o    o        o       o        o         o
"""

ENTERING = (Event.LEFT, Event.JOIN, Event.ASSIGNED, Event.POSITIONED)


def expected() -> dict[tuple[MemberState, Event], MemberState]:
    found = {}
    for line in EXPECTED.strip().splitlines()[1:]:
        name, *letters = line.split()
        for state, letter in zip(MemberState, letters, strict=True):
            found[state, Event[name]] = LETTERS[letter]
    return found


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
@pytest.mark.parametrize("state", MemberState, ids=lambda state: state.name)
def test_each_cell(state: MemberState, event: Event) -> None:
    assert TABLE[state, event] is expected()[state, event]
    assert step(MemberStatus(state, "m", 3), event).state is expected()[state, event]


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(product(MemberState, Event)) == set(expected())


def test_what_becomes_of_id_and_generation() -> None:
    reading = MemberStatus(MemberState.READING, "m", 3)
    kept = {event: step(reading, event) for event in Event}
    ids = {event for event, behind in kept.items() if not behind.member_id}
    assert ids == {Event.UNKNOWN, Event.LEFT}
    generations = {event for event, behind in kept.items() if behind.generation < 0}
    assert generations == ids | {Event.JOIN, Event.GENERATION_LOST, Event.FAILED}
    # A member that was cut off while it joined has no generation, and may come back by its name.
    joining = named(MemberStatus(MemberState.JOINING), "m", 4)
    assert step(joining, Event.INTERRUPTED) == MemberStatus(MemberState.OUT, "m", -1)


def test_a_member_commits_in_its_generation_and_not_while_it_joins() -> None:
    may = {state for state in MemberState if MemberStatus(state, "m", 3).may_commit}
    assert may == {MemberState.OUT, MemberState.JOINED, MemberState.READING, MemberState.RECALLED}
    assert not any(MemberStatus(state, "m", -1).may_commit for state in MemberState)


def test_a_member_that_sends_heartbeats_reads_or_must_do_something() -> None:
    # Silent are those that join next; those that send heartbeats read, join again, or look up
    # positions, which `group_reader` does in this state only.
    for state in MemberState:
        standing = MemberStatus(state, "m", 3)
        if state in HEARTBEATS:
            assert state in (MemberState.JOINED, MemberState.READING) or standing.must_join
        else:
            assert standing.must_join or state is MemberState.LEAVING


def test_from_wherever_events_lead_a_member_can_come_to_read() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
        standing = MemberStatus()
        for event in chance.choices(list(Event), k=chance.randrange(12)):
            standing = step(standing, event)
            if event is Event.JOIN:
                standing = named(standing, "m", chance.randrange(9))
        for event in ENTERING:
            standing = step(standing, event)
        assert standing.state is MemberState.READING


def test_an_answer_to_another_generation_changes_nothing() -> None:
    now = MemberStatus(MemberState.READING, "m", 4)
    asked = MemberStatus(MemberState.READING, "m", 3)
    for code in (
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ):
        assert after_error(now, code, asked) is now
        behind = after_error(now, code, now)
        assert behind is not None and behind.must_join
    assert after_error(now, ErrorCode.FENCED_INSTANCE_ID, now) is None
    assert after_error(now, ErrorCode.GROUP_AUTHORIZATION_FAILED, now) is None


def test_what_ends_a_membership_is_kept() -> None:
    why = ClientError("fenced")
    ended = step(MemberStatus(MemberState.READING, "m", 3), Event.FAILED, why)
    assert (ended.state, ended.problem) == (MemberState.OUT, why)
    assert step(ended, Event.JOIN).problem is why
