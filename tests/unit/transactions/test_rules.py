"""The table of a transactional id: each state with each event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.transactions import rules
from tidelog.transactions.events import AddPartitions, End, InitProducerId, MarkersWritten, Request
from tidelog.transactions.limits import LAST_OWNED_EPOCH, MAX_EPOCH
from tidelog.transactions.rules import (
    Known,
    NextState,
    NoChange,
    after_loss,
    completed,
    deadline_ms,
    is_fenced,
    is_unused,
    judge,
    loaded,
    timed_out,
    why_refused,
)
from tidelog.transactions.state import IdAndEpoch, Transaction, TransactionState

NOW = 10_000
P = TopicPartition("t", 0)
Q = TopicPartition("t", 1)
OWNER = IdAndEpoch(7, 3)
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD = (
    TransactionState
)


def known(state: TransactionState, epoch: int = 3, before: IdAndEpoch | None = None) -> Known:
    partitions = (P,) if state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT) else ()
    started = -1 if state is EMPTY else 900
    return Known(Transaction(7, epoch, 60_000, state, partitions, 1_000, started), before)


def outcome(at: Known | None, request: Request) -> NextState | NoChange | ErrorCode:
    error = why_refused(at, request)
    return error if error is not ErrorCode.NONE else judge(at, request, NOW)


def summary(found: NextState | NoChange | ErrorCode) -> object:
    """A verdict, or (state, producer id, epoch) of what is written."""
    if isinstance(found, NextState):
        now = found.known.transaction
        return now.state, now.producer_id, now.producer_epoch
    return found


INIT = InitProducerId("r", 30_000)
ADD_P, ADD_Q = AddPartitions("r", OWNER, (P,)), AddPartitions("r", OWNER, (Q,))
COMMIT, ABORT = End("r", OWNER, committed=True), End("r", OWNER, committed=False)
INVALID = ErrorCode.INVALID_TXN_STATE
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
NEXT = (EMPTY, 7, 4)

TABLE: list[tuple[TransactionState | None, object, object, object, object, object]] = [
    # state, InitProducerId, AddPartitions of P, of Q, commit, abort
    (None, NoChange.NEEDS_ID, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    (EMPTY, NEXT, (ONGOING, 7, 3), (ONGOING, 7, 3), INVALID, INVALID),
    (
        ONGOING,
        (PREPARE_ABORT, 7, 4),
        (ONGOING, 7, 3),
        (ONGOING, 7, 3),
        (PREPARE_COMMIT, 7, 3),
        (PREPARE_ABORT, 7, 3),
    ),
    (PREPARE_COMMIT, NoChange.WAIT, NoChange.WAIT, NoChange.WAIT, NoChange.WAIT, INVALID),
    (PREPARE_ABORT, NoChange.WAIT, NoChange.WAIT, NoChange.WAIT, INVALID, NoChange.WAIT),
    (COMPLETE_COMMIT, NEXT, (ONGOING, 7, 3), (ONGOING, 7, 3), (COMPLETE_COMMIT, 7, 3), INVALID),
    (COMPLETE_ABORT, NEXT, (ONGOING, 7, 3), (ONGOING, 7, 3), INVALID, (COMPLETE_ABORT, 7, 3)),
    (DEAD, NoChange.WAIT, NoChange.WAIT, NoChange.WAIT, NoChange.WAIT, NoChange.WAIT),
]


def test_the_table_has_all_states() -> None:
    assert [row[0] for row in TABLE] == [None, *TransactionState]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "none" if row[0] is None else row[0].name)
def test_each_state_with_each_request(
    row: tuple[TransactionState | None, *tuple[object, ...]],
) -> None:
    at = None if row[0] is None else known(row[0])
    found = tuple(summary(outcome(at, x)) for x in (INIT, ADD_P, ADD_Q, COMMIT, ABORT))
    assert found == row[1:]


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_a_transaction_has_a_limit_of_partitions(
    state: TransactionState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_PARTITIONS", 2)
    two, three = (Q, P), (P, Q, TopicPartition("t", 9))
    assert summary(outcome(known(state), AddPartitions("r", OWNER, two))) == (ONGOING, 7, 3)
    refused = outcome(known(state), AddPartitions("r", OWNER, three))
    assert refused is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("committed", [False, True])
def test_markers_complete_only_their_own_decision(state: TransactionState, committed: bool) -> None:
    decided = {True: PREPARE_COMMIT, False: PREPARE_ABORT}[committed]
    over = {True: COMPLETE_COMMIT, False: COMPLETE_ABORT}[committed]
    found = completed(known(state), MarkersWritten(OWNER, committed), NOW)
    assert summary(found) == ((over, 7, 3) if state is decided else NoChange.IGNORE)
    for other in (IdAndEpoch(7, 4), IdAndEpoch(8, 3)):
        assert completed(known(state), MarkersWritten(other, committed), NOW) is NoChange.IGNORE
    assert completed(None, MarkersWritten(OWNER, committed), NOW) is NoChange.IGNORE


# --- the content of what is written --------------------------------------------------------------


def written(found: NextState | NoChange | ErrorCode | None) -> Transaction:
    assert isinstance(found, NextState)
    return found.known.transaction


def test_a_new_id_is_empty_with_epoch_0() -> None:
    found = outcome(None, INIT.with_new_id(55))
    assert found == NextState(Known(Transaction(55, 0, 30_000, EMPTY, (), NOW)))


def test_a_transaction_begins_with_its_first_partition() -> None:
    for state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        begun = written(outcome(known(state), AddPartitions("r", OWNER, (Q, P, Q))))
        assert begun == Transaction(7, 3, 60_000, ONGOING, (P, Q), NOW, NOW)
    more = written(outcome(known(ONGOING), ADD_Q))
    assert more == Transaction(7, 3, 60_000, ONGOING, (P, Q), NOW, 900)


def test_a_decision_keeps_the_partitions_and_its_end_drops_them() -> None:
    decided = outcome(known(ONGOING), COMMIT)
    assert written(decided) == Transaction(7, 3, 60_000, PREPARE_COMMIT, (P,), NOW, 900)
    over = completed(known(PREPARE_COMMIT), MarkersWritten(OWNER, True), NOW)
    assert written(over) == Transaction(7, 3, 60_000, COMPLETE_COMMIT, (), NOW, 900)


def test_a_producer_that_asks_again_gets_its_new_timeout() -> None:
    assert written(outcome(known(COMPLETE_COMMIT), INIT)) == Transaction(
        7, 4, 30_000, EMPTY, (), NOW
    )


# --- fencing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", TransactionState)
def test_another_producer_is_fenced_in_every_state(state: TransactionState) -> None:
    for make in (
        lambda producer: AddPartitions("r", producer, (P,)),
        lambda producer: End("r", producer, committed=True),
    ):
        for epoch in (0, 2, 4, MAX_EPOCH):
            assert outcome(known(state), make(IdAndEpoch(7, epoch))) is ErrorCode.PRODUCER_FENCED
        assert outcome(known(state), make(IdAndEpoch(8, 3))) is UNKNOWN


@pytest.mark.parametrize("state", TransactionState)
def test_a_producer_that_was_followed_by_another_does_no_harm(state: TransactionState) -> None:
    """Also while the transaction of its successor is open."""
    for claimed in (IdAndEpoch(7, 2), IdAndEpoch(7, 4), IdAndEpoch(6, 3)):
        request = replace(INIT, claimed=claimed)
        assert outcome(known(state), request) is ErrorCode.PRODUCER_FENCED


def test_an_open_transaction_is_aborted_first_with_a_higher_epoch() -> None:
    found = outcome(known(ONGOING), INIT)
    aborting = Transaction(7, 4, 60_000, PREPARE_ABORT, (P,), NOW, 900)
    assert found == NextState(Known(aborting), then_again=True)
    over = replace(aborting, state=COMPLETE_ABORT, partitions=())
    # The new producer gets an epoch that is above the fence, too.
    assert summary(outcome(Known(over), INIT)) == (EMPTY, 7, 5)


def test_the_last_epoch_is_left_for_fencing() -> None:
    found = outcome(known(ONGOING, LAST_OWNED_EPOCH), INIT)
    assert summary(found) == (PREPARE_ABORT, 7, MAX_EPOCH)
    assert summary(outcome(known(ONGOING, MAX_EPOCH), INIT)) == (PREPARE_ABORT, 7, MAX_EPOCH)


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (EMPTY, EMPTY),
        (ONGOING, PREPARE_ABORT),
        (PREPARE_COMMIT, None),
        (PREPARE_ABORT, None),
        (COMPLETE_COMMIT, COMPLETE_COMMIT),
        (COMPLETE_ABORT, COMPLETE_ABORT),
    ],
)
def test_after_a_loss_every_epoch_is_fenced_once_a_decision_is_carried_out(
    state: TransactionState, after: TransactionState | None
) -> None:
    at = known(state, before=IdAndEpoch(6, LAST_OWNED_EPOCH))
    at = replace(at, transaction=replace(at.transaction, previous_producer_id=6))
    assert not is_fenced(at)
    verdict = after_loss(at, NOW)
    if after is None:
        assert verdict is None
        return
    assert verdict is not None and verdict.known.before is None
    fenced = verdict.known.transaction
    assert fenced.previous_producer_id == -1, "a producer before it may not repeat itself"
    assert (fenced.state, fenced.owner) == (after, IdAndEpoch(7, MAX_EPOCH))
    assert (fenced.partitions, fenced.updated_ms) == (at.transaction.partitions, NOW)
    for request in (ADD_P, COMMIT, claims(3), claims(LAST_OWNED_EPOCH, 6)):
        assert outcome(verdict.known, request) is ErrorCode.PRODUCER_FENCED
    assert is_fenced(verdict.known) and after_loss(verdict.known, NOW) is None
    if after is not PREPARE_ABORT:
        assert outcome(verdict.known, INIT) is NoChange.NEEDS_ID


# --- KIP-360 -------------------------------------------------------------------------------------


def claims(epoch: int, producer_id: int = 7) -> InitProducerId:
    return replace(INIT, claimed=IdAndEpoch(producer_id, epoch))


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_the_owner_gets_the_next_epoch_and_may_repeat_itself(state: TransactionState) -> None:
    first = outcome(known(state), claims(3))
    assert isinstance(first, NextState)
    assert summary(first) == NEXT
    assert first.known.before == IdAndEpoch(7, 3)
    again = outcome(first.known, claims(3))
    assert isinstance(again, NextState)
    assert again.known == first.known
    # And go on from there.
    assert summary(outcome(again.known, claims(4))) == (EMPTY, 7, 5)


def test_a_new_producer_ends_the_right_to_repeat() -> None:
    first = outcome(known(EMPTY), claims(3))
    assert isinstance(first, NextState)
    taken = outcome(first.known, INIT)
    assert isinstance(taken, NextState)
    assert (summary(taken), taken.known.before) == ((EMPTY, 7, 5), None)
    assert outcome(taken.known, claims(3)) is ErrorCode.PRODUCER_FENCED
    assert outcome(taken.known, claims(4)) is ErrorCode.PRODUCER_FENCED


def test_the_owner_of_an_open_transaction_gets_the_epoch_of_the_fence() -> None:
    found = outcome(known(ONGOING), claims(3))
    assert isinstance(found, NextState) and found.then_again
    assert (summary(found), found.known.before) == ((PREPARE_ABORT, 7, 4), OWNER)
    over = completed(found.known, MarkersWritten(IdAndEpoch(7, 4), False), NOW)
    assert isinstance(over, NextState)
    assert summary(outcome(over.known, claims(3))) == (EMPTY, 7, 4)


# --- the end of the epochs -----------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [None, IdAndEpoch(7, LAST_OWNED_EPOCH)])
def test_a_new_producer_id_follows_the_last_epoch(claimed: IdAndEpoch | None) -> None:
    at = known(COMPLETE_COMMIT, LAST_OWNED_EPOCH)
    request = replace(INIT, claimed=claimed)
    assert outcome(at, request) is NoChange.NEEDS_ID
    found = outcome(at, request.with_new_id(55))
    previous = -1 if claimed is None else 7
    empty = Transaction(55, 0, 30_000, EMPTY, (), NOW, previous_producer_id=previous)
    assert found == NextState(Known(empty, claimed))
    # The repetition gets the same, also from a coordinator that knows only the log.
    for after in (Known(empty, claimed), loaded(empty)):
        again = outcome(after, claims(LAST_OWNED_EPOCH))
        if claimed is None:
            assert again is ErrorCode.PRODUCER_FENCED
        else:
            assert isinstance(again, NextState)
            assert again.known.transaction == empty


def test_no_producer_gets_the_epoch_of_the_last_fence() -> None:
    found = outcome(known(ONGOING, LAST_OWNED_EPOCH), claims(LAST_OWNED_EPOCH))
    assert isinstance(found, NextState)
    over = completed(found.known, MarkersWritten(IdAndEpoch(7, MAX_EPOCH), False), NOW)
    assert isinstance(over, NextState)
    assert outcome(over.known, claims(LAST_OWNED_EPOCH)) is NoChange.NEEDS_ID
    assert summary(outcome(over.known, claims(LAST_OWNED_EPOCH).with_new_id(9))) == (EMPTY, 9, 0)


def test_a_later_epoch_of_the_new_id_forgets_the_former_one() -> None:
    rotated = Transaction(55, 0, 30_000, EMPTY, (), NOW, previous_producer_id=7)
    later = outcome(loaded(rotated), INIT)
    assert isinstance(later, NextState)
    assert later.known == Known(Transaction(55, 1, 30_000, EMPTY, (), NOW))


# --- time ----------------------------------------------------------------------------------------


def test_an_open_transaction_is_fenced_at_its_timeout() -> None:
    at = known(ONGOING, before=IdAndEpoch(7, 2))
    assert deadline_ms(at, 500) == 60_900
    assert timed_out(at, 60_899) is None
    assert timed_out(at, 60_900) == NextState(
        Known(Transaction(7, 4, 60_000, PREPARE_ABORT, (P,), 60_900, 900))
    )


@pytest.mark.parametrize("state", TransactionState)
def test_only_idle_ids_expire(state: TransactionState) -> None:
    idle = state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
    assert is_unused(known(state), 500, 1_500) is idle
    assert not is_unused(known(state), 500, 1_499)
    if state is not ONGOING:
        assert deadline_ms(known(state), 500) == (1_500 if idle else None)
        assert timed_out(known(state), 10**9) is None
