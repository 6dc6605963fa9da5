"""The codecs of record batches: none, gzip, snappy (xerial framing), lz4 (frame), zstd.

Owns compressing and the bounded decompressing of a batch's payload. Does not know records.
A decompressed size is bounded (promise 30): more is ``PayloadTooLarge``, a ``CorruptRecords``.
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


def decompress(codec: int, payload: Buffer, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Return the plain payload of at most ``limit`` bytes; CorruptRecords otherwise."""
    try:
        if codec == Codec.NONE:
            return bytes(payload)
        if codec == Codec.GZIP:
            return _gunzip(payload, limit)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(payload, limit)
        if codec == Codec.LZ4:
            return _stream(_cramjam().lz4, payload, limit)
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


def _gunzip(payload: Buffer, limit: int) -> bytes:
    out = []
    total = 0
    rest: Buffer = payload
    while len(rest):
        # gzip files may have several members one after another.
        stream = zlib.decompressobj(31)
        part = stream.decompress(rest, limit - total + 1)
        total += len(part)
        if total > limit:
            raise _too_large(limit)
        if not stream.eof:
            raise CorruptRecords("a gzip payload is cut short")
        out.append(part)
        rest = stream.unused_data
    return b"".join(out)


def _compress_lz4(payload: Buffer, level: int | None) -> bytes:
    # Independent blocks: Kafka's reader refuses frames whose blocks depend on each other.
    frame = _cramjam().lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    frame.compress(payload)
    return bytes(frame.finish())


def _compress_xerial(payload: Buffer) -> bytes:
    snappy = _cramjam().snappy
    view = memoryview(payload)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_snappy(payload: Buffer, limit: int) -> bytes:
    view = memoryview(payload)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        # Some clients (librdkafka among them) send one raw block.
        return _raw_snappy(view, limit)
    position = len(_XERIAL_HEADER)
    out = []
    total = 0
    while position < len(view):
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise CorruptRecords("a snappy block is cut short")
        block = _raw_snappy(view[position : position + size], limit - total)
        total += len(block)
        out.append(block)
        position += size
    return b"".join(out)


def _raw_snappy(block: memoryview, limit: int) -> bytes:
    snappy = _cramjam().snappy
    try:
        if snappy.decompress_raw_len(block) > limit:
            raise _too_large(limit)
        return bytes(snappy.decompress_raw(block))
    except _cramjam().DecompressionError as error:
        raise CorruptRecords(f"a snappy block does not decompress: {error}") from None


def _stream(library: Any, payload: Buffer, limit: int) -> bytes:
    """Decompress into a buffer that doubles up to the limit: memory follows the real size."""
    cramjam = _cramjam()
    capacity = min(limit, max(_STEP_BYTES, 8 * len(payload)))
    while True:
        target = bytearray(capacity + 1)
        try:
            size = library.decompress_into(payload, target)
        except (cramjam.DecompressionError, OSError) as error:
            if "whole buffer" not in str(error):
                raise CorruptRecords(f"the payload does not decompress: {error}") from None
            if capacity >= limit:
                raise _too_large(limit) from None
            capacity = min(limit, capacity * 4)
            continue
        if size > limit:
            raise _too_large(limit)
        return bytes(memoryview(target)[:size])


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"a payload decompresses to more than {limit} bytes")
