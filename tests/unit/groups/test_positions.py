"""ConsumerGroupPosition: which position counts, for which owner, in which generation."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest

from tests.support.group_driver import Driver, assignment, subscription
from tidelog.groups import limits
from tidelog.groups.events import ReportPositions
from tidelog.groups.group import GroupState
from tidelog.groups.positions import SILENT_MS, grows_by
from tidelog.groups.records import FirstSight
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition

AWARE = (("tidelog.range", subscription("t")), ("range", subscription("t")))
STOCK = (("range", subscription("t")),)
TOPIC_ID = UUID(int=5)
SHUT, NONE_COMMITTED = (-1, False), (-1, True)


@dataclass
class Pair:
    """Two members of a stable generation: the first owns partitions 0 and 1, the other 2 and 3."""

    driver: Driver
    first: str
    other: str
    generation: int

    def again(self, member_id: str, *asked: int, **reports: int) -> object:
        """Report (``p0=5``) and ask."""
        named = {("t", int(name[1:])): offset for name, offset in reports.items()}
        questions = [("t", at) for at in asked]
        return self.driver.positions(member_id, self.generation, named, *questions)

    def commit(self, member_id: str, partition: int, offset: int) -> None:
        at = {("t", partition): offset}
        done = self.driver.commit_offsets(at, member_id, self.generation, topic_id=TOPIC_ID)
        self.driver.commit()
        assert self.driver.error_of(done) is E.NONE


def shares(first: str, other: str) -> dict[str, bytes]:
    return {first: assignment(t=[0, 1]), other: assignment(t=[2, 3])}


def pair(first: object = AWARE, other: object = AWARE, **options: object) -> Pair:
    d = Driver(**options)  # type: ignore[arg-type]
    d.topics["t"] = FirstSight(TOPIC_ID, 0, -1)
    joins = [d.new_member(protocols=each) for each in (first, other)]
    d.advance(d.settings.group_initial_rebalance_delay_ms * 3)
    generation = d.joined(joins[0][1]).generation
    members = [member_id for member_id, _ in joins]
    for member_id in members:
        is_leader = member_id == d.group.leader
        d.sync(member_id, generation, shares(*members) if is_leader else None)
    d.commit()
    assert d.group.state is GroupState.STABLE
    return Pair(d, *members, generation)


def rebalance(p: Pair) -> None:
    """Both join again, and get the same."""
    joins = [p.driver.join(each, protocols=AWARE) for each in (p.first, p.other)]
    p.generation = p.driver.joined(joins[0]).generation
    for member_id in (p.first, p.other):
        given = shares(p.first, p.other) if member_id == p.driver.group.leader else None
        p.driver.sync(member_id, p.generation, given)
    p.driver.commit()


# Aware members ------------------------------------------------------------------------------


def test_the_last_report_counts_not_the_highest() -> None:
    p = pair()
    assert p.again(p.first, 0, 1, 2, p0=9) == {0: (9, False), 1: SHUT, 2: SHUT}
    assert p.again(p.other, 0, p2=4) == {0: (9, False)}
    assert p.again(p.first, 0, p0=3) == {0: (3, False)}
    assert p.again(p.other, 0, 2) == {0: (3, False), 2: (4, False)}


def test_a_commit_below_a_position_lowers_it_and_one_above_does_not_raise_it() -> None:
    p = pair()
    p.again(p.first, p0=9, p1=9)
    p.commit(p.first, 0, 5)
    p.commit(p.first, 1, 12)
    assert p.again(p.other, 0, 1) == {0: (5, False), 1: (9, False)}


def test_the_commit_of_an_aware_owner_is_not_its_position() -> None:
    p = pair()
    p.commit(p.first, 0, 5)
    assert p.again(p.other, 0) == {0: SHUT}


def test_positions_are_those_of_one_generation() -> None:
    p = pair()
    p.again(p.first, p0=9)
    former = p.generation
    rebalance(p)
    assert p.again(p.other, 0) == {0: SHUT}
    assert p.driver.positions(p.first, former, {("t", 0): 9}) is E.ILLEGAL_GENERATION
    assert p.again(p.other, 0) == {0: SHUT}


def test_a_new_coordinator_knows_no_positions() -> None:
    p = pair()
    p.again(p.first, p0=9)
    p.driver = p.driver.reloaded()
    # The chosen name says that all members are aware.
    assert p.again(p.other, 0, p2=1) == {0: SHUT}
    assert p.again(p.first, 0, 2, p0=10) == {0: (10, False), 2: (1, False)}


def test_reports_of_partitions_that_the_member_does_not_own() -> None:
    p = pair()
    assert p.again(p.first, 2, 7, p2=50, p7=50) == {2: SHUT, 7: NONE_COMMITTED}


def test_positions_in_a_former_topic_of_the_name_are_forgotten() -> None:
    p = pair()
    p.again(p.first, p0=9)
    p.driver.topics["t"] = FirstSight(UUID(int=6), 0, -1)
    assert p.again(p.other, 0) == {0: SHUT}
    assert p.again(p.first, 0, p0=3) == {0: (3, False)}


# Stock members, no member, no members -------------------------------------------------------


def test_what_a_stock_member_has_committed_is_its_position() -> None:
    p = pair(other=STOCK)
    assert p.again(p.first, 2, p0=1) == {2: NONE_COMMITTED}
    p.commit(p.other, 2, 6)
    assert p.again(p.first, 0, 2) == {0: (1, False), 2: (6, True)}
    p.commit(p.other, 2, 4)
    assert p.again(p.first, 2) == {2: (4, True)}


def test_a_partition_of_no_member() -> None:
    p = pair()
    p.commit(p.first, 9, 8)
    assert p.again(p.first, 9, 10) == {9: (8, True), 10: NONE_COMMITTED}


def test_commits_of_a_former_topic_do_not_count() -> None:
    p = pair()
    p.commit(p.first, 9, 8)
    asked = (p.first, p.generation, {}, ("t", 9))
    assert p.driver.positions(*asked, topic_id=UUID(int=6)) == {9: NONE_COMMITTED}
    assert p.driver.positions(*asked, topic_id=TOPIC_ID) == {9: (8, True)}


def test_a_group_without_members_has_its_commits_as_positions() -> None:
    d = Driver()
    assert d.positions("", -1, {}, ("t", 0)) == {0: NONE_COMMITTED}
    assert len(d.table) == 0
    d.commit_offsets({("t", 0): 7})
    # Without members a report is of none of them.
    assert d.positions("", -1, {("t", 0): 99}, ("t", 0), ("t", 1)) == {
        0: (7, True),
        1: NONE_COMMITTED,
    }
    p = pair()
    assert p.driver.positions("", -1, {}, ("t", 0)) is E.UNKNOWN_MEMBER_ID


# After a load -------------------------------------------------------------------------------


def test_a_mixed_group_after_a_load_opens_no_gate_by_a_commit_of_an_unknown_owner() -> None:
    p = pair(other=STOCK)
    p.commit(p.other, 2, 6)
    p.driver = p.driver.reloaded()
    # The member that asks is aware; what the other one is the log does not say.
    assert p.again(p.first, 0, 2, p0=1) == {0: (1, False), 2: SHUT}
    assert p.driver.group.state is GroupState.STABLE
    p.driver.advance(SILENT_MS)
    assert p.again(p.first, 2) == {2: SHUT}
    assert p.driver.group.state is GroupState.PREPARING_REBALANCE
    assert p.again(p.first, 2) is E.REBALANCE_IN_PROGRESS
    for member_id, offers in ((p.first, AWARE), (p.other, STOCK)):
        joined = p.driver.join(member_id, protocols=offers)
    p.generation = p.driver.joined(joined).generation
    for member_id in (p.first, p.other):
        given = shares(p.first, p.other) if member_id == p.driver.group.leader else None
        p.driver.sync(member_id, p.generation, given)
    assert p.again(p.first, 0, 2) == {0: SHUT, 2: (6, True)}


def test_a_member_that_asks_after_a_load_is_aware_without_a_rebalance() -> None:
    p = pair(other=AWARE)
    for member in p.driver.group.members.values():
        del member.protocols["tidelog.range"]
        p.driver.group.protocol_name = "range"
    p.driver = p.driver.reloaded()
    for member in p.driver.group.members.values():
        member.protocols = {"range": subscription("t")}
    p.again(p.other, p2=3)
    p.driver.advance(SILENT_MS)
    assert p.again(p.first, 2) == {2: (3, False)}
    assert p.driver.group.state is GroupState.STABLE


# Refusals and bounds ------------------------------------------------------------------------


def test_errors_are_those_of_a_heartbeat() -> None:
    p = pair()
    ask = p.driver.positions
    assert ask("no member", p.generation) is E.UNKNOWN_MEMBER_ID
    assert ask(p.first, p.generation + 1) is E.ILLEGAL_GENERATION
    assert ask(p.first, -1) is E.ILLEGAL_GENERATION
    assert ask("", p.generation) is E.UNKNOWN_MEMBER_ID
    joined = p.driver.join(p.first, protocols=AWARE)
    assert joined not in p.driver.answers
    assert ask(p.other, p.generation) is E.REBALANCE_IN_PROGRESS
    p.driver.join(p.other, protocols=AWARE)
    p.generation += 1
    assert p.driver.group.state is GroupState.COMPLETING_REBALANCE
    assert ask(p.other, p.generation) is E.REBALANCE_IN_PROGRESS
    assert Driver().positions("m", 3) is E.UNKNOWN_MEMBER_ID


def test_a_group_of_another_protocol_has_no_positions() -> None:
    d = Driver()
    (member_id,) = d.stable(1, protocol_type="connect")
    assert d.positions(member_id, d.group.generation) is E.INCONSISTENT_GROUP_PROTOCOL


def test_it_keeps_the_session_alive() -> None:
    p = pair()
    for _ in range(4):
        p.driver.advance(6_000)
        assert p.again(p.first) == p.again(p.other) == {}
    assert list(p.driver.group.members) == [p.first, p.other]
    p.driver.advance(10_000)
    assert not p.driver.group.members


def test_an_assignment_that_cannot_be_read_keeps_gates_shut() -> None:
    d = Driver()
    (member_id,) = d.stable(1, protocols=AWARE)
    d.commit_offsets({("t", 0): 4}, member_id, d.group.generation)
    answer = d.positions(member_id, d.group.generation, {("t", 0): 9}, ("t", 0), ("u", 1))
    assert answer == {0: SHUT, 1: SHUT}
    assert any("owners" in note.message for note in d.notes)


def test_a_generation_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OWNED", 3)
    p = pair()
    assert p.again(p.first, 0, 9, p0=1) == {0: SHUT, 9: SHUT}
    assert p.driver.group.positions is not None
    assert p.driver.group.positions.held_bytes == 0
    monkeypatch.setattr(limits, "MAX_OWNED", 4)
    assert pair().again(p.first, 9) == {9: NONE_COMMITTED}


@pytest.mark.parametrize(("most", "shown"), [(1, SHUT), (2, NONE_COMMITTED)])
def test_a_generation_with_too_many_topics(
    monkeypatch: pytest.MonkeyPatch, most: int, shown: tuple[int, bool]
) -> None:
    """Each member's part of a topic counts."""
    monkeypatch.setattr(limits, "MAX_OWNED_TOPICS", most)
    p = pair()
    assert p.again(p.first, 9) == {9: shown}


