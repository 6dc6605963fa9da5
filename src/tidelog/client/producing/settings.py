"""The configurations of a producer, by their Kafka names and with their Kafka defaults.

Owns the values and their meaning; ``sender`` applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALL = -1
"""acks=all."""

MOST_RETRIES = 2**31 - 1
"""Kafka's default of ``retries``: the delivery time-out alone ends them."""

Partitioner = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""Chooses from a key, all partitions that take records, and those of them that have a leader."""


@dataclass(frozen=True, slots=True)
class SendSettings:
    """Kafka's producer configurations of these names, and their defaults.

    ``max_block_ms`` bounds the wait for metadata and for memory in ``send``.
    """

    acks: int = ALL
    idempotent: bool = True
    linger_ms: int = 5
    batch_bytes: int = 16_384
    max_request_bytes: int = 1_048_576
    buffer_bytes: int = 33_554_432
    compression: str = "none"
    max_in_flight: int = 5
    retries: int = MOST_RETRIES
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    create_topics: bool = True
    """Whether brokers may create a missing topic, if auto.create.topics.enable allows it."""
    partitioner: Partitioner | None = None
    """None: by the hash of the key. Another one gives up the order of keys over resizes."""
    transactional_id: str | None = None
    """Records are sent in transactions of this id; None: without transactions."""
    transaction_timeout_ms: int = 60_000
    """How long a transaction may be open, before its coordinator aborts it."""
