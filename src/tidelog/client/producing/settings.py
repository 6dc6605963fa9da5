"""The configurations of a producer, by their Kafka names and with their Kafka defaults.

Owns the values and their meaning; ``sender`` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL = -1
"""acks=all."""


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
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    create_topics: bool = True
    """Whether brokers may create a missing topic, if auto.create.topics.enable allows it."""
