"""Decisions of the transaction rules: effects to perform now, and records to write.

Owns values only. Order: the shell performs ``effects`` at once and appends ``writes``. When a write
is committed it calls the table, which applies it and returns the next decision. No marker is sent
before the record of its decision is committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.effects import Answer, Note
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import counted
from tidelog.transactions.events import InitProducerId, InitProducerIdResult, TransactionResult
from tidelog.transactions.records import TransactionRecord
from tidelog.transactions.rules import Known
from tidelog.transactions.state import IdAndEpoch, Transaction


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Effect: write these markers until all are durable, then decide ``MarkersWritten``.

    Without partitions that is so at once.
    """

    transactional_id: str
    producer: IdAndEpoch
    committed: bool
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AllocateProducerId:
    """Effect: get a fresh producer id, then decide the request again with it."""

    transactional_id: str
    request: InitProducerId


TransactionEffect = Answer | Note | SendMarkers | AllocateProducerId


@dataclass(frozen=True, slots=True)
class TransactionWrite:
    """The next record of one id: it must be committed before anything follows from it."""

    key: str
    """The transactional id."""
    records: tuple[TransactionRecord]
    known: Known | None
    """What is known once it is committed; None: the id is removed."""
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """The outcome of one call."""

    effects: tuple[TransactionEffect, ...] = ()
    writes: tuple[TransactionWrite, ...] = ()


class Collected:
    """Collects a decision."""

    __slots__ = ("_effects", "_key", "_writes")

    def __init__(self, transactional_id: str) -> None:
        self._key = transactional_id
        self._effects: list[TransactionEffect] = []
        self._writes: list[TransactionWrite] = []

    def answer(self, pending: object, result: TransactionResult | InitProducerIdResult) -> None:
        """Answer a request now."""
        self._effects.append(Answer(pending, result))

    def effect(self, effect: TransactionEffect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def note(self, message: str, **fields: object) -> None:
        """Add a log line."""
        self._effects.append(Note(message, {"transactional_id": self._key, **fields}))

    def audit_abort(self, aborted: Transaction, why: str, **fields: object) -> None:
        """Add an audit line: what a producer has open is aborted, and not by that producer."""
        message = (
            "aborts the transaction of producer %(producer_id)d, epoch %(epoch)d, in "
            f"%(partitions)s: {why}"
        )
        fields |= {
            "transactional_id": self._key,
            "producer_id": aborted.producer_id,
            "epoch": aborted.producer_epoch,
            "partitions": counted(len(aborted.partitions), "partition"),
        }
        self._effects.append(Note(message, fields, is_audited=True))

    def write(self, known: Known | None, answers: tuple[Answer, ...]) -> TransactionWrite:
        """Add the next record of the id, and return it."""
        value = None if known is None else known.transaction
        made = TransactionWrite(self._key, (TransactionRecord(self._key, value),), known, answers)
        self._writes.append(made)
        return made

    def decision(self) -> TransactionDecision:
        """Return what was collected."""
        return TransactionDecision(tuple(self._effects), tuple(self._writes))


def error_for_producers(error: ErrorCode) -> ErrorCode:
    """Return the error for producers when the log refused a record, as Kafka maps it."""
    return _AS_KAFKA.get(error, error)


_AS_KAFKA = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
