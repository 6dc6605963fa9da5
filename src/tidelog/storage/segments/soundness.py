"""The check that bytes of a log are what was written, before a reader gets them (promise 26).

Owns the judgement of what was read. Pure. Not what follows from it: see `log.reading`. The CRC
covers a batch from its attributes on; the fields before it are compared with what the log knows:

| field | compared with |
|---|---|
| base offset | the end of the batch before it, the beginning of the batch after it |
| length, magic, CRC | the bytes |
| leader epoch | the log's leader epochs |
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import repeat

from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    Buffer,
    crc_is_right,
    read_header,
)
from tidelog.records.crc import crc32c
from tidelog.records.record import CorruptRecords
from tidelog.storage.epochs import LeaderEpochs

_BEGINNING = struct.Struct(">qiibIhi").unpack_from
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""

_LEAST_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD
_NO_EPOCH = -1
_FOR_EVER = 2**63

MOST_BATCHES = 4_096
"""Checked at a time: about 5 ms."""


class Unsound(CorruptRecords):
    """The bytes of a log are not what was written to it."""


def sound_part(
    data: Buffer, least_offset: int, limit_offset: int, end_offset: int, epochs: LeaderEpochs
) -> tuple[int, int]:
    """Return the size of the whole batches that end before ``limit_offset``, and where they end.

    ``least_offset``: the lowest base offset that the first batch may have; ``end_offset``: where
    the file's batches end. Every whole batch is checked, the one after the limit too. Unsound for
    the first bad one. One CRC and about 1 µs per batch, of ``MOST_BATCHES`` at most.
    """
    view = memoryview(data)
    total = len(view)
    begin = size = 0
    next_offset = least_offset
    epoch, epoch_end = _NO_EPOCH, -1
    for _ in repeat(None, MOST_BATCHES):
        if begin + HEADER_SIZE > total:
            break
        base, length, batch_epoch, magic, crc, _, delta = _BEGINNING(view, begin)
        following = base + delta + 1
        if (
            magic != 2
            or length < _LEAST_LENGTH
            or delta < 0
            or base < least_offset
            or following > end_offset
        ):
            raise Unsound(
                f"no batch from offset {least_offset} on at byte {begin} of what was read"
            )
        end = begin + LENGTH_OVERHEAD + length
        if end > total:
            break
        if crc32c(view[begin + ATTRIBUTES_POSITION : end]) != crc:
            raise Unsound(f"the batch at offset {base} has a wrong CRC")
        if base >= epoch_end:
            epoch, epoch_end = _span(epochs, base)
        if batch_epoch != epoch and epoch != _NO_EPOCH and batch_epoch != _NO_EPOCH:
            raise Unsound(
                f"the batch at offset {base} says leader epoch {batch_epoch}, not {epoch}"
            )
        least_offset = following
        if following > limit_offset:
            if size == begin:
                next_offset = base
            break
        begin = size = end
        next_offset = following
    return size, next_offset


def _span(epochs: LeaderEpochs, offset: int) -> tuple[int, int]:
    """Return the epoch of the record at an offset, and where the next one begins."""
    entries = epochs.entries
    if entries and entries[-1][1] <= offset:
        return entries[-1][0], _FOR_EVER
    place = bisect_right(entries, offset, key=lambda entry: entry[1])
    epoch = entries[place - 1][0] if place else _NO_EPOCH
    return epoch, entries[place][1] if place < len(entries) else _FOR_EVER


def check_batch(batch: Buffer) -> None:
    """Raise Unsound when the CRC of a whole batch is wrong."""
    header = read_header(batch)
    if len(batch) < header.size or not crc_is_right(batch, header.crc):
        raise Unsound(f"the batch at offset {header.base_offset} has a wrong CRC")
