"""Fields of plain requests about offsets, read from the bytes of a frame.

Owns what the fast paths of OffsetCommit and OffsetFetch share. Not what they do with the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.protocol.primitives import DecodeError, read_uvarint, uvarint

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache, TopicMetadata

NO_TAGS = b"\0"

BY_ID_SINCE = 10
"""First version of both requests with ids instead of names (KIP-848)."""

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_put_int32 = struct.Struct(">i").pack
_put_head = struct.Struct(">ii").pack


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


def topic_at(
    metadata: MetadataCache, frame: memoryview, position: int, version: int, text: Text
) -> tuple[TopicMetadata, bytes, int]:
    """Return a known topic, its name or id as it is in the response, and the position after it."""
    begin = position
    name: str | None
    if version >= BY_ID_SINCE:
        position += 16
        name = metadata.names.get(UUID(bytes=bytes(frame[begin:position])))
    else:
        name, position = text(frame, position)
    named = bytes(frame[begin:position])
    topic = metadata.topic(name) if name else None
    # A later incarnation may have the name of an id by now.
    if topic is None or (version >= BY_ID_SINCE and topic.topic_id.bytes != named):
        raise NotPlain
    return topic, named, position


def framed(correlation_id: int, parts: list[bytes], flexible: bool) -> bytes:
    """Return the frame of a response; ``parts`` come after its throttle time, which is 0."""
    # In front of the throttle time flexible headers have no tags.
    head = bytes(5 if flexible else 4)
    body = b"".join(parts) + (NO_TAGS if flexible else b"")
    return _put_head(4 + len(head) + len(body), correlation_id) + head + body


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
