"""All transactional ids of one partition of ``__transaction_state``: the interface to the rules.

Owns the record in flight of each id, the requests that wait, and the deadlines. Not what an event
does to an id: see `rules`. A shell serves it as any table (``broker.coordinator.table``).

Rules about records in flight (docs/decisions/0117):

- An id has one record in flight at most. Until it is committed or refused the id stays as it was:
  nothing is decided from the new state, nothing takes it back, and no second record is written.
- A record that is not committed in time is not lost: its requests get an error, and it may still
  be committed. A record that the log refused was never there.
- Requests meanwhile wait, as they do for markers: ``WAIT_MS`` at most, ``MAX_WAITING`` at once.
  They are decided again in their order after each change.

After a loss of records (``has_lost``, docs/decisions/0138) an id is in doubt until its producers
are fenced, after a decision of before the loss was carried out. Its requests wait for that as for a
record. The markers of the fence itself belong to the next rule: a decision is sent until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.model.deadlines import Deadlines
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work, finish
from tidelog.records.record import CorruptRecords
from tidelog.transactions import limits, rules
from tidelog.transactions.decision import (
    AllocateProducerId,
    Collected,
    SendMarkers,
    TransactionDecision,
    TransactionEffect,
    TransactionWrite,
    error_for_producers,
)
from tidelog.transactions.events import (
    Deadline,
    Event,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
    Request,
    TransactionResult,
    refused,
)
from tidelog.transactions.records import UnreadableRecord, decode
from tidelog.transactions.rules import Known, NextState, NoChange
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.state import PREPARED, TransactionState

SETTLED_AT_ONCE = 64
"""Ids whose deadlines a load sets in one step."""

FENCED_EACH_MS = 5
"""Ids that are fenced in each ms after a loss, unless a request asks for them: a record of each is
written, and ``due`` returns all that are due at once."""


class TransactionalId:
    """One id: what is known of it, and what waits."""

    __slots__ = (
        "in_flight", "is_doubtful", "key", "known", "retry_at_ms", "to_complete", "waiting"
    )  # fmt: skip

    def __init__(self, key: str, known: Known | None) -> None:
        self.key = key
        self.known = known
        """None until the first record is committed."""
        self.in_flight: TransactionWrite | None = None
        self.waiting: list[tuple[Request, int]] = []
        """Requests, and until when each waits."""
        self.to_complete: MarkersWritten | None = None
        """The markers are written, and the record that says so is not committed yet."""
        self.retry_at_ms: int | None = None
        self.is_doubtful = False
        """The log has lost records, and the id is not fenced yet."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is left of it."""
        return self.known is None and self.in_flight is None and not self.waiting


