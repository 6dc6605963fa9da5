"""Each checker of transactions on a good history and on a bad one: it must tell them apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import promises, transaction_checkers
from tests.simulation.transaction_history import (
    Position,
    Sent,
    StableOffset,
    Transaction,
    TransactionHistory,
    Verdict,
)

P, Q = "t-0", "t-1"


def wrote(
    history: TransactionHistory, verdict: Verdict, *places: tuple[str, int], asks: bool = True
) -> Transaction:
    """A transaction with a record for each partition and offset (-1: not acknowledged)."""
    made = history.begin("id")
    for partition, offset in places:
        value = f"{made.number}/{len(made.sent)}".encode()
        made.sent.append(Sent(partition, value, offset))
    made.has_offsets = True
    if asks:
        made.commit_sent_at = history.tick()
    made.verdict = verdict
    return made


def good() -> TransactionHistory:
    history = TransactionHistory()
    wrote(history, Verdict.COMMITTED, (P, 0), (P, 1), (Q, 0))
    history.sees(P, 0, b"0/0", "r")
    wrote(history, Verdict.ABORTED, (P, 3), (Q, 2), asks=False)
    wrote(history, Verdict.UNKNOWN, (P, 5), (Q, 4))
    wrote(history, Verdict.UNKNOWN, (P, -1), (Q, -1))
    wrote(history, Verdict.ABORTED, (P, 9))
    history.positions += [Position("id", -1, 1), Position("id", 0, history.tick())]
    history.finals = {P: {0: b"0/0", 1: b"0/1", 5: b"2/0"}, Q: {0: b"0/2", 4: b"2/1"}}
    history.last_positions = {"id": 2}
    history.stable += [
        StableOffset(P, 1, 3, 1, 2),
        StableOffset(P, 1, 6, 3, 6),
        StableOffset(P, 0, 2, 7, 8),  # a deposed leader
        StableOffset(P, 1, 3, 5, 9),  # was asked before the answer of 6 came
        StableOffset(P, 2, 6, 10, 11),
    ]
    return history


def of(history: TransactionHistory, number: int) -> Transaction:
    return history.transactions[number]


def a_record_of_a_commit_is_missing(history: TransactionHistory) -> None:
    history.finals[Q] = {4: b"2/1"}


def a_commit_is_missing(history: TransactionHistory) -> None:
    of(history, 3).verdict = Verdict.COMMITTED


def half_of_what_is_in_doubt_is_there(history: TransactionHistory) -> None:
    history.finals[Q] = {0: b"0/2"}


def it_stands_elsewhere(history: TransactionHistory) -> None:
    of(history, 0).sent[0].offset = 7


def an_aborted_record_is_there(history: TransactionHistory) -> None:
    history.finals[Q] = {0: b"0/2", 2: b"1/1", 4: b"2/1"}


def a_refused_commit_is_there(history: TransactionHistory) -> None:
    history.finals[P] = {0: b"0/0", 1: b"0/1", 5: b"2/0", 9: b"4/0"}


def an_aborted_record_is_read(history: TransactionHistory) -> None:
    history.sees(P, 3, b"1/0", "r")
    history.finals[P] = {**history.finals[P], 3: b"1/0"}


def a_record_is_read_before_its_commit(history: TransactionHistory) -> None:
    of(history, 0).commit_sent_at = history.seen[0].at + 1


def what_was_read_is_gone(history: TransactionHistory) -> None:
    history.sees(P, 6, b"2/0", "r")


def a_record_stands_twice(history: TransactionHistory) -> None:
    history.finals[P] = {**history.finals[P], 8: b"0/0"}


def records_change_places(history: TransactionHistory) -> None:
    history.finals[P] = {0: b"0/1", 1: b"0/0", 5: b"2/0"}
    for sent in of(history, 0).sent:
        sent.offset = -1
    history.seen.clear()


def an_offset_is_missing(history: TransactionHistory) -> None:
    history.last_positions = {"id": 0}


def an_aborted_offset_counts(history: TransactionHistory) -> None:
    history.last_positions = {"id": 4}


def an_aborted_offset_is_read(history: TransactionHistory) -> None:
    history.positions.append(Position("id", 1, history.tick()))


def an_offset_is_read_before_its_commit(history: TransactionHistory) -> None:
    history.positions.append(Position("id", 2, of(history, 2).commit_sent_at - 1))


def a_stable_offset_goes_back(history: TransactionHistory) -> None:
    history.stable.append(StableOffset(P, 2, 5, 12, 13))


def a_later_leader_knows_less(history: TransactionHistory) -> None:
    history.stable[-1] = StableOffset(P, 2, 5, 10, 11)


BAD: list[tuple[Callable[[TransactionHistory], None], str]] = [
    (a_record_of_a_commit_is_missing, "committed_is_whole"),
    (a_commit_is_missing, "committed_is_whole"),
    (half_of_what_is_in_doubt_is_there, "committed_is_whole"),
    (it_stands_elsewhere, "committed_is_whole"),
    (an_aborted_record_is_there, "aborted_is_never_visible"),
    (a_refused_commit_is_there, "aborted_is_never_visible"),
    (an_aborted_record_is_read, "aborted_is_never_visible"),
    (a_record_is_read_before_its_commit, "aborted_is_never_visible"),
    (what_was_read_is_gone, "committed_stays"),
    (a_record_stands_twice, "transactions_keep_their_order"),
    (records_change_places, "transactions_keep_their_order"),
    (an_offset_is_missing, "offsets_agree"),
    (an_aborted_offset_counts, "offsets_agree"),
    (an_aborted_offset_is_read, "offsets_agree"),
    (an_offset_is_read_before_its_commit, "offsets_agree"),
    (a_stable_offset_goes_back, "stable_offsets_stay"),
    (a_later_leader_knows_less, "stable_offsets_stay"),
]


def test_a_good_history_is_accepted() -> None:
    assert transaction_checkers.violations(good(), ()) == []


@pytest.mark.parametrize(("spoil", "name"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_a_bad_history_is_refused(spoil: Callable[[TransactionHistory], None], name: str) -> None:
    history = good()
    spoil(history)
    found = transaction_checkers.violations(history, ())
    assert found
    assert any(line.startswith(f"{name}: ") for line in found), found
    assert all(promises.name_of(line) for line in found)


def test_every_checker_has_a_bad_history() -> None:
    assert {name for _, name in BAD} == set(transaction_checkers.ALL)


@pytest.mark.parametrize(("spoil", "name"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_partitions_that_are_not_clean_count_for_nothing(
    spoil: Callable[[TransactionHistory], None], name: str
) -> None:
    history = good()
    spoil(history)
    found = transaction_checkers.violations(history, (P, Q))
    # The group's positions are in another partition.
    assert not [line for line in found if not line.startswith("offsets_agree")]


def test_what_was_deleted_is_not_missed() -> None:
    history = good()
    history.finals[P] = {5: b"2/0"}
    assert transaction_checkers.violations(history, ())
    history.starts[P] = 4
    assert transaction_checkers.violations(history, ()) == []
    history.starts[P] = 6
    history.finals[P] = {}
    assert transaction_checkers.violations(history, ()) == []
    history.finals[Q] = {4: b"2/1"}  # without the record of the first transaction
    assert len(transaction_checkers.violations(history, ())) == 1


def test_what_an_unclean_election_of_decisions_or_positions_may_take_is_not_asked_for() -> None:
    history = good()
    a_commit_is_missing(history)
    an_aborted_record_is_read(history)
    an_offset_is_missing(history)
    names = {
        place: {line.partition(":")[0] for line in transaction_checkers.violations(history, place)}
        for place in ((), ("__transaction_state-1",), ("__consumer_offsets-0",))
    }
    aborted = "aborted_is_never_visible"
    assert names == {
        (): {"committed_is_whole", aborted, "offsets_agree"},
        ("__transaction_state-1",): {aborted},
        ("__consumer_offsets-0",): {"committed_is_whole", aborted},
    }


def test_what_is_in_doubt_without_records_may_have_moved_the_position_or_not() -> None:
    for position, is_fine in ((2, True), (5, True), (0, False)):
        history = good()
        wrote(history, Verdict.UNKNOWN)
        history.last_positions = {"id": position}
        assert bool(transaction_checkers.violations(history, ())) is not is_fine, position
