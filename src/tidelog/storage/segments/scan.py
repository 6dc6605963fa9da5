"""Walks over the batches of a log file, with or without a check of their CRCs.

Owns reading a file batch by batch. Not the decision to cut: see `log.recovery`. Cost grows with the
number of batches, and with the bytes when CRCs are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.records.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC_POSITION,
    BatchHeader,
    crc_is_right,
    read_header,
    walk,
)
from tidelog.records.record import CorruptRecords
from tidelog.runtime.disk import File

CHUNK_BYTES = 1024 * 1024
HEADERS_BYTES = 16 * 1024
MAX_DISTANCE = 2**31 - 1
"""The greatest distance of an offset from the base offset of its segment."""

_MAGIC = b"\x02"


def scan(
    file: File, position: int, end: int, *, check: bool, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch up to ``end``; stop at the first that is not sound.

    Sound: complete, magic 2, rising offsets, and with ``check`` the right CRC. When the last batch
    of a walk ends before ``end``, the walk stopped there.
    """
    chunk = b""
    start = position
    next_offset = -1
    while position + HEADER_SIZE <= end:
        if position + HEADER_SIZE > start + len(chunk):
            start, chunk = position, file.read_at(position, min(chunk_bytes, end - position))
            if len(chunk) < HEADER_SIZE:
                return
        header = read_header(chunk, position - start)
        size = header.length + LENGTH_OVERHEAD
        if not _plausible(header, next_offset) or position + size > end:
            return
        if check:
            if position + size > start + len(chunk):
                wanted = min(max(chunk_bytes, size), end - position)
                start, chunk = position, file.read_at(position, wanted)
                if len(chunk) < size:
                    return
            begin = position - start
            if not crc_is_right(memoryview(chunk)[begin : begin + size], header.crc):
                return
        yield position, header
        position += size
        next_offset = header.next_offset


def indexable(
    batches: Iterator[tuple[int, BatchHeader]], base_offset: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches that ``scan`` finds in a segment; stop at offsets that cannot be in it.

    No CRC covers a base offset, and the indexes have 32 bits for its distance.
    """
    for position, header in batches:
        if (
            not base_offset
            <= header.base_offset
            <= header.last_offset
            <= base_offset + MAX_DISTANCE
        ):
            return
        yield position, header


def sound_batches(file: File, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield (header, bytes) of every batch up to ``end``; CorruptRecords at the first bad one."""
    position = 0
    while position < end:
        wanted = min(4 * CHUNK_BYTES, end - position)
        chunk = memoryview(file.read_at(position, wanted))
        if len(chunk) >= HEADER_SIZE:
            size = read_header(chunk).size
            if len(chunk) < size <= end - position:
                chunk = memoryview(file.read_at(position, size))
        done = 0
        for begin, header in walk(chunk):
            batch = chunk[begin : begin + header.size]
            if not crc_is_right(batch, header.crc):
                break
            yield header, batch
            done = begin + header.size
        if not done:
            raise CorruptRecords(f"{file.path} has a damaged batch at position {position}")
        position += done


def sound_batch_after(file: File, position: int, end: int, next_offset: int) -> int | None:
    """Return the position of a sound batch after damage at ``position``, None if there is none.

    Tries every byte for a header that could follow ``next_offset`` and has the right CRC.
    Grows with the bytes to the end of the file.
    """
    place = position + 1
    while place + HEADER_SIZE <= end:
        chunk = file.read_at(place, min(CHUNK_BYTES, end - place))
        magic = chunk.find(_MAGIC, MAGIC_POSITION)
        while magic >= 0:
            start = magic - MAGIC_POSITION
            if start + HEADER_SIZE > len(chunk):
                break
            if _sound_at(file, place + start, end, read_header(chunk, start), next_offset):
                return place + start
            magic = chunk.find(_MAGIC, magic + 1)
        if place + len(chunk) >= end or len(chunk) < HEADER_SIZE:
            return None
        place += len(chunk) - HEADER_SIZE + 1
    return None


def _sound_at(file: File, position: int, end: int, header: BatchHeader, next_offset: int) -> bool:
    size = header.length + LENGTH_OVERHEAD
    if not _plausible(header, next_offset) or position + size > end:
        return False
    batch = file.read_at(position, size)
    return len(batch) == size and crc_is_right(batch, header.crc)


def _plausible(header: BatchHeader, next_offset: int) -> bool:
    return (
        header.magic == 2
        and header.length >= HEADER_SIZE - LENGTH_OVERHEAD
        and header.base_offset >= next_offset
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
        and 0 <= header.record_count <= header.last_offset_delta + 1
    )
