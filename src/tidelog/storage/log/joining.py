"""Whether a batch goes on with the transaction that its producer has open in a log.

Owns these questions about one producer. Pure. Not its sequences, and not what is remembered of it:
see `producers`. Not the question to the coordinator: see `broker.partitions.verification`.

| the transaction that is open           | a batch of the producer's present epoch |
|----------------------------------------|-----------------------------------------|
| has a batch of that epoch              | goes on with it                         |
| has batches of older epochs only       | begins another one: a marker is late    |
| none                                   | begins one                              |
"""

from __future__ import annotations

from typing import Protocol

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import TRANSACTIONAL_BIT, Rejected

NONE = -1
"""No open transaction, or no marker: its first offset, its offset and its coordinator's epoch."""


class KnownProducer(Protocol):
    """What a log knows of a producer."""

    producer_id: int
    epoch: int
    open_since: int
    last_marker: int
    coordinator_epoch: int

    @property
    def last_offset(self) -> int:
        """That of its last batch in its present epoch; -1 without one."""


def is_open(entry: KnownProducer | None, epoch: int) -> bool:
    """Return whether a producer's transaction of this epoch is open."""
    return (
        entry is not None
        and entry.open_since != NONE
        and entry.epoch == epoch
        and entry.last_offset >= entry.open_since
    )


def last_marker(entry: KnownProducer | None) -> int:
    """Return the offset of a producer's last marker; each later one has a higher offset."""
    return NONE if entry is None else entry.last_marker


def coordinator_epoch(entry: KnownProducer | None) -> int:
    """Return the epoch of the coordinator that sent a producer's last marker."""
    return NONE if entry is None else entry.coordinator_epoch


def why_not_plain(entry: KnownProducer, attributes: int) -> Rejected | None:
    """Return why a batch is refused that is no part of the transaction of its producer, or None."""
    if entry.open_since == NONE or attributes & TRANSACTIONAL_BIT:
        return None
    why = f"producer {entry.producer_id} has a transaction open, and sent a plain batch"
    return Rejected(ErrorCode.INVALID_TXN_STATE, why)
