"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup as tables and short stories."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.group_driver import GROUP, Driver, one_protocol, subscription
from tidelog.groups import limits
from tidelog.groups.events import Heartbeat, Join, Leave, Leaver, Sync
from tidelog.groups.group import GroupState
from tidelog.groups.room import GroupRoom
from tidelog.groups.settings import GroupSettings
from tidelog.model.errors import ErrorCode

E = ErrorCode


# Joining -----------------------------------------------------------------------------------


def test_first_join_gets_an_id_and_nothing_else() -> None:
    d = Driver()
    first = d.joined(d.join())
    assert first.error is E.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("client-")
    assert d.group.state is GroupState.EMPTY
    assert d.log == []


def test_before_v4_the_first_join_is_a_member() -> None:
    d = Driver()
    pending_response = d.join(version=3)
    d.advance(3_000)
    assert d.joined(pending_response).error is E.NONE
    assert d.joined(pending_response).generation == 1


def test_an_id_that_is_not_used_is_forgotten_with_the_group() -> None:
    d = Driver()
    member_id = d.joined(d.join(session_ms=10_000)).member_id
    d.advance(9_999)
    assert len(d.table) == 1
    d.advance(1)
    assert len(d.table) == 0
    assert d.error_of(d.join(member_id)) is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"session_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "never-seen"}, E.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"group_id": "g" * 32_768}, E.INVALID_GROUP_ID),
        ({"protocols": tuple((f"p{n}", b"") for n in range(101))}, E.INVALID_REQUEST),
        ({"protocols": (("p", bytes(limits.MAX_METADATA_BYTES + 1)),)}, E.INVALID_REQUEST),
        ({"instance_id": "i" * 250}, E.INVALID_REQUEST),
        ({"rebalance_ms": -1}, E.INVALID_REQUEST),
    ],
)
def test_refused_joins_leave_no_trace(options: dict, error: ErrorCode) -> None:  # type: ignore[type-arg]
    d = Driver()
    assert d.error_of(d.join(**options)) is error
    assert len(d.table) == 0
    assert d.table.next_deadline_ms is None


def test_initial_delay_is_extended_while_members_come_up_to_the_rebalance_timeout() -> None:
    d = Driver(GroupSettings(group_initial_rebalance_delay_ms=3_000))
    pending_responses = [d.new_member(rebalance_ms=10_000)[1]]
    # One more in each window: 3 s, 3 s, 3 s, and the last second of the rebalance timeout.
    for _ in range(3):
        d.advance(2_900)
        pending_responses.append(d.new_member(rebalance_ms=10_000)[1])
        d.advance(100)
        assert not any(pending_response in d.answers for pending_response in pending_responses)
    d.advance(999)
    assert d.group.state is GroupState.PREPARING_REBALANCE
    d.advance(1)
    assert [d.joined(pending_response).generation for pending_response in pending_responses] == [
        1
    ] * 4
    assert d.group.state is GroupState.COMPLETING_REBALANCE


def test_without_newcomers_the_initial_delay_is_all() -> None:
    d = Driver()
    _, pending_response = d.new_member()
    d.advance(2_999)
    assert pending_response not in d.answers
    d.advance(1)
    assert d.joined(pending_response).error is E.NONE


def test_the_leader_alone_receives_the_members() -> None:
    d = Driver()
    (first, one), (second, two) = d.new_member(), d.new_member()
    d.advance(6_000)
    assert d.joined(one).leader == d.joined(two).leader == first
    assert [m.member_id for m in d.joined(one).members] == [first, second]
    assert d.joined(one).members[1].subscription == subscription("t")
    assert d.joined(two).members == ()
    assert d.joined(two).protocol_type == "consumer"
    assert d.joined(two).protocol_name == "range"


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        (["ab", "ab", "ba"], "a"),
        (["ba", "ab", "ba"], "b"),
        (["ab", "ba"], "a"),  # a tie goes to the first vote
        (["abc", "cb"], "b"),  # "a" is not offered by all: the votes are b and c, b came first
        (["abc", "cb", "c"], "c"),
    ],
)
def test_the_assignor_with_most_votes_wins(offers: list[str], chosen: str) -> None:
    d = Driver()
    pending_responses = [
        d.new_member(protocols=tuple((p, b"") for p in offer))[1] for offer in offers
    ]
    d.advance(12_000)
    assert {d.joined(pending_response).protocol_name for pending_response in pending_responses} == {
        chosen
    }


@pytest.mark.parametrize(
    "options",
    [{"protocols": (("other", b""),)}, {"protocol_type": "connect"}],
)
def test_a_member_without_a_common_assignor_is_refused(options: dict) -> None:  # type: ignore[type-arg]
    d = Driver()
    d.stable(2)
    assert d.error_of(d.join(**options)) is E.INCONSISTENT_GROUP_PROTOCOL
    assert d.group.state is GroupState.STABLE


