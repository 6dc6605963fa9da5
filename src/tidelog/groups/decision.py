"""Decisions of the group rules: effects to perform now, and records to write.

Owns values only; the effects themselves are those of every table (``model.effects``). Order: the
shell performs ``effects`` at once and appends ``write.records`` in the order of the decisions. When
they are committed it calls the table, which applies them and returns the next decision
(``write.answers`` are among its effects). No response that depends on a record is sent before the
record is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidelog.groups.events import MarkerResult, OffsetsResult, PendingResponse, Result
from tidelog.groups.offset_columns import OffsetRecords
from tidelog.groups.records import Record
from tidelog.model.effects import Answer, Effect, Note, Refusable
from tidelog.model.errors import ErrorCode
from tidelog.records.control_records import EndMarker


@dataclass(frozen=True, slots=True)
class StoreAssignment:
    """Purpose of a write: the leader's assignment of a generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class ReplaceStaticMember:
    """Purpose of a write: a static member has a new member id in the same generation."""

    member_id: str
    pending_response: PendingResponse
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """Purpose of a write: the group's last record is a tombstone."""


@dataclass(frozen=True, slots=True)
class RemovePart:
    """Purpose of a write: a part of a removal that is not its last."""


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """The part of a write that belongs to a transaction: pending offsets, or its marker. It follows
    the other records of the write, in batches of its producer, in the same append."""

    producer_id: int
    producer_epoch: int
    records: tuple[OffsetRecords, ...] = ()
    marker: EndMarker | None = None


Purpose = StoreAssignment | ReplaceStaticMember | RemoveGroup | RemovePart


@dataclass(frozen=True, slots=True)
class Write:
    """Records of one group that must be committed, and the effects after that."""

    key: str
    """The group's id; of a marker, which is of no group, a text for the log."""
    records: tuple[Record | OffsetRecords, ...]
    answers: tuple[Answer, ...] = ()
    purpose: Purpose | None = None
    transaction: TransactionPart | None = None


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """The outcome of one event."""

    effects: tuple[Effect, ...] = ()
    writes: tuple[Write, ...] = ()


class DecisionBuilder:
    """Collects a decision while the rules run."""

    __slots__ = ("_effects", "_group_id", "_writes")

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._effects: list[Effect] = []
        self._writes: list[Write] = []

    def answer(self, pending_response: PendingResponse | None, result: Refusable) -> None:
        """Answer a request now; None (no request waits) does nothing."""
        if pending_response is not None:
            self._effects.append(Answer(pending_response, result))

    def note(self, message: str, **fields: object) -> None:
        """Add a log line."""
        self._effects.append(Note(message, {"group": self._group_id, **fields}))

    def write(
        self,
        *records: Record | OffsetRecords,
        answers: tuple[Answer, ...] = (),
        purpose: Purpose | None = None,
        transaction: TransactionPart | None = None,
    ) -> None:
        """Add records to commit, and the ``answers`` after that."""
        self._writes.append(Write(self._group_id, records, answers, purpose, transaction))

    def answer_after_writes(self, pending_response: PendingResponse, result: Result) -> None:
        """Answer once all records of this decision are committed; now if there are none."""
        if not self._writes:
            self.answer(pending_response, result)
            return
        last = self._writes.pop()
        answers = (*last.answers, Answer(pending_response, result))
        self._writes.append(replace(last, answers=answers))

    @property
    def written(self) -> tuple[Write, ...]:
        """The writes collected so far."""
        return tuple(self._writes)

    def decision(self) -> GroupDecision:
        """Return what was collected."""
        return GroupDecision(tuple(self._effects), tuple(self._writes))


def refused(write: Write, error: ErrorCode) -> GroupDecision:
    """Return the refusal of all that waits for a write, by what each result makes of an error."""
    return GroupDecision(
        tuple(Answer(one.pending_response, one.result.refused(error)) for one in write.answers)
    )


def error_for_members(error: ErrorCode) -> ErrorCode:
    """Return the error for members when the log refused a group's record, as Kafka maps it."""
    if error in _TRY_LATER:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in _ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    if error in _TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error


def error_for_offsets(error: ErrorCode) -> ErrorCode:
    """Return the error for an OffsetCommit when the log refused its offsets, as Kafka maps it."""
    if error in _TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return error_for_members(error)


def error_for(result: Refusable, error: ErrorCode) -> ErrorCode:
    """Return the error for the request whose ``result`` was not stored because the log refused."""
    if isinstance(result, OffsetsResult):
        return error_for_offsets(error)
    if isinstance(result, MarkerResult):
        return error
    return error_for_members(error)


_TRY_LATER = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_TOO_LARGE = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    }
)
