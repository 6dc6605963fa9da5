"""Writes of a table to the log: their record batches, and the wait for the commit.

Owns the size of the batches. Not the append and what follows it: see ``led_partition``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidelog.broker.coordinator.table import TableKind, TableWrite, WrittenInTransaction
from tidelog.records.batch import HEADER_SIZE, TRANSACTIONAL_BIT, seal_batch, walk
from tidelog.records.builder import NewRecord, build_batch, build_encoded
from tidelog.records.control_records import marker_batch

NO_LEADER_EPOCH = -1
"""The append sets it."""

RECORD_OVERHEAD_BYTES = 32
"""Upper bound of what a record adds to its key and value: lengths, deltas, attributes."""


class InFlight:
    """A write that is appended but not yet committed."""

    __slots__ = ("done", "timer", "write")

    def __init__(self, write: TableWrite) -> None:
        self.write = write
        self.done = False
        self.timer: asyncio.TimerHandle | None = None

    def finish(self) -> None:
        """Mark the write as finished and cancel its timeout."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()


def bytes_of(write: TableWrite, kind: TableKind[Any], wall_ms: int, max_bytes: int) -> bytes | None:
    """Return a write as batches of at most ``max_bytes``, those of a transaction last; None if one
    record is larger."""
    encode, payload_of, one_by_one = kind.encode, kind.payload_of, kind.one_by_one
    part = None if kind.transactions is None else kind.transactions.part(write)
    if part is None:
        return batches_of(write.records, encode, wall_ms, max_bytes, payload_of, one_by_one)
    plain: bytes | None = b""
    if write.records:
        plain = batches_of(write.records, encode, wall_ms, max_bytes, payload_of, one_by_one)
    if part.marker is not None:
        own: bytes | None = marker_batch(
            part.marker,
            producer_id=part.producer_id,
            producer_epoch=part.producer_epoch,
            leader_epoch=NO_LEADER_EPOCH,
            timestamp_ms=wall_ms,
        )
    else:
        own = batches_of(part.records, encode, wall_ms, max_bytes, payload_of, one_by_one)
        own = None if own is None else _in_transaction(own, part)
    return None if plain is None or own is None else plain + own


def _in_transaction(batches: bytes, part: WrittenInTransaction) -> bytes:
    """Return batches as those of a transaction. Their sequence numbers are 0, as in Kafka: a
    coordinator repeats nothing."""
    return b"".join(
        seal_batch(
            header._replace(
                attributes=header.attributes | TRANSACTIONAL_BIT,
                producer_id=part.producer_id,
                producer_epoch=part.producer_epoch,
                base_sequence=0,
            ),
            memoryview(batches)[at + HEADER_SIZE : at + header.size],
        )
        for at, header in walk(batches)
    )


def batches_of(
    records: Sequence[Any],
    encode: Callable[[Any], tuple[bytes, bytes | None]],
    wall_ms: int,
    max_bytes: int,
    payload_of: Callable[[Sequence[Any]], tuple[bytes, int]] | None = None,
    one_by_one: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> bytes | None:
    """Return the records as batches of at most ``max_bytes``; None if one record is larger.

    ``payload_of`` and ``one_by_one``: see ``TableKind``.
    """
    if payload_of is not None:
        payload, count = payload_of(records)
        if HEADER_SIZE + len(payload) <= max_bytes:
            return build_encoded(payload, count, wall_ms)
    batches: list[list[NewRecord]] = [[]]
    room = max_bytes - HEADER_SIZE
    for record in one_by_one(records):
        key, value = encode(record)
        size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if size > max_bytes - HEADER_SIZE:
            return None
        if size > room:
            batches.append([])
            room = max_bytes - HEADER_SIZE
        room -= size
        batches[-1].append(NewRecord(wall_ms, key, value))
    return b"".join(build_batch(batch) for batch in batches)
