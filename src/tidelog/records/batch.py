"""Record batches of version 2, as in requests and on disk: header views and their checks.

Owns the 61-byte header and every check of a batch that needs none of its records.
Does not decode records (``record.py``) and does no I/O. Layout, big-endian: base offset, length,
leader epoch, magic, CRC-32C, attributes, last offset delta, base timestamp, max timestamp,
producer id, producer epoch, base sequence, count. The CRC covers everything from the attributes
on, so base offset and leader epoch can be assigned without a new CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.model.configs.topic import CREATE_TIME, TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.records.compression import MAX_DECOMPRESSED_BYTES
from tidelog.records.crc import crc32c
from tidelog.records.frames import start_fault
from tidelog.records.record import LEAST_RECORD_BYTES

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
LENGTH_OVERHEAD = 12
"""Bytes before what the length field counts: base offset and the length itself."""

ATTRIBUTES_POSITION = 21
MAGIC_POSITION = 16
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
HIGHEST_CODEC = 4

MOST_COMPRESSED_RECORDS = MAX_DECOMPRESSED_BYTES // LEAST_RECORD_BYTES
"""Most records that a compressed batch may claim: a reader decompresses no larger payload."""

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")
_AFTER_CRC = struct.Struct(">hiqqqhii")

# tuple.__new__ skips the length check of BatchHeader._make: the struct has made 13 fields.
_as_header = tuple.__new__
unpack_header = _HEADER.unpack_from
pack_prefix_into = _PREFIX.pack_into
pack_prefix = _PREFIX.pack
"""Bytes of base offset, length and leader epoch: the 16 bytes in front of the magic."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A refusal as a value: the code for the wire and one sentence for a person.

    ``records`` are the indexes of the invalid records in their batch, where known.
    """

    error: ErrorCode
    reason: str
    records: tuple[int, ...] = ()


OUTSIDE = Rejected(
    ErrorCode.INVALID_TXN_STATE,
    "it is of a transaction, and the request names no transactional id",
)
"""The refusal of a batch of a transaction in a request without a transactional id."""


class BatchHeader(NamedTuple):
    """The fields of one batch header. ``size`` is the whole batch in bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones of this batch may go (attribute bit 6; the base timestamp holds it)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def newest_time(self) -> int:
        """The greatest timestamp of its records, -1 when compaction left none."""
        return self.max_timestamp if self.record_count else NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; wraps from 2^31 - 1 to 0. -1 without a producer."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_INT32


HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of a header in the order of ``BatchHeader``, which is one: the path of each append has
them as ``unpack_header`` returns them, for Python unpacks a plain tuple in a sixth of the time."""


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at ``position``; struct.error when fewer than 61 bytes follow."""
    return _as_header(BatchHeader, unpack_header(buffer, position))


def crc_is_right(batch: Buffer, stored: int) -> bool:
    """Whether the CRC-32C of a whole batch is the stored one."""
    return bool(crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]) == stored)


