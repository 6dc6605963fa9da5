"""OffsetCommit, OffsetFetch, OffsetDelete, DeleteGroups, the views of tools, and retention."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.group_driver import AHEAD_MS, GROUP, Driver, subscription
from tidelog.groups import limits
from tidelog.groups.describing import ListedGroup
from tidelog.groups.events import DeleteGroup, DeleteOffsets, Expire, Leaver, RemoveTopics
from tidelog.groups.group import GroupState
from tidelog.groups.records import NO_EXPIRY, NO_TOPIC_ID, FirstSight, FirstSightRecord, encode
from tidelog.groups.retention import expiry_of
from tidelog.groups.settings import GroupSettings
from tidelog.model.configs.types import MAX_INT64
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

E = ErrorCode
WEEK_MS = 10_080 * 60_000


def delete_offsets(d: Driver, *partitions: tuple[str, int], group_id: str = GROUP) -> int:
    pending_response = d.pending_response()
    d.send(
        DeleteOffsets(pending_response, tuple(TopicPartition(*at) for at in partitions)), group_id
    )
    return pending_response


def delete_group(d: Driver, group_id: str = GROUP) -> int:
    pending_response = d.pending_response()
    d.send(DeleteGroup(pending_response), group_id)
    return pending_response


# Committing --------------------------------------------------------------------------------


def test_a_consumer_without_a_group_commits_and_reads_back() -> None:
    d = Driver()
    pending_response = d.commit_offsets({("t", 0): 5, ("t", 1): 6}, metadata="m")
    assert d.done(pending_response).partitions == (
        (TopicPartition("t", 0), E.NONE),
        (TopicPartition("t", 1), E.NONE),
    )
    found = d.offset("t", 1)
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (6, 7, "m")
    assert found.committed_ms == d.now + AHEAD_MS
    assert d.group.state is GroupState.EMPTY
    assert d.group.protocol_type is None


def test_an_offset_counts_once_its_record_is_committed() -> None:
    d = Driver(hold=True)
    pending_response = d.commit_offsets({("t", 0): 5})
    assert pending_response not in d.answers
    assert d.offset("t", 0) is None
    d.commit()
    assert d.error_of(pending_response) is E.NONE
    assert d.offset("t", 0) is not None


def test_pipelined_commits_are_applied_in_order() -> None:
    d = Driver(hold=True)
    for offset in (1, 2, 3):
        d.commit_offsets({("t", 0): offset})
    d.commit(2)
    found = d.offset("t", 0)
    assert found is not None
    assert found.offset == 2
    d.commit()
    found = d.offset("t", 0)
    assert found is not None
    assert found.offset == 3
    assert not d.group.in_flight


@pytest.mark.parametrize(
    ("refusal", "answered"),
    [
        (E.MESSAGE_TOO_LARGE, E.INVALID_COMMIT_OFFSET_SIZE),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.UNKNOWN_SERVER_ERROR, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_refused_record(refusal: ErrorCode, answered: ErrorCode) -> None:
    d = Driver(hold=True)
    pending_response = d.commit_offsets({("t", 0): 5})
    d.refuse(refusal)
    assert d.error_of(pending_response) is answered
    assert len(d.table) == 0


def test_a_late_record_is_applied_though_its_answer_was_an_error() -> None:
    d = Driver(hold=True)
    pending_response = d.commit_offsets({("t", 0): 5})
    write = d.in_flight[0]
    d.perform(d.table.delayed(write, E.REQUEST_TIMED_OUT, d.now))
    assert d.error_of(pending_response) is E.COORDINATOR_NOT_AVAILABLE
    d.commit()
    assert d.offset("t", 0) is not None
    assert d.error_of(pending_response) is E.COORDINATOR_NOT_AVAILABLE


STATES = ["missing", "empty", "preparing", "completing", "stable", "dead"]
COMMITTERS = ["no member", "member", "old generation", "stranger", "pending"]
EXPECTED = {
    "missing": [E.NONE, None, E.ILLEGAL_GENERATION, E.ILLEGAL_GENERATION, None],
    "empty": [E.NONE, None, None, E.UNKNOWN_MEMBER_ID, None],
    "preparing": [E.UNKNOWN_MEMBER_ID, E.NONE, E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID,
                  E.UNKNOWN_MEMBER_ID],
    "completing": [E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION,
                   E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID],
    "stable": [E.UNKNOWN_MEMBER_ID, E.NONE, E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID,
               E.UNKNOWN_MEMBER_ID],
    "dead": [E.COORDINATOR_NOT_AVAILABLE, None, E.COORDINATOR_NOT_AVAILABLE,
             E.COORDINATOR_NOT_AVAILABLE, None],
}  # fmt: skip


def in_state(state: str) -> tuple[Driver, str]:
    """A driver whose group is in ``state``, and one of its members (or a name)."""
    d = Driver()
    if state == "missing":
        return d, "m"
    if state in ("empty", "dead"):
        d.commit_offsets({("t", 9): 1})
        if state == "dead":
            d.hold = True
            delete_group(d)
        return d, "m"
    a, b = d.stable(2)
    if state != "stable":
        d.join(a)
    if state == "completing":
        d.join(b)
    assert d.group.state.lower().startswith(state)
    return d, b


@pytest.mark.parametrize("committer", COMMITTERS)
@pytest.mark.parametrize("state", STATES)
def test_the_rights_to_commit_by_state(state: str, committer: str) -> None:
    expected = EXPECTED[state][COMMITTERS.index(committer)]
    if expected is None:
        return
    d, member = in_state(state)
    generation = getattr(d.table.get(GROUP), "generation", 3)
    member_id, generation = {
        "no member": ("", -1),
        "member": (member, generation),
        "old generation": (member, generation - 1),
        "stranger": ("stranger", generation),
        "pending": ("pending", generation),
    }[committer]
    if committer == "pending":
        member_id = d.joined(d.join()).member_id
    assert d.error_of(d.commit_offsets({("t", 0): 1}, member_id, generation)) is expected


def test_a_missing_group_is_named_from_v9_on() -> None:
    d = Driver()
    assert d.error_of(d.commit_offsets({("t", 0): 1}, "m", 1, version=8)) is E.ILLEGAL_GENERATION
    assert d.error_of(d.commit_offsets({("t", 0): 1}, "m", 1, version=9)) is E.GROUP_ID_NOT_FOUND


def test_a_commit_is_a_sign_of_life() -> None:
    d = Driver()
    (a,) = d.stable(1, session_ms=10_000)
    for offset in range(5):
        d.advance(9_000)
        assert d.error_of(d.commit_offsets({("t", 0): offset}, a, 1)) is E.NONE
    assert a in d.group.members


def test_metadata_is_limited_in_bytes() -> None:
    d = Driver()
    assert d.error_of(d.commit_offsets({("t", 0): 1}, metadata="x" * 4_096)) is E.NONE
    pending_response = d.commit_offsets({("t", 0): 2}, metadata="ü" * 2_049)
    assert d.error_of(pending_response) is E.OFFSET_METADATA_TOO_LARGE
    found = d.offset("t", 0)
    assert found is not None
    assert found.offset == 1


def test_what_a_record_has_no_room_for_is_refused_whatever_the_setting() -> None:
    """Kafka's records count the bytes of a string in an int16."""
    d = Driver(settings=GroupSettings(offset_metadata_max_bytes=100_000))
    longest = "x" * limits.MAX_METADATA_OF_OFFSET_BYTES
    assert d.error_of(d.commit_offsets({("t", 0): 1}, metadata=longest)) is E.NONE
    pending_response = d.commit_offsets({("t", 0): 2}, metadata=longest + "x")
    assert d.error_of(pending_response) is E.OFFSET_METADATA_TOO_LARGE


