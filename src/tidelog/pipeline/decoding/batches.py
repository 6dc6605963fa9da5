"""The split of fetched bytes into record batches, and which of these hold records to read.

Owns the checks of a reader (magic, checksum, count) and the rule of aborted transactions (KIP-98);
does not inspect records, except into a marker's key. Batches come in the order of their offsets;
an incomplete one at the end of a fetch is left for the next fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.records.batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    crc_is_right,
    walk,
)
from tidelog.records.compression import decompress
from tidelog.records.control_records import ABORT, control_type
from tidelog.records.record import CorruptRecords, decode_records

Buffer = bytes | bytearray | memoryview

# length, attributes, two deltas, key length, value length, count of headers: one byte each.
_SMALLEST_RECORD = 7


class Batch(NamedTuple):
    """One record batch: its header and its records, still compressed."""

    header: BatchHeader
    body: memoryview

    def payload(self) -> bytes | memoryview:
        """The uncompressed records. Raises CorruptRecords, also for an impossible count."""
        header = self.header
        plain = decompress(header.codec, self.body) if header.codec else self.body
        # Before anything is allocated for `count` records.
        if header.record_count < 0 or header.record_count * _SMALLEST_RECORD > len(plain):
            raise CorruptRecords(
                f"batch at offset {header.base_offset} announces {header.record_count} records"
                f" in {len(plain)} bytes"
            )
        return plain


def scan(data: Buffer, *, check_crc: bool) -> Iterator[Batch]:
    """The whole batches in `data`. Raises CorruptRecords; one step per batch."""
    view = memoryview(data)
    reached = 0
    for position, header in walk(view):
        reached = position + header.size
        if header.last_offset_delta < 0:
            raise CorruptRecords(f"batch at offset {header.base_offset} ends before it begins")
        if check_crc and not crc_is_right(view[position:reached], header.crc):
            raise CorruptRecords(f"batch at offset {header.base_offset} has a wrong checksum")
        yield Batch(header, view[position + HEADER_SIZE : reached])
    if len(view) - reached > MAGIC_POSITION and view[reached + MAGIC_POSITION] != 2:
        raise CorruptRecords(f"a batch of magic {view[reached + MAGIC_POSITION]}; only 2 is read")


class AbortedTransactions:
    """Which batches of one fetch belong to aborted transactions (read_committed, KIP-98).

    Takes the list of a fetch response, pairs of producer id and first offset; asked batch by batch
    in the order of offsets.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(aborted, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, batch: Batch) -> bool:
        """Whether the records of this data batch were aborted. Markers must be shown too."""
        header = batch.header
        while self._waiting and self._waiting[-1][1] < header.next_offset:
            self._open.add(self._waiting.pop()[0])
        if not header.transactional:
            return False
        if header.control:
            if header.producer_id in self._open and _control_type(batch) == ABORT:
                self._open.discard(header.producer_id)
            return False
        return header.producer_id in self._open


def _control_type(batch: Batch) -> int:
    records = decode_records(bytes(batch.payload()), batch.header.record_count, 0, 0)
    return control_type(records[0].key if records else None)
