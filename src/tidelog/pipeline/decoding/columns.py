"""The step from positions of records to Arrow columns, all records of a chunk at once.

Owns the fields of records format v2 (KIP-98); does not split batches. No Python runs per record:
numpy reads the varints, Arrow copies keys, values and headers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.pipeline.decoding.varints import Bytes, Positions, read_varints
from tidelog.pipeline.schema import COLUMNS
from tidelog.records.record import CorruptRecords

Booleans = npt.NDArray[np.bool_]

_SMALLEST_HEADER = 2


@dataclass(frozen=True, slots=True)
class Segments:
    """Where one field of each record lies; null where `valid` is false (begin = end there)."""

    begin: Positions
    end: Positions
    valid: Booleans | None

    def cut(self, low: int, high: int) -> Segments:
        valid = None if self.valid is None else self.valid[low:high]
        return Segments(self.begin[low:high], self.end[low:high], valid)


@dataclass(frozen=True, slots=True)
class Fields:
    """What the fixed part of each record says. Offsets and timestamps are still deltas."""

    timestamp_deltas: Positions
    offset_deltas: Positions
    keys: Segments
    values: Segments
    header_counts: Positions
    header_begin: Positions
    ends: Positions


def read_fields(view: Bytes, starts: Positions, ends: Positions) -> Fields:
    """The fields of the records at `starts`. Raises CorruptRecords."""
    length, pos = read_varints(view, starts)
    if not np.array_equal(pos + length, ends):
        raise CorruptRecords("the length of a record is negative or too large")
    timestamps, pos = read_varints(view, pos + 1)  # one byte of attributes, unused
    offsets, pos = read_varints(view, pos)
    keys, pos = _segments(view, pos, ends)
    values, pos = _segments(view, pos, ends)
    headers, pos = read_varints(view, pos)
    if (pos > ends).any() or (headers < 0).any() or (headers * _SMALLEST_HEADER > ends - pos).any():
        raise CorruptRecords("a record is longer than its length")
    return Fields(timestamps, offsets, keys, values, headers, pos, ends)


def _segments(view: Bytes, begins: Positions, ends: Positions) -> tuple[Segments, Positions]:
    length, begin = read_varints(view, begins)
    shortest = int(length.min())
    valid = None
    if shortest < 0:
        if shortest < -1:
            raise CorruptRecords("a key, value or header of a record has a negative length")
        valid = length >= 0
        length = np.maximum(length, 0)
    end = begin + length
    if (end > ends).any():
        raise CorruptRecords("a key, value or header reaches beyond its record")
    return Segments(begin, end, valid), end


def binary_column(data: pa.Buffer, fields: Segments, kind: pa.DataType) -> pa.Array:
    """The fields as one Arrow column.

    The whole chunk is read as an array in which fields and the bytes between them take turns;
    Arrow's `take` then copies every other element.
    """
    count = len(fields.begin)
    if fields.valid is not None and not fields.valid.any():
        return pa.nulls(count, kind)
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = fields.begin
    bounds[1::2] = fields.end
    every_byte = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), data]
    )
    indices = np.arange(0, 2 * count - 1, 2, dtype=np.int32)
    mask = None if fields.valid is None else ~fields.valid
    column = every_byte.take(pa.array(indices, mask=mask))
    return column if kind == pa.binary() else _as_text(column)


def _as_text(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        # Kafka's own readers replace what is not UTF-8; so do we, one by one: it is rare.
        texts = (
            key if key is None else key.decode("utf-8", "replace") for key in column.to_pylist()
        )
        return pa.array(list(texts), pa.string())


def headers_column(view: Bytes, data: pa.Buffer, fields: Fields) -> pa.Array:
    """The headers of each record as list<struct<key, value>>; null where there are none.

    Null, not an empty list, is what the stock Kafka source gives. Goes round once per header of the
    record that has the most, each time over all records that have so many.
    """
    count = len(fields.header_counts)
    bounds = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(fields.header_counts, out=bounds[1:])
    none = fields.header_counts == 0
    kind = COLUMNS["headers"][1]
    if none.all():
        return pa.nulls(count, kind)
    total = int(bounds[-1])
    key_begin, key_end, value_begin, value_end = (np.empty(total, np.int64) for _ in range(4))
    valid = np.empty(total, np.bool_)
    places = fields.header_begin.copy()
    for position in range(int(fields.header_counts.max())):
        rows = np.flatnonzero(fields.header_counts > position)
        slots = bounds[rows] + position
        keys, after = _segments(view, places[rows], fields.ends[rows])
        if keys.valid is not None:
            raise CorruptRecords("a header has no key")
        values, after = _segments(view, after, fields.ends[rows])
        places[rows] = after
        key_begin[slots], key_end[slots] = keys.begin, keys.end
        value_begin[slots], value_end[slots] = values.begin, values.end
        valid[slots] = True if values.valid is None else values.valid
    if not np.array_equal(places, fields.ends):
        raise CorruptRecords("a record is longer than its headers")
    pairs = pa.StructArray.from_arrays(
        [
            binary_column(data, Segments(key_begin, key_end, None), pa.string()),
            binary_column(data, Segments(value_begin, value_end, valid), pa.binary()),
        ],
        fields=list(kind.value_type),
    )
    nulls = _bitmap(~none) if none.any() else None
    return pa.Array.from_buffers(kind, count, [nulls, pa.py_buffer(bounds)], children=[pairs])


def _bitmap(bits: Booleans) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))
