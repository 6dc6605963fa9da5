"""The records of some batches as columns: where each begins and ends, its offset, time and key.

Owns which batches are what their headers say. Most are read all at once with numpy; when one of
them is not plain, each goes alone, record by record, which is the rule for all. Not what is kept:
see `rewriting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import lt
from typing import NamedTuple

import numpy as np

from tidelog.records.batch import BatchHeader
from tidelog.records.fields import Booleans, read_fields
from tidelog.records.reader import payload_of
from tidelog.records.record import CorruptRecords, RecordSpan, spans
from tidelog.records.starts import Span, all_starts
from tidelog.records.varints import Positions
from tidelog.storage.compaction.digests import padded
from tidelog.storage.compaction.transactions import AbortedBatches

MOST_RECORDS = 1_000_000
"""Most records of a batch that is rewritten: some 200 MB. Clients may send 131,072."""

PIECE_RECORDS = 65_536
PIECE_BYTES = 4 * 1024 * 1024
"""Records and plain bytes that are read at once, or those of one batch if it has more: enough that
a call of numpy costs little beside its work, which stays in the processor's caches."""

FURTHEST_MS = 2**62
"""The greatest time of a record, or delete horizon: beyond it there is no room for the delta
between the two."""


class Item(NamedTuple):
    """A batch, where its file has it, and its records as plain bytes: None where these are not to
    be had, or are not those of clients."""

    position: int
    header: BatchHeader
    batch: memoryview
    payload: bytes | memoryview | None
    is_aborted: bool = False
    """Whether its records are of a transaction that was aborted: then they are not read."""


@dataclass(frozen=True, slots=True)
class OpenedBatches:
    """The records of all batches with a payload, in order: a row each. There is one at least."""

    data: bytes
    firsts: Positions
    """The first row of each batch."""
    starts: Positions
    ends: Positions
    offsets: Positions
    times: Positions
    """Timestamp deltas."""
    key_starts: Positions
    key_sizes: Positions
    has_key: Booleans
    has_value: Booleans


def pieces(
    batches: Iterable[tuple[int, BatchHeader, memoryview]],
    aborted: AbortedBatches | None = None,
) -> Iterator[list[Item]]:
    """Yield the batches, as many at once as are to be opened together."""
    items: list[Item] = []
    records = size = 0
    for position, header, batch in batches:
        is_aborted = aborted is not None and aborted.has(header)
        payload = None if is_aborted else _payload(header, batch)
        items.append(Item(position, header, batch, payload, is_aborted))
        records += header.record_count if payload is not None else 1
        size += len(batch if payload is None else payload)
        if records >= PIECE_RECORDS or size >= PIECE_BYTES:
            yield items
            items, records, size = [], 0, 0
    if items:
        yield items


def _payload(header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
    # A batch without records was emptied by a former run, or is its producer's invention.
    if header.control or not 0 < header.record_count <= MOST_RECORDS:
        return None
    try:
        return payload_of(header, batch)
    except CorruptRecords:
        return None


def opened(items: Sequence[Item]) -> Iterator[tuple[Sequence[Item], OpenedBatches | None]]:
    """Yield all batches with their records; None where no batch has readable ones.

    A batch whose records contradict its header is as its producer sent it (its CRC is right), and
    is to stay so: it is yielded without records. Above all, offsets outside the batch are not used:
    they would remove newer records of their keys.
    """
    some = [item for item in items if item.payload is not None]
    if not some:
        yield items, None
        return
    try:
        yield items, _at_once(some)
    except CorruptRecords:
        for item in items:
            yield [item], None if item.payload is None else _alone(item)


def _at_once(items: Sequence[Item]) -> OpenedBatches:
    """Read plain batches; CorruptRecords when one of them is not plain, or contradicts itself."""
    data = padded([item.payload for item in items if item.payload is not None])
    view = np.frombuffer(data, dtype=np.uint8)
    places: list[Span] = []
    position = 0
    for item in items:
        size = len(item.payload or b"")
        places.append(Span(position, position + size, item.header.record_count))
        position += size
    starts = all_starts(data, view, places)
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[-1] = position
    fields = read_fields(view, starts, ends)
    counts = np.array([item.header.record_count for item in items], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    deltas, times = fields.offset_deltas, fields.timestamp_deltas
    rises = deltas[1:] > deltas[:-1]
    rises[firsts[1:] - 1] = True
    first_times = np.array([item.header.base_timestamp for item in items], dtype=np.int64)
    last_deltas = np.array([item.header.last_offset_delta for item in items], dtype=np.int64)
    is_near = _are_near(first_times) and _are_near(times)
    is_within = (deltas[firsts] >= 0).all() and (deltas[firsts + counts - 1] <= last_deltas).all()
    if not (rises.all() and is_within and is_near):
        raise CorruptRecords("a batch is not plain")
    bases = np.array([item.header.base_offset for item in items], dtype=np.int64)
    keys, values = fields.keys, fields.values
    everywhere = np.ones(len(starts), dtype=np.bool_)
    return OpenedBatches(
        data,
        firsts,
        starts,
        ends,
        np.repeat(bases, counts) + deltas,
        times,
        keys.begin,
        keys.end - keys.begin,
        everywhere if keys.valid is None else keys.valid,
        everywhere if values.valid is None else values.valid,
    )


def _are_near(times: Positions) -> bool:
    """Whether all are far from where a sum of two would be too large for 64 bits."""
    # Not by their absolute value: that of the least number of 64 bits is itself.
    return bool((times > -FURTHEST_MS // 2).all() and (times < FURTHEST_MS // 2).all())


def _alone(item: Item) -> OpenedBatches | None:
    """Read one batch record by record; None when its records contradict its header."""
    plain = readable(item)
    if plain is None:
        return None
    payload, records = plain
    keys = [span.key or b"" for span in records]
    data = padded([payload, *keys])
    sizes = np.array([len(key) for key in keys], dtype=np.int64)
    return OpenedBatches(
        data,
        np.zeros(1, dtype=np.int64),
        np.array([span.start for span in records], dtype=np.int64),
        np.array([span.end for span in records], dtype=np.int64),
        np.array([item.header.base_offset + span.offset_delta for span in records], dtype=np.int64),
        np.array([span.timestamp_delta for span in records], dtype=np.int64),
        len(payload) + np.cumsum(sizes) - sizes,
        sizes,
        np.array([span.key is not None for span in records], dtype=np.bool_),
        np.array([span.has_value for span in records], dtype=np.bool_),
    )


def readable(item: Item) -> tuple[bytes, list[RecordSpan]] | None:
    """Return a batch's payload and its records; None when they contradict the header."""
    header = item.header
    if item.payload is None:
        return None
    payload = bytes(item.payload)
    try:
        records = spans(payload, header.record_count)
    except CorruptRecords:
        return None
    deltas = [span.offset_delta for span in records]
    times = [span.timestamp_delta for span in records]
    if not (
        deltas[0] >= 0
        and deltas[-1] <= header.last_offset_delta
        and all(map(lt, deltas, deltas[1:]))
        and header.base_timestamp + min(times) >= -FURTHEST_MS
        and header.base_timestamp + max(times) <= FURTHEST_MS
        and -(2**63) <= min(times) <= max(times) < 2**63
    ):
        return None
    return payload, records
