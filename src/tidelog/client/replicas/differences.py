"""The first difference between replicas of a partition: chunks of logs in, a difference out. Pure.

Owns the comparison. Not reading the chunks: see ``comparing``. Two ways:

- ``first_difference``: byte by byte, as replication promises (each offset has the same bytes on
  every replica).
- ``first_different_record``: for compacted topics, because each replica is cleaned at its own time:
  a record that two replicas have must be equal, and any replica may have dropped it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.client.fetching.batches import whole_batches
from tidelog.records.batch import HEADER_SIZE, BatchHeader, crc_is_right, read_header, walk
from tidelog.records.reader import read_batch
from tidelog.records.record import CorruptRecords, Record


@dataclass(frozen=True, slots=True)
class Difference:
    """The first offset at which replicas differ; ``held`` describes what each broker has there."""

    offset: int
    held: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ComparedChunk:
    """The compared part of each replica: up to ``next_offset``, ``size`` bytes of each."""

    next_offset: int
    size: int
    difference: Difference | None = None


def first_difference(chunks: Mapping[int, memoryview], offset: int) -> ComparedChunk:
    """Compare the chunks of each broker from ``offset`` on, as far as all chunks reach.

    Chunks begin at the batch with ``offset``; the last batch may be incomplete. A batch with a
    wrong CRC is a difference even when all have it. Grows with the bytes, and with the batches of
    one chunk.
    """
    common = min(map(len, chunks.values()))
    first, *others = chunks.values()
    if any(other[:common] != first[:common] for other in others):
        return _part(chunks, offset, common)
    batches, next_offset, _ = whole_batches(first[:common], offset)
    for position, header in walk(batches):
        if not crc_is_right(batches[position : position + header.size], header.crc):
            held = dict.fromkeys(chunks, "a batch with a wrong CRC")
            return ComparedChunk(
                offset, position, Difference(max(offset, header.base_offset), held)
            )
    return ComparedChunk(next_offset, len(batches))


def _part(chunks: Mapping[int, memoryview], offset: int, common: int) -> ComparedChunk:
    """Find the first batch that differs, and describe what each broker has there."""
    same = _common_prefix(chunks, common)
    first = next(iter(chunks.values()))
    begin = 0
    for position, header in walk(first):
        if position + header.size > same:
            break
        begin = position + header.size
    rests = {broker: chunk[begin:] for broker, chunk in chunks.items()}
    records = {broker: _records_of(rest) for broker, rest in rests.items()}
    held = {broker: _words(rest) for broker, rest in rests.items()}
    bases = [read_header(rest).base_offset for rest in rests.values() if len(rest) >= HEADER_SIZE]
    start = max(offset, min(bases, default=offset))
    inside = _first_unequal({broker: read for broker, read in records.items() if read})
    return ComparedChunk(offset, begin, Difference(start if inside is None else inside, held))


def _common_prefix(chunks: Mapping[int, memoryview], common: int) -> int:
    """Return how many leading bytes all chunks share, by halving."""
    first, *others = chunks.values()
    low, high = 0, common
    while low < high:
        middle = (low + high + 1) // 2
        if all(other[low:middle] == first[low:middle] for other in others):
            low = middle
        else:
            high = middle - 1
    return low


def _words(rest: memoryview) -> str:
    if len(rest) < HEADER_SIZE:
        return "no whole batch"
    header = read_header(rest)
    if header.magic != 2 or len(rest) < header.size:
        return "bytes that are not a batch"
    right = crc_is_right(rest[: header.size], header.crc)
    return f"{_said(header)}, CRC {'right' if right else 'wrong'} ({header.crc:08x})"


def _said(header: BatchHeader) -> str:
    return (
        f"offsets {header.base_offset}..{header.last_offset} of leader epoch "
        f"{header.leader_epoch}, {header.record_count} records, {header.size} bytes"
    )


def _records_of(rest: memoryview) -> dict[int, Record]:
    """Return the records of the first batch by offset; nothing when they cannot be read."""
    for position, header in walk(rest):
        try:
            records = read_batch(rest[position : position + header.size])
        except CorruptRecords:
            break
        return {record.offset: record for record in records}
    return {}


def _first_unequal(records: Mapping[int, Mapping[int, Record]]) -> int | None:
    """Return the first offset at which the records are not all equal; None without one."""
    offsets = sorted({offset for held in records.values() for offset in held})
    for offset in offsets:
        at_offset = [held.get(offset) for held in records.values()]
        if any(record != at_offset[0] for record in at_offset):
            return offset
    return None


def first_different_record(
    chunks: Mapping[int, memoryview], offset: int, ends: int
) -> ComparedChunk:
    """Compare record by record; a chunk without a whole batch has no records up to ``ends``.

    Grows with the records.
    """
    records: dict[int, dict[int, Record]] = {}
    nexts = []
    size = 0
    for broker, chunk in chunks.items():
        batches, next_offset, _ = whole_batches(chunk, offset)
        nexts.append(next_offset if len(batches) else max(ends, offset))
        held = records[broker] = {}
        size = max(size, len(batches))
        for position, header in walk(batches):
            try:
                read = read_batch(batches[position : position + header.size])
            except CorruptRecords as error:
                difference = Difference(header.base_offset, {broker: str(error)})
                return ComparedChunk(offset, 0, difference)
            held.update((record.offset, record) for record in read)
    next_offset = min(nexts)
    for place in sorted({offset for held in records.values() for offset in held}):
        if not offset <= place < next_offset:
            continue
        holders = {broker: held[place] for broker, held in records.items() if place in held}
        first = next(iter(holders.values()))
        if any(record != first for record in holders.values()):
            words = {
                broker: f"a record of {len(record.key or b'')} + {len(record.value or b'')} bytes, "
                f"timestamp {record.timestamp}"
                for broker, record in holders.items()
            }
            return ComparedChunk(offset, 0, Difference(place, words))
    return ComparedChunk(next_offset, size)
