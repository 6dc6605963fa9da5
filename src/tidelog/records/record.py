"""Single records inside a batch: bytes <-> values, in plain Python.

Owns the varint layout of a record (length, attributes, timestamp delta, offset delta, key, value,
headers). For the coordinator's small batches, compaction and time look-ups; bulk reading in
clients goes through ``reader.FastReader``. Knows nothing of compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]

LEAST_RECORD_BYTES = 7
"""Length, attributes, timestamp delta, offset delta, no key, no value, no headers: a byte each."""


class Record(NamedTuple):
    """One record. ``timestamp`` in ms since 1970 or -1."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class RecordSpan(NamedTuple):
    """Position of a record in its batch's payload, and the facts that compaction needs."""

    start: int
    end: int
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool
    after_timestamp: int
    """Position after the timestamp delta: the rest does not depend on the base timestamp."""


class CorruptRecords(ValueError):
    """A payload that is not what its header announces."""


class PayloadTooLarge(CorruptRecords):
    """A payload that decompresses to more bytes than its reader takes."""


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return (zigzag value, position after it); CorruptRecords beyond 10 bytes or the end."""
    try:
        byte = data[position]
        position += 1
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position
        result = byte & 0x7F
        shift = 7
        while shift < 70:
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1), position
            shift += 7
    except IndexError:
        raise CorruptRecords("a record ends inside a varint") from None
    raise CorruptRecords("a varint of more than ten bytes")


def write_varint(value: int) -> bytes:
    """Return the zigzag varint of a 64-bit integer."""
    value = (value << 1) ^ (value >> 63)
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SINGLE = [bytes([value]) for value in range(0x80)]
_NULL = write_varint(-1)


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
) -> bytes:
    """Return the bytes of one record, its length in front."""
    if key is not None and value is not None and not headers:
        # Nearly all of a coordinator's: in one step.
        body = b"\0%b%b%b%b%b%b\0" % (
            write_varint(timestamp_delta),
            write_varint(offset_delta),
            write_varint(len(key)),
            key,
            write_varint(len(value)),
            value,
        )
        return write_varint(len(body)) + body
    parts = [b"\0", write_varint(timestamp_delta), write_varint(offset_delta)]
    for field in (key, value):
        if field is None:
            parts.append(_NULL)
        else:
            parts += (write_varint(len(field)), field)
    parts.append(write_varint(len(headers)))
    for name, content in headers:
        encoded = name.encode()
        parts += (write_varint(len(encoded)), encoded)
        if content is None:
            parts.append(_NULL)
        else:
            parts += (write_varint(len(content)), content)
    body = b"".join(parts)
    return write_varint(len(body)) + body


def decode_records(
    payload: bytes, count: int, base_offset: int, base_timestamp: int
) -> list[Record]:
    """Return all records of an uncompressed payload; CorruptRecords when it does not hold them."""
    records = []
    position = 0
    for _ in range(count):
        size, position = read_varint(payload, position)
        end = position + size
        if size < 0 or end > len(payload):
            raise CorruptRecords("a record is longer than its batch")
        timestamp, at = read_varint(payload, position + 1)
        offset, at = read_varint(payload, at)
        key, at = _read_bytes(payload, at, end)
        value, at = _read_bytes(payload, at, end)
        header_count, at = read_varint(payload, at)
        headers: Sequence[Header] = ()
        if header_count:
            headers, at = _read_headers(payload, at, end, header_count)
        if at != end:
            raise CorruptRecords("a record's fields do not fill its length")
        records.append(
            Record(base_offset + offset, base_timestamp + timestamp, key, value, headers)
        )
        position = end
    if position != len(payload):
        raise CorruptRecords("bytes after the last record of a batch")
    return records


def spans(payload: bytes, count: int) -> list[RecordSpan]:
    """Return the span of each record without decoding value and headers.

    The lengths that a byte or two hold are read in place: compaction lives in this loop.
    """
    found = []
    make = tuple.__new__
    position = 0
    limit = len(payload)
    try:
        for _ in range(count):
            start = position
            byte = payload[position]
            if byte < 0x80:
                end = position + 1 + (byte >> 1)
                position += 2
            else:
                size, position = read_varint(payload, position)
                end = position + size
                position += 1
            if byte & 1 or end > limit:
                raise CorruptRecords("a record is longer than its batch")
            byte = payload[position]
            if byte < 0x80:
                timestamp = (byte >> 1) ^ -(byte & 1)
                after = position + 1
            else:
                timestamp, after = read_varint(payload, position)
            byte = payload[after]
            if byte < 0x80:
                offset = (byte >> 1) ^ -(byte & 1)
                position = after + 1
            else:
                offset, position = read_varint(payload, after)
            byte = payload[position]
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = read_varint(payload, position)
            key = None
            if size >= 0:
                key = payload[position : position + size]
                position += size
            # A length of null is the one with the lowest bit set (zigzag -1).
            has_value = not payload[position] & 1
            if position >= end:
                raise CorruptRecords("a field is longer than its record")
            found.append(make(RecordSpan, (start, end, offset, timestamp, key, has_value, after)))
            position = end
    except IndexError:
        raise CorruptRecords("a record ends inside a field") from None
    return found


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    stop = position + size
    if stop > end:
        raise CorruptRecords("a field is longer than its record")
    return data[position:stop], stop


def _read_headers(data: bytes, position: int, end: int, count: int) -> tuple[list[Header], int]:
    if count < 0 or count > end - position:
        raise CorruptRecords(f"a record says it has {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise CorruptRecords("a record header without a name")
        content, position = _read_bytes(data, position, end)
        try:
            headers.append((name.decode(), content))
        except UnicodeDecodeError:
            raise CorruptRecords("a record header's name is not UTF-8") from None
    return headers, position