def test_group_max_size() -> None:
    d = Driver(GroupSettings(group_max_size=2))
    d.stable(2)
    assert d.error_of(d.join()) is E.GROUP_MAX_SIZE_REACHED
    assert d.group.state is GroupState.STABLE


def test_only_as_many_as_may_wait_in_a_rebalance() -> None:
    d = Driver(GroupSettings(group_max_size=2))
    ids = [d.joined(d.join()).member_id for _ in range(3)]
    pending_responses = [d.join(member_id) for member_id in ids]
    assert d.error_of(pending_responses[2]) is E.GROUP_MAX_SIZE_REACHED
    d.advance(6_000)
    assert d.joined(pending_responses[0]).error is E.NONE
    assert len(d.joined(pending_responses[0]).members) == 2


def test_the_bytes_of_all_subscriptions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_METADATA_BYTES", 100)
    d = Driver()
    a, _ = d.stable(2, protocols=(("range", bytes(50)),))
    assert d.group.metadata_bytes == 100
    assert d.error_of(d.join(protocols=(("range", b"x"),))) is E.GROUP_MAX_SIZE_REACHED
    assert d.error_of(d.join(a, protocols=(("range", bytes(51)),))) is E.GROUP_MAX_SIZE_REACHED
    assert d.group.metadata_bytes == 50
    assert d.group.state is GroupState.PREPARING_REBALANCE


def test_ids_that_are_handed_out_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_MEMBERS", 3)
    d = Driver()
    for _ in range(3):
        assert d.error_of(d.join()) is E.MEMBER_ID_REQUIRED
    assert d.error_of(d.join()) is E.GROUP_MAX_SIZE_REACHED


def test_groups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUPS", 2)
    d = Driver()
    for name in "ab":
        d.join(group_id=name)
    assert d.error_of(d.join(group_id="c")) is E.COORDINATOR_NOT_AVAILABLE
    assert d.error_of(d.commit_offsets({("t", 0): 1}, group_id="d")) is E.COORDINATOR_NOT_AVAILABLE


# Room for all groups of a coordinator ------------------------------------------------------


def test_the_members_of_all_groups_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 joins of 900 kB each to 200 groups held 174 MB, and a thousand would have held more."""
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 20_000)
    d = Driver()
    large = (("range", bytes(7_000)),)
    leader, follower = d.stable(2, protocols=large)
    assert 14_000 < d.table.held < 20_000
    assert d.error_of(d.join(group_id="other", protocols=large)) is E.COORDINATOR_NOT_AVAILABLE
    assert d.table.get("other") is None
    assert d.error_of(d.join(protocols=large)) is E.COORDINATOR_NOT_AVAILABLE
    assert d.rules.room.refused == 2
    # A present member stays, comes back with what it had, and may have less.
    assert d.heartbeat(follower, 1) is E.NONE
    assert d.joined(d.join(follower, protocols=large)).error is E.NONE
    more = (("range", bytes(10_000)),)
    assert d.error_of(d.join(follower, protocols=more)) is E.COORDINATOR_NOT_AVAILABLE
    assert follower in d.group.members
    d.leave(Leaver(leader), Leaver(follower))
    assert d.table.held == 0
    assert d.error_of(d.join(protocols=more)) is E.MEMBER_ID_REQUIRED


def test_assignments_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader says how long they are: 1 MB for each group, of one member without a topic."""
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 20_000)
    d = Driver()
    member_id, pending_response = d.new_member()
    d.advance(3_000)
    generation = d.joined(pending_response).generation
    refused = d.sync(member_id, generation, {member_id: bytes(20_000)})
    assert d.error_of(refused) is E.COORDINATOR_NOT_AVAILABLE
    done = d.sync(member_id, generation, {member_id: bytes(10_000)})
    assert d.synced(done).assignment == bytes(10_000)
    assert 10_000 < d.table.held < 20_000
    assert d.reloaded().table.held >= 10_000
    d.leave(Leaver(member_id))
    assert d.table.held == 0


def test_unused_ids_of_random_groups_are_bounded_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 20_000)
    d = Driver()
    found = [d.error_of(d.join(group_id=f"random-{n}")) for n in range(50)]
    assert set(found) == {E.MEMBER_ID_REQUIRED, E.COORDINATOR_NOT_AVAILABLE}
    assert d.table.held <= 20_000 and len(d.table) == found.count(E.MEMBER_ID_REQUIRED)
    assert d.table.held_by == {"/127.0.0.1": d.table.held}
    d.advance(10_000)
    assert d.table.held == 0 == len(d.table) and not d.table.held_by
    assert d.error_of(d.join(group_id="one more")) is E.MEMBER_ID_REQUIRED


