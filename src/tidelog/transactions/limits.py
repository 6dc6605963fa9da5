"""Hard limits of transactional ids; Kafka has none below its types.

Owns the numbers. Not their checks: see `table`.
"""

from __future__ import annotations

MAX_ID_BYTES = 32_767
"""Longest transactional id, in UTF-8: the record's key has an int16 for its length."""

MAX_IDS = 200_000
"""Most ids of one partition of ``__transaction_state``; those in its log are loaded in any case."""

MAX_PARTITIONS = 20_000
"""Most partitions of one transaction: each record of it names all of them."""

MAX_WAITING = 16
"""Most requests of one id that wait for its markers or records; the next is refused at once."""

WAIT_MS = 1_000
"""Longest wait of such a request. After it the client gets CONCURRENT_TRANSACTIONS, where Kafka's
coordinator answers so at once and costs the client its back-off."""

COMMIT_MS = 1_000
"""Longest wait for the commit of a record. After it the client gets COORDINATOR_NOT_AVAILABLE, and
asks again: its next request waits for the same record."""

RETRY_MS = 500
"""After this time a record that no client waits for and that the log refused is written again."""

MAX_EPOCH = 32_767
"""The last epoch of a producer id. No producer gets it, so that each can be fenced."""

LAST_OWNED_EPOCH = MAX_EPOCH - 1
"""The last epoch that a producer gets; after it the transactional id gets a new producer id."""
