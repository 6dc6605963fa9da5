"""The run-time library of generated codecs: varints, tag buffers, limits and the two errors.

Hostile input is refused here and in the generated code, not in handlers: every length is compared
with the bytes that remain, and a message may not announce more elements than ``MAX_ELEMENTS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

Buffer = bytes | bytearray | memoryview
Records = Buffer | Sequence[Buffer]
"""Record batches to send: one buffer, or several that stand for their concatenation."""

NO_UUID = UUID(int=0)
MAX_ELEMENTS = 2_000_000
"""Most array elements in one message: some 200 MB of Python objects at the very worst."""

MAX_TAGS = 1024
"""Most tagged fields of one struct; the protocol has single digits."""

INLINE_RECORDS_BYTES = 2048
"""Records up to this size are copied into the response; larger ones are sent by reference."""


class DecodeError(Exception):
    """Bytes that are not what they claim to be; the connection that sent them is closed."""


class TooManyElements(DecodeError):
    """A message of more elements than allowed; the bytes before them are valid."""


class EncodeError(Exception):
    """A message that cannot be written in the version asked for: a bug of the sender."""


def read_uvarint(data: memoryview, position: int, first: int) -> tuple[int, int]:
    """Finish reading an unsigned varint whose first byte (> 127) was read; (value, position)."""
    value = first & 0x7F
    shift = 7
    while shift < 35:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
        shift += 7
    raise DecodeError("a varint is longer than 32 bits")


def uvarint(value: int) -> bytes:
    """Return ``value`` as an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


def skip_tags(data: memoryview, position: int, count: int, end: int) -> int:
    """Step over ``count`` tagged fields, none of which is known; return the new position."""
    if count > MAX_TAGS:
        raise DecodeError(f"{count} tagged fields")
    for _ in range(count):
        tag = data[position]
        position += 1
        if tag > 127:
            tag, position = read_uvarint(data, position, tag)
        size = data[position]
        position += 1
        if size > 127:
            size, position = read_uvarint(data, position, size)
        position += size
        if position > end:
            raise DecodeError("a tagged field ends after the message")
    return position


def write_tags(tags: Sequence[tuple[int, bytes | bytearray]]) -> bytes:
    """Return a tag buffer with these (tag, content) pairs, which are in rising order of tag."""
    out = bytearray(uvarint(len(tags)))
    for tag, content in tags:
        out += uvarint(tag)
        out += uvarint(len(content))
        out += content
    return bytes(out)


def put_records(chunks: list[Buffer], current: bytearray, records: Records) -> bytearray:
    """Add record bytes after ``current``; return the buffer in which to go on writing."""
    if records.__class__ is memoryview and len(records) <= INLINE_RECORDS_BYTES:
        current += records
        return current
    if not len(records):
        return current  # of most partitions of a request that names many
    parts = _parts(records)
    if sum(map(len, parts)) <= INLINE_RECORDS_BYTES:
        for part in parts:
            current += part
        return current
    chunks.append(current)
    chunks.extend(parts)
    return bytearray()


def records_size(records: Records) -> int:
    """Return how many bytes ``records`` are."""
    if records.__class__ is memoryview:
        return len(records)
    return sum(map(len, _parts(records))) if len(records) else 0


def _parts(records: Records) -> Sequence[Buffer]:
    if isinstance(records, (bytes, bytearray, memoryview)):
        return (records,)
    return records
