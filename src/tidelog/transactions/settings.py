"""The broker's settings for transactions under Kafka's names, with Kafka's defaults.

Owns values only; their definitions are in `model.configs.broker`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Times in ms; the field names are Kafka's with "_" for "."."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
