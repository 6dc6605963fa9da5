"""Fields of plain requests about offsets, read from the bytes of a frame.

Owns what the fast paths of OffsetCommit and OffsetFetch share. Not what they do with the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from tidelog.protocol.primitives import DecodeError, read_uvarint, uvarint

NO_TAGS = b"\0"

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_put_int32 = struct.Struct(">i").pack


class NotPlain(Exception):
    """The request needs the handler that decodes it."""


UNREADABLE = (NotPlain, struct.error, LookupError, ValueError, DecodeError)
"""What reading a request may raise that is not plain, or cut."""

Text = Callable[[memoryview, int], tuple[str | None, int]]
"""(frame, position) -> (text or null, position after it)."""


def length_at(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """Return the length of an array, -1 for null, and the position after it."""
    if not flexible:
        return _int32(frame, position)[0], position + 4
    length = frame[position]
    position += 1
    if length > 127:
        length, position = read_uvarint(frame, position, length)
    return length - 1, position


def text_reader(flexible: bool) -> Text:
    """Return what reads a text of these versions."""
    return _compact_text if flexible else _text


def after_no_tags(frame: memoryview, position: int) -> int:
    """Return the position after a struct's tags, of which it has none."""
    if frame[position]:
        raise NotPlain
    return position + 1


def array_length(count: int, flexible: bool) -> bytes:
    """Return the bytes of an array's length."""
    return uvarint(count + 1) if flexible else _put_int32(count)


def _compact_text(frame: memoryview, position: int) -> tuple[str | None, int]:
    length, position = length_at(frame, position, True)
    return _text_of(frame, position, length)


def _text(frame: memoryview, position: int) -> tuple[str | None, int]:
    (length,) = _int16(frame, position)
    return _text_of(frame, position + 2, length)


def _text_of(frame: memoryview, position: int, length: int) -> tuple[str | None, int]:
    if length < 0:
        if length != -1:
            raise NotPlain
        return None, position
    stop = position + length
    if stop > len(frame):
        raise NotPlain
    return str(frame[position:stop], "utf-8"), stop
