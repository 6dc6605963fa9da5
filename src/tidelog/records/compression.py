"""The codecs of record batches: none, gzip, snappy (xerial framing), lz4 (frame), zstd.

Owns compressing and the bounded decompressing of a batch's payload. Does not know records.
A decompressed size is bounded (promise 30): more is ``PayloadTooLarge``, a ``CorruptRecords``. What
a payload may be made of is bounded, too: the time grows with its bytes and those that it becomes.
All codecs release the GIL.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from functools import cache
from typing import Any

from tidelog.records.record import CorruptRecords, PayloadTooLarge

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default bound of one batch's payload, 256 times the default max.message.bytes."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_STEP_BYTES = 64 * 1024

_LZ4_HEAD = bytes.fromhex("04224d18604082")
"""Magic, version 1 with independent blocks of up to 64 KiB and no checksums, the check of these."""

_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_END = bytes(4)
_LZ4_CONTENT_SIZE_BIT = 8
_LZ4_PLAIN_BIT = 0x8000_0000
_LZ4_FAST_LEVEL = 9
"""Kafka's default of ``compression.lz4.level``. Its writer takes the fast compressor at this level,
and the one with high compression, which costs ten times as much, at each other."""

MOST_GZIP_MEMBERS = 256
"""Clients write one; each costs a reader as much as some kilobytes."""

MOST_SNAPPY_BLOCKS = 16_384
"""Clients write one for each 32 KiB: twice as many as ``MAX_DECOMPRESSED_BYTES`` has."""

_SNAPPY_RATIO = 22
"""A snappy element of 3 bytes copies 64: what claims to become more is damaged."""


class Codec(IntEnum):
    """Compression as the three low bits of a batch's attributes name it."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES = {
    "none": Codec.NONE,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Codecs by the names of ``compression.type``."""


def compress(codec: int, payload: Buffer, level: int | None = None) -> bytes:
    """Return the compressed payload; ``level`` None or -1 is the codec's default."""
    level = None if level == -1 else level
    if codec == Codec.NONE:
        return bytes(payload)
    if codec == Codec.GZIP:
        compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return compressor.compress(payload) + compressor.flush()
    if codec == Codec.SNAPPY:
        return _compress_xerial(payload)
    if codec == Codec.LZ4:
        return _compress_lz4(payload, level)
    if codec == Codec.ZSTD:
        return bytes(_cramjam().zstd.compress(payload, level=3 if level is None else level))
    raise CorruptRecords(f"compression {codec} is unknown")


def decompress(
    codec: int,
    payload: Buffer,
    limit: int = MAX_DECOMPRESSED_BYTES,
    members: int = MOST_GZIP_MEMBERS,
) -> bytes:
    """Return the plain payload; CorruptRecords, PayloadTooLarge for more than ``limit`` bytes.

    A payload that is plain already has no limit: those bytes are here. ``members``: the most that
    a gzip payload may have.
    """
    if codec == Codec.NONE:
        return bytes(payload)
    plain, complete = decompress_start(codec, payload, limit, members)
    if not complete:
        raise PayloadTooLarge(f"a payload decompresses to more than {limit} bytes")
    return bytes(plain)


def decompress_start(
    codec: int, payload: Buffer, limit: int, members: int = MOST_GZIP_MEMBERS
) -> tuple[Buffer, bool]:
    """Return the beginning of the plain payload, at most ``limit`` bytes, and whether it is all.

    What follows is not checked. A plain payload is given as it is. CorruptRecords for a beginning
    that does not decompress. Of snappy only whole blocks are given.
    """
    try:
        if codec == Codec.NONE:
            return (
                (payload, True) if len(payload) <= limit else (memoryview(payload)[:limit], False)
            )
        if codec == Codec.GZIP:
            return _gunzip(memoryview(payload), limit, members)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(memoryview(payload), limit)
        if codec == Codec.LZ4:
            return _decompress_lz4(memoryview(payload), limit)
        if codec == Codec.ZSTD:
            return _stream(_cramjam().zstd, payload, limit)
    except (zlib.error, struct.error) as error:
        raise CorruptRecords(f"the payload does not decompress: {error}") from None
    raise CorruptRecords(f"compression {codec} is unknown")


@cache
def _cramjam() -> Any:
    # Imported at first use: a server that never recompresses does not need it.
    import cramjam

    return cramjam


def _gunzip(payload: memoryview, limit: int, members: int) -> tuple[Buffer, bool]:
    out = bytearray()
    at = 0
    for _ in range(members):
        # gzip files may have several members one after another.
        stream = zlib.decompressobj(31)
        while not stream.eof:
            if at == len(payload):
                raise CorruptRecords("a gzip payload is cut short")
            # In pieces: what a member leaves unused is copied, and must not be all that there is.
            piece: Buffer = payload[at : at + _STEP_BYTES]
            at += len(piece)
            while len(piece) and not stream.eof:
                out += stream.decompress(piece, limit - len(out) + 1)
                if len(out) > limit:
                    return memoryview(out)[:limit], False
                piece = stream.unconsumed_tail
        at -= len(stream.unused_data)
        if at == len(payload):
            return bytes(out), True
    raise CorruptRecords(f"bytes after member {members} of a gzip payload, its last one")


