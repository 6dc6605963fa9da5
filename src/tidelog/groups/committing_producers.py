"""Transactions that have offsets in one partition of the log, and the epochs of their producers.

Owns which producers may still write: one is fenced by a higher epoch of its id in this log, and a
coordinator of transactions by a higher epoch of its own (KIP-98). Not the offsets: see
`pending_offsets`.

| a producer id here | TxnOffsetCommit | marker |
|---|---|---|
| unknown | is taken | is written: it fences what comes late |
| open, or in flight | from its epoch on | from its epoch on; ends it |
| ended | from the epoch of its last marker on | the same |

A marker that comes again is written again, as in Kafka: one that was written before does not show
that this leader is still the leader, nor that its present transaction has ended, for one epoch has
many transactions. It ends what is open, if anything is, and its coordinator fences former ones.

An epoch counts from the moment at which it was written to the log. The table knows every open
transaction of the log, and at most ``limits.MAX_ENDED_PRODUCERS`` that have ended. One that it has
forgotten is not fenced here, but still where the transaction is verified.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidelog.groups import limits
from tidelog.groups.decision import DecisionBuilder, GroupDecision, TransactionPart
from tidelog.groups.events import CommitInTransaction, EndTransaction, MarkerResult
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.records.control_records import EndMarker

NO_EPOCH = -1


class ProducerEpochs(NamedTuple):
    """The epoch of a producer, and that of the last coordinator that ended a transaction of it."""

    producer: int = NO_EPOCH
    coordinator: int = NO_EPOCH


class PendingTransaction:
    """What a producer has open."""

    __slots__ = ("epochs", "groups")

    def __init__(self, epochs: ProducerEpochs) -> None:
        self.epochs = epochs
        self.groups: dict[str, None] = {}
        """Every group of which it has had pending offsets, in order."""


class CommittingProducers:
    """See the module."""

    __slots__ = ("_beginning", "_ended", "_flying", "_open")

    def __init__(self) -> None:
        self._open: dict[int, PendingTransaction] = {}
        # Of what has nothing open. The one that ended first is the first.
        self._ended: dict[int, ProducerEpochs] = {}
        # For each write that is not committed, in the order of the log: the highest epochs of those
        # up to it.
        self._flying: dict[int, deque[ProducerEpochs]] = {}
        # How many producers have a write in flight and nothing open.
        self._beginning = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def epochs(self, producer_id: int) -> ProducerEpochs:
        """Return the highest epochs of a producer that the log has, committed or not."""
        committed, flying = self._committed_epochs(producer_id), self._flying.get(producer_id)
        return committed if flying is None else _higher(committed, flying[-1])

    def why_no_commit(self, event: CommitInTransaction) -> ErrorCode:
        """Return NONE if this producer may commit offsets here, otherwise the error."""
        if event.producer_id < 0 or event.producer_epoch < 0:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if event.producer_epoch < self.epochs(event.producer_id).producer:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        is_known = event.producer_id in self._open or event.producer_id in self._flying
        if is_known or len(self._open) + self._beginning < limits.MAX_OPEN_TRANSACTIONS:
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def why_no_marker(self, event: EndTransaction) -> ErrorCode:
        """Return NONE if this marker may be written, otherwise the error."""
        if event.producer_id < 0 or event.producer_epoch < 0:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        highest = self.epochs(event.producer_id)
        if event.producer_epoch < highest.producer:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if event.coordinator_epoch < max(highest.coordinator, 0):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    def end_transaction(self, event: EndTransaction) -> GroupDecision:
        """Decide a marker. What may be written is written, however often it comes."""
        out = DecisionBuilder(f"(marker of producer {event.producer_id})")
        error = self.why_no_marker(event)
        if error is not ErrorCode.NONE:
            out.answer(event.pending_response, MarkerResult(error))
            return out.decision()
        marker = EndMarker(event.committed, event.coordinator_epoch)
        self.wrote(event.producer_id, ProducerEpochs(event.producer_epoch, event.coordinator_epoch))
        out.write(
            answers=(Answer(event.pending_response, MarkerResult(ErrorCode.NONE)),),
            transaction=TransactionPart(event.producer_id, event.producer_epoch, marker=marker),
        )
        return out.decision()

    def wrote(self, producer_id: int, epochs: ProducerEpochs) -> None:
        """Offsets of a producer, or a marker, were written to the log."""
        flying = self._flying.get(producer_id)
        if flying is None:
            flying = self._flying[producer_id] = deque()
            self._beginning += producer_id not in self._open
        flying.append(_higher(flying[-1], epochs) if flying else epochs)

    def landed(self, producer_id: int, *, oldest: bool) -> None:
        """The ``oldest`` of them was committed, or the newest was refused."""
        flying = self._flying[producer_id]
        if oldest:
            flying.popleft()
        else:
            flying.pop()
        if not flying:
            del self._flying[producer_id]
            self._beginning -= producer_id not in self._open

    def note(self, producer_id: int, producer_epoch: int, group_id: str) -> None:
        """The log has committed offsets of a transaction for a group."""
        epochs = _higher(self._committed_epochs(producer_id), ProducerEpochs(producer_epoch))
        self._ended.pop(producer_id, None)
        present = self._open.get(producer_id)
        if present is None:
            present = self._open[producer_id] = PendingTransaction(epochs)
            self._beginning -= producer_id in self._flying
        present.epochs = epochs
        present.groups[group_id] = None

    def end(self, producer_id: int, epochs: ProducerEpochs) -> list[str]:
        """The log has committed a marker: return the groups that had pending offsets."""
        epochs = _higher(self._committed_epochs(producer_id), epochs)
        self._ended.pop(producer_id, None)
        self._ended[producer_id] = epochs
        if len(self._ended) > limits.MAX_ENDED_PRODUCERS:
            del self._ended[next(iter(self._ended))]
        present = self._open.pop(producer_id, None)
        if present is None:
            return []
        self._beginning += producer_id in self._flying
        return list(present.groups)

    def clear(self) -> None:
        """Forget all of them: the partition has another leader."""
        self._open.clear()
        self._ended.clear()
        self._flying.clear()
        self._beginning = 0

    def _committed_epochs(self, producer_id: int) -> ProducerEpochs:
        present = self._open.get(producer_id)
        if present is not None:
            return present.epochs
        return self._ended.get(producer_id, ProducerEpochs())


def _higher(one: ProducerEpochs, other: ProducerEpochs) -> ProducerEpochs:
    return ProducerEpochs(
        max(one.producer, other.producer), max(one.coordinator, other.coordinator)
    )
