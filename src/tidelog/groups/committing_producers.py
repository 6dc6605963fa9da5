"""Transactions that have offsets in one partition of the log, and the epochs of their producers.

Owns which producers may still write: one is fenced by a higher epoch of its id in this log, and a
coordinator of transactions by a higher epoch of its own (KIP-98). Not the offsets: see
`pending_offsets`.

| a producer id here | TxnOffsetCommit | marker |
|---|---|---|
| unknown | is taken | is written: it fences what comes late |
| open, or in flight | from its epoch on | from its epoch on; ends it |
| ended | from the epoch of its last marker on | the same again: a success, nothing is written |

An epoch counts from the moment at which it was written to the log. The table knows every open
transaction of the log, and at most ``limits.MAX_ENDED_PRODUCERS`` that have ended. One that it has
forgotten is not fenced here, but still where the transaction is verified.
"""

from __future__ import annotations

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


class LastMarker(NamedTuple):
    """The last marker of a producer that has nothing open."""

    epochs: ProducerEpochs
    committed: bool


class PendingTransaction:
    """What a producer has open."""

    __slots__ = ("epochs", "groups")

    def __init__(self, epochs: ProducerEpochs) -> None:
        self.epochs = epochs
        self.groups: dict[str, None] = {}
        """Every group of which it has had pending offsets, in order."""


class CommittingProducers:
    """See the module."""

    __slots__ = ("_ended", "_flying", "_open")

    def __init__(self) -> None:
        self._open: dict[int, PendingTransaction] = {}
        # The one that ended first is the first.
        self._ended: dict[int, LastMarker] = {}
        # Writes that are not committed, in the order of the log.
        self._flying: dict[int, list[ProducerEpochs]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def epochs(self, producer_id: int) -> ProducerEpochs:
        """Return the highest epochs of a producer that the log has, committed or not."""
        highest = self._committed_epochs(producer_id)
        for flying in self._flying.get(producer_id, ()):
            highest = _higher(highest, flying)
        return highest

    def why_no_commit(self, event: CommitInTransaction) -> ErrorCode:
        """Return NONE if this producer may commit offsets here, otherwise the error."""
        if event.producer_id < 0 or event.producer_epoch < 0:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if event.producer_epoch < self.epochs(event.producer_id).producer:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        is_known = event.producer_id in self._open or event.producer_id in self._flying
        most = limits.MAX_OPEN_TRANSACTIONS
        if is_known or len(self._open) + len(self._flying) < most:
            return ErrorCode.NONE
        # Some may be among both.
        is_full = len(self._open.keys() | self._flying) >= most
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_full else ErrorCode.NONE

    def why_no_marker(self, event: EndTransaction) -> ErrorCode:
        """Return NONE if this marker may be written, or was, otherwise the error."""
        if event.producer_id < 0 or event.producer_epoch < 0:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        highest = self.epochs(event.producer_id)
        if event.producer_epoch < highest.producer:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if event.coordinator_epoch < highest.coordinator:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    def is_repeated(self, event: EndTransaction) -> bool:
        """Whether the last that the log has of this producer is this marker, committed."""
        ended = self._ended.get(event.producer_id)
        return (
            ended is not None
            and event.producer_id not in self._flying
            and ended.epochs.producer == event.producer_epoch
            and ended.committed is event.committed
        )

    def end_transaction(self, event: EndTransaction) -> GroupDecision:
        """Decide a marker. One that is repeated is a success; before the first one is known to be
        committed it is written again."""
        out = DecisionBuilder(f"(marker of producer {event.producer_id})")
        error = self.why_no_marker(event)
        if error is not ErrorCode.NONE or self.is_repeated(event):
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
        self._flying.setdefault(producer_id, []).append(epochs)

    def landed(self, producer_id: int, *, oldest: bool) -> None:
        """The ``oldest`` of them was committed, or the newest was refused."""
        flying = self._flying[producer_id]
        flying.pop(0 if oldest else -1)
        if not flying:
            del self._flying[producer_id]

    def note(self, producer_id: int, producer_epoch: int, group_id: str) -> None:
        """The log has committed offsets of a transaction for a group."""
        epochs = _higher(self._committed_epochs(producer_id), ProducerEpochs(producer_epoch))
        self._ended.pop(producer_id, None)
        present = self._open.get(producer_id)
        if present is None:
            present = self._open[producer_id] = PendingTransaction(epochs)
        present.epochs = epochs
        present.groups[group_id] = None

    def end(self, producer_id: int, epochs: ProducerEpochs, *, committed: bool) -> list[str]:
        """The log has committed a marker: return the groups that had pending offsets."""
        epochs = _higher(self._committed_epochs(producer_id), epochs)
        self._ended.pop(producer_id, None)
        self._ended[producer_id] = LastMarker(epochs, committed)
        if len(self._ended) > limits.MAX_ENDED_PRODUCERS:
            del self._ended[next(iter(self._ended))]
        present = self._open.pop(producer_id, None)
        return [] if present is None else list(present.groups)

    def clear(self) -> None:
        """Forget all of them: the partition has another leader."""
        self._open.clear()
        self._ended.clear()
        self._flying.clear()

    def _committed_epochs(self, producer_id: int) -> ProducerEpochs:
        present = self._open.get(producer_id)
        if present is not None:
            return present.epochs
        ended = self._ended.get(producer_id)
        return ProducerEpochs() if ended is None else ended.epochs


def _higher(one: ProducerEpochs, other: ProducerEpochs) -> ProducerEpochs:
    return ProducerEpochs(
        max(one.producer, other.producer), max(one.coordinator, other.coordinator)
    )
