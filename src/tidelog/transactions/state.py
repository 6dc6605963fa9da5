"""The durable state of a transactional id.

Owns the values and the states' numbers in records. Not their bytes: see `records`.
Source: KIP-98, section "Transaction Log"; KIP-360; KIP-890 for the ids in tagged fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidelog.model.topics import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME_MS = -1


class TransactionState(IntEnum):
    """States of a transaction, with Kafka's numbers."""

    EMPTY = 0
    """The producer has an id and no transaction yet."""
    ONGOING = 1
    """Partitions were added."""
    PREPARE_COMMIT = 2
    """The decision is durable; markers are on their way."""
    PREPARE_ABORT = 3
    """As for a commit."""
    COMPLETE_COMMIT = 4
    """All markers are durable."""
    COMPLETE_ABORT = 5
    """As for a commit."""
    DEAD = 6
    """The id expires: its tombstone is on its way."""

    @property
    def spoken(self) -> str:
        """The name in responses and of Kafka's tools: ``PrepareCommit``."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETE = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


class IdAndEpoch(NamedTuple):
    """A producer id and its epoch: what a producer proves itself by."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the log has of a transactional id.

    ``partitions`` are (topic, partition), in order. ``previous_producer_id`` is the id before this
    one, when the epochs of that one ended; ``next_producer_id`` is the id that follows when the
    transaction is complete. Times in ms since 1970, -1 for none.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...] = ()
    updated_ms: int = NO_TIME_MS
    started_ms: int = NO_TIME_MS
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    client_version: int = 0
    """The client's transaction.version (KIP-890): 0 until the second part is here."""

    @property
    def owner(self) -> IdAndEpoch:
        """The producer that may use the id now."""
        return IdAndEpoch(self.producer_id, self.producer_epoch)
