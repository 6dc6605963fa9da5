"""The split of fetched bytes into record batches, and which of these hold records to read.

Owns the checks of a reader (magic, checksum, count) and the rule of aborted transactions (KIP-98);
does not inspect records, except into a marker's key. Batches come in the order of their offsets;
an incomplete one at the end of a fetch is left for the next fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.records.batch import HEADER_SIZE, BatchHeader, crc_is_right, read_header
from tidelog.records.compression import decompress
from tidelog.records.control_records import ABORT, control_type
from tidelog.records.raw_frames import (
    BATCH_MAGIC,
    RawFrame,
    is_compressed_message,
    is_whole_message,
    walk_frames,
)
from tidelog.records.record import CorruptRecords, decode_records

Buffer = bytes | bytearray | memoryview

# length, attributes, two deltas, key length, value length, count of headers: one byte each.
_SMALLEST_RECORD = 7


class Batch(NamedTuple):
    """One record batch: its header and its records, still compressed; `raw` is all of it."""

    header: BatchHeader
    body: memoryview
    raw: memoryview

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


class BadFrame(NamedTuple):
    """Bytes that are no batch of magic 2 with a right checksum.

    `first` and `next_offset` are by their own word, `first` is None for a compressed message of a
    former format, which names its last offset only. `is_damaged`: they may be other bytes in the
    next fetch, or of another replica; otherwise they are a message of a former format.
    """

    first: int | None
    next_offset: int
    raw: memoryview
    reason: str
    is_damaged: bool


def frames(data: Buffer, *, check_crc: bool) -> Iterator[Batch | BadFrame]:
    """What is in `data`, in order; one step per batch. Ends before what is no whole frame."""
    view = memoryview(data)
    for frame in walk_frames(view):
        raw = view[frame.position : frame.position + frame.size]
        yield _batch(frame, raw, check_crc) if frame.magic == BATCH_MAGIC else _former(frame, raw)


def _batch(frame: RawFrame, raw: memoryview, check_crc: bool) -> Batch | BadFrame:
    header = read_header(raw)
    reason = ""
    if header.last_offset_delta < 0:
        reason = f"batch at offset {header.base_offset} ends before it begins"
    elif check_crc and not crc_is_right(raw, header.crc):
        reason = f"batch at offset {header.base_offset} has a wrong checksum"
    if reason:
        return BadFrame(frame.offset, header.next_offset, raw, reason, is_damaged=True)
    return Batch(header, raw[HEADER_SIZE:], raw)


def _former(frame: RawFrame, raw: memoryview) -> BadFrame:
    reason = f"a batch of magic {frame.magic}; only 2 is read"
    is_whole = is_whole_message(raw)
    first = None if is_whole and is_compressed_message(raw) else frame.offset
    return BadFrame(first, frame.offset + 1, raw, reason, is_damaged=not is_whole)


class AbortedTransactions:
    """Which batches of one fetch belong to aborted transactions (read_committed, KIP-98).

    Takes the list of a fetch response, pairs of producer id and first offset; asked batch by batch
    in the order of offsets.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(aborted, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, batch: Batch) -> bool:
        """Whether the records of this data batch were aborted. Markers must be shown too.

        Raises CorruptRecords for a marker that cannot be read.
        """
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