def test_the_memory_of_owners_counts_as_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    p = pair()
    before = p.driver.table.held
    ask = ReportPositions(0, p.first, p.generation)
    most = grows_by(p.driver.group, ask)
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", before + most - 1)
    assert p.again(p.first, 0) is E.COORDINATOR_NOT_AVAILABLE
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", before + most)
    assert p.again(p.first, 0, p0=1) == {0: (1, False)}
    held = 4 * limits.HELD_BY_OWNED + limits.HELD_BY_OWNED_TOPIC
    assert p.driver.table.held == before + held <= before + most
    # Later requests of the generation add nothing.
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 0)
    assert p.again(p.other, 0) == {0: (1, False)}
    rebalance(p)
    assert p.driver.table.held == before


def test_a_static_member_that_comes_back_reports_again() -> None:
    d = Driver()
    d.topics["t"] = FirstSight(TOPIC_ID, 0, -1)
    pending_response = d.join(protocols=AWARE, instance_id="i")
    d.advance(d.settings.group_initial_rebalance_delay_ms * 2)
    joined = d.joined(pending_response)
    d.sync(
        joined.member_id, joined.generation, {joined.member_id: assignment(t=[0])}, instance_id="i"
    )
    assert d.positions(joined.member_id, joined.generation, {("t", 0): 9}, ("t", 0)) == {
        0: (9, False)
    }
    again = d.joined(d.join(protocols=AWARE, instance_id="i"))
    assert again.generation == joined.generation
    assert d.positions(again.member_id, again.generation, {}, ("t", 0)) == {0: SHUT}
    assert d.positions(joined.member_id, again.generation) is E.UNKNOWN_MEMBER_ID
    assert TopicPartition("t", 0) not in d.group.offsets