def walk(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each complete batch; stops at the first that is not complete.

    Checks nothing but lengths and the magic. Grows with the number of batches.
    """
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        size = header.length + LENGTH_OVERHEAD
        if size < HEADER_SIZE or header.magic != 2 or position + size > end:
            return
        yield position, header
        position += size


def split(buffer: Buffer) -> list[tuple[BatchHeader, memoryview]] | Rejected:
    """Split a produce payload into its batches; every byte must belong to one of them."""
    view = buffer if buffer.__class__ is memoryview else memoryview(buffer)
    total = len(view)
    if total < HEADER_SIZE:
        return _too_short(view)
    header = _as_header(BatchHeader, unpack_header(view))
    if header.length == total - LENGTH_OVERHEAD and header.magic == 2:
        return [(header, view)]  # one batch, as nearly always
    found = []
    position = 0
    while position < total:
        if total - position < HEADER_SIZE:
            return Rejected(ErrorCode.CORRUPT_MESSAGE, "bytes after the last batch are no batch")
        header = _as_header(BatchHeader, unpack_header(view, position))
        if header.magic != 2:
            return _wrong_magic(header.magic)
        size = header.length + LENGTH_OVERHEAD
        if size < HEADER_SIZE or position + size > total:
            return Rejected(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch says it has {size} bytes, {total - position} are there",
            )
        found.append((header, view[position : position + size]))
        position += size
    return found


def check_client_batch(
    header: HeaderFields, batch: memoryview, configs: TopicConfigs, now_ms: int
) -> Rejected | None:
    """Judge one batch of a client by its header and CRC; None when it may be appended.

    The codes are those of Apache Kafka's leader (log validation of the append origin "client").
    Constant work but for the CRC.
    """
    base_offset, _, _, _, crc, attributes, delta, first, newest, pid, epoch, sequence, count = (
        header
    )
    if base_offset != 0:
        return _invalid(f"the base offset of a produced batch must be 0, not {base_offset}")
    if len(batch) > configs.max_message_bytes:
        return Rejected(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes is above max.message.bytes={configs.max_message_bytes}",
        )
    if crc32c(batch[ATTRIBUTES_POSITION:]) != crc:
        return Rejected(ErrorCode.CORRUPT_MESSAGE, "the CRC of the batch is wrong")
    if delta < 0 or count != delta + 1:
        return _invalid(f"a batch with last offset delta {delta} says it has {count} records")
    if count * LEAST_RECORD_BYTES > len(batch) - HEADER_SIZE and (
        not attributes & CODEC_MASK or count > MOST_COMPRESSED_RECORDS
    ):
        # Offsets are assigned by this count, and no code here checks that the records exist.
        return _invalid(f"a batch of {len(batch)} bytes cannot hold the {count} records it claims")
    if attributes:
        refusal = _check_attributes(attributes, batch)
        if refusal is not None:
            return refusal
    if pid >= 0 and (sequence < 0 or epoch < 0):
        return _invalid("a batch with a producer id needs a producer epoch and a sequence")
    if configs.message_timestamp_type is CREATE_TIME and not (
        0 <= first <= newest <= now_ms + configs.message_timestamp_after_max_ms
        and first >= now_ms - configs.message_timestamp_before_max_ms
    ):
        refusal = why_not_in_time(newest, configs, now_ms)
        return refusal or why_not_in_time(first, configs, now_ms)
    return None


def check_batch_in_transaction(
    header: HeaderFields, batch: memoryview, configs: TopicConfigs, now_ms: int
) -> Rejected | None:
    """Judge one batch of a request with a transactional id, as ``check_client_batch`` does the
    others: it may belong to a transaction."""
    attributes = header[5]
    if not attributes & TRANSACTIONAL_BIT:
        return check_client_batch(header, batch, configs, now_ms)
    plain = (*header[:5], attributes & ~TRANSACTIONAL_BIT, *header[6:])
    refusal = check_client_batch(plain, batch, configs, now_ms)
    if refusal is None and header[9] < 0:
        return _invalid("a batch of a transaction needs a producer id")
    return refusal


def _check_attributes(attributes: int, batch: memoryview) -> Rejected | None:
    if attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):
        return _invalid("clients must not write control batches or delete horizons")
    if attributes & LOG_APPEND_TIME_BIT:
        return Rejected(
            ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type LogAppendTime"
        )
    if attributes & CODEC_MASK > HIGHEST_CODEC:
        return Rejected(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression {attributes & CODEC_MASK} is unknown",
        )
    if attributes & TRANSACTIONAL_BIT:
        return OUTSIDE
    fault = start_fault(attributes & CODEC_MASK, batch[HEADER_SIZE:])
    return None if fault is None else _invalid(fault)


def why_not_in_time(timestamp: int, configs: TopicConfigs, now_ms: int) -> Rejected | None:
    """Judge a record's timestamp by the limits of its topic; NO_TIMESTAMP is within all."""
    if timestamp == NO_TIMESTAMP:
        return None
    if timestamp - now_ms > configs.message_timestamp_after_max_ms:
        limit = f"message.timestamp.after.max.ms={configs.message_timestamp_after_max_ms}"
    elif now_ms - timestamp > configs.message_timestamp_before_max_ms:
        limit = f"message.timestamp.before.max.ms={configs.message_timestamp_before_max_ms}"
    else:
        return None
    return Rejected(
        ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp} is outside {limit}, now {now_ms}"
    )


def stamped_header(header: BatchHeader, batch: Buffer, append_time_ms: int) -> BatchHeader:
    """Return the header with LogAppendTime: the attribute bit, the maximum timestamp, the CRC."""
    changed = header._replace(
        attributes=header.attributes | LOG_APPEND_TIME_BIT, max_timestamp=append_time_ms
    )
    return changed._replace(crc=_crc_of(changed, memoryview(batch)[HEADER_SIZE:]))


def pack_header(header: BatchHeader) -> bytes:
    """Return the 61 bytes of a header as it stands; the CRC is not computed."""
    return _HEADER.pack(*header)


def seal_batch(header: BatchHeader, records: Buffer) -> bytes:
    """Return a whole batch of this header and encoded records; sets length, magic and CRC."""
    sized = header._replace(length=HEADER_SIZE - LENGTH_OVERHEAD + len(records), magic=2)
    return b"".join((pack_header(sized._replace(crc=_crc_of(sized, records))), records))


def assign(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into a batch in place; the CRC stays right."""
    (length,) = struct.unpack_from(">i", batch, 8)
    _PREFIX.pack_into(batch, 0, base_offset, length, leader_epoch)


def _crc_of(header: BatchHeader, records: Buffer) -> int:
    return int(crc32c(records, crc32c(_AFTER_CRC.pack(*header[5:]))))


def _too_short(view: memoryview) -> Rejected:
    # Old formats have smaller batches: the magic stands at the same place in all of them.
    if len(view) > MAGIC_POSITION and view[MAGIC_POSITION] in (0, 1):
        return _wrong_magic(view[MAGIC_POSITION])
    if not len(view):
        return _invalid("a produce request must have a batch for each partition")
    return Rejected(ErrorCode.CORRUPT_MESSAGE, f"{len(view)} bytes are no batch")


def _wrong_magic(magic: int) -> Rejected:
    if magic in (0, 1):
        return _invalid(f"only batches of version 2 are accepted, not of version {magic}")
    return Rejected(ErrorCode.CORRUPT_MESSAGE, f"a batch of unknown version {magic}")


def _invalid(reason: str) -> Rejected:
    return Rejected(ErrorCode.INVALID_RECORD, reason)
