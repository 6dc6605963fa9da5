"""The frames of compressed payloads: what of LZ4, gzip and Zstandard every reader takes.

Owns two checks of a producer's payload that decompress nothing: of its first bytes, for each batch,
and of the whole frame, for one that is inspected. Readers of stored batches take more: see
`compression`. Java's reader takes no LZ4 blocks that depend on each other, no wrong check of a
frame's header, and no window of Zstandard above 128 MiB; some readers end after the first frame.
"""

from __future__ import annotations

from tidelog.records.compression import MAX_DECOMPRESSED_BYTES, Codec

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_VERSION, _LZ4_INDEPENDENT = 0x40, 0x20
_LZ4_BLOCK_SUMS, _LZ4_SIZE, _LZ4_SUM, _LZ4_RESERVED = 0x10, 0x08, 0x04, 0x03
_LZ4_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_PLAIN = 0x8000_0000

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_WINDOW_BYTES = 128 * 1024 * 1024
_ZSTD_ID_BYTES = (0, 1, 2, 4)
_ZSTD_SIZE_BYTES = (0, 2, 4, 8)

_GZIP_MAGIC = b"\x1f\x8b\x08"

MOST_BLOCKS = 2 * MAX_DECOMPRESSED_BYTES // (64 * 1024)
"""Clients write one for each 64 KiB, or larger ones."""

_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_MASK = 0xFFFF_FFFF


def start_fault(codec: int, payload: memoryview) -> str | None:
    """Return what is wrong with the first bytes of a payload, in constant time; None if nothing."""
    if codec == Codec.LZ4:
        return _lz4_start_fault(payload)
    if codec == Codec.ZSTD:
        return _zstd_start_fault(payload)
    if codec == Codec.GZIP and payload[:3] != _GZIP_MAGIC:
        return "its payload is not of gzip, as its attributes say"
    return None


def frame_fault(codec: int, payload: memoryview) -> str | None:
    """Return what is wrong with the whole frame of a payload whose first bytes are right.

    Grows with the number of its blocks, which is bounded. A fault of the blocks' content is found
    by decompressing, and of gzip and snappy also what follows.
    """
    if codec == Codec.LZ4:
        return _lz4_frame_fault(payload)
    if codec == Codec.ZSTD:
        return _zstd_frame_fault(payload)
    return None


def _lz4_start_fault(payload: memoryview) -> str | None:
    if len(payload) < 7 or payload[:4] != _LZ4_MAGIC:
        return "its payload is not of LZ4 (frame format), as its attributes say"
    flags, block = payload[4], payload[5]
    if flags & 0xC0 != _LZ4_VERSION or flags & _LZ4_RESERVED:
        return f"its LZ4 frame has the flags {flags:#x}, which Kafka's readers do not take"
    if not flags & _LZ4_INDEPENDENT:
        return "its LZ4 blocks depend on each other: Java reads independent blocks only"
    if block & 0x8F or block >> 4 not in _LZ4_BLOCK_BYTES:
        return f"its LZ4 frame has the block descriptor {block:#x}, which no reader takes"
    end = _lz4_blocks_at(flags) - 1
    descriptor = bytes(payload[4:end])
    check = _USUAL_CHECKS.get(descriptor)
    if len(payload) <= end or payload[end] != (check or _header_check(descriptor)):
        return "the check of its LZ4 frame's header is wrong"
    return None


def _lz4_blocks_at(flags: int) -> int:
    return 15 if flags & _LZ4_SIZE else 7


def _lz4_frame_fault(payload: memoryview) -> str | None:
    flags, most = payload[4], _LZ4_BLOCK_BYTES[payload[5] >> 4]
    at, end = _lz4_blocks_at(flags), len(payload)
    after = 4 if flags & _LZ4_BLOCK_SUMS else 0
    for _ in range(MOST_BLOCKS):
        size = int.from_bytes(payload[at : at + 4], "little") & ~_LZ4_PLAIN
        at += 4
        if not size:
            at += 4 if flags & _LZ4_SUM else 0
            return None if at == end else "its LZ4 frame is cut short, or bytes follow it"
        if size > most:
            return f"its LZ4 frame has a block of {size} bytes, where {most} are the most"
        at += size + after
        if at > end:
            return "its LZ4 frame is cut short"
    return f"its LZ4 frame has more than {MOST_BLOCKS} blocks"


def _zstd_start_fault(payload: memoryview) -> str | None:
    if len(payload) < 6 or payload[:4] != _ZSTD_MAGIC:
        return "its payload is not of Zstandard, as its attributes say"
    window = _zstd_window(payload)
    if window > ZSTD_WINDOW_BYTES:
        return f"its Zstandard window of {window} bytes is above {ZSTD_WINDOW_BYTES}, Java's most"
    return None


def _zstd_window(payload: memoryview) -> int:
    descriptor = payload[4]
    if descriptor & 0x20:
        at = 5 + _ZSTD_ID_BYTES[descriptor & 3]
        length = _ZSTD_SIZE_BYTES[descriptor >> 6] or 1
        size = int.from_bytes(payload[at : at + length], "little")
        return size + 256 if length == 2 else size
    base = 1 << (10 + (payload[5] >> 3))
    return base + (base >> 3) * (payload[5] & 7)


def _zstd_frame_fault(payload: memoryview) -> str | None:
    descriptor, end = payload[4], len(payload)
    single = descriptor & 0x20
    sizes = _ZSTD_SIZE_BYTES[descriptor >> 6] or (1 if single else 0)
    at = 5 + (0 if single else 1) + _ZSTD_ID_BYTES[descriptor & 3] + sizes
    for _ in range(MOST_BLOCKS):
        head = int.from_bytes(payload[at : at + 3], "little")
        at += 3 + (1 if head >> 1 & 3 == 1 else head >> 3)
        if at > end:
            return "its Zstandard frame is cut short"
        if head & 1:
            at += 4 if descriptor & 4 else 0
            return None if at == end else "its Zstandard frame is cut short, or bytes follow it"
    return f"its Zstandard frame has more than {MOST_BLOCKS} blocks"


def _header_check(descriptor: bytes) -> int:
    """Return the second byte of the xxHash32 of less than 16 bytes."""
    first, second, third, fourth, fifth = _PRIMES
    found, at, size = fifth + len(descriptor), 0, len(descriptor)
    while at + 4 <= size:
        found = found + int.from_bytes(descriptor[at : at + 4], "little") * third & _MASK
        found = (found << 17 | found >> 15) * fourth & _MASK
        at += 4
    for byte in descriptor[at:]:
        found = found + byte * fifth & _MASK
        found = (found << 11 | found >> 21) * first & _MASK
    found = (found ^ found >> 15) * second & _MASK
    found = (found ^ found >> 13) * third & _MASK
    return (found ^ found >> 16) >> 8 & 0xFF


_USUAL_CHECKS = {
    bytes((flags, block << 4)): _header_check(bytes((flags, block << 4)))
    for flags in (0x60, 0x64, 0x70, 0x74)
    for block in _LZ4_BLOCK_BYTES
}