def test_partitions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OFFSETS", 2)
    d = Driver()
    pending_response = d.commit_offsets({("t", 0): 1, ("t", 1): 1, ("t", 2): 1})
    assert [error for _, error in d.done(pending_response).partitions] == [
        E.NONE,
        E.NONE,
        E.INVALID_COMMIT_OFFSET_SIZE,
    ]
    assert d.error_of(d.commit_offsets({("t", 1): 2})) is E.NONE


# Fetching ----------------------------------------------------------------------------------


def test_fetching() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1, ("u", 3): 2})
    everything = d.table.offsets(GROUP, None)
    assert [(topic, [at for at, _ in found]) for topic, found in everything] == [
        ("t", [0]),
        ("u", [3]),
    ]
    asked = d.table.offsets(GROUP, [("u", [3, 4]), ("v", [0])])
    assert [(topic, [(at, o and o.offset) for at, o in found]) for topic, found in asked] == [
        ("u", [(3, 2), (4, None)]),
        ("v", [(0, None)]),
    ]
    assert d.table.offsets("missing", None) == []
    assert d.table.offsets("missing", [("t", [0])]) == [("t", [(0, None)])]


# Deleting ----------------------------------------------------------------------------------


def test_offsets_of_subscribed_topics_stay() -> None:
    d = Driver()
    (a,) = d.stable(1, protocols=(("range", subscription("t")),))
    d.commit_offsets({("t", 0): 1, ("u", 0): 1}, a, 1)
    pending_response = delete_offsets(d, ("t", 0), ("u", 0), ("u", 7))
    assert [error for _, error in d.done(pending_response).partitions] == [
        E.GROUP_SUBSCRIBED_TO_TOPIC,
        E.NONE,
        E.NONE,
    ]
    assert d.offset("t", 0) is not None
    assert d.offset("u", 0) is None
    d.leave(Leaver(a))
    assert d.error_of(delete_offsets(d, ("t", 0))) is E.NONE
    assert d.offset("t", 0) is None


