"""Primitive types of the coordinators' records (``__consumer_offsets``, ``__transaction_state``).

Owns bytes <-> numbers, strings, byte strings and tagged fields, big-endian; compact forms are those
of flexible versions (KIP-482). Not the records: see `groups.records` and `transactions.records`;
not the codec of messages: see `compiler`. A coordinator's record is not a message, and its
hand-written codec stays readable.
"""

from __future__ import annotations

import struct
from uuid import UUID

from tidelog.protocol.primitives import MAX_TAGS, DecodeError, read_uvarint, uvarint, write_tags

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class Malformed(Exception):
    """The bytes are not what their version says: too short, not UTF-8, or an invalid null."""


class FieldReader:
    """Reads one value after another from a buffer; every read raises Malformed at its end."""

    __slots__ = ("_at", "_buffer")

    def __init__(self, buffer: bytes | memoryview) -> None:
        self._buffer = buffer
        self._at = 0

    @property
    def remaining(self) -> int:
        """Bytes that have not been read."""
        return len(self._buffer) - self._at

    def int8(self) -> int:
        """Return a signed number of one byte."""
        return int(_INT8.unpack(self._take(1))[0])

    def int16(self) -> int:
        """Return a signed number of two bytes."""
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        """Return a signed number of four bytes."""
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        """Return a signed number of eight bytes."""
        return int(_INT64.unpack(self._take(8))[0])

    def uuid(self) -> UUID:
        """Return an id of sixteen bytes."""
        return UUID(bytes=bytes(self._take(16)))

    def string(self) -> str:
        """Return a string that may not be null (int16 length)."""
        text = self.nullable_string()
        if text is None:
            raise Malformed("a string is null")
        return text

    def nullable_string(self) -> str | None:
        """Return a string, or None for length -1."""
        length = self.int16()
        if length == -1:
            return None
        try:
            return bytes(self._take(length)).decode()
        except UnicodeDecodeError as error:
            raise Malformed("a string is not UTF-8") from error

    def blob(self) -> bytes:
        """Return a byte string (int32 length); null reads as empty."""
        length = self.int32()
        return b"" if length == -1 else bytes(self._take(length))

    def uvarint(self) -> int:
        """Return an unsigned varint of at most 32 bits."""
        first = int(self._take(1)[0])
        if first < 0x80:
            return first
        try:
            value, self._at = read_uvarint(memoryview(self._buffer), self._at, first)
        except (DecodeError, IndexError) as error:
            raise Malformed("a varint is too long or cut") from error
        return value

    def count(self, *, compact: bool) -> int | None:
        """Return how many elements an array has, None for null; each takes a byte or more."""
        count = self.uvarint() - 1 if compact else self.int32()
        if count == -1:
            return None
        if not 0 <= count <= self.remaining:
            raise Malformed(f"{count} elements in {self.remaining} bytes")
        return count

    def compact_string(self) -> str:
        """Return a string that may not be null, with a varint in front."""
        try:
            return bytes(self._take(self.uvarint() - 1)).decode()
        except UnicodeDecodeError as error:
            raise Malformed("a string is not UTF-8") from error

    def tags(self) -> dict[int, FieldReader]:
        """Return readers of the tagged fields of a struct, by tag."""
        count = self.uvarint()
        if count > MAX_TAGS:
            raise Malformed(f"{count} tagged fields")
        found = {}
        for _ in range(count):
            tag = self.uvarint()
            found[tag] = FieldReader(self._take(self.uvarint()))
        return found

    def _take(self, length: int) -> bytes | memoryview:
        if length < 0 or length > self.remaining:
            raise Malformed(f"{length} bytes are announced and {self.remaining} are there")
        self._at += length
        return self._buffer[self._at - length : self._at]


class FieldWriter:
    """Collects values; ``done`` returns their bytes."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def int8(self, value: int) -> FieldWriter:
        """Add a signed number of one byte."""
        self._parts.append(_INT8.pack(value))
        return self

    def int16(self, value: int) -> FieldWriter:
        """Add a signed number of two bytes."""
        self._parts.append(_INT16.pack(value))
        return self

    def int32(self, value: int) -> FieldWriter:
        """Add a signed number of four bytes."""
        self._parts.append(_INT32.pack(value))
        return self

    def int64(self, value: int) -> FieldWriter:
        """Add a signed number of eight bytes."""
        self._parts.append(_INT64.pack(value))
        return self

    def uuid(self, value: UUID) -> FieldWriter:
        """Add an id of sixteen bytes."""
        self._parts.append(value.bytes)
        return self

    def string(self, value: str | None) -> FieldWriter:
        """Add a string with an int16 length; None becomes null."""
        if value is None:
            return self.int16(-1)
        encoded = value.encode()
        self.int16(len(encoded))
        self._parts.append(encoded)
        return self

    def blob(self, value: bytes) -> FieldWriter:
        """Add a byte string with an int32 length."""
        self.int32(len(value))
        self._parts.append(value)
        return self

    def count(self, count: int | None, *, compact: bool) -> FieldWriter:
        """Add how many elements an array has; None is null."""
        number = -1 if count is None else count
        if not compact:
            return self.int32(number)
        self._parts.append(uvarint(number + 1))
        return self

    def compact_string(self, value: str) -> FieldWriter:
        """Add a string with a varint in front."""
        encoded = value.encode()
        self._parts += (uvarint(len(encoded) + 1), encoded)
        return self

    def tags(self, fields: dict[int, FieldWriter]) -> FieldWriter:
        """Add tagged fields, by tag."""
        self._parts.append(write_tags([(tag, fields[tag].done()) for tag in sorted(fields)]))
        return self

    def done(self) -> bytes:
        """Return all that was added."""
        return b"".join(self._parts)