def _compress_lz4(payload: Buffer, level: int | None) -> bytes:
    if level is None or level == _LZ4_FAST_LEVEL:
        return _compress_lz4_fast(payload)
    # Independent blocks: Kafka's reader refuses frames whose blocks depend on each other. The
    # library makes such frames only while it holds the GIL; so each block is taken out of a frame
    # of its own.
    lz4 = _cramjam().lz4
    view = memoryview(payload)
    parts: list[Buffer] = [_LZ4_HEAD]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        frame = memoryview(lz4.compress(view[start : start + _LZ4_BLOCK_BYTES], level=level))
        block = 15 if frame[4] & _LZ4_CONTENT_SIZE_BIT else 7
        size = int.from_bytes(frame[block : block + 4], "little") & 0x7FFF_FFFF
        parts.append(frame[block : block + 4 + size])
    parts.append(_LZ4_END)
    return b"".join(parts)


def _compress_lz4_fast(payload: Buffer) -> bytes:
    compress_block = _cramjam().lz4.compress_block
    view = memoryview(payload)
    parts: list[Buffer] = [_LZ4_HEAD]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block: Buffer = memoryview(compress_block(plain, store_size=False))
        size = len(block)
        if size >= len(plain):
            # A block must not be larger than its bytes as they are.
            block, size = plain, len(plain) | _LZ4_PLAIN_BIT
        parts += (size.to_bytes(4, "little"), block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _decompress_lz4(payload: memoryview, limit: int) -> tuple[Buffer, bool]:
    """Decompress block by block what Java's writer and this module make: a third of the time that
    the library needs for a frame. It has the word on each other frame, and on a damaged one."""
    if payload[: len(_LZ4_HEAD)] == _LZ4_HEAD:
        plain = _lz4_blocks(payload, limit)
        if plain is not None:
            return plain, True
    return _stream(_cramjam().lz4, payload, limit)


def _lz4_blocks(payload: memoryview, limit: int) -> bytes | None:
    """Return what the blocks of one whole frame become; None where the library must decide."""
    cramjam = _cramjam()
    at, total = len(_LZ4_HEAD), 0
    parts: list[bytes] = []
    target = memoryview(bytearray(_LZ4_BLOCK_BYTES))
    while total <= limit:
        size = int.from_bytes(payload[at : at + 4], "little")
        at += 4
        if not size:
            return b"".join(parts) if at == len(payload) else None
        block = payload[at : at + (size & ~_LZ4_PLAIN_BIT)]
        at += len(block)
        if at + len(_LZ4_END) > len(payload) or not len(block):
            return None
        if size & _LZ4_PLAIN_BIT:
            if len(block) > _LZ4_BLOCK_BYTES:
                return None
            parts.append(bytes(block))
        else:
            try:
                size = cramjam.lz4.decompress_block_into(block, target, output_len=_LZ4_BLOCK_BYTES)
            except cramjam.DecompressionError:
                return None
            parts.append(bytes(target[:size]))
        total += len(parts[-1])
    return None


def _compress_xerial(payload: Buffer) -> bytes:
    snappy = _cramjam().snappy
    view = memoryview(payload)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_snappy(view: memoryview, limit: int) -> tuple[Buffer, bool]:
    if bytes(view[:8]) != _XERIAL_MAGIC:
        # Some clients (librdkafka among them) send one raw block.
        block = _raw_snappy(view, limit)
        return (b"", False) if block is None else (block, True)
    position = len(_XERIAL_HEADER)
    out: list[bytes] = []
    total = 0
    while position < len(view):
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise CorruptRecords("a snappy block is cut short")
        if len(out) == MOST_SNAPPY_BLOCKS:
            raise CorruptRecords(f"a snappy payload of more than {MOST_SNAPPY_BLOCKS} blocks")
        block = _raw_snappy(view[position : position + size], limit - total)
        if block is None:
            return b"".join(out), False
        total += len(block)
        out.append(block)
        position += size
    return b"".join(out), True


def _raw_snappy(block: memoryview, limit: int) -> bytes | None:
    """Return what a block becomes, None when that is more than ``limit`` bytes."""
    cramjam = _cramjam()
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_RATIO * len(block):
            raise CorruptRecords(f"a snappy block of {len(block)} bytes claims to become {size}")
        return None if size > limit else bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecords(f"a snappy block does not decompress: {error}") from None


def _stream(library: Any, payload: Buffer, limit: int) -> tuple[Buffer, bool]:
    """Decompress into a buffer that grows up to the limit: memory follows the real size."""
    cramjam = _cramjam()
    capacity = min(limit, max(_STEP_BYTES, 8 * len(payload)))
    while True:
        target = bytearray(capacity + 1)
        try:
            size = library.decompress_into(payload, target)
        except (cramjam.DecompressionError, OSError) as error:
            if "whole buffer" not in str(error):
                raise CorruptRecords(f"the payload does not decompress: {error}") from None
            size = capacity + 1  # the buffer is full, and there is more
        if size <= capacity:
            return bytes(memoryview(target)[:size]), True
        if capacity >= limit:
            return memoryview(target)[:limit], False
        capacity = min(limit, capacity * 4)
