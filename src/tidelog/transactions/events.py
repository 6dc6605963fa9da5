"""Events of a transactional id and the results of its requests.

Owns plain values. A ``pending_response`` is the handle by which the shell finds the waiting
request; the rules return it with the result and never inspect it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.transactions.state import NO_EPOCH, NO_PRODUCER_ID, IdAndEpoch


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The result of a request."""

    error: ErrorCode

    def refused(self, error: ErrorCode) -> TransactionResult:
        """Return the result for when what it promises could not be stored."""
        return TransactionResult(error)


@dataclass(frozen=True, slots=True)
class InitProducerIdResult:
    """The result of InitProducerId."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH

    def refused(self, error: ErrorCode) -> InitProducerIdResult:
        """As ``TransactionResult.refused``."""
        return InitProducerIdResult(error)


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """InitProducerId with a transactional id. ``claimed`` is what a producer names that goes on
    after an error (v3+, KIP-360), None for a new one. ``new_id`` is a fresh producer id, which the
    shell adds when the rules ask for one."""

    pending_response: object
    timeout_ms: int
    claimed: IdAndEpoch | None = None
    new_id: int | None = None

    def with_new_id(self, producer_id: int) -> InitProducerId:
        """Return the same request with a fresh producer id."""
        return replace(self, new_id=producer_id)


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """AddPartitionsToTxn v0-3 for partitions that exist, and AddOffsetsToTxn, whose partition is
    the group's of ``__consumer_offsets``."""

    pending_response: object
    producer: IdAndEpoch
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class End:
    """EndTxn."""

    pending_response: object
    producer: IdAndEpoch
    committed: bool


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """All markers of a decision are durable in their partitions."""

    producer: IdAndEpoch
    committed: bool


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline of the id is due, found at ``at_ms`` in the time of ``now_ms``."""

    at_ms: int


Request = InitProducerId | AddPartitions | End
Event = Request | MarkersWritten | Deadline


def refused(event: Request, error: ErrorCode) -> TransactionResult | InitProducerIdResult:
    """Return the result that refuses a request."""
    if isinstance(event, InitProducerId):
        return InitProducerIdResult(error)
    return TransactionResult(error)
