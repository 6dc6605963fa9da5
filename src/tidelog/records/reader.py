"""Readers of record batches: bytes -> records, bounded and checked.

Owns the reading side. ``read_batch`` is plain Python, for the coordinator, time look-ups and
tests; ``FastReader`` wraps aiokafka's compiled codec for consumers. The server's fetch path uses
neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.records.batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    Buffer,
    crc_is_right,
    read_header,
    walk,
)
from tidelog.records.compression import MAX_DECOMPRESSED_BYTES, Codec, decompress
from tidelog.records.record import CorruptRecords, Record, decode_records


def payload_of(header: BatchHeader, batch: Buffer, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Return a batch's records as plain bytes; CorruptRecords when they cannot be had."""
    return decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], limit)


def read_batch(batch: Buffer, limit: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """Return the records of one batch, with LogAppendTime applied. The CRC is not checked."""
    header = read_header(batch)
    records = decode_records(
        payload_of(header, batch, limit),
        header.record_count,
        header.base_offset,
        header.base_timestamp,
    )
    if header.log_append_time:
        return [record._replace(timestamp=header.max_timestamp) for record in records]
    return records


def read_all(buffer: Buffer, from_offset: int = 0) -> Iterator[Record]:
    """Yield the records of all complete batches from an offset on; control batches are skipped.

    CRCs are checked: CorruptRecords names the batch.
    """
    view = memoryview(buffer)
    for position, header in walk(view):
        if header.last_offset < from_offset or header.control:
            continue
        batch = view[position : position + header.size]
        if not crc_is_right(batch, header.crc):
            raise CorruptRecords(f"the batch at offset {header.base_offset} has a wrong CRC")
        for record in read_batch(batch):
            if record.offset >= from_offset:
                yield record


class FastReader:
    """Records of one batch on aiokafka's compiled codec: attributes offset, timestamp, key, value
    and headers. CorruptRecords for a batch that does not decode."""

    def __init__(self, limit: int = MAX_DECOMPRESSED_BYTES) -> None:
        # Imported here: the package costs 0.3 s and 20 MB, which a server must not pay.
        from aiokafka.errors import CorruptRecordException
        from aiokafka.record.default_records import DefaultRecordBatch

        self._batch: Any = DefaultRecordBatch
        self._corrupt: type[Exception] = CorruptRecordException
        self._limit = limit

    def records(self, batch: Buffer) -> Iterator[Any]:
        """Yield the records of one whole batch. The CRC is not checked."""
        header = read_header(batch)
        if batch[MAGIC_POSITION] != 2:
            raise CorruptRecords(f"a batch of unknown version {header.magic}")
        plain: Buffer = batch
        if header.codec != Codec.NONE:
            payload = payload_of(header, batch, self._limit)
            plain = bytearray(memoryview(batch)[:HEADER_SIZE]) + payload
            plain[22] &= 0xF8  # the codec bits: the payload is plain now
            plain[8:12] = (len(plain) - 12).to_bytes(4, "big")
        try:
            yield from self._batch(bytes(plain))
        except (self._corrupt, ValueError, IndexError, AssertionError) as error:
            raise CorruptRecords(f"batch at offset {header.base_offset}: {error}") from None