def test_unreadable_subscriptions_cover_every_topic() -> None:
    d = Driver()
    (a,) = d.stable(1, protocols=(("range", b"\1"),))
    d.commit_offsets({("u", 0): 1}, a, 1)
    assert d.error_of(delete_offsets(d, ("u", 0))) is E.GROUP_SUBSCRIBED_TO_TOPIC


def test_deleting_offsets_of_other_groups() -> None:
    d = Driver()
    assert d.done(delete_offsets(d, ("t", 0))).error is E.GROUP_ID_NOT_FOUND
    d.stable(1, protocol_type="connect", protocols=(("p", b""),))
    assert d.done(delete_offsets(d, ("t", 0))).error is E.NON_EMPTY_GROUP


def test_deleting_a_group() -> None:
    d = Driver()
    assert d.status(delete_group(d)) is E.GROUP_ID_NOT_FOUND
    (a,) = d.stable(1)
    d.commit_offsets({("t", 0): 1}, a, 1)
    assert d.status(delete_group(d)) is E.NON_EMPTY_GROUP
    d.leave(Leaver(a))
    assert d.status(delete_group(d)) is E.NONE
    assert len(d.table) == 0
    assert len(d.reloaded().table) == 0
    assert d.joined(d.join()).error is E.MEMBER_ID_REQUIRED


def test_a_group_is_dead_while_its_removal_is_under_way() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1})
    d.commit()
    first, second = delete_group(d), delete_group(d)
    assert d.status(second) is E.GROUP_ID_NOT_FOUND
    assert first not in d.answers
    assert d.error_of(d.join()) is E.COORDINATOR_NOT_AVAILABLE
    assert d.table.offsets(GROUP, None) == []
    d.refuse(E.NOT_ENOUGH_REPLICAS)
    assert d.status(first) is E.COORDINATOR_NOT_AVAILABLE
    assert d.offset("t", 0) is not None
    assert d.joined(d.join()).error is E.MEMBER_ID_REQUIRED


def test_a_commit_in_flight_does_not_outlive_its_group() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1})
    delete_group(d)
    d.commit()
    assert len(d.table) == 0
    assert len(d.reloaded().table) == 0


def test_deleted_topics_take_their_offsets_along() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1, ("u", 0): 1})
    d.commit()
    d.commit_offsets({("t", 1): 1})
    d.send(RemoveTopics(frozenset({"t"})))
    d.commit()
    assert [topic for topic, _ in d.table.offsets(GROUP, None)] == ["u"]
    assert [topic for topic, _ in d.reloaded().table.offsets(GROUP, None)] == ["u"]


@pytest.mark.parametrize("in_flight", [False, True])
def test_the_next_incarnation_of_a_deleted_topic_keeps_its_offsets(in_flight: bool) -> None:
    """They may be committed before the look at all groups comes to this one."""
    former, present = UUID(int=1), UUID(int=2)
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 9, ("t", 1): 9}, topic_id=former)
    d.commit_offsets({("u", 0): 9})
    d.commit()
    d.commit_offsets({("t", 2): 2}, topic_id=former)
    d.commit_offsets({("t", 0): 1}, topic_id=present)
    if not in_flight:
        d.commit()
    d.send(RemoveTopics(frozenset({"t", "u"}), {"t": present, "u": NO_TOPIC_ID}.__getitem__))
    d.commit()
    for table in (d.table, d.reloaded().table):
        kept = [(topic, dict(found)) for topic, found in table.offsets(GROUP, None)]
        assert [(topic, list(found)) for topic, found in kept] == [("t", [0])]
        assert kept[0][1][0].offset == 1
    # The topic is deleted once more, and its name is free.
    d.send(RemoveTopics(frozenset({"t"})))
    d.commit()
    assert d.table.offsets(GROUP, None) == []


