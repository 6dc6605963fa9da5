"""Progress of a group: which position, of which owner, how long ago; the view for tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tests.support.group_driver import GROUP, Driver, assignment, subscription
from tidelog.groups import limits
from tidelog.groups.group import GroupState
from tidelog.groups.progress import progress_of
from tidelog.groups.records import FirstSight

AWARE = (("tidelog.range", subscription("t", "u")), ("range", subscription("t", "u")))
STOCK = (("range", subscription("t", "u")),)
TOPIC_ID = UUID(int=5)


def led(*members: object) -> tuple[Driver, list[str], int]:
    """Members of a stable generation: each owns partition 0, 1 … of t, and the first one u."""
    d = Driver()
    d.topics["t"] = FirstSight(TOPIC_ID, 0, -1)
    joins = [d.new_member(protocols=each) for each in members]
    d.advance(d.settings.group_initial_rebalance_delay_ms * 3)
    generation = d.joined(joins[0][1]).generation
    ids = [member_id for member_id, _ in joins]
    shares = {each: assignment(t=[place]) for place, each in enumerate(ids)}
    shares[ids[0]] = assignment(t=[0], u=[0])
    for each in ids:
        d.sync(each, generation, shares if each == d.group.leader else None)
    d.commit()
    assert d.group.state is GroupState.STABLE
    return d, ids, generation


def shown(d: Driver, topics: Sequence[str] = ("t",), topic_id: UUID = TOPIC_ID) -> Any:
    steps = progress_of(d.group, topics, lambda _: topic_id, d.now)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


def rows(d: Driver, **options: Any) -> dict[int, tuple[object, object, object]]:
    return {
        row["partition"]: (row["position"], row["is_commit"], row["still_ms"])
        for row in shown(d, **options)["partitions"]
    }


def test_a_report_counts_and_its_time_is_that_of_the_last_change() -> None:
    d, (first, _), generation = led(AWARE, AWARE)
    assert rows(d) == {0: (None, False, None), 1: (None, False, None)}
    d.positions(first, generation, {("t", 0): 9})
    d.advance(3_000)
    d.positions(first, generation, {("t", 0): 9})
    d.advance(1_000)
    assert rows(d)[0] == (9, False, 4_000), "a repeated report is no progress"
    d.positions(first, generation, {("t", 0): 10})
    assert rows(d)[0] == (10, False, 0)


def test_of_a_member_that_knows_no_resizes_and_of_no_member_the_commit_counts() -> None:
    d, (first, other), generation = led(AWARE, STOCK)
    for member, index, offset in ((first, 0, 5), (other, 1, 7)):
        d.commit_offsets({("t", index): offset}, member, generation, topic_id=TOPIC_ID)
    d.commit_offsets({("t", 6): 2}, other, generation, topic_id=TOPIC_ID)
    d.commit()
    d.advance(2_000)
    assert rows(d) == {0: (None, False, None), 1: (7, True, 2_000), 6: (2, True, 2_000)}
    assert rows(d, topic_id=UUID(int=6))[1] == (None, True, None), "commits of a former topic"
    found = shown(d)
    assert [row["member"] for row in found["partitions"]] == [first, other, None]
    assert [found["members"][each]["aware"] for each in (first, other)] == [True, False]


def test_a_member_is_silent_since_its_last_request() -> None:
    d, (first, other), generation = led(AWARE, AWARE)
    d.advance(4_000)
    d.heartbeat(other, generation)
    d.advance(1_000)
    found = shown(d)
    assert found["members"][first]["silent_ms"] == 5_000
    assert found["members"][other]["silent_ms"] == 1_000
    assert found["members"][first]["session_timeout_ms"] > 5_000
    leader = d.group.leader
    assert leader is not None
    d.join(leader, protocols=AWARE)
    d.advance(2_000)
    assert shown(d)["state"] == "PreparingRebalance"
    assert shown(d)["members"][leader]["silent_ms"] == 0, "a delayed request is a sign of life"


def test_only_what_was_asked_for_is_shown() -> None:
    d, (first, _), _ = led(AWARE, AWARE)
    found = shown(d, topics=["u"])
    assert [(row["topic"], row["partition"]) for row in found["partitions"]] == [("u", 0)]
    assert list(found["members"]) == [first]
    assert (found["group"], found["state"]) == (GROUP, "Stable")
    assert shown(d, topics=["v"])["partitions"] == []


def test_a_new_generation_and_a_new_coordinator_know_no_reports() -> None:
    d, (first, _), generation = led(AWARE, AWARE)
    d.positions(first, generation, {("t", 0): 9})
    d = d.reloaded()
    assert rows(d)[0] == (None, False, None)
    assert shown(d)["members"][first]["aware"] is True


def test_the_owners_of_very_many_topics_are_read_in_steps_and_up_to_a_limit() -> None:
    """All of them were read in one step, each name compared with all topics that were asked for:
    an assignment of 1 MB and 5,000 topics took seconds."""
    d, ids, _ = led(AWARE)
    names = [f"x{number}" for number in range(limits.MAX_OWNED_TOPICS)]
    d.group.assign(d.group.members[ids[0]], assignment(t=[3], **dict.fromkeys(names, (0,))))
    steps = list(progress_of(d.group, ["t", names[-1]], lambda _: TOPIC_ID, d.now))
    assert len(steps) > limits.MAX_OWNED_TOPICS
    assert [row["member"] for row in shown(d, ["t"])["partitions"]] == ids
    assert shown(d, [names[-2]])["partitions"], "within the limit"
    assert not shown(d, [names[-1]])["partitions"], "and beyond it"
