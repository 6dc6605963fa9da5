"""The step from positions of records to Arrow columns, all records of a chunk at once.

Owns the fields of records format v2 (KIP-98); does not split batches. No Python runs per record:
numpy reads the varints, Arrow copies keys, values and headers.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidelog.pipeline.schema import COLUMNS
from tidelog.records.fields import Booleans, Fields, Segments, read_segments
from tidelog.records.record import CorruptRecords
from tidelog.records.varints import Bytes


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
        keys, after = read_segments(view, places[rows], fields.ends[rows])
        if keys.valid is not None:
            raise CorruptRecords("a header has no key")
        values, after = read_segments(view, after, fields.ends[rows])
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
