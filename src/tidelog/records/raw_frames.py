"""The outer frames of records in a log, of every format: offset, length, magic. Pure.

Owns the one thing that batches and messages of before Kafka 0.11 have in common. Not batches: see
`batch`. A frame is taken as its length says, and nothing in it is checked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC_POSITION, Buffer

BATCH_MAGIC = 2

# A message of magic 0: checksum, magic, attributes, and the lengths of key and value.
_LEAST_MESSAGE = LENGTH_OVERHEAD + 14
_PREFIX = struct.Struct(">qi")
_CHECKSUM = struct.Struct(">I")
_CODEC_POSITION = MAGIC_POSITION + 1
_CODECS = 0x07


class RawFrame(NamedTuple):
    """Where a frame lies. `offset` is the first one of a batch. A message of a former format has
    its own, and a compressed one that of the last message in it.
    """

    position: int
    size: int
    offset: int
    magic: int


def walk_frames(buffer: Buffer) -> Iterator[RawFrame]:
    """Each whole frame; stops at the first that is not whole, or whose length no frame has."""
    position, end = 0, len(buffer)
    while end - position > MAGIC_POSITION:
        offset, length = _PREFIX.unpack_from(buffer, position)
        size, magic = length + LENGTH_OVERHEAD, buffer[position + MAGIC_POSITION]
        least = HEADER_SIZE if magic == BATCH_MAGIC else _LEAST_MESSAGE
        if size < least or position + size > end:
            return
        yield RawFrame(position, size, offset, magic)
        position += size


def is_whole_message(frame: Buffer) -> bool:
    """Whether a frame is a message of magic 0 or 1 with the right checksum."""
    view = memoryview(frame)
    (stored,) = _CHECKSUM.unpack_from(view, LENGTH_OVERHEAD)
    return view[MAGIC_POSITION] in (0, 1) and zlib.crc32(view[MAGIC_POSITION:]) == stored


def is_compressed_message(frame: Buffer) -> bool:
    """Whether a message of magic 0 or 1 holds others."""
    return bool(memoryview(frame)[_CODEC_POSITION] & _CODECS)
