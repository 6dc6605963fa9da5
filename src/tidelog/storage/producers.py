"""What a partition remembers of its idempotent producers, and the rules of their sequences.

Owns the last five batches of each producer and their snapshot format. Pure: ``log`` reads and
writes the files.

| the batch's first sequence                              | answer                           |
|---------------------------------------------------------|----------------------------------|
| one of the last five batches, same epoch                | duplicate, its first offset      |
| epoch older than the producer's                         | INVALID_PRODUCER_EPOCH           |
| newer epoch, sequence 0                                 | appended                         |
| newer epoch, other sequence                             | OUT_OF_ORDER_SEQUENCE_NUMBER     |
| producer unknown (expired, or its records are gone)     | appended, whatever the sequence  |
| last sequence + 1 (0 after 2^31 - 1)                    | appended                         |
| anything else                                           | OUT_OF_ORDER_SEQUENCE_NUMBER     |

Source: KIP-98, KIP-360, as Apache Kafka's present leader applies them (UNKNOWN_PRODUCER_ID is no
longer given). Snapshot: Kafka's version 1; a producer has one entry per remembered batch there,
oldest first (Kafka writes one, and reads ours: its last entry wins), so that a retry of an older
batch is answered rightly after a restart too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import MAX_INT32, NO_SEQUENCE, BatchHeader, Rejected
from tidelog.storage.checkpoints import DamagedFile

BATCHES_REMEMBERED = 5
"""A client may have five requests in flight (``max.in.flight.requests.per.connection``)."""

SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_NO_COORDINATOR = -1
_NO_TRANSACTION = -1


class KnownBatch(NamedTuple):
    """One batch of a producer. ``appended_ms`` is when this log took it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    appended_ms: int


@dataclass(slots=True)
class ProducerEntry:
    """One producer's epoch and its last batches, oldest first."""

    epoch: int
    batches: list[KnownBatch] = field(default_factory=list)
    last_ms: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


class ProducerState:
    """All producers of one partition. Memory grows with the producers seen within the expiry."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}

    def judge(self, header: BatchHeader) -> KnownBatch | Rejected | None:
        """Say of a client's batch: a duplicate (which one), refused, or to be appended (None)."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        first = header.base_sequence
        if header.producer_epoch == entry.epoch:
            last = entry.last_sequence
            if first == last + 1 or (first == 0 and last == MAX_INT32):
                return None
            last = header.last_sequence
            for batch in entry.batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
            return Rejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} after {entry.last_sequence}",
            )
        if header.producer_epoch < entry.epoch:
            return Rejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {entry.epoch}, "
                f"not {header.producer_epoch}",
            )
        if first != 0:
            return Rejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins epoch {header.producer_epoch} "
                f"with sequence {first}",
            )
        return None

    def note(self, header: BatchHeader, first_offset: int, appended_ms: int) -> None:
        """Remember a batch that was appended at ``first_offset``."""
        if header.control:
            return
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.batches.append(
            KnownBatch(
                header.base_sequence,
                header.last_sequence,
                first_offset,
                first_offset + header.last_offset_delta,
                appended_ms,
            )
        )
        entry.last_ms = appended_ms
        if len(entry.batches) > BATCHES_REMEMBERED:
            del entry.batches[0]

    def copy_of(self, producer_ids: set[int]) -> ProducerState:
        """Return a state of its own with these producers, to try batches on."""
        copy = ProducerState()
        for producer_id in producer_ids & self.entries.keys():
            entry = self.entries[producer_id]
            copy.entries[producer_id] = ProducerEntry(
                entry.epoch, list(entry.batches), entry.last_ms
            )
        return copy

    def expire(self, before_ms: int) -> int:
        """Forget producers silent since ``before_ms``; return how many."""
        silent = [pid for pid, entry in self.entries.items() if entry.last_ms <= before_ms]
        for producer_id in silent:
            del self.entries[producer_id]
        return len(silent)

    def encode(self) -> bytes:
        """Return the snapshot file's content."""
        entries = b"".join(self._encoded())
        body = _COUNT.pack(len(entries) // _ENTRY.size) + entries
        return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body

    def _encoded(self) -> Iterator[bytes]:
        for producer_id, entry in self.entries.items():
            for batch in entry.batches:
                yield _ENTRY.pack(
                    producer_id,
                    entry.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.last_offset - batch.first_offset,
                    batch.appended_ms,
                    _NO_COORDINATOR,
                    _NO_TRANSACTION,
                )

    @classmethod
    def decode(cls, content: bytes) -> ProducerState:
        """Return the state in a snapshot; DamagedFile for a torn or foreign one."""
        state = cls()
        if len(content) < _SNAPSHOT_HEAD.size + _COUNT.size:
            raise DamagedFile("a producer snapshot is cut short")
        version, crc = _SNAPSHOT_HEAD.unpack_from(content)
        body = memoryview(content)[_SNAPSHOT_HEAD.size :]
        if version != SNAPSHOT_VERSION or crc32c(body) != crc:
            raise DamagedFile("a producer snapshot with a wrong version or CRC")
        (count,) = _COUNT.unpack_from(body)
        if len(body) != _COUNT.size + count * _ENTRY.size:
            raise DamagedFile("a producer snapshot of a wrong length")
        for fields in _ENTRY.iter_unpack(body[_COUNT.size :]):
            state._restore(*fields[:6])
        return state

    def _restore(
        self, producer_id: int, epoch: int, last: int, last_offset: int, delta: int, appended: int
    ) -> None:
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self.entries[producer_id] = ProducerEntry(epoch)
        entry.last_ms = max(entry.last_ms, appended)
        if last == NO_SEQUENCE:
            return
        first = (last - delta) & MAX_INT32
        entry.batches.append(KnownBatch(first, last, last_offset - delta, last_offset, appended))
        del entry.batches[:-BATCHES_REMEMBERED]
