"""The check of a segment after a crash: one loop finds all that a start needs from its batches.

Owns that loop: about 1 µs for each batch beside its CRC, and one more for a batch of an idempotent
producer; a gigabyte of small batches has millions. A batch is sound if ``scan`` and ``indexable``
take it for sound. Not what follows from the end of the sound batches: see `recovery`.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    unpack_header,
)
from tidelog.records.control_records import FenceRecord, changes_in
from tidelog.records.crc import crc32c
from tidelog.runtime.disk import Disk, File
from tidelog.storage.loaded import Loading
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.transaction_events import TransactionEvents
from tidelog.storage.segments.index import OffsetIndex, TimeIndex
from tidelog.storage.segments.scan import CHUNK_BYTES, MAX_DISTANCE

Result = TypeVar("Result")

_as_header = tuple.__new__

_LEAST_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD


def noting_events(high_watermark: int = 0) -> ProducerState:
    """Return a state that another one is to follow; see ``TransactionEvents``."""
    state = ProducerState()
    state.events = TransactionEvents(high_watermark)
    return state


@dataclass(slots=True)
class CheckedBatches:
    """The leader epochs, producers and fences of the batches that a start has checked."""

    segment: int
    """The base offset of the first segment that was checked, and where in it that began."""
    position: int
    now_ms: int
    """When the batches count as appended: their own timestamps may be years old."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, end of the batch before its first one), rising."""
    producers: ProducerState = field(default_factory=noting_events)
    fences: list[tuple[int, FenceRecord]] = field(default_factory=list)
    """Fences and seals with their offsets, rising."""

    def limit(self, base_offset: int, size: int) -> int:
        """Return the position up to which the batches of a segment were not checked."""
        if base_offset == self.segment:
            return self.position
        return size if base_offset < self.segment else 0


@dataclass(slots=True)
class Check:
    """The part of a segment to check, and after ``check_batches`` the findings: a value that goes
    to a helper process and comes back."""

    path: str
    end: int
    base_offset: int
    interval: int
    checked: CheckedBatches
    position: int
    """Where the check begins; afterwards where the sound batches end. Likewise the next fields."""
    next_offset: int
    newest: tuple[int, int]
    bytes_since_entry: int = 0
    falling_epoch: tuple[int, int] | None = None
    """(leader epoch, offset) of a batch after one of a higher epoch: no CRC covers either."""
    entries: tuple[array[int], array[int]] = field(default_factory=lambda: (array("i"), array("i")))
    """New columns of the offset index."""
    times: tuple[array[int], array[int]] = field(default_factory=lambda: (array("q"), array("i")))


Checks = Generator[Check, Check, Result]
"""Work that yields checks, and continues with their findings."""


def check_file(disk: Disk, check: Check, loading: Loading | None = None) -> Check:
    """Do as ``check_batches`` with the file of a segment, which is opened for it, here or in a
    helper process. OSError, LoadAbandoned."""
    file = disk.open(check.path, read_only=True)
    try:
        check_batches(file, check, loading or Loading())
    finally:
        file.close()
    return check


def check_batches(file: File, check: Check, loading: Loading) -> None:
    """Check the batches from ``check.position`` up to ``end``, or the first that is not sound.

    Adds an index entry after each ``interval`` bytes, and adds to ``check.checked`` the producers
    and each leader epoch that is higher than those before. OSError of its reads, LoadAbandoned.
    """
    position, next_offset, since = check.position, check.next_offset, check.bytes_since_entry
    newest, newest_offset = check.newest
    end, interval, checked = check.end, check.interval, check.checked
    index, time_index = OffsetIndex(check.base_offset), TimeIndex(check.base_offset)
    highest = check.base_offset + MAX_DISTANCE
    note = checked.producers.note
    latest = checked.epochs[-1][0] if checked.epochs else -2
    start, chunk = position, memoryview(b"")
    while position + HEADER_SIZE <= end:
        begin = position - start
        if begin + HEADER_SIZE > len(chunk):
            start, begin = position, 0
            chunk = _read(file, position, HEADER_SIZE, end, loading)
            if len(chunk) < HEADER_SIZE:
                break
        fields = unpack_header(chunk, begin)
        base, length, epoch, magic, crc, attributes, delta, _, time, producer, _, _, count = fields
        size = length + LENGTH_OVERHEAD
        last = base + delta
        if (
            magic != 2
            or length < _LEAST_LENGTH
            or base < next_offset
            or delta < 0
            or not 0 <= count <= delta + 1
            or last > highest
            or position + size > end
        ):
            break
        if begin + size > len(chunk):
            start, begin = position, 0
            chunk = _read(file, position, size, end, loading)
            if len(chunk) < size:
                break
        if crc32c(chunk[begin + ATTRIBUTES_POSITION : begin + size]) != crc:
            break
        if epoch != latest:
            if 0 <= epoch < latest:
                check.falling_epoch = epoch, base
                break
            if epoch > latest:
                # Where compaction left a gap, the epoch may have begun anywhere in it.
                checked.epochs.append((epoch, next_offset))
                latest = epoch
        if producer >= 0:
            note(fields, base, checked.now_ms, chunk[begin : begin + size])
        if attributes & CONTROL_BIT:
            header = _as_header(BatchHeader, fields)
            checked.fences += changes_in(header, chunk[begin : begin + size])
        if time > newest and count:
            newest, newest_offset = time, last
        if since <= interval:
            since += size
        else:
            index.add(last, position)
            time_index.add(newest, newest_offset)
            since = size
        position += size
        next_offset = last + 1
    check.position, check.next_offset, check.bytes_since_entry = position, next_offset, since
    check.newest = max(newest, NO_TIMESTAMP), newest_offset
    check.entries, check.times = (index.first, index.second), (time_index.first, time_index.second)


def _read(file: File, position: int, least: int, end: int, loading: Loading) -> memoryview:
    chunk = file.read_at(position, min(max(CHUNK_BYTES, least), end - position))
    loading.note(len(chunk))
    return memoryview(chunk)
