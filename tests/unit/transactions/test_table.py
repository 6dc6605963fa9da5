"""Records in flight, waiting requests and deadlines of transactional ids: stories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidelog.model.effects import Answer, Note
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.record import CorruptRecords
from tidelog.transactions import limits, table
from tidelog.transactions.decision import (
    AllocateProducerId,
    SendMarkers,
    TransactionDecision,
    TransactionWrite,
)
from tidelog.transactions.events import (
    AddPartitions,
    Deadline,
    End,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
)
from tidelog.transactions.records import TransactionRecord, encode
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.state import IdAndEpoch, Transaction, TransactionState
from tidelog.transactions.table import TransactionTable

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
OWNER = IdAndEpoch(7, 0)
AHEAD_MS = 1_000_000
"""Times of day are so much later than the steady clock."""

SETTINGS = TransactionSettings(
    transaction_max_timeout_ms=60_000, transactional_id_expiration_ms=10**6
)


class World:
    """A table, its clock, and what it said."""

    def __init__(self) -> None:
        self.table = TransactionTable(SETTINGS)
        self.table.ahead_ms = AHEAD_MS
        self.now_ms = 0
        self.answers: dict[Any, Any] = {}
        self.writes: list[TransactionWrite] = []
        self.markers: list[SendMarkers] = []
        self.asked: list[AllocateProducerId] = []
        self.notes: list[str] = []
        self.audited = 0

    def take(self, decision: TransactionDecision) -> None:
        for effect in decision.effects:
            match effect:
                case Answer(pending, result):
                    self.answers.setdefault(pending, result)
                case SendMarkers():
                    self.markers.append(effect)
                case AllocateProducerId():
                    self.asked.append(effect)
                case Note():
                    self.notes.append(effect.message % effect.fields)
                    self.audited += effect.is_audited
        self.writes += decision.writes

    def decide(self, event: Any, key: str = "id") -> None:
        self.take(self.table.decide(key, event, self.now_ms))

    def store(self) -> None:
        self.take(self.table.stored(self.writes.pop(0), self.now_ms))

    def lose(self, error: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        self.take(self.table.lost(self.writes.pop(0), error, self.now_ms))

    def pass_time(self, ms: int) -> None:
        """Let time pass, and decide what is due then."""
        self.now_ms += ms
        for key in self.table.due(self.now_ms):
            self.decide(Deadline(self.now_ms), key)

    def error(self, pending: str) -> ErrorCode:
        found: ErrorCode = self.answers[pending].error
        return found

    @property
    def state(self) -> TransactionState:
        entry = self.table.get("id")
        assert entry is not None and entry.known is not None
        return entry.known.transaction.state


def ready() -> World:
    """An id whose producer is (7, 0)."""
    world = World()
    world.decide(InitProducerId("first", 30_000))
    world.decide(world.asked.pop().request.with_new_id(7))
    world.store()
    assert world.answers.pop("first") == InitProducerIdResult(ErrorCode.NONE, 7, 0)
    return world


def ongoing() -> World:
    world = ready()
    world.decide(AddPartitions("added", OWNER, (P, Q)))
    world.store()
    assert world.error("added") is ErrorCode.NONE
    return world


def prepared(committed: bool = True) -> World:
    world = ongoing()
    world.decide(End("ended", OWNER, committed))
    world.store()
    return world


COMMIT = End("end", OWNER, committed=True)
DONE = MarkersWritten(OWNER, committed=True)


# --- requests that no state accepts --------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "timeout_ms", "error"),
    [
        ("", 1_000, ErrorCode.INVALID_REQUEST),
        ("ü" * 50_000, 1_000, ErrorCode.INVALID_REQUEST),
        ("ü" * (limits.MAX_ID_BYTES // 2 + 1), 1_000, ErrorCode.INVALID_REQUEST),
        ("ü" * (limits.MAX_ID_BYTES // 2), 1_000, None),
        ("x" * limits.MAX_ID_BYTES, 1_000, None),
        ("id", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("id", -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("id", 60_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("id", 60_000, None),
    ],
)
def test_invalid_ids_and_timeouts(key: str, timeout_ms: int, error: ErrorCode | None) -> None:
    world = World()
    world.decide(InitProducerId("r", timeout_ms), key)
    if error is None:
        assert len(world.asked) == 1 and not world.answers
    else:
        assert world.error("r") is error
    assert len(world.table) == 0, "an id has a place from its first record on"


def test_an_id_that_no_producer_has_is_unknown() -> None:
    world = World()
    world.decide(COMMIT)
    world.decide(AddPartitions("add", OWNER, (P,)))
    assert world.error("end") is world.error("add") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_full_table_takes_no_new_id(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ready()
    monkeypatch.setattr(limits, "MAX_IDS", 1)
    world.decide(InitProducerId("other", 1_000), "other")
    assert world.error("other") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.decide(InitProducerId("same", 1_000))
    world.store()
    assert world.error("same") is ErrorCode.NONE


# --- the decision is durable first ---------------------------------------------------------------


def test_a_commit_is_answered_and_its_markers_sent_when_the_decision_is_durable() -> None:
    world = ongoing()
    world.decide(COMMIT)
    assert not world.markers and "end" not in world.answers
    world.store()
    assert world.error("end") is ErrorCode.NONE
    assert world.markers == [SendMarkers("id", OWNER, True, (P, Q))]
    world.decide(DONE)
    world.store()
    assert world.state is TransactionState.COMPLETE_COMMIT
    assert len(world.markers) == 1


def test_the_same_commit_again_waits_for_the_markers() -> None:
    world = prepared()
    world.decide(End("again", OWNER, committed=True))
    world.decide(End("other", OWNER, committed=False))
    assert world.error("other") is ErrorCode.INVALID_TXN_STATE
    assert "again" not in world.answers
    world.decide(DONE)
    world.store()
    assert "again" not in world.answers
    world.store()
    assert world.error("again") is ErrorCode.NONE
    assert world.state is TransactionState.COMPLETE_COMMIT and len(world.markers) == 1


def test_nothing_succeeds_before_a_record_that_came_after_the_request() -> None:
    """A deposed coordinator knows the end of the last transaction, and not that of the next one,
    which its successor has begun (decision 0134)."""
    world = ongoing()
    world.decide(AddPartitions("same", OWNER, (P,)))
    assert "same" not in world.answers
    world.store()
    assert world.error("same") is ErrorCode.NONE
    world.decide(COMMIT)
    world.store()
    world.decide(DONE)
    world.store()
    world.decide(End("again", OWNER, committed=True))
    assert "again" not in world.answers
    world.take(world.table.unload())
    (write,) = world.writes
    assert [answer.pending_response for answer in write.answers] == ["again"], "the shell refuses"


def test_a_late_decision_is_neither_taken_back_nor_acted_upon() -> None:
    world = ongoing()
    world.decide(COMMIT)
    late = world.writes.pop()
    world.take(world.table.delayed(late, ErrorCode.REQUEST_TIMED_OUT, world.now_ms))
    assert world.error("end") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.markers
    # The client repeats it, changes its mind, or another producer comes: nothing is written.
    world.decide(End("again", OWNER, committed=True))
    world.decide(End("other", OWNER, committed=False))
    world.decide(InitProducerId("taken", 1_000))
    world.pass_time(limits.WAIT_MS)
    for name in ("again", "other", "taken"):
        assert world.error(name) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.pass_time(60_000)
    assert not world.writes, "its time-out passed, and the decision may be a commit"
    world.take(world.table.stored(late, world.now_ms))
    assert world.state is TransactionState.PREPARE_COMMIT
    assert world.markers == [SendMarkers("id", OWNER, True, (P, Q))]


def test_a_refused_decision_leaves_the_transaction_open() -> None:
    world = ongoing()
    world.decide(COMMIT)
    world.lose()
    assert world.error("end") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.decide(End("again", OWNER, committed=False))
    world.store()
    assert world.error("again") is ErrorCode.NONE
    assert world.state is TransactionState.PREPARE_ABORT


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_errors_of_the_log_are_those_of_kafka(error: ErrorCode, answer: ErrorCode) -> None:
    world = ongoing()
    world.decide(COMMIT)
    world.decide(End("waits", OWNER, committed=True))
    world.lose(error)
    assert world.error("end") is world.error("waits") is answer


# --- waiting -------------------------------------------------------------------------------------


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    world = prepared()
    world.decide(AddPartitions("next", OWNER, (P,)))
    world.pass_time(limits.WAIT_MS - 1)
    assert "next" not in world.answers and not world.writes
    world.decide(DONE)
    world.store()
    world.store()
    assert world.error("next") is ErrorCode.NONE
    assert world.state is TransactionState.ONGOING


def test_a_wait_ends() -> None:
    world = prepared()
    world.decide(AddPartitions("next", OWNER, (P,)))
    world.pass_time(limits.WAIT_MS)
    assert world.error("next") is ErrorCode.CONCURRENT_TRANSACTIONS
    world.decide(DONE)
    world.store()
    assert not world.writes


def test_a_wait_for_a_record_and_then_for_markers_is_one_wait() -> None:
    world = ongoing()
    world.decide(COMMIT)
    world.decide(AddPartitions("next", OWNER, (P,)))
    world.pass_time(limits.WAIT_MS // 2)
    world.store()
    assert world.state is TransactionState.PREPARE_COMMIT
    world.pass_time(limits.WAIT_MS // 2)
    assert world.error("next") is ErrorCode.CONCURRENT_TRANSACTIONS


def test_what_was_refused_with_a_lost_record_is_not_decided_later() -> None:
    world = ongoing()
    world.decide(COMMIT)
    world.decide(InitProducerId("refused", 1_000))
    world.lose()
    assert world.error("refused") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.decide(End("again", OWNER, committed=True))
    world.store()
    world.decide(DONE)
    world.store()
    assert world.state is TransactionState.COMPLETE_COMMIT and not world.writes


def test_only_so_many_requests_wait() -> None:
    world = prepared()
    for number in range(limits.MAX_WAITING + 1):
        world.decide(AddPartitions(number, OWNER, (P,)))
    assert list(world.answers)[-1] == limits.MAX_WAITING
    assert world.answers[limits.MAX_WAITING].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(world.table.get("id").waiting) == limits.MAX_WAITING  # type: ignore[union-attr]


def test_requests_that_wait_are_decided_in_their_order() -> None:
    world = prepared()
    world.decide(InitProducerId("new", 1_000))
    world.decide(AddPartitions("old", OWNER, (P,)))
    world.decide(DONE)
    world.store()
    world.store()
    assert world.answers["new"] == InitProducerIdResult(ErrorCode.NONE, 7, 1)
    assert world.error("old") is ErrorCode.PRODUCER_FENCED


def test_a_new_producer_gets_its_id_after_the_open_transaction_was_aborted() -> None:
    world = ongoing()
    world.decide(InitProducerId("new", 1_000))
    world.store()
    fence = IdAndEpoch(7, 1)
    assert world.markers == [SendMarkers("id", fence, False, (P, Q))]
    world.decide(COMMIT)
    assert world.error("end") is ErrorCode.PRODUCER_FENCED
    world.decide(MarkersWritten(fence, committed=False))
    world.store()
    world.store()
    assert world.answers["new"] == InitProducerIdResult(ErrorCode.NONE, 7, 2)


def test_a_fence_that_the_log_refuses_costs_no_epoch() -> None:
    world = ongoing()
    for number in range(5):
        world.decide(InitProducerId(number, 1_000))
        world.lose()
        assert world.answers[number].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.decide(COMMIT)
    world.store()
    assert world.error("end") is ErrorCode.NONE


# --- deadlines -----------------------------------------------------------------------------------


ABORTS = "aborts the transaction of producer 7, epoch 0,"


def test_a_fence_of_what_is_open_is_audited_and_an_end_by_its_producer_is_not() -> None:
    world = ongoing()
    world.decide(InitProducerId("other", 1_000))
    assert world.notes == [f"{ABORTS} in 2 partitions: a producer or an operator asked for its id"]
    assert world.audited == 1
    ended = ongoing()
    ended.decide(End("end", OWNER, committed=False))
    assert ended.notes == [] and ended.audited == 0


def test_a_transaction_that_passes_its_timeout_is_aborted_and_its_producer_fenced() -> None:
    world = ongoing()
    world.pass_time(29_999)
    assert not world.writes
    world.pass_time(1)
    world.store()
    assert world.notes == [f"{ABORTS} in 2 partitions: it passed its time-out of 30000 ms"]
    assert world.audited == 1
    assert world.markers == [SendMarkers("id", IdAndEpoch(7, 1), False, (P, Q))]
    world.decide(COMMIT)
    assert world.error("end") is ErrorCode.PRODUCER_FENCED


def test_the_transaction_after_a_committed_one_has_a_timeout_too() -> None:
    world = prepared()
    world.decide(DONE)
    world.store()
    world.decide(AddPartitions("next", OWNER, (P,)))
    world.store()
    world.pass_time(30_000)
    world.store()
    assert world.state is TransactionState.PREPARE_ABORT


def test_what_the_coordinator_decides_itself_is_tried_again() -> None:
    world = ongoing()
    world.pass_time(30_000)
    world.lose()
    assert world.table.next_deadline_ms == world.now_ms + limits.RETRY_MS
    world.pass_time(limits.RETRY_MS)
    world.store()
    world.decide(MarkersWritten(IdAndEpoch(7, 1), committed=False))
    assert world.table.refused_ends == 0
    world.lose()
    assert world.table.refused_ends == 1
    world.pass_time(limits.RETRY_MS)
    assert world.table.refused_ends == 0
    world.lose()
    assert world.table.refused_ends == 1
    world.pass_time(limits.RETRY_MS)
    world.store()
    assert world.state is TransactionState.COMPLETE_ABORT and world.table.refused_ends == 0


def test_an_unused_id_is_removed() -> None:
    world = ready()
    world.pass_time(10**6 - 1)
    assert not world.writes
    world.pass_time(1)
    assert world.writes[0].records == (TransactionRecord("id", None),)
    world.decide(InitProducerId("late", 1_000))
    world.store()
    # The request that came meanwhile begins a new life of the id.
    world.decide(world.asked.pop().request.with_new_id(8))
    world.store()
    assert world.answers["late"] == InitProducerIdResult(ErrorCode.NONE, 8, 0)


# --- loading -------------------------------------------------------------------------------------


def loaded_with(*records: TransactionRecord) -> World:
    world = World()
    for record in records:
        world.table.replay(*encode(record), 0)
    world.take(world.table.loaded(0))
    return world


STORED = Transaction(7, 0, 30_000, TransactionState.ONGOING, (P,), AHEAD_MS, AHEAD_MS)


@pytest.mark.parametrize("committed", [False, True])
def test_a_new_coordinator_carries_out_what_is_decided(committed: bool) -> None:
    names = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
    decided = replace(STORED, state=names[committed])
    world = loaded_with(TransactionRecord("id", STORED), TransactionRecord("id", decided))
    assert world.markers == [SendMarkers("id", OWNER, committed, (P,))]


def test_a_new_coordinator_goes_on_with_open_transactions() -> None:
    world = loaded_with(TransactionRecord("id", STORED))
    assert not world.markers
    world.pass_time(30_000)
    world.store()
    assert world.state is TransactionState.PREPARE_ABORT


def test_the_deadlines_of_a_load_are_set_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SETTLED_AT_ONCE", 2)
    world = World()
    decided = replace(STORED, state=TransactionState.PREPARE_COMMIT)
    for number in range(5):
        record = TransactionRecord(f"id-{number}", decided if number == 3 else STORED)
        world.table.replay(*encode(record), 0)
    assert world.table.next_deadline_ms is None
    assert list(world.table.settle(0)) == [None, None, None]
    assert world.table.next_deadline_ms == 30_000
    world.take(world.table.loaded(0))
    assert [sent.transactional_id for sent in world.markers] == ["id-3"]
    world.pass_time(30_000)
    assert len(world.writes) == 4


def test_what_was_removed_is_not_loaded() -> None:
    dead = replace(STORED, state=TransactionState.DEAD, partitions=())
    world = loaded_with(
        TransactionRecord("a", STORED),
        TransactionRecord("a", None),
        TransactionRecord("b", STORED),
        TransactionRecord("b", dead),
        TransactionRecord("c", None),
    )
    assert len(world.table) == 0


def test_a_state_that_cannot_be_read_ends_the_load() -> None:
    key, _ = encode(TransactionRecord("id", None))
    with pytest.raises(CorruptRecords, match="transactional id 'id' cannot be read: value vers"):
        World().table.replay(key, b"\0\2", 0)


def test_other_records_are_counted() -> None:
    world = World()
    world.table.replay(b"\0\1", b"", 0)
    world.table.replay(None, b"", 0)
    assert (world.table.unknown_records, len(world.table)) == (2, 0)


def test_requests_that_wait_learn_of_the_end_of_the_leadership() -> None:
    world = prepared()
    world.decide(InitProducerId("new", 1_000))
    world.take(world.table.unload())
    assert world.error("new") is ErrorCode.NOT_COORDINATOR
    assert (len(world.table), world.table.next_deadline_ms) == (0, None)


# --- after a loss of records ---------------------------------------------------------------------


def lossy(*states: tuple[str, Transaction]) -> World:
    """A coordinator that has loaded a log whose end was lost."""
    world = World()
    for key, state in states:
        world.table.replay(*encode(TransactionRecord(key, state)), 0)
    world.table.has_lost = True
    world.take(world.table.loaded(0))
    return world


def state_of(state: TransactionState) -> Transaction:
    opened = state not in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT)
    return Transaction(7, 0, 30_000, state, (P,) if opened else (), AHEAD_MS, AHEAD_MS)


def test_what_is_open_is_aborted_and_fenced_without_a_request() -> None:
    world = lossy(("id", state_of(TransactionState.ONGOING)))
    assert world.table.doubtful == 1 and not world.markers
    world.pass_time(0)
    assert world.notes == [f"{ABORTS} in 1 partition: the log of its id has lost records"]
    assert world.audited == 1
    world.store()
    (marker,) = world.markers
    assert marker == SendMarkers("id", IdAndEpoch(7, limits.MAX_EPOCH), False, (P,))
    assert world.table.doubtful == 0, "the decision is in the log: its markers have no part in it"
    world.decide(MarkersWritten(*marker_event(marker)))
    world.store()
    assert world.state is TransactionState.COMPLETE_ABORT


def test_a_fence_whose_markers_are_not_written_is_not_made_again_by_the_next_coordinator() -> None:
    """A partition that no marker reaches keeps neither the debt nor the ids of others."""
    fenced = replace(state_of(TransactionState.PREPARE_ABORT), producer_epoch=limits.MAX_EPOCH)
    world = lossy(("id", fenced))
    assert world.table.doubtful == 0
    assert world.markers == [SendMarkers("id", IdAndEpoch(7, limits.MAX_EPOCH), False, (P,))]
    world.decide(AddPartitions("former", OWNER, (P,)))
    assert world.error("former") is ErrorCode.PRODUCER_FENCED
    world.decide(InitProducerId("next", 30_000))
    world.pass_time(limits.WAIT_MS)
    assert world.error("next") is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not world.writes


def marker_event(sent: SendMarkers) -> tuple[IdAndEpoch, bool]:
    return sent.producer, sent.committed


def test_what_is_decided_is_carried_out_as_it_was_and_then_fenced() -> None:
    world = lossy(("id", state_of(TransactionState.PREPARE_COMMIT)))
    (marker,) = world.markers
    assert marker == SendMarkers("id", OWNER, True, (P,))
    world.pass_time(10)
    assert not world.writes and world.table.doubtful == 1
    world.decide(DONE)
    world.store()
    assert world.state is TransactionState.COMPLETE_COMMIT and world.table.doubtful == 1
    world.store()
    assert world.table.doubtful == 0
    world.decide(AddPartitions("late", OWNER, (P,)))
    assert world.error("late") is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT])
def test_a_request_of_an_id_in_doubt_waits_for_its_fence(state: TransactionState) -> None:
    world = lossy(("id", state_of(state)))
    world.decide(AddPartitions("add", OWNER, (P,)))
    world.decide(InitProducerId("init", 30_000))
    assert not world.answers and len(world.writes) == 1
    world.store()
    assert world.error("add") is ErrorCode.PRODUCER_FENCED
    # The next producer has another producer id: what the log lost may have granted later epochs.
    world.decide(world.asked.pop().request.with_new_id(8))
    world.store()
    assert world.answers["init"] == InitProducerIdResult(ErrorCode.NONE, 8, 0)


def test_a_fence_that_the_log_refuses_is_written_again() -> None:
    world = lossy(("id", state_of(TransactionState.EMPTY)))
    world.pass_time(0)
    world.lose()
    assert world.table.doubtful == 1
    world.pass_time(limits.RETRY_MS)
    world.store()
    assert world.table.doubtful == 0


def test_many_ids_are_fenced_a_few_at_a_time() -> None:
    count = 10 * table.FENCED_EACH_MS
    world = lossy(*((f"id-{x}", state_of(TransactionState.EMPTY)) for x in range(count)))
    for _ in range(10):
        assert len(world.table.due(world.now_ms)) == table.FENCED_EACH_MS
        world.now_ms += 1
    assert not world.table.due(world.now_ms)


def test_the_end_of_a_leadership_ends_the_doubt_here() -> None:
    world = lossy(("id", state_of(TransactionState.EMPTY)))
    world.take(world.table.unload())
    assert world.table.doubtful == 0
