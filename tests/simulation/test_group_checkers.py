"""Each checker of a group on a good history and on a bad one: it must tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation import group_checkers as checkers
from tests.simulation.group_history import (
    GroupCommit,
    GroupHistory,
    Jump,
    Look,
    Share,
    StoredGeneration,
    StoredOffset,
)
from tests.simulation.history import History, Outcome

P, Q = "t-0", "t-1"


def good() -> GroupHistory:
    """Generation 1: "a" has both. Generation 2: "a" has t-0, "b" has t-1. "b" is out of range."""
    acked, refused = Outcome.ACKED, Outcome.REFUSED
    return GroupHistory(
        shares=[
            Share(1, "a", (P, Q), "b1", 1),
            Share(2, "a", (P,), "b2", 10),
            Share(2, "b", (Q,), "b2", 11),
        ],
        looks=[
            Look(1, "a", "b1", {P: (-1, ""), Q: (-1, "")}, 2),
            Look(2, "a", "b2", {P: (5, "1")}, 12),
            Look(2, "b", "b1", {Q: (3, "1")}, 13),
            Look(2, "a", "b2", {P: (8, "5")}, 25),
        ],
        commits=[
            GroupCommit("1", 1, "a", {P: 5, Q: 3}, 3, acked, 4),
            GroupCommit("2", 1, "a", {P: 6, Q: 4}, 5, refused, 6),
            GroupCommit("3", 1, "a", {Q: 7}, 7, Outcome.UNDETERMINED, 8),
            GroupCommit("4", 2, "b", {Q: 2}, 16, acked, 17),
            GroupCommit("5", 2, "a", {P: 8}, 18, acked, 19),
        ],
        jumps=[Jump(2, "b", Q, 3, 1, 15)],
        log=[
            StoredGeneration(1),
            StoredOffset(P, 5, "1"),
            StoredOffset(Q, 3, "1"),
            StoredOffset(Q, 7, "3"),
            StoredGeneration(2),
            StoredOffset(Q, 2, "4"),
            StoredOffset(P, 8, "5"),
        ],
    )


def shared_twice(group: GroupHistory) -> None:
    group.shares.append(Share(2, "b", (P,), "b2", 30))


def began_anew(group: GroupHistory) -> None:
    group.log.append(StoredGeneration(1))


def late_commit(group: GroupHistory) -> None:
    group.log.append(StoredOffset(Q, 7, "3"))


def answered_late(group: GroupHistory) -> None:
    group.commits.append(GroupCommit("6", 1, "a", {}, 30, Outcome.ACKED, 31))


def unknown_commit(group: GroupHistory) -> None:
    group.log.append(StoredOffset(Q, 7, ""))


def committed_as_nobody(group: GroupHistory) -> None:
    group.commits.append(GroupCommit("6", -1, "", {P: 4}, 30, Outcome.REFUSED, 31))


def lost_commit(group: GroupHistory) -> None:
    group.log.pop()


def refused_commit_stands(group: GroupHistory) -> None:
    group.log.insert(3, StoredOffset(P, 6, "2"))


def told_an_older_position(group: GroupHistory) -> None:
    group.looks[2] = replace(group.looks[2], broker="b2")


def told_its_own_former_position(group: GroupHistory) -> None:
    group.looks[3] = replace(group.looks[3], found={P: (5, "1")})


def told_what_never_was(group: GroupHistory) -> None:
    group.looks[2] = replace(group.looks[2], found={Q: (9, "9")})


def not_on_record(group: GroupHistory) -> None:
    group.looks.append(Look(3, "a", "b1", {}, 30))


def went_back(group: GroupHistory) -> None:
    group.jumps.clear()
    group.looks[2] = replace(group.looks[2], found={Q: (7, "3")})


def went_back_behind_its_own_commit(group: GroupHistory) -> None:
    """Long ago it got a lower position than that."""
    group.commits += [
        GroupCommit("6", 2, "a", {P: 6}, 20, Outcome.ACKED, 21),
        GroupCommit("7", 2, "a", {P: 9}, 26, Outcome.ACKED, 27),
    ]
    group.log += [StoredOffset(P, 9, "7"), StoredOffset(P, 6, "6")]


BAD: list[tuple[Callable[[GroupHistory], None], checkers.GroupChecker]] = [
    (shared_twice, checkers.one_owner_in_a_generation),
    (began_anew, checkers.generations_rise),
    (late_commit, checkers.old_generations_do_not_commit),
    (answered_late, checkers.old_generations_do_not_commit),
    (unknown_commit, checkers.old_generations_do_not_commit),
    (committed_as_nobody, checkers.only_owners_commit),
    (lost_commit, checkers.answered_commits_stay),
    (refused_commit_stands, checkers.answered_commits_stay),
    (told_an_older_position, checkers.members_begin_where_the_last_stopped),
    (told_its_own_former_position, checkers.members_begin_where_the_last_stopped),
    (told_what_never_was, checkers.members_begin_where_the_last_stopped),
    (not_on_record, checkers.members_begin_where_the_last_stopped),
    (went_back, checkers.commits_go_forward),
    (went_back_behind_its_own_commit, checkers.commits_go_forward),
]


def test_a_good_history_passes_all() -> None:
    assert checkers.violations(good()) == []


@pytest.mark.parametrize(("spoil", "checker"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_a_bad_history_is_found(
    spoil: Callable[[GroupHistory], None], checker: checkers.GroupChecker
) -> None:
    group = good()
    assert checker(group) == []
    spoil(group)
    assert checker(group) != []


def test_every_checker_has_a_bad_history() -> None:
    assert {checker for _, checker in BAD} == set(checkers.ALL)


@pytest.mark.parametrize("told_at", [21, 28, 31])
def test_a_position_may_fall_below_a_commit_when_its_member_got_a_lower_one(
    told_at: int,
) -> None:
    group = good()
    group.commits += [
        GroupCommit("6", 2, "a", {P: 9}, 26, Outcome.UNDETERMINED, 27),
        GroupCommit("7", 2, "a", {P: 8}, 30, Outcome.ACKED, 31),
    ]
    group.looks.append(Look(2, "a", "b2", {P: (8, "5")}, told_at))
    group.log += [StoredOffset(P, 9, "6"), StoredOffset(P, 8, "7")]
    assert bool(checkers.commits_go_forward(group)) is (told_at != 28)
    # Without an answer it may have come late, from before the other one.
    group.commits[-1] = replace(group.commits[-1], outcome=Outcome.UNDETERMINED)
    assert checkers.commits_go_forward(group) == []


@pytest.mark.parametrize(
    ("checked", "found", "is_good"),
    [
        (26, (8, "5"), True),
        (26, (-1, ""), True),
        (17, (8, "5"), False),  # not yet sent
        (26, (9, "6"), False),  # never stored
        (26, (5, "1"), False),  # of another member of its own generation
    ],
)
def test_whose_share_came_late_may_find_what_a_later_generation_committed(
    checked: int, found: tuple[int, str], is_good: bool
) -> None:
    """Cluster seed 30: the answer of SyncGroup was on its way while the next generation began."""
    group = good()
    group.commits.append(GroupCommit("6", 2, "a", {P: 9}, 20, Outcome.UNDETERMINED, 21))
    group.shares.append(Share(1, "late", (P,), "b2", 16))
    group.looks.append(Look(1, "late", "b2", {P: found}, checked))
    assert (checkers.members_begin_where_the_last_stopped(group) == []) is is_good


def test_a_record_that_no_member_gets_is_found() -> None:
    history = History()
    for number in range(3):
        write = history.send(P, "p", number, b"v%d" % number)
        history.end(write, Outcome.ACKED, number)
    history.read(P, 1, b"v1", "g/m1")
    history.read(P, 2, b"v2", "other")
    assert checkers.a_group_gets_everything(history, "g/", {}) == []
    assert checkers.a_group_gets_everything(history, "g/", {P: 3}) == []
    assert len(checkers.a_group_gets_everything(history, "g/", {P: 1})) == 1
    for source, target, lost in ((0, 3, 0), (2, 9, 0), (0, 2, 1), (3, 9, 1)):
        passed = [Jump(1, "m", P, source, target, 0)]
        assert len(checkers.a_group_gets_everything(history, "g/", {P: 1}, passed)) == lost
    history.read(P, 2, b"v2", "g/m2")
    assert checkers.a_group_gets_everything(history, "g/", {P: 1}) == []


def test_a_position_falls_only_where_records_were_lost() -> None:
    group = good()
    assert checkers.positions_hold(group, {Q}) == []
    assert len(checkers.positions_hold(group, {P})) == 1
    group.jumps[:] = [Jump(2, "b", Q, 3, 6, 15)]
    assert checkers.positions_hold(group, ()) == []