def test_one_address_that_takes_all_room_leaves_the_others_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One client could keep all others from joining for as long as its sessions last."""
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 20_000)
    d = Driver()
    large = (("range", bytes(3_000)),)
    greedy = [d.error_of(d.join(group_id=f"a{n}", protocols=large, host="/a")) for n in range(20)]
    assert greedy[-1] is E.COORDINATOR_NOT_AVAILABLE, "alone with it, it may take all"
    assert d.table.held > 14_000
    member_id, pending_response = d.new_member(group_id="b", protocols=large, host="/b")
    assert d.table.held_by.keys() == {"/a", "/b"}
    assert d.error_of(d.join(group_id="c", protocols=(("range", bytes(6_000)),), host="/b")) is (
        E.COORDINATOR_NOT_AVAILABLE
    ), "more than half"
    d.advance(3_000)
    generation = d.joined(pending_response).generation
    shares = {member_id: bytes(1_000)}
    sync = d.pending_response()
    d.send(Sync(sync, member_id, None, generation, None, None, tuple(shares.items())), "b")
    assert d.synced(sync).assignment == bytes(1_000)
    # Three that hold something: a third is left for each.
    assert d.error_of(d.join(group_id="d", host="/d")) is E.MEMBER_ID_REQUIRED
    assert d.error_of(d.join(group_id="e", protocols=large, host="/b")) is (
        E.COORDINATOR_NOT_AVAILABLE
    )
    d.advance(600_000)
    assert d.table.held == 0 and not d.table.held_by


def test_one_address_that_begins_all_groups_leaves_the_others_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_GROUPS", 4)
    d = Driver()
    for number in range(4):
        found = d.error_of(d.commit_offsets({("t", 0): 1}, group_id=f"a{number}", host="/a"))
        assert found is E.NONE
    refused = d.commit_offsets({("t", 0): 1}, group_id="a4", host="/a")
    assert d.error_of(refused) is E.COORDINATOR_NOT_AVAILABLE
    assert d.error_of(d.join(group_id="b0", host="/b")) is E.MEMBER_ID_REQUIRED
    assert d.error_of(d.commit_offsets({("t", 0): 1}, group_id="b1", host="/b")) is E.NONE
    assert d.error_of(d.join(group_id="b2", host="/b")) is E.COORDINATOR_NOT_AVAILABLE
    assert d.table.groups_by == {"/a": 4, "/b": 2}
    # The log does not say which address has its groups; they count for one more address.
    other = d.reloaded()
    assert other.table.groups_by == {"": 5}
    assert other.error_of(other.join(group_id="c", host="/c")) is E.MEMBER_ID_REQUIRED
    # A group that is empty is whose that comes in.
    d.join(group_id="a0", host="/b")
    assert d.table.groups_by == {"/a": 3, "/b": 3}


# Rejoining ---------------------------------------------------------------------------------


def test_a_follower_that_changed_nothing_gets_the_present_generation() -> None:
    d = Driver()
    leader, follower = d.stable(2)
    pending_response = d.join(follower)
    assert d.joined(pending_response).generation == 1
    assert d.joined(pending_response).leader == leader
    assert d.group.state is GroupState.STABLE


def test_the_leaders_join_rebalances_a_stable_group() -> None:
    d = Driver()
    leader, follower = d.stable(2)
    pending_response = d.join(leader)
    assert d.group.state is GroupState.PREPARING_REBALANCE
    assert pending_response not in d.answers
    assert d.heartbeat(follower, 1) is E.REBALANCE_IN_PROGRESS
    other = d.join(follower)
    assert d.joined(pending_response).generation == d.joined(other).generation == 2


def test_a_changed_subscription_rebalances() -> None:
    d = Driver()
    leader, follower = d.stable(2)
    d.join(follower, protocols=one_protocol("t", "u"))
    assert d.group.state is GroupState.PREPARING_REBALANCE
    d.join(leader)
    assert d.group.subscribed == {"t", "u"}


@pytest.mark.parametrize("changed", [False, True])
def test_a_join_between_join_and_sync(changed: bool) -> None:
    d = Driver()
    (a, _), (b, _) = d.new_member(), d.new_member()
    d.advance(6_000)
    waiting = d.sync(b, 1)
    pending_response = d.join(a, protocols=one_protocol("u") if changed else None)
    if changed:
        assert d.error_of(waiting) is E.REBALANCE_IN_PROGRESS
        assert d.group.state is GroupState.PREPARING_REBALANCE
    else:
        # Its first response was lost: it gets the generation again, members included.
        assert d.joined(pending_response).generation == 1
        assert len(d.joined(pending_response).members) == 2
        assert waiting not in d.answers


def test_a_join_sent_twice_frees_the_first_request() -> None:
    d = Driver()
    member_id, first = d.new_member()
    second = d.join(member_id)
    assert d.error_of(first) is E.REBALANCE_IN_PROGRESS
    d.advance(3_000)
    assert d.joined(second).error is E.NONE


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    d = Driver()
    leader, follower = d.stable(2, rebalance_ms=20_000, session_ms=30_000)
    pending_response = d.join(
        follower, protocols=one_protocol("u"), rebalance_ms=20_000, session_ms=30_000
    )
    d.advance(19_999)
    assert pending_response not in d.answers
    d.advance(1)
    assert d.joined(pending_response).generation == 2
    assert d.joined(pending_response).leader == follower
    assert d.heartbeat(leader, 1) is E.UNKNOWN_MEMBER_ID


def test_a_pending_member_holds_up_a_rebalance_until_it_joins_or_its_time_is_over() -> None:
    d = Driver()
    (leader,) = d.stable(1)
    pending = d.joined(d.join()).member_id
    pending_response = d.join(leader)
    assert pending_response not in d.answers
    d.join(pending)
    assert d.joined(pending_response).generation == 2

    d = Driver()
    (leader,) = d.stable(1)
    d.join(session_ms=10_000)
    pending_response = d.join(leader)
    d.advance(9_999)
    assert pending_response not in d.answers
    d.advance(1)
    assert d.joined(pending_response).generation == 2


# Syncing -----------------------------------------------------------------------------------


def test_no_member_gets_its_share_before_the_record_is_committed() -> None:
    d = Driver(hold=True)
    (a, _), (b, _) = d.new_member(), d.new_member()
    d.advance(6_000)
    follower = d.sync(b, 1)
    leader = d.sync(a, 1, {a: b"A", b: b"B", "stranger": b"X"})
    assert follower not in d.answers
    assert leader not in d.answers
    assert d.group.state is GroupState.COMPLETING_REBALANCE
    assert d.heartbeat(a, 1) is E.NONE
    d.commit()
    assert d.synced(leader).assignment == b"A"
    assert d.synced(follower).assignment == b"B"
    assert d.synced(follower).protocol_name == "range"
    assert d.group.state is GroupState.STABLE
    assert d.synced(d.sync(b, 1)).assignment == b"B"


def test_a_member_the_leader_forgot_gets_an_empty_share() -> None:
    d = Driver()
    (a, _), (b, _) = d.new_member(), d.new_member()
    d.advance(6_000)
    pending_response = d.sync(b, 1)
    d.sync(a, 1, {a: b"A"})
    assert d.synced(pending_response).error is E.NONE
    assert d.synced(pending_response).assignment == b""


def test_a_leaders_second_sync_writes_no_second_record() -> None:
    d = Driver(hold=True)
    a, _ = d.new_member()
    d.advance(3_000)
    first = d.sync(a, 1, {a: b"A"})
    second = d.sync(a, 1, {a: b"A"})
    assert len(d.in_flight) == 1
    d.commit()
    assert d.error_of(first) is E.REBALANCE_IN_PROGRESS
    assert d.synced(second).assignment == b"A"


def test_the_shares_of_a_former_generation_are_nobodys_when_they_are_stored_late() -> None:
    d = Driver(hold=True)
    a, _ = d.new_member()
    d.advance(3_000)
    former = d.sync(a, 1, {a: b"former"})
    changed = d.join(a, protocols=one_protocol("t", "u"))
    assert d.error_of(former) is E.REBALANCE_IN_PROGRESS
    assert d.joined(changed).generation == 2
    d.commit()
    assert d.group.state is GroupState.COMPLETING_REBALANCE
    present = d.sync(a, 2, {a: b"present"})
    d.commit()
    assert d.synced(present).assignment == b"present"


@pytest.mark.parametrize(
    ("refusal", "answered"),
    [
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_is_not_stored_starts_over(
    refusal: ErrorCode, answered: ErrorCode
) -> None:
    d = Driver(hold=True)
    (a, _), (b, _) = d.new_member(), d.new_member()
    d.advance(6_000)
    pending_responses = [d.sync(b, 1), d.sync(a, 1, {a: b"A", b: b"B"})]
    d.refuse(refusal)
    assert [d.error_of(pending_response) for pending_response in pending_responses] == [
        answered,
        answered,
    ]
    assert d.group.state is GroupState.PREPARING_REBALANCE


def test_an_assignment_that_comes_too_late_changes_nothing() -> None:
    d = Driver(hold=True)
    (a, _), (b, _) = d.new_member(), d.new_member()
    d.advance(6_000)
    d.sync(a, 1, {a: b"A", b: b"B"})
    d.join(b, protocols=one_protocol("u"))
    assert d.group.state is GroupState.PREPARING_REBALANCE
    d.commit()
    assert d.group.state is GroupState.PREPARING_REBALANCE


SYNC_ERRORS = [
    ({"generation": 0}, E.ILLEGAL_GENERATION),
    ({"generation": 2}, E.ILLEGAL_GENERATION),
    ({"member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
    ({"instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
    ({"protocol_name": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
    ({"protocol_type": "consumer", "protocol_name": "range"}, E.NONE),
]


@pytest.mark.parametrize(("changed", "error"), SYNC_ERRORS)
def test_what_a_sync_must_say(changed: dict, error: ErrorCode) -> None:  # type: ignore[type-arg]
    d = Driver()
    (a,) = d.stable(1)
    assert d.error_of(d.sync(**{"member_id": a, "generation": 1, **changed})) is error


def test_a_sync_during_a_rebalance() -> None:
    d = Driver()
    a, b = d.stable(2)
    d.join(a)
    assert d.error_of(d.sync(b, 1)) is E.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    d = Driver()
    (a, _), (b, _) = d.new_member(rebalance_ms=8_000), d.new_member(rebalance_ms=8_000)
    d.advance(6_000)
    pending_response = d.sync(b, 1)
    for _ in range(7):
        d.advance(1_000)
        assert d.heartbeat(a, 1) is E.NONE
    assert pending_response not in d.answers
    d.advance(1_000)
    assert d.error_of(pending_response) is E.REBALANCE_IN_PROGRESS
    assert d.heartbeat(a, 1) is E.UNKNOWN_MEMBER_ID
    assert d.group.state is GroupState.PREPARING_REBALANCE
    rejoined = d.join(b)
    assert d.joined(rejoined).leader == b


# Sessions ----------------------------------------------------------------------------------


def test_heartbeats_keep_a_member_and_silence_ends_it() -> None:
    d = Driver()
    a, b = d.stable(2, session_ms=10_000)
    for _ in range(5):
        d.advance(9_000)
        assert d.heartbeat(a, 1) in (E.NONE, E.REBALANCE_IN_PROGRESS)
    assert b not in d.group.members
    assert a in d.group.members


def test_the_last_session_empties_the_group_on_record() -> None:
    d = Driver()
    d.stable(1, session_ms=10_000)
    d.advance(10_000)
    assert d.group.state is GroupState.EMPTY
    assert d.group.generation == 2
    other = d.reloaded()
    assert other.group.state is GroupState.EMPTY
    assert other.group.generation == 2
    assert other.group.protocol_type == "consumer"


def test_waiting_for_others_counts_as_a_heartbeat() -> None:
    d = Driver()
    a, b = d.stable(2, session_ms=10_000, rebalance_ms=60_000)
    pending_response = d.join(a, session_ms=10_000)
    for _ in range(5):
        d.advance(9_000)
        assert d.heartbeat(b, 1) is E.REBALANCE_IN_PROGRESS
    assert a in d.group.members
    assert pending_response not in d.answers
    d.advance(10_000)
    assert d.joined(pending_response).error is E.NONE
    # Answered, its session starts again: silence now ends it.
    d.advance(9_999)
    assert a in d.group.members
    d.advance(1)
    assert a not in d.group.members


def test_a_deadline_that_another_one_puts_off_is_left_alone() -> None:
    d, a, b = static_pair()
    d.join(a, instance_id="one", protocols=one_protocol("u"))
    for _ in range(10):
        d.heartbeat(b, 1, "two")
        d.advance(5_000)
    # The end of the time to join and of this session fall on one moment.
    d.heartbeat(b, 1, "two")
    d.advance(10_000)
    assert d.group.generation == 2
    assert b in d.group.members


def test_a_new_member_that_went_away_is_removed_after_five_minutes() -> None:
    d = Driver()
    a, _ = d.stable(2, session_ms=1_000_000, rebalance_ms=1_000_000)
    gone, pending_response = d.new_member(session_ms=1_000_000, rebalance_ms=1_000_000)
    d.join(a, session_ms=1_000_000, rebalance_ms=1_000_000)
    d.advance(300_000)
    assert d.error_of(pending_response) is E.UNKNOWN_MEMBER_ID
    assert gone not in d.group.members


HEARTBEAT_ERRORS = [
    ({"member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
    ({"generation": 0}, E.ILLEGAL_GENERATION),
    ({"instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ({}, E.NONE),
]


@pytest.mark.parametrize(("changed", "error"), HEARTBEAT_ERRORS)
def test_what_a_heartbeat_must_say(changed: dict, error: ErrorCode) -> None:  # type: ignore[type-arg]
    d = Driver()
    (a,) = d.stable(1)
    assert d.heartbeat(**{"member_id": a, "generation": 1, **changed}) is error


# Leaving -----------------------------------------------------------------------------------


def test_leaving_rebalances_the_others_at_once() -> None:
    d = Driver()
    a, b = d.stable(2)
    assert d.left(d.leave(Leaver(a))).members[0][1] is E.NONE
    assert d.heartbeat(b, 1) is E.REBALANCE_IN_PROGRESS
    assert d.joined(d.join(b)).leader == b


def test_the_last_one_leaves_and_is_answered_when_that_is_on_record() -> None:
    d = Driver(hold=True)
    (a,) = d.stable(1)
    pending_response = d.leave(Leaver(a))
    assert pending_response not in d.answers
    assert d.group.state is GroupState.EMPTY
    d.commit()
    assert d.left(pending_response).error is E.NONE


def test_a_batch_of_leavers() -> None:
    d = Driver()
    a, b, c = d.stable(3)
    pending = d.joined(d.join()).member_id
    pending_response = d.leave(
        Leaver(a), Leaver("stranger"), Leaver(pending), Leaver(b, "i"), Leaver("")
    )
    assert [error for _, error in d.left(pending_response).members] == [
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
    ]
    assert set(d.group.members) == {b, c}


def test_an_id_that_was_never_used_leaves_without_a_rebalance() -> None:
    d = Driver()
    members = d.stable(2)
    pending = d.joined(d.join()).member_id
    assert d.left(d.leave(Leaver(pending))).members[0][1] is E.NONE
    assert d.group.state is GroupState.STABLE
    assert [d.heartbeat(member, 1) for member in members] == [E.NONE] * 2
    # One that a rebalance waits for lets it go on.
    pending = d.joined(d.join()).member_id
    pending_responses = [d.join(member) for member in members]
    assert not any(pending_response in d.answers for pending_response in pending_responses)
    d.leave(Leaver(pending))
    assert [d.joined(pending_response).generation for pending_response in pending_responses] == [
        2,
        2,
    ]


@pytest.mark.parametrize("is_last", [False, True])
def test_a_member_that_leaves_with_an_id_that_was_never_used_makes_a_rebalance(
    is_last: bool,
) -> None:
    d = Driver()
    first, second = d.stable(2)
    leavers = [Leaver(d.joined(d.join()).member_id), Leaver(first)]
    answer = d.left(d.leave(*(leavers if is_last else reversed(leavers))))
    assert [error for _, error in answer.members] == [E.NONE] * 2
    assert d.group.state is GroupState.PREPARING_REBALANCE
    assert d.heartbeat(second, 1) is E.REBALANCE_IN_PROGRESS


def test_the_reasons_of_joining_and_leaving_are_logged_and_cut() -> None:
    """KIP-800: a reason is for the reader of the log, and no longer than a line may be."""

    def noted(driver: Driver) -> list[str]:
        return [str(note.fields["reason"]) for note in driver.notes if "reason" in note.fields]

    d = Driver()
    first, second = d.stable(2)
    d.join(first, reason="the subscription changed")
    assert noted(d)[-1].endswith("the client says: the subscription changed")
    d = Driver()
    first, second = d.stable(2)
    d.leave(Leaver(first, reason="closed " + "x" * 10_000))
    assert "closed xxx" in noted(d)[-1]
    assert len(noted(d)[-1]) == limits.MAX_REASON_CHARACTERS
    assert second in d.group.members


def test_a_leaver_with_delayed_requests_is_answered() -> None:
    d = Driver()
    a, b = d.stable(2)
    waiting = d.join(b, protocols=one_protocol("u"))
    d.leave(Leaver(b))
    assert d.error_of(waiting) is E.UNKNOWN_MEMBER_ID
    pending_response = d.join(a)
    assert d.joined(pending_response).generation == 2


# Static members ----------------------------------------------------------------------------


def static_pair(**options: object) -> tuple[Driver, str, str]:
    d = Driver(**options)  # type: ignore[arg-type]
    one = d.join(instance_id="one")
    two = d.join(instance_id="two")
    d.advance(6_000)
    a, b = d.joined(one).member_id, d.joined(two).member_id
    assert a.startswith("one-")
    d.sync(b, 1, instance_id="two")
    d.sync(a, 1, {a: b"A", b: b"B"}, instance_id="one")
    d.commit()
    assert d.group.state is GroupState.STABLE
    return d, a, b


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    d, a, b = static_pair()
    pending_response = d.join(instance_id="two")
    back = d.joined(pending_response)
    assert back.error is E.NONE
    assert (back.generation, back.leader, back.skip_assignment) == (1, a, False)
    assert back.member_id not in (a, b)
    assert d.synced(d.sync(back.member_id, 1, instance_id="two")).assignment == b"B"
    assert d.heartbeat(b, 1, "two") is E.FENCED_INSTANCE_ID
    assert d.error_of(d.sync(b, 1, instance_id="two")) is E.FENCED_INSTANCE_ID
    assert d.error_of(d.join(b, instance_id="two")) is E.FENCED_INSTANCE_ID
    assert (
        d.error_of(d.commit_offsets({("t", 0): 1}, b, 1, instance_id="two")) is E.FENCED_INSTANCE_ID
    )
    assert d.left(d.leave(Leaver(b, "two"))).members[0][1] is E.FENCED_INSTANCE_ID
    assert list(d.reloaded().group.members) == [a, back.member_id]


@pytest.mark.parametrize("version", [8, 9])
def test_a_static_leader_comes_back(version: int) -> None:
    d, a, _ = static_pair()
    back = d.joined(d.join(instance_id="one", version=version))
    assert back.generation == 1
    assert d.group.leader == back.member_id
    assert next(iter(d.group.members)) == back.member_id
    if version >= 9:
        assert back.skip_assignment
        assert back.leader == back.member_id
        assert len(back.members) == 2
    else:
        # It must not believe that it leads: its assignment would go nowhere.
        assert back.leader not in ("", back.member_id)
        assert back.members == ()
    assert a not in d.group.members


def test_a_static_member_that_changes_the_protocol_rebalances() -> None:
    d, _, b = static_pair()
    pending_response = d.join(instance_id="one", protocols=(("range", b""), ("sticky", b"")))
    assert d.joined(pending_response).generation == 1
    assert d.error_of(d.join(instance_id="one", protocols=(("sticky", b""),))) is (
        E.INCONSISTENT_GROUP_PROTOCOL
    )
    assert b in d.group.members


def test_a_static_member_back_between_join_and_sync_rebalances() -> None:
    d = Driver()
    d.join(instance_id="one")
    two = d.join(instance_id="two")
    d.advance(6_000)
    waiting = d.sync(d.joined(two).member_id, 1, instance_id="two")
    pending_response = d.join(instance_id="one")
    assert d.error_of(waiting) is E.REBALANCE_IN_PROGRESS
    assert d.group.state is GroupState.PREPARING_REBALANCE
    again = d.join(d.joined(two).member_id, instance_id="two")
    assert d.joined(pending_response).generation == d.joined(again).generation == 2
    assert d.group.leader == d.joined(pending_response).member_id


def test_a_duplicate_instance_fences_the_one_that_waits() -> None:
    d = Driver()
    first = d.join(instance_id="one")
    second = d.join(instance_id="one")
    assert d.error_of(first) is E.FENCED_INSTANCE_ID
    d.advance(3_000)
    assert d.joined(second).error is E.NONE
    assert len(d.group.members) == 1


def test_a_static_members_new_id_is_answered_when_stored() -> None:
    d, a, _ = static_pair(hold=True)
    pending_response = d.join(instance_id="two")
    assert pending_response not in d.answers
    d.refuse(E.NOT_LEADER_OR_FOLLOWER)
    assert d.error_of(pending_response) is E.NOT_COORDINATOR
    pending_response = d.join(instance_id="two")
    # A rebalance begins before the record is committed: it counts as joined and is answered by it.
    d.join(a, instance_id="one")
    assert d.joined(pending_response).generation == 2
    d.commit()


def test_a_static_members_new_id_is_stored_while_a_rebalance_waits_for_others() -> None:
    d, a, _ = static_pair(hold=True)
    pending_response = d.join(instance_id="two")
    pending = d.joined(d.join()).member_id
    other = d.join(a, instance_id="one")
    assert d.group.state is GroupState.PREPARING_REBALANCE
    d.commit()
    assert pending_response not in d.answers
    d.join(pending)
    assert d.joined(pending_response).generation == d.joined(other).generation == 2


def test_a_leader_that_misses_a_rebalance_is_followed_by_one_that_joined() -> None:
    d, a, b = static_pair()
    pending_response = d.join(b, instance_id="two", protocols=one_protocol("u"), session_ms=30_000)
    for _ in range(12):
        d.heartbeat(a, 1, "one")
        d.advance(5_000)
    assert d.joined(pending_response).leader == b
    d.sync(b, 2, {a: b"A2", b: b"B2"}, instance_id="two")
    other = d.reloaded()
    assert other.group.leader == b
    assert list(other.group.members) == [a, b]


def test_a_static_member_in_a_full_group_takes_its_own_place() -> None:
    d, *_ = static_pair(settings=GroupSettings(group_max_size=2))
    assert d.joined(d.join(instance_id="two")).error is E.NONE
    assert d.error_of(d.join(instance_id="three")) is E.GROUP_MAX_SIZE_REACHED


def test_static_members_stay_through_a_rebalance_they_miss() -> None:
    d, a, b = static_pair()
    pending_response = d.join(a, instance_id="one", protocols=one_protocol("u"), session_ms=30_000)
    for _ in range(10):
        d.advance(6_000)
        d.heartbeat(b, 1, "two")
    assert d.joined(pending_response).generation == 2
    assert [member.member_id for member in d.joined(pending_response).members] == [a, b]


def test_only_static_members_and_none_of_them_joined() -> None:
    d, a, b = static_pair()
    dynamic, _ = d.new_member(session_ms=1_800_000, rebalance_ms=6_000)
    d.leave(Leaver(dynamic))
    assert d.group.state is GroupState.PREPARING_REBALANCE
    for _ in range(20):
        d.advance(6_000)
        d.heartbeat(a, 1, "one")
        d.heartbeat(b, 1, "two")
    assert d.group.state is GroupState.PREPARING_REBALANCE
    d.advance(10_000)
    assert d.group.state is GroupState.EMPTY


def test_an_administrator_removes_static_members_by_instance_id() -> None:
    d, a, b = static_pair()
    pending_response = d.leave(Leaver("", "one"), Leaver("", "missing"), Leaver(a, "two"))
    assert [error for _, error in d.left(pending_response).members] == [
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
    ]
    assert list(d.group.members) == [b]


# Groups that are not there ------------------------------------------------------------------


def test_requests_for_a_group_that_is_not_there() -> None:
    d = Driver()
    assert d.heartbeat("m", 1) is E.UNKNOWN_MEMBER_ID
    assert d.error_of(d.sync("m", 1)) is E.UNKNOWN_MEMBER_ID
    left = d.left(d.leave(Leaver("m")))
    assert (left.error, left.members[0][1]) == (E.NONE, E.UNKNOWN_MEMBER_ID)
    for pending_response, event in enumerate(
        (
            Join("t0", "", None, "c", "h", 10_000, 10_000, "consumer", one_protocol()),
            Sync("t1", "m", None, 1),
            Heartbeat("t2", "m", None, 1),
            Leave("t3", (Leaver("m"),)),
        )
    ):
        d.send(event, "")
        assert d.answers[f"t{pending_response}"].error is E.INVALID_GROUP_ID
    assert len(d.table) == 0


def test_unloading_answers_every_waiting_request() -> None:
    d = Driver()
    a, _ = d.stable(2)
    joining = d.join(a)
    syncing_driver = Driver()
    syncing_driver.new_member()
    follower, _ = syncing_driver.new_member()
    syncing_driver.advance(6_000)
    syncing = syncing_driver.sync(follower, 1)
    for driver in (d, syncing_driver):
        driver.perform(driver.table.unload())
        assert len(driver.table) == 0
        assert driver.table.next_deadline_ms is None
    assert d.error_of(joining) is E.NOT_COORDINATOR
    assert syncing_driver.error_of(syncing) is E.NOT_COORDINATOR


def test_a_stable_group_survives_a_change_of_coordinator() -> None:
    d = Driver()
    a, b = d.stable(2)
    other = d.reloaded()
    assert other.group.state is GroupState.STABLE
    assert other.heartbeat(a, 1) is E.NONE
    assert other.synced(other.sync(b, 1)).assignment == b"share of 1"
    other.advance(10_000)
    assert other.group.state is GroupState.EMPTY


def test_members_without_a_heartbeat_to_a_new_coordinator_are_gone_after_a_session() -> None:
    d = Driver()
    d.stable(2)
    other = d.reloaded()
    other.advance(9_999)
    assert other.group.state is GroupState.STABLE
    other.advance(1)
    assert other.group.state is GroupState.EMPTY


def test_a_loaded_group_with_too_many_members_rebalances() -> None:
    d = Driver()
    d.stable(3)
    d.settings = GroupSettings(group_max_size=2)
    other = d.reloaded()
    assert other.group.state is GroupState.PREPARING_REBALANCE


def test_group_id_in_other_tables_is_not_mixed() -> None:
    d = Driver()
    d.stable(1)
    d.join(group_id="h")
    assert sorted(d.table) == [GROUP, "h"]


def test_the_room_of_all_groups_is_that_of_all_tables_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what does not grow is never refused, however full it is."""
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 10)
    tables = [SimpleNamespace(held=4, held_by={}), SimpleNamespace(held=5, held_by={})]
    room = GroupRoom(lambda: tables)
    assert [room.has_bytes(count, "a") for count in (1, 2)] == [True, False]
    tables[0].held = 40
    assert [room.has_bytes(count, "a") for count in (1, 0, -1)] == [False, True, True]
    assert (room.held, room.refused) == (45, 2)
