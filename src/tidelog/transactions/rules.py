"""What an event does to a transactional id: one table, pure.

Owns the table. Not records in flight and waiting requests: see `table`. ``claimed`` is what
InitProducerId names; the owner is the producer id and epoch of the state; *next* is the epoch after
the owner's, or epoch 0 of a new producer id when the epochs of the present one have ended.

================  ================  ==================  ==================  ====================
state             InitProducerId    AddPartitions       End                 deadline
================  ================  ==================  ==================  ====================
none              new id, Empty     unknown             unknown             -
Empty             next, Empty       Ongoing             INVALID_TXN_STATE   unused too long: Dead
Ongoing           fence, PrepareAb. adds                Prepare...          time-out: fence,
                                                                            PrepareAbort
PrepareCommit     waits             waits               same verdict: waits -
PrepareAbort      waits             waits               same verdict: waits -
CompleteCommit    next, Empty       Ongoing             same verdict: same  unused too long: Dead
CompleteAbort     next, Empty       Ongoing             same verdict: same  unused too long: Dead
Dead              waits for its tombstone, then as none
================  ================  ==================  ==================  ====================

- Markers that are all written turn PrepareCommit and PrepareAbort into CompleteCommit and
  CompleteAbort. Another verdict than that of the state is INVALID_TXN_STATE.
- No request succeeds without a record: what changes nothing writes the same state again. A deposed
  coordinator, which does not know its successor, would say from memory that the transaction of
  the successor has ended (docs/decisions/0134).
- Another producer id than the owner's is INVALID_PRODUCER_ID_MAPPING, another epoch is
  PRODUCER_FENCED.
- After a loss of records of the log (``after_loss``) each id is fenced with the last epoch, from
  any state (docs/decisions/0138).
- To fence raises the epoch in the record of the decision to abort. No client gets that epoch,
  except the producer that named itself as the owner when it asked.
- InitProducerId that claims the owner's identity gets the next one. One that claims the identity
  before it is the repetition of a request that succeeded, and gets the present one (KIP-360). All
  others are fenced, also while a transaction is open: Kafka compares the epoch only afterwards, so
  that a fenced producer aborts a transaction of its successor (docs/decisions/0117).

Source: KIP-98, sections "Transaction Coordinator" and "Transaction State"; KIP-360.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tidelog.model.errors import ErrorCode
from tidelog.transactions.events import AddPartitions, End, InitProducerId, MarkersWritten, Request
from tidelog.transactions.limits import LAST_OWNED_EPOCH, MAX_EPOCH, MAX_PARTITIONS
from tidelog.transactions.state import (
    COMPLETE,
    NO_PRODUCER_ID,
    NO_TIME_MS,
    PREPARED,
    IdAndEpoch,
    Transaction,
    TransactionState,
)


@dataclass(frozen=True, slots=True)
class Known:
    """What the coordinator knows of an id, all of it committed.

    ``before`` is the identity before the owner's if the same producer had it, otherwise None. Only
    its producer id is in the log: a new coordinator knows it where the producer id changed.
    """

    transaction: Transaction
    before: IdAndEpoch | None = None


class NoChange(Enum):
    """What follows when no record is written."""

    WAIT = "wait"
    """Decide it again after the next change of the state."""
    NEEDS_ID = "needs id"
    """Decide it again with a fresh producer id."""
    IGNORE = "ignore"
    """The event is out of date."""


@dataclass(frozen=True, slots=True)
class NextState:
    """The state to write. ``then_again``: the request is decided again after later changes."""

    known: Known
    then_again: bool = False


def loaded(transaction: Transaction) -> Known:
    """Return what a coordinator knows that read the log."""
    previous = transaction.previous_producer_id
    if previous == NO_PRODUCER_ID:
        return Known(transaction)
    return Known(transaction, IdAndEpoch(previous, LAST_OWNED_EPOCH))


def why_refused(known: Known | None, request: Request) -> ErrorCode:
    """Return the error of a request whose sender may not use the id, otherwise NONE.

    No record in flight can change it: no client has the identity that one would bring.
    """
    if isinstance(request, InitProducerId):
        if known is None or request.claimed is None:
            return ErrorCode.NONE
        owner = known.transaction.owner
        accepted = [owner] if known.transaction.state is TransactionState.ONGOING else [
            owner, known.before
        ]  # fmt: skip
        fenced = request.claimed not in accepted
        return ErrorCode.PRODUCER_FENCED if fenced else ErrorCode.NONE
    return producer_error(known, request.producer)


def producer_error(known: Known | None, producer: IdAndEpoch) -> ErrorCode:
    """Return the error of a producer that is not the owner of the id, otherwise NONE."""
    if known is None or known.transaction.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.transaction.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def judge(known: Known | None, request: Request, wall_ms: int) -> NextState | NoChange | ErrorCode:
    """Return what a request does that ``why_refused`` accepts, while no record is in flight.

    ``wall_ms`` is the time of day.
    """
    match request:
        case InitProducerId():
            return _initialize(known, request, wall_ms)
        case AddPartitions():
            assert known is not None, "refused"
            return _add(known, request, wall_ms)
        case End():
            assert known is not None, "refused"
            return _end(known, request, wall_ms)


def _initialize(known: Known | None, request: InitProducerId, wall_ms: int) -> NextState | NoChange:
    if known is None:
        return _with_new_id(request, None, wall_ms)
    now = known.transaction
    if now.state in PREPARED or now.state is TransactionState.DEAD:
        return NoChange.WAIT
    if now.state is TransactionState.ONGOING:
        return NextState(Known(_fenced(now, wall_ms), request.claimed), then_again=True)
    repeated = request.claimed is not None and request.claimed == known.before
    if repeated and now.producer_epoch <= LAST_OWNED_EPOCH:
        owner, before, previous = now.owner, known.before, now.previous_producer_id
    elif now.producer_epoch >= LAST_OWNED_EPOCH:
        return _with_new_id(request, request.claimed, wall_ms)
    else:
        owner = IdAndEpoch(now.producer_id, now.producer_epoch + 1)
        before, previous = request.claimed, NO_PRODUCER_ID
    empty = Transaction(
        *owner,
        request.timeout_ms,
        TransactionState.EMPTY,
        updated_ms=wall_ms,
        previous_producer_id=previous,
    )
    return NextState(Known(empty, before))


def _with_new_id(
    request: InitProducerId, claimed: IdAndEpoch | None, wall_ms: int
) -> NextState | NoChange:
    if request.new_id is None:
        return NoChange.NEEDS_ID
    empty = Transaction(
        request.new_id,
        0,
        request.timeout_ms,
        TransactionState.EMPTY,
        updated_ms=wall_ms,
        previous_producer_id=NO_PRODUCER_ID if claimed is None else claimed.producer_id,
    )
    return NextState(Known(empty, claimed))


def _add(known: Known, request: AddPartitions, wall_ms: int) -> NextState | NoChange | ErrorCode:
    """Add partitions, also those that are there; UNKNOWN_SERVER_ERROR for more than
    ``MAX_PARTITIONS``, as for a record that is too large."""
    now = known.transaction
    if now.state in PREPARED or now.state is TransactionState.DEAD:
        return NoChange.WAIT
    is_open = now.state is TransactionState.ONGOING
    before = now.partitions if is_open else ()
    together = {*before, *request.partitions}
    if len(together) > MAX_PARTITIONS:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if not is_open:
        added = replace(
            now,
            state=TransactionState.ONGOING,
            partitions=tuple(sorted(together)),
            started_ms=wall_ms,
            updated_ms=wall_ms,
        )
        return NextState(replace(known, transaction=added))
    added = replace(now, partitions=tuple(sorted(together)), updated_ms=wall_ms)
    return NextState(replace(known, transaction=added))


_AGREES = {
    True: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    False: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}
"""The states of each verdict: the decision, and its end."""


def _end(known: Known, request: End, wall_ms: int) -> NextState | NoChange | ErrorCode:
    now = known.transaction
    if now.state is TransactionState.DEAD:
        return NoChange.WAIT
    if now.state is TransactionState.ONGOING:
        prepare, _ = _AGREES[request.committed]
        return NextState(
            replace(known, transaction=replace(now, state=prepare, updated_ms=wall_ms))
        )
    if now.state not in _AGREES[request.committed]:
        return ErrorCode.INVALID_TXN_STATE
    if now.state in PREPARED:
        return NoChange.WAIT
    return NextState(replace(known, transaction=replace(now, updated_ms=wall_ms)))


def completed(known: Known | None, event: MarkersWritten, wall_ms: int) -> NextState | NoChange:
    """Return what follows when all markers of a decision are written."""
    prepare, complete = _AGREES[event.committed]
    if known is None or known.transaction.owner != event.producer:
        return NoChange.IGNORE
    if known.transaction.state is not prepare:
        return NoChange.IGNORE
    over = replace(known.transaction, state=complete, partitions=(), updated_ms=wall_ms)
    return NextState(replace(known, transaction=over))


def timed_out(known: Known, wall_ms: int) -> NextState | None:
    """Return the decision to abort an open transaction that has passed its time-out."""
    now = known.transaction
    if now.state is not TransactionState.ONGOING or wall_ms < now.started_ms + now.timeout_ms:
        return None
    return NextState(Known(_fenced(now, wall_ms)))


def after_loss(known: Known, wall_ms: int) -> NextState | None:
    """Return what follows for an id when its log has lost records, or None: nothing yet.

    Its owner may have begun a transaction, and another producer may have got a later epoch, that
    no record is left of. So all epochs of its producer id are fenced, and the next producer gets a
    new producer id. A decision is carried out first, as it was made.
    """
    now = known.transaction
    if now.state in PREPARED or is_fenced(known):
        return None
    aborts = now.state is TransactionState.ONGOING
    fenced = replace(
        now,
        producer_epoch=MAX_EPOCH,
        state=TransactionState.PREPARE_ABORT if aborts else now.state,
        previous_producer_id=NO_PRODUCER_ID,
        updated_ms=wall_ms,
    )
    return NextState(Known(fenced))


def is_fenced(known: Known) -> bool:
    """Whether no producer has the id, and what it had open is aborted or over.

    The markers of the abort may be on their way: the decision is in the log, as any other.
    """
    now = known.transaction
    return now.producer_epoch == MAX_EPOCH and now.state in _FENCED


_FENCED = COMPLETE | {TransactionState.EMPTY, TransactionState.PREPARE_ABORT}


def is_unused(known: Known, expiration_ms: int, wall_ms: int) -> bool:
    """Whether an id without a transaction was not used for so long that it expires."""
    now = known.transaction
    idle = now.state is TransactionState.EMPTY or now.state in COMPLETE
    return idle and wall_ms >= now.updated_ms + expiration_ms


def deadline_ms(known: Known, expiration_ms: int) -> int | None:
    """Return the time of day at which ``timed_out`` or ``is_unused`` changes; None without one."""
    now = known.transaction
    if now.state is TransactionState.ONGOING:
        return now.started_ms + now.timeout_ms
    if now.state is TransactionState.EMPTY or now.state in COMPLETE:
        return now.updated_ms + expiration_ms
    return None


def _fenced(now: Transaction, wall_ms: int) -> Transaction:
    """Return the decision to abort with an epoch above that of the owner."""
    assert now.started_ms != NO_TIME_MS, "the transaction is open"
    return replace(
        now,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=min(now.producer_epoch + 1, MAX_EPOCH),
        updated_ms=wall_ms,
    )
