"""What becomes of what is open in a log, by what coordinators say: a table."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition
from tidelog.transactions.hanging import Ends, OpenInLog, Remains, StateOfId, judge, of_client
from tidelog.transactions.markers import Marker
from tidelog.transactions.state import IdAndEpoch, TransactionState

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
EPOCH, COORDINATOR = 3, 9
OPEN = OpenInLog(IdAndEpoch(7, EPOCH), 100, 120, 8)
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, _ = TransactionState


def said(
    state: TransactionState,
    epoch: int = EPOCH,
    *partitions: TopicPartition,
    coordinator: int = COORDINATOR,
) -> StateOfId:
    return StateOfId("id", IdAndEpoch(7, epoch), state, frozenset(partitions), coordinator)


LOST = Ends(Marker(IdAndEpoch(7, EPOCH), False, COORDINATOR), is_lost=True)


def ended(committed: bool, epoch: int = EPOCH) -> Ends:
    return Ends(Marker(IdAndEpoch(7, epoch), committed, COORDINATOR), is_lost=False)


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        # None knows it.
        ([], Ends(Marker(IdAndEpoch(7, EPOCH), False, 8), is_lost=True)),
        # It is open, or its marker is on its way.
        ([said(ONGOING, EPOCH, P, Q)], Remains.OPEN),
        ([said(PREPARE_COMMIT, EPOCH, P)], Remains.OPEN),
        ([said(PREPARE_ABORT, EPOCH, P)], Remains.OPEN),
        ([said(PREPARE_ABORT, EPOCH + 1, P)], Remains.OPEN),
        # It is decided, and its marker is lost.
        ([said(COMPLETE_COMMIT)], ended(True)),
        ([said(COMPLETE_ABORT)], ended(False)),
        ([said(COMPLETE_ABORT, EPOCH + 1)], ended(False, EPOCH + 1)),
        # Another transaction of its producer.
        ([said(ONGOING, EPOCH, Q)], LOST),
        ([said(ONGOING, EPOCH + 1, P)], LOST),
        ([said(PREPARE_COMMIT, EPOCH, Q)], LOST),
        ([said(COMPLETE_COMMIT, EPOCH + 1)], LOST),
        ([said(EMPTY)], LOST),
        ([said(EMPTY, EPOCH + 1)], LOST),
        # The coordinator has lost it.
        ([said(ONGOING, EPOCH - 1, P)], LOST),
        ([said(PREPARE_COMMIT, EPOCH - 1, P)], LOST),
        ([said(COMPLETE_COMMIT, EPOCH - 1)], LOST),
        ([said(COMPLETE_ABORT, EPOCH - 1)], LOST),
        # Nothing is certain.
        ([said(COMPLETE_COMMIT, coordinator=7)], Remains.UNKNOWN),
        ([said(EMPTY, coordinator=7)], Remains.UNKNOWN),
        ([said(COMPLETE_COMMIT), said(EMPTY)], Remains.UNKNOWN),
    ],
)
def test_each_state(states: list[StateOfId], verdict: Ends | Remains) -> None:
    assert judge(OPEN, P, states) == verdict


def test_a_log_without_a_marker_of_the_producer_takes_one_of_any_coordinator() -> None:
    verdict = judge(OPEN._replace(coordinator_epoch=-1), P, [])
    assert isinstance(verdict, Ends) and verdict.marker.coordinator_epoch == 0


@pytest.mark.parametrize(
    ("states", "abort", "commit"),
    [
        (None, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE),
        ([said(EMPTY, coordinator=7)], E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE),
        ([said(ONGOING, EPOCH, P, Q)], E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
        ([said(PREPARE_COMMIT, EPOCH, P)], E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
        ([said(COMPLETE_COMMIT)], E.INVALID_TXN_STATE, E.NONE),
        ([said(COMPLETE_ABORT)], E.NONE, E.INVALID_TXN_STATE),
        ([said(ONGOING, EPOCH, Q)], E.NONE, E.INVALID_TXN_STATE),
        ([], E.NONE, E.INVALID_TXN_STATE),
    ],
)
def test_a_marker_of_a_client_in_each_state(
    states: list[StateOfId] | None, abort: E, commit: E
) -> None:
    for committed, expected in ((False, abort), (True, commit)):
        marker = Marker(IdAndEpoch(7, EPOCH), committed, 8)
        wanted = marker if expected is E.NONE else expected
        assert of_client(marker, OPEN, P, states) == wanted


def test_a_client_names_no_higher_coordinator_epoch_than_the_coordinators_own() -> None:
    asked = Marker(IdAndEpoch(7, EPOCH), False, 1_000)
    for states, epoch in (([], 8), ([said(COMPLETE_ABORT)], COORDINATOR)):
        written = of_client(asked, OPEN, P, states)
        assert isinstance(written, Marker) and written.coordinator_epoch == epoch