# Expiry ------------------------------------------------------------------------------------


def expire(d: Driver) -> None:
    d.send(Expire())


def test_a_simple_groups_offsets_expire_a_week_after_each_commit() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1})
    d.advance(1_000)
    d.commit_offsets({("t", 1): 1})
    d.advance(WEEK_MS - 1_001)
    expire(d)
    assert d.offset("t", 0) is not None
    d.advance(1)
    expire(d)
    assert d.offset("t", 0) is None
    assert d.offset("t", 1) is not None
    d.advance(1_000)
    expire(d)
    assert len(d.table) == 0
    assert len(d.reloaded().table) == 0


def test_an_empty_groups_offsets_expire_a_week_after_it_became_empty() -> None:
    d = Driver()
    (a,) = d.stable(1)
    d.commit_offsets({("t", 0): 1}, a, 1)
    d.advance(9_000)
    d.leave(Leaver(a))
    d.advance(WEEK_MS - 1)
    expire(d)
    assert d.offset("t", 0) is not None
    other = d.reloaded()
    for driver in (d, other):
        driver.advance(1)
        expire(driver)
        assert len(driver.table) == 0


def test_a_position_set_in_a_group_that_is_long_empty_lives_on() -> None:
    d = Driver()
    (a,) = d.stable(1)
    d.leave(Leaver(a))
    d.advance(3 * WEEK_MS)
    d.commit_offsets({("t", 0): 1})
    expire(d)
    assert d.offset("t", 0) is not None
    d.advance(WEEK_MS)
    expire(d)
    assert len(d.table) == 0


@pytest.mark.parametrize("state", ["preparing", "completing", "stable"])
def test_what_members_read_never_expires(state: str) -> None:
    d, member = in_state("stable")
    d.commit_offsets({("t", 0): 1, ("other", 0): 1}, member, 1)
    others = [name for name in d.group.members if name != member]
    if state != "stable":
        d.join(others[0])
    if state == "completing":
        d.join(member)
    # Three weeks later, in one leap: no heartbeats are needed for what is asked here.
    d.now += 3 * WEEK_MS
    expire(d)
    assert d.offset("t", 0) is not None
    # What no member reads goes, but only while the group does not rebalance.
    assert (d.offset("other", 0) is None) == (state == "stable")


def test_unreadable_subscriptions_keep_everything() -> None:
    d = Driver()
    (a,) = d.stable(1, protocols=(("range", b"\1"),))
    d.commit_offsets({("u", 0): 1}, a, 1)
    d.now += 3 * WEEK_MS
    expire(d)
    assert d.offset("u", 0) is not None


def test_a_time_named_by_the_client_takes_the_place_of_the_retention() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1}, retention_ms=5_000)
    d.commit_offsets({("t", 1): 1})
    d.advance(4_999)
    expire(d)
    assert d.offset("t", 0) is not None
    other = d.reloaded()
    for driver in (d, other):
        driver.advance(1)
        expire(driver)
        assert driver.offset("t", 0) is None
        assert driver.offset("t", 1) is not None


def test_a_client_may_name_the_longest_time_there_is() -> None:
    """No record has room for a later moment, and the commit must not stay in flight."""
    d = Driver()
    assert d.error_of(d.commit_offsets({("t", 0): 1}, retention_ms=MAX_INT64)) is E.NONE
    assert not d.group.in_flight
    expire(d)
    assert d.reloaded().offset("t", 0) is not None


def test_a_commit_in_flight_keeps_an_offset_from_expiring() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1})
    d.commit()
    d.advance(WEEK_MS)
    d.commit_offsets({("t", 0): 2})
    expire(d)
    d.commit()
    found = d.offset("t", 0)
    assert found is not None
    assert found.offset == 2


