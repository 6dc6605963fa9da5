"""Primitive types of records in ``__consumer_offsets``: big-endian, without compact forms.

Owns bytes <-> numbers, strings and byte strings. Not the records: see `records`; not the codec of
messages: see `protocol`. A coordinator's record is not a message, and its hand-written codec stays
readable.
"""

from __future__ import annotations

import struct
from uuid import UUID

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
        found = self.nullable_string()
        if found is None:
            raise Malformed("a string is null")
        return found

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

    def done(self) -> bytes:
        """Return all that was added."""
        return b"".join(self._parts)
