"""The transaction of a producer as a state machine: events in, decisions out. Pure.

Owns the states, which partitions belong to the transaction, when it may end, and the class of an
error. Not requests to the coordinator: see ``transaction_requests``. Not what follows for batches
and callers: see ``transactional``.

| state | meaning | left by |
|---|---|---|
| new | it has no producer id | INIT |
| starting | InitProducerId is asked for | STARTED |
| ready | no transaction is open | BEGIN |
| open | it takes records and offsets | COMMIT, PREPARE, ABORT |
| failed | a record, or a request, failed for good: only an abort is left | ABORT |
| flushing | it takes nothing more; batches are without an outcome | FLUSHED, SET_ASIDE, ABORT |
| committing | all is acknowledged; EndTxn is asked for | ENDED |
| aborting | nothing more is sent; EndTxn, and the next epoch, are asked for | ENDED |
| prepared | all is acknowledged; any process may end it | COMMIT, ABORT |
| closed | another producer has the id, or no request can succeed: for ever | |

``TABLE`` has every pair of state and event; a pair without a state is a call that is refused. FAIL
(an error that an abort mends) and CLOSE (one that ends the producer) come at any time.

The order of requests (KIP-98): AddPartitionsToTxn is answered before the first batch of a partition
is sent, AddOffsetsToTxn before TxnOffsetCommit; EndTxn is sent when every batch has its outcome.
After an abort the producer raises its epoch (KIP-360): a batch that the network still holds is
refused then, and cannot join the next transaction. After a prepared transaction it does so when
the next one begins: whoever knows the former identity could end that one otherwise. Until then the
coordinator answers the verdict of the prepared one again, also to another process.

An outcome is open where no response came: a commit can only be committed again, an abort aborted
again. The coordinator answers the same verdict with success.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from tidelog.client.errors import (
    AbortTransaction,
    ClientError,
    ProducerEnded,
    Refused,
    VersionUnsupported,
    WrongState,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


class Phase(Enum):
    """The state of a producer's transactions."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    OPEN = "open"
    FAILED = "failed"
    FLUSHING = "flushing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    PREPARED = "prepared"
    CLOSED = "closed"


class TxnEvent(Enum):
    """An event of a producer's transactions."""

    INIT = "init_transactions is called"
    STARTED = "the coordinator has given a producer id and an epoch"
    BEGIN = "begin_transaction is called"
    WRITE = "a record or offsets are given"
    COMMIT = "commit_transaction is called"
    PREPARE = "prepare is called"
    ABORT = "abort_transaction is called"
    FLUSHED = "every batch is acknowledged, for a commit"
    SET_ASIDE = "every batch is acknowledged, for prepare"
    ENDED = "the coordinator has ended the transaction"
    FAIL = "an error that an abort mends"
    CLOSE = "an error that ends the producer"


_AFTER = {
    # Of NEW, STARTING, READY, OPEN, FAILED, FLUSHING, COMMITTING, ABORTING, PREPARED, CLOSED.
    TxnEvent.INIT: "STARTING STARTING - - - - - - - -",
    TxnEvent.STARTED: "NEW READY READY OPEN FAILED FLUSHING COMMITTING ABORTING PREPARED CLOSED",
    TxnEvent.BEGIN: "- - OPEN - - - - - - -",
    TxnEvent.WRITE: "- - - OPEN - - - - - -",
    TxnEvent.COMMIT: "- - - FLUSHING - FLUSHING COMMITTING - COMMITTING -",
    TxnEvent.PREPARE: "- - - FLUSHING - FLUSHING - - PREPARED -",
    TxnEvent.ABORT: "- - - ABORTING ABORTING ABORTING - ABORTING ABORTING -",
    TxnEvent.FLUSHED: "- - - - - COMMITTING COMMITTING - - -",
    TxnEvent.SET_ASIDE: "- - - - - PREPARED - - PREPARED -",
    TxnEvent.ENDED: "NEW STARTING READY OPEN FAILED FLUSHING READY READY PREPARED CLOSED",
    TxnEvent.FAIL: "NEW STARTING READY FAILED FAILED FAILED FAILED ABORTING PREPARED CLOSED",
    TxnEvent.CLOSE: "CLOSED CLOSED CLOSED CLOSED CLOSED CLOSED CLOSED CLOSED CLOSED CLOSED",
}

TABLE = {
    (phase, event): None if after == "-" else Phase[after]
    for event, row in _AFTER.items()
    for phase, after in zip(Phase, row.split(), strict=True)
}
"""(state, event) -> the state after it; None: the call is refused."""