def test_a_group_with_a_commit_in_flight_is_not_removed() -> None:
    d = Driver(hold=True)
    d.commit_offsets({("t", 0): 1})
    d.commit()
    d.advance(WEEK_MS)
    d.commit_offsets({("t", 1): 2})
    expire(d)
    d.commit()
    for driver in (d, d.reloaded()):
        assert driver.offset("t", 0) is None
        assert driver.offset("t", 1) is not None


def test_one_look_removes_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EXPIRED_AT_ONCE", 2)
    d = Driver()
    d.commit_offsets({("t", at): 1 for at in range(5)})
    d.advance(WEEK_MS)
    for left in (3, 1):
        expire(d)
        assert d.group.offset_count == left
    expire(d)
    assert len(d.table) == 0


def test_when_an_offset_expires_is_known_before() -> None:
    """Not while members read the topic, or the group rebalances."""

    def expires_ms(topic: str = "t") -> int:
        offset = d.offset(topic, 0)
        assert offset is not None
        return expiry_of(d.group, topic, offset)

    d = Driver()
    d.commit_offsets({("t", 0): 1})
    at_ms = expires_ms()
    d.advance(at_ms - d.group.wall_ms(d.now) - 1)
    expire(d)
    assert expires_ms() == at_ms
    d.advance(1)
    expire(d)
    assert d.offset("t", 0) is None
    d = Driver()
    d.commit_offsets({("t", 0): 1}, retention_ms=5_000)
    assert expires_ms() == d.group.wall_ms(d.now) + 5_000
    d = Driver()
    (member,) = d.stable(1)
    d.commit_offsets({("t", 0): 1}, member, d.group.generation)
    assert expires_ms() == NO_EXPIRY


def test_retention_is_a_setting() -> None:
    d = Driver(GroupSettings(offsets_retention_minutes=1))
    d.commit_offsets({("t", 0): 1})
    d.advance(60_000)
    expire(d)
    assert len(d.table) == 0


# Views and replay --------------------------------------------------------------------------


def listed(d: Driver, **wanted: list[str]) -> list[ListedGroup]:
    return [group for group in d.table.list_groups(**wanted) if group is not None]


def test_listing_and_describing() -> None:
    d = Driver()
    a, b = d.stable(2)
    d.commit_offsets({("t", 0): 1}, group_id="simple")
    lines = listed(d)
    assert [(g.group_id, g.protocol_type, g.state, g.group_type) for g in lines] == [
        (GROUP, "consumer", "Stable", "classic"),
        ("simple", "", "Empty", "classic"),
    ]
    assert [g.group_id for g in listed(d, states=["stable"])] == [GROUP]
    assert [g.group_id for g in listed(d, states=["Empty", "Dead"])] == ["simple"]
    assert listed(d, types=["consumer"]) == []
    assert len(listed(d, types=["Classic", "consumer"])) == 2
    shown = d.table.describe(GROUP)
    assert (shown.state, shown.protocol_type, shown.protocol_name) == (
        "Stable",
        "consumer",
        "range",
    )
    assert [(m.member_id, m.assignment) for m in shown.members] == [
        (a, b"share of 0"),
        (b, b"share of 1"),
    ]
    assert shown.members[0].client_host == "/127.0.0.1"
    d.join(a)
    shown = d.table.describe(GROUP)
    assert (shown.state, shown.protocol_name) == ("PreparingRebalance", "")
    assert [m.assignment for m in shown.members] == [b"share of 0", b"share of 1"]
    assert all(m.subscription == b"" for m in shown.members)
    missing = d.table.describe("missing")
    assert (missing.state, missing.members) == ("Dead", ())


def test_unknown_records_are_counted_and_skipped() -> None:
    d = Driver()
    d.commit_offsets({("t", 0): 1})
    d.log.insert(0, (bytes.fromhex("0003 0001 67"), b"\0\0"))
    d.log.append((b"", b""))
    other = d.reloaded()
    other.table.replay(None, b"x", d.now)
    assert other.table.unknown_records == 3
    assert other.offset("t", 0) is not None


def test_first_sights_are_kept_and_go_with_the_group() -> None:
    from uuid import UUID

    d = Driver()
    d.commit_offsets({("t", 0): 1})
    d.log.append(encode(FirstSightRecord(GROUP, "t", FirstSight(UUID(int=1), 2, 3))))  # type: ignore[arg-type]
    other = d.reloaded()
    assert other.group.first_sights == {"t": FirstSight(UUID(int=1), 2, 3)}
    delete_group(other)
    assert len(other.reloaded().table) == 0
