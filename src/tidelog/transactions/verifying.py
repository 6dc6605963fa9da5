"""What a leader learns that asks about a producer's partitions (KIP-890, part 1).

Owns the answer to AddPartitionsToTxn v4 that only verifies. Not what the leader does with it.

An answer without an error says that the partition is in the producer's open transaction, and that
nothing which is known here ends it. While a record is in flight whose outcome may change the
answer, the leader is to ask again (CONCURRENT_TRANSACTIONS).

| what is known of the id | answer |
|---|---|
| nothing, or another producer id | INVALID_PRODUCER_ID_MAPPING |
| its log has lost records, and it is not fenced yet | CONCURRENT_TRANSACTIONS |
| an older epoch | PRODUCER_FENCED |
| a newer epoch: this coordinator is deposed and does not know it | CONCURRENT_TRANSACTIONS |
| a decision, or a record in flight that ends the transaction | CONCURRENT_TRANSACTIONS |
| the partition is in the open transaction | NONE |
| it is not, and a record is in flight | CONCURRENT_TRANSACTIONS |
| it is not | TRANSACTION_ABORTABLE |
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.transactions.rules import producer_error
from tidelog.transactions.state import PREPARED, IdAndEpoch, TransactionState
from tidelog.transactions.table import TransactionalId


def verified(
    entry: TransactionalId | None, producer: IdAndEpoch, partitions: Iterable[TopicPartition]
) -> list[ErrorCode]:
    """Return the answer for each partition, in order."""
    known = None if entry is None else entry.known
    error = producer_error(known, producer)
    if entry is None or known is None:
        return [error for _ in partitions]
    if error is ErrorCode.PRODUCER_FENCED and producer.epoch > known.transaction.producer_epoch:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    if error is not ErrorCode.NONE:
        return [error for _ in partitions]
    if entry.is_doubtful:
        return [ErrorCode.CONCURRENT_TRANSACTIONS for _ in partitions]
    now, in_flight = known.transaction, entry.in_flight
    ends = in_flight is not None and (
        in_flight.known is None or in_flight.known.transaction.state is not TransactionState.ONGOING
    )
    if now.state in PREPARED or ends:
        return [ErrorCode.CONCURRENT_TRANSACTIONS for _ in partitions]
    absent = ErrorCode.TRANSACTION_ABORTABLE
    if in_flight is not None:
        absent = ErrorCode.CONCURRENT_TRANSACTIONS
    present = now.partitions if now.state is TransactionState.ONGOING else ()
    added = frozenset(present)
    return [ErrorCode.NONE if each in added else absent for each in partitions]