_WHY_NOT = {
    Phase.NEW: "call init_transactions() first",
    Phase.STARTING: "init_transactions() did not succeed: call it again",
    Phase.READY: "no transaction is open: call begin_transaction() first",
    Phase.OPEN: "a transaction is open: commit or abort it first",
    Phase.FLUSHING: "the transaction is being committed: call commit_transaction() again",
    Phase.COMMITTING: "the outcome of the commit is open: call commit_transaction() again",
    Phase.ABORTING: "the abort did not succeed: call abort_transaction() again",
    Phase.PREPARED: "the transaction is prepared: call complete_transaction() first",
}
"""What the caller has to do before a call that is refused."""

_FENCING = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})

_FATAL = _FENCING | {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}
"""Errors after which no request of this producer succeeds, whichever it was the answer to."""


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all acknowledged; any process may end it."""

    transactional_id: str
    producer_id: int
    epoch: int


class TxnEnd(NamedTuple):
    """How a transaction ends: what the coordinator is asked for."""

    commits: bool
    is_open: bool
    """Whether the coordinator may have it open; otherwise there is nothing to end."""
    raises_epoch: bool
    """Whether the next epoch is asked for at once, when it has ended."""


def is_final(error: ClientError) -> bool:
    """Whether an error ends the producer, as far as its code says."""
    if isinstance(error, ProducerEnded | VersionUnsupported):
        return True
    return isinstance(error, Refused) and error.code in _FATAL


class ProducerTransaction:
    """The transactions of one producer, one after another."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.phase = Phase.NEW
        self.problem: ClientError | None = None
        """Why only an abort is left, or the producer is closed."""
        self._added: set[TopicPartition] = set()
        """The partitions that the coordinator has in the transaction."""
        self._wanted: dict[TopicPartition, None] = {}
        """Those that have batches, and are not in it yet."""
        self._is_open = False
        """Whether the coordinator may have it open: it was sent a partition or a group."""
        self._is_decided = False
        """Whether the coordinator may have been asked to commit it, by whichever process."""
        self._was_prepared = False
        self._owes_epoch = False
        """Whether it has ended, and the next epoch was not given yet."""
        self._needs_epoch = False
        """Whether a prepared one has ended, whose names must not end the next one."""

    # Calls and their outcomes

    def step(self, event: TxnEvent) -> None:
        """Apply an event. Raises what the caller is to know of a call that is refused."""
        after = TABLE[self.phase, event]
        if after is None:
            raise self.why_not(event)
        self.phase = after
        if event is TxnEvent.BEGIN:
            self._forget()
        self._is_decided |= after in (Phase.COMMITTING, Phase.PREPARED)
        self._was_prepared |= after is Phase.PREPARED

    def why_not(self, event: TxnEvent) -> ClientError:
        """Return why a call is refused now."""
        if self.phase is Phase.CLOSED and self.problem is not None:
            return _again(self.problem)
        if self.phase is Phase.FAILED:
            return self.failure()
        if self.phase is Phase.READY and event is TxnEvent.INIT:
            return WrongState("init_transactions() was called already: begin a transaction")
        return WrongState(f"{self._subject}: {_WHY_NOT[self.phase]}")

    def failed(self, error: ClientError) -> ClientError:
        """A record or a request has failed for good; return what its caller is to know.

        Of several errors the first counts.
        """
        if is_final(error):
            return self._close(error)
        if self.phase is Phase.CLOSED:
            return self.why_not(TxnEvent.WRITE)
        self.step(TxnEvent.FAIL)
        if self.phase is not Phase.FAILED:
            return error
        if self.problem is None:
            self.problem = error
        return self.failure()

    def failure(self) -> AbortTransaction:
        """Return what tells callers to abort."""
        failure = AbortTransaction(
            f"{self._subject}: {self.problem}: call abort_transaction(), then begin another one"
        )
        failure.__cause__ = self.problem
        return failure

    def late_commit(self) -> ClientError:
        """A commit did not end in time, and was given up; return what its caller is to know."""
        if self.phase is Phase.CLOSED:
            return self.why_not(TxnEvent.COMMIT)
        aborted = "the transaction is aborted: begin another one"
        then = aborted if self.phase is Phase.READY else _WHY_NOT[Phase.ABORTING]
        return AbortTransaction(f"{self._subject}: the commit did not end in time, and {then}")

    def refused_end(self, error: ClientError) -> ClientError | None:
        """The coordinator has refused to end the transaction; return what the caller is to know.

        None: nothing was open there, so it counts as aborted.
        """
        if not isinstance(error, Refused) or error.code != ErrorCode.INVALID_TXN_STATE:
            return self.failed(error)
        # Otherwise it has ended with the other verdict.
        return self._close(error) if self._is_decided else None

    def _close(self, error: ClientError) -> ClientError:
        if self.phase is Phase.CLOSED and self.problem is not None:
            return _again(self.problem)
        self.step(TxnEvent.CLOSE)
        code = error.code if isinstance(error, Refused) else None
        if code in _FENCING:
            why = (
                "another producer has this id, an operator ended it, or a transaction was open "
                f"for longer than transaction_timeout_ms ({self.timeout_ms}) and is aborted: "
                "close this producer"
            )
            self.problem = Refused(ErrorCode.PRODUCER_FENCED, self._subject, why)
        elif code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            why = (
                f"transaction_timeout_ms ({self.timeout_ms}) is above transaction.max.timeout.ms "
                "of the brokers: close this producer, and give another one a shorter time"
            )
            self.problem = ProducerEnded(f"{error}: {why}")
        else:
            self.problem = ProducerEnded(f"{error}; close this producer")
        self.problem.__cause__ = error
        return _again(self.problem)

    @property
    def _subject(self) -> str:
        return f"transactional id {self.transactional_id!r}"

    # Partitions and groups

    @property
    def takes_records(self) -> bool:
        """Whether records are accepted."""
        return self.phase is Phase.OPEN

    @property
    def can_abort(self) -> bool:
        """Whether an abort is accepted: a transaction is open, and its commit is not asked for."""
        return TABLE[self.phase, TxnEvent.ABORT] is not None

    @property
    def gives_up(self) -> bool:
        """Whether what was not sent is never sent."""
        return self.phase in (Phase.FAILED, Phase.ABORTING, Phase.CLOSED)

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether a batch of a partition may be sent; otherwise ``to_add`` has the partition."""
        if partition in self._added:
            return True
        if self.phase in (Phase.OPEN, Phase.FLUSHING):
            self._wanted[partition] = None
        return False

    @property
    def must_add(self) -> bool:
        """Whether batches wait until their partitions are in the transaction."""
        return bool(self._wanted)

    def to_add(self, having: Collection[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Return the partitions for the next request: the coordinator may have them from now on.

        ``having``: the partitions that have batches now.
        """
        if self.phase not in (Phase.OPEN, Phase.FLUSHING):
            return ()
        self._wanted = {partition: None for partition in self._wanted if partition in having}
        self._is_open |= bool(self._wanted)
        return tuple(sorted(self._wanted))

    def added(self, partitions: tuple[TopicPartition, ...]) -> None:
        """The coordinator has these partitions in the transaction."""
        for partition in partitions:
            if partition in self._wanted:
                del self._wanted[partition]
                self._added.add(partition)

    def adds_group(self) -> None:
        """A group is sent to the coordinator, which may have it from now on."""
        self.step(TxnEvent.WRITE)
        self._is_open = True

    # The end

    def ends(self) -> TxnEnd:
        """Return what ends the transaction now: it is committing or aborting."""
        commits = self.phase is Phase.COMMITTING
        # All batches of a prepared one are acknowledged: the next begin is early enough.
        raises = self._is_open and not commits and not self._was_prepared
        return TxnEnd(commits, self._is_open, raises or self._owes_epoch)

    def end_answered(self) -> None:
        """The coordinator has ended it; the next epoch may be left to ask for."""
        self._owes_epoch = self.ends().raises_epoch
        self._is_open = False

    @property
    def is_empty(self) -> bool:
        """Whether the coordinator has nothing of it."""
        return not self._is_open

    def ended(self) -> None:
        """The transaction has ended, and the next epoch was given if it was asked for."""
        self.step(TxnEvent.ENDED)
        self._needs_epoch |= self._was_prepared
        self._forget()

    @property
    def begins_with_epoch(self) -> bool:
        """Whether the next epoch is asked for before the next transaction begins."""
        return self._needs_epoch and self.phase is Phase.READY

    def epoch_given(self) -> None:
        """The next epoch was given: the names of a prepared transaction end nothing any more."""
        self._needs_epoch = False

    def _forget(self) -> None:
        self._added.clear()
        self._wanted.clear()
        self._is_open = self._is_decided = self._was_prepared = self._owes_epoch = False
        if self.phase is not Phase.CLOSED:
            self.problem = None


def _again(error: ClientError) -> ClientError:
    """Return an error like this one, for another caller: each raises its own."""
    if isinstance(error, Refused):
        other: ClientError = Refused(error.code, error.subject, error.reason)
    else:
        other = type(error)(*error.args)
    other.__cause__ = error.__cause__
    return other
