"""What a leader learns about the partitions of a producer's transaction: a table (KIP-890)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition
from tidelog.transactions.decision import TransactionWrite
from tidelog.transactions.rules import Known
from tidelog.transactions.state import IdAndEpoch, Transaction, TransactionState
from tidelog.transactions.table import TransactionalId
from tidelog.transactions.verifying import verified

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
OWNER = IdAndEpoch(7, 3)
OPEN = Transaction(7, 3, 1000, TransactionState.ONGOING, (P,), 1, 1)
ASK_AGAIN, NOT_OPEN = E.CONCURRENT_TRANSACTIONS, E.TRANSACTION_ABORTABLE
S = TransactionState


def entry(now: Transaction | None, next_: Any = "none") -> TransactionalId:
    """An id, with a record in flight if ``next_`` is a state (None: a tombstone)."""
    made = TransactionalId("id", None if now is None else Known(now))
    if next_ != "none":
        known = None if next_ is None else Known(next_)
        made.in_flight = TransactionWrite("id", (), known)  # type: ignore[arg-type]
    return made


def of(state: TransactionState, *partitions: TopicPartition) -> Transaction:
    return replace(OPEN, state=state, partitions=partitions)


@pytest.mark.parametrize(
    ("found", "producer", "answers"),
    [
        (None, OWNER, [E.INVALID_PRODUCER_ID_MAPPING] * 2),
        (entry(None, OPEN), OWNER, [E.INVALID_PRODUCER_ID_MAPPING] * 2),
        (entry(OPEN), IdAndEpoch(8, 3), [E.INVALID_PRODUCER_ID_MAPPING] * 2),
        (entry(OPEN), IdAndEpoch(7, 2), [E.PRODUCER_FENCED] * 2),
        (entry(OPEN), IdAndEpoch(7, 4), [E.CONCURRENT_TRANSACTIONS] * 2),
        (entry(OPEN), OWNER, [E.NONE, NOT_OPEN]),
        (entry(OPEN, of(S.ONGOING, P, Q)), OWNER, [E.NONE, ASK_AGAIN]),
        (entry(OPEN, of(S.PREPARE_COMMIT, P)), OWNER, [ASK_AGAIN] * 2),
        (entry(OPEN, of(S.PREPARE_ABORT, P)), OWNER, [ASK_AGAIN] * 2),
        (entry(of(S.PREPARE_COMMIT, P)), OWNER, [ASK_AGAIN] * 2),
        (entry(of(S.PREPARE_ABORT, P), of(S.COMPLETE_ABORT)), OWNER, [ASK_AGAIN] * 2),
        (entry(of(S.EMPTY)), OWNER, [NOT_OPEN] * 2),
        (entry(of(S.EMPTY), OPEN), OWNER, [ASK_AGAIN] * 2),
        (entry(of(S.COMPLETE_COMMIT)), OWNER, [NOT_OPEN] * 2),
        (entry(of(S.COMPLETE_ABORT)), OWNER, [NOT_OPEN] * 2),
        (entry(of(S.COMPLETE_ABORT), None), OWNER, [ASK_AGAIN] * 2),
    ],
)
def test_the_answer_in_each_state(
    found: TransactionalId | None, producer: IdAndEpoch, answers: list[E]
) -> None:
    assert verified(found, producer, (P, Q)) == answers


def test_nothing_is_confirmed_while_an_id_may_lack_records() -> None:
    doubtful = entry(OPEN)
    doubtful.is_doubtful = True
    assert verified(doubtful, OWNER, (P, Q)) == [ASK_AGAIN] * 2
