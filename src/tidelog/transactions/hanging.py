"""What becomes of a transaction that is open in a leader's log, by what coordinators say of it.

Owns this rule, for logs that may have lost a marker, and for coordinators that may have lost a
transaction. Pure. Not the questions to coordinators: see ``broker.transactions.hanging_checks``.

The answers count when each partition of ``__transaction_state`` has answered. A transaction that is
open in a log was confirmed by its coordinator before, so "none knows it" means that its states are
lost. ``e`` is the producer's epoch in the log.

| what the coordinators say of the producer id | the open transaction |
|---|---|
| its states are known in part only, or a deposed coordinator speaks | is asked about again |
| Ongoing, in epoch ``e``, with this partition | stays: it is open |
| PrepareCommit or PrepareAbort, with this partition | stays: its marker is on its way |
| CompleteCommit or CompleteAbort, in epoch ``e`` | gets the marker of that verdict |
| CompleteAbort, in a higher epoch: it was fenced | is aborted |
| anything else: unknown, a lower epoch, another transaction | is aborted, and is a loss |

A marker names no transaction, and the end of one keeps no partitions: where one producer has ended
several in one epoch, the verdict is that of the last. Source: KIP-98, KIP-890 (part 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.transactions.markers import NONE, Marker
from tidelog.transactions.state import COMPLETE, PREPARED, IdAndEpoch, TransactionState


class OpenInLog(NamedTuple):
    """A transaction that is open in a log. It is the same while no field has changed."""

    producer: IdAndEpoch
    first_offset: int
    last_offset: int
    """Of the last batch of its producer."""
    coordinator_epoch: int
    """Of the last marker of its producer; -1 without one."""


@dataclass(frozen=True, slots=True)
class StateOfId:
    """What the coordinator of a transactional id says of it."""

    transactional_id: str
    owner: IdAndEpoch
    state: TransactionState
    partitions: frozenset[TopicPartition]
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class Ends:
    """The marker that ends it. ``is_lost``: no coordinator can say how it ended."""

    marker: Marker
    is_lost: bool


class Remains(Enum):
    """It is not ended now."""

    OPEN = "open"
    """Its coordinator will end it."""
    UNKNOWN = "unknown"
    """Coordinators are to be asked again."""


def judge(
    transaction: OpenInLog, where: TopicPartition, states: Iterable[StateOfId]
) -> Ends | Remains:
    """Return what becomes of it. ``states``: of all ids with its producer id, by all
    coordinators."""
    epoch = transaction.producer.epoch
    of_producer = list(states)
    if not of_producer:
        return _lost(transaction, transaction.coordinator_epoch)
    if len(of_producer) > 1:
        # A producer id belongs to one transactional id: one of these is out of date.
        return Remains.UNKNOWN
    now = of_producer[0]
    if now.coordinator_epoch < transaction.coordinator_epoch:
        return Remains.UNKNOWN
    if where in now.partitions:
        if now.state in PREPARED and now.owner.epoch >= epoch:
            return Remains.OPEN
        if now.state is TransactionState.ONGOING and now.owner.epoch == epoch:
            return Remains.OPEN
    is_last = now.state in COMPLETE and now.owner.epoch == epoch
    if is_last or (now.state is TransactionState.COMPLETE_ABORT and now.owner.epoch > epoch):
        committed = now.state is TransactionState.COMPLETE_COMMIT
        return Ends(Marker(now.owner, committed, now.coordinator_epoch), is_lost=False)
    return _lost(transaction, now.coordinator_epoch)


def of_client(
    marker: Marker,
    transaction: OpenInLog,
    where: TopicPartition,
    states: Iterable[StateOfId] | None,
) -> Marker | ErrorCode:
    """Return what a leader writes for a marker that a client sends for a transaction, if it would
    end it so by itself, otherwise the error. ``states`` None: they are not certain.

    A client may name any coordinator epoch. A higher one than the coordinator has would refuse its
    later markers.
    """
    verdict = Remains.UNKNOWN if states is None else judge(transaction, where, states)
    if verdict is Remains.UNKNOWN:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if verdict is Remains.OPEN:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    assert isinstance(verdict, Ends), verdict
    if verdict.marker.committed is not marker.committed:
        return ErrorCode.INVALID_TXN_STATE
    epoch = min(marker.coordinator_epoch, verdict.marker.coordinator_epoch)
    return marker._replace(coordinator_epoch=epoch)


def _lost(transaction: OpenInLog, coordinator_epoch: int) -> Ends:
    # Not in a higher epoch than the log's: the producer may have begun another one by now.
    marker = Marker(transaction.producer, False, max(coordinator_epoch, NONE + 1))
    return Ends(marker, is_lost=True)