class TransactionTable:
    """The ids of one partition. Holds ``limits.MAX_IDS``, or as many as its log has."""

    def __init__(self, settings: TransactionSettings) -> None:
        self._settings = settings
        self._ids: dict[str, TransactionalId] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self.ahead_ms = 0
        """The time of day less ``now_ms``, set by the shell before it calls."""
        self._decided: list[TransactionEffect] | None = None
        """The markers of decisions that a load has found, from ``settle`` to ``loaded``."""
        self.unknown_records = 0
        """Records of the log with a key that this code does not know."""
        self.has_lost = False
        """Whether the log has lost records that were committed: set before ``settle``."""
        self.doubtful = 0
        """How many ids are in doubt for that."""
        self._refused_ends: set[str] = set()

    @property
    def refused_ends(self) -> int:
        """How many ids have all markers written, and wait to write that down again: the log has
        refused the record."""
        return len(self._refused_ends)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def get(self, transactional_id: str) -> TransactionalId | None:
        """Return an id, to be read only."""
        return self._ids.get(transactional_id)

    # Reading the log -----------------------------------------------------------------------

    def replay(
        self, key: bytes | memoryview | None, value: bytes | memoryview | None, _now_ms: int
    ) -> None:
        """Replay one record of the log.

        CorruptRecords for a state that cannot be read: an older one must not be served in its
        place. A record of another kind, which newer code may have written, is counted and skipped.
        """
        found = UnreadableRecord(None, "there is no key") if key is None else decode(key, value)
        if isinstance(found, UnreadableRecord):
            if found.transactional_id is not None:
                raise CorruptRecords(
                    f"the state of the transactional id {found.transactional_id!r} cannot be read:"
                    f" {found.reason}; upgrade this broker or restore the replica"
                )
            self.unknown_records += 1
        elif found.value is None or found.value.state is TransactionState.DEAD:
            self._ids.pop(found.transactional_id, None)
        else:
            known = rules.loaded(found.value)
            self._ids[found.transactional_id] = TransactionalId(found.transactional_id, known)

    def settle(self, now_ms: int) -> Work[None]:
        """Set the deadlines of all ids, in steps, before ``loaded``: no request comes meanwhile."""
        decided: list[TransactionEffect] = []
        for number, entry in enumerate(self._ids.values()):
            if number % SETTLED_AT_ONCE == 0:
                yield None
            if self.has_lost and entry.known is not None and not rules.is_fenced(entry.known):
                entry.is_doubtful = True
                entry.retry_at_ms = now_ms + self.doubtful // FENCED_EACH_MS
                self.doubtful += 1
            self._settle(entry, now_ms)
            decided += _of_decision(entry)
        self._decided = decided

    def loaded(self, now_ms: int) -> TransactionDecision:
        """The log was read to its end and is committed: carry out decisions, set deadlines unless
        ``settle`` has."""
        if self._decided is None:
            finish(self.settle(now_ms))
        decided, self._decided = self._decided, None
        return TransactionDecision(tuple(decided or ()))

    # Deciding ------------------------------------------------------------------------------

    def decide(self, transactional_id: str, event: Event, now_ms: int) -> TransactionDecision:
        """Decide one event of one id at ``now_ms``, in ms of a clock that never steps."""
        out = Collected(transactional_id)
        entry = self._ids.get(transactional_id)
        match event:
            case Deadline():
                if entry is not None:
                    self._reach_deadline(entry, now_ms, out)
            case MarkersWritten():
                if entry is not None:
                    self._complete(entry, event, now_ms, out)
            case _:
                error = self._why_invalid(transactional_id, entry, event)
                if error is not ErrorCode.NONE:
                    out.answer(event.pending_response, refused(event, error))
                    return out.decision()
                if entry is None:
                    entry = self._ids[transactional_id] = TransactionalId(transactional_id, None)
                self._request(entry, event, now_ms + limits.WAIT_MS, now_ms, out)
        if entry is not None:
            self._settle(entry, now_ms)
        return out.decision()

    def stored(self, write: TransactionWrite, now_ms: int) -> TransactionDecision:
        """A record is committed: apply it, give its answers, and decide again what waits."""
        out = Collected(write.key)
        entry = self._ids[write.key]
        entry.known, entry.in_flight = write.known, None
        entry.to_complete = entry.retry_at_ms = None
        if entry.is_doubtful and (write.known is None or rules.is_fenced(write.known)):
            entry.is_doubtful = False
            self.doubtful -= 1
        for answer in write.answers:
            out.effect(answer)
        for effect in _of_decision(entry):
            out.effect(effect)
        waiting, entry.waiting = entry.waiting, []
        for request, until_ms in waiting:
            self._request(entry, request, until_ms, now_ms, out)
        if entry.is_doubtful:
            self._fence(entry, now_ms, out)
        self._settle(entry, now_ms)
        return out.decision()

    def delayed(
        self, write: TransactionWrite, error: ErrorCode, _now_ms: int
    ) -> TransactionDecision:
        """A record is not committed in time: its requests get an error; it may be stored later."""
        out = Collected(write.key)
        self._refuse(write.answers, error_for_producers(error), out)
        return out.decision()

    def lost(self, write: TransactionWrite, error: ErrorCode, now_ms: int) -> TransactionDecision:
        """The log refused a record: none was appended, and none will be."""
        out = Collected(write.key)
        entry = self._ids[write.key]
        entry.in_flight = None
        code = error_for_producers(error)
        self._refuse(write.answers, code, out)
        # Decided again they would write the same record at once, for the log to refuse it again.
        for request, _ in entry.waiting:
            out.answer(request.pending_response, refused(request, code))
        entry.waiting.clear()
        if entry.to_complete is not None:
            self._refused_ends.add(entry.key)
        if not write.answers:
            entry.retry_at_ms = now_ms + limits.RETRY_MS
        self._settle(entry, now_ms)
        return out.decision()

    def unload(self) -> TransactionDecision:
        """The partition has another leader now: waiting requests get NOT_COORDINATOR."""
        answers = tuple(
            Answer(request.pending_response, refused(request, ErrorCode.NOT_COORDINATOR))
            for entry in self._ids.values()
            for request, _ in entry.waiting
        )
        self._ids, self.doubtful = {}, 0
        self._refused_ends.clear()
        self._deadlines.clear()
        return TransactionDecision(answers)

    # Time ----------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call ``due``, in the time of ``now_ms``; perhaps too early, never too late."""
        return self._deadlines.next_ms

    def due(self, now_ms: int) -> list[str]:
        """Return the ids that need the event of a deadline."""
        return self._deadlines.due(now_ms)

    def _reach_deadline(self, entry: TransactionalId, now_ms: int, out: Collected) -> None:
        late = [request for request, until_ms in entry.waiting if until_ms <= now_ms]
        entry.waiting = [each for each in entry.waiting if each[1] > now_ms]
        for request in late:
            busy = refused(request, ErrorCode.CONCURRENT_TRANSACTIONS)
            out.answer(request.pending_response, busy)
        if entry.retry_at_ms is not None and entry.retry_at_ms > now_ms:
            return
        entry.retry_at_ms = None
        if entry.in_flight is not None or entry.known is None:
            return
        if entry.to_complete is not None:
            self._complete(entry, entry.to_complete, now_ms, out)
            return
        if entry.is_doubtful:
            self._fence(entry, now_ms, out)
            return
        wall_ms = now_ms + self.ahead_ms
        expiration_ms = self._settings.transactional_id_expiration_ms
        if (ended := rules.timed_out(entry.known, wall_ms)) is not None:
            now = entry.known.transaction
            why = "it passed its time-out of %(timeout_ms)d ms"
            out.audit_abort(now, why, timeout_ms=now.timeout_ms)
            entry.in_flight = out.write(ended.known, ())
        elif rules.is_unused(entry.known, expiration_ms, wall_ms):
            out.note("removes the transactional id, which was not used for long")
            entry.in_flight = out.write(None, ())

    # One id --------------------------------------------------------------------------------

    def _why_invalid(
        self, transactional_id: str, entry: TransactionalId | None, request: Request
    ) -> ErrorCode:
        """Return the error of a request that is refused whatever the state is, or NONE."""
        if not transactional_id or len(transactional_id.encode()) > limits.MAX_ID_BYTES:
            return ErrorCode.INVALID_REQUEST
        if isinstance(request, InitProducerId):
            if not 0 < request.timeout_ms <= self._settings.transaction_max_timeout_ms:
                return ErrorCode.INVALID_TRANSACTION_TIMEOUT
            if entry is None and len(self._ids) >= limits.MAX_IDS:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif entry is None:
            return rules.why_refused(None, request)
        return ErrorCode.NONE

    def _request(
        self, entry: TransactionalId, request: Request, until_ms: int, now_ms: int, out: Collected
    ) -> None:
        """Decide a request: answer it, write its record, or let it wait."""
        pending = request.pending_response
        error = rules.why_refused(entry.known, request)
        if error is not ErrorCode.NONE:
            out.answer(pending, refused(request, error))
            return
        if entry.is_doubtful:
            self._fence(entry, now_ms, out)
        if entry.in_flight is not None or entry.is_doubtful:
            self._wait(entry, request, until_ms, out)
            return
        verdict = rules.judge(entry.known, request, now_ms + self.ahead_ms)
        match verdict:
            case NextState():
                if verdict.then_again:
                    assert entry.known is not None, "it has a transaction open"
                    why = "a producer or an operator asked for its id"
                    out.audit_abort(entry.known.transaction, why)
                    self._wait(entry, request, until_ms, out)
                result = _result(request, verdict.known)
                answers = () if verdict.then_again else (Answer(pending, result),)
                entry.in_flight = out.write(verdict.known, answers)
            case NoChange.WAIT:
                self._wait(entry, request, until_ms, out)
            case NoChange.NEEDS_ID:
                assert isinstance(request, InitProducerId), "no other request takes an id"
                out.effect(AllocateProducerId(entry.key, request))
            case ErrorCode():
                out.answer(pending, refused(request, verdict))

    def _wait(
        self, entry: TransactionalId, request: Request, until_ms: int, out: Collected
    ) -> None:
        if len(entry.waiting) >= limits.MAX_WAITING:
            busy = refused(request, ErrorCode.CONCURRENT_TRANSACTIONS)
            out.answer(request.pending_response, busy)
        else:
            entry.waiting.append((request, until_ms))

    def _complete(
        self, entry: TransactionalId, event: MarkersWritten, now_ms: int, out: Collected
    ) -> None:
        if entry.in_flight is not None:
            return
        verdict = rules.completed(entry.known, event, now_ms + self.ahead_ms)
        if isinstance(verdict, NextState):
            entry.to_complete = event
            self._refused_ends.discard(entry.key)
            entry.in_flight = out.write(verdict.known, ())

    def _fence(self, entry: TransactionalId, now_ms: int, out: Collected) -> None:
        """Fence all producers of an id after a loss, unless a decision of it is carried out."""
        if entry.in_flight is not None or entry.to_complete is not None or entry.known is None:
            return
        verdict = rules.after_loss(entry.known, now_ms + self.ahead_ms)
        if verdict is not None:
            if entry.known.transaction.state is TransactionState.ONGOING:
                out.audit_abort(entry.known.transaction, "the log of its id has lost records")
            entry.in_flight = out.write(verdict.known, ())

    def _refuse(self, answers: tuple[Answer, ...], error: ErrorCode, out: Collected) -> None:
        for answer in answers:
            out.effect(Answer(answer.pending_response, answer.result.refused(error)))

    def _settle(self, entry: TransactionalId, now_ms: int) -> None:
        """Set the next deadline of an id, or drop it."""
        if entry.is_unknown:
            self._ids.pop(entry.key, None)
            self._deadlines.drop(entry.key)
            return
        moments = [until_ms for _, until_ms in entry.waiting]
        if entry.retry_at_ms is not None:
            moments.append(entry.retry_at_ms)
        elif entry.in_flight is None and entry.known is not None:
            expiration_ms = self._settings.transactional_id_expiration_ms
            wall_ms = rules.deadline_ms(entry.known, expiration_ms)
            moments += [] if wall_ms is None else [max(now_ms, wall_ms - self.ahead_ms)]
        if moments:
            self._deadlines.set(entry.key, min(moments))
        else:
            self._deadlines.drop(entry.key)


def _of_decision(entry: TransactionalId) -> tuple[SendMarkers, ...]:
    """Return what lets the markers of a durable decision be written; nothing without one."""
    if entry.known is None or entry.known.transaction.state not in PREPARED:
        return ()
    now = entry.known.transaction
    committed = now.state is TransactionState.PREPARE_COMMIT
    return (SendMarkers(entry.key, now.owner, committed, now.partitions),)


def _result(request: Request, known: Known) -> TransactionResult | InitProducerIdResult:
    if isinstance(request, InitProducerId):
        return InitProducerIdResult(ErrorCode.NONE, *known.transaction.owner)
    return TransactionResult(ErrorCode.NONE)
