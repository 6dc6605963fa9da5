"""Rows of Spark as columns of records: the columns of a write, and Arrow batches cut by target.

Owns the checks of columns and rows, with the stock Kafka sink's refusals. Pure: no broker. Rows of
one partition stay in their order; no row is touched alone in Python, except where the column
`partition` is null in some rows of a batch and not in others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    VarcharType,
)

from tidelog.pipeline.errors import OptionRefused, RowRefused
from tidelog.records.builder import Columns
from tidelog.records.record import Header

_TEXT = (StringType, CharType, VarcharType)
_BYTES = (*_TEXT, BinaryType)

OVERHEAD_BYTES = 100
"""What a record takes in a request at most, beyond its key, value and headers."""

NO_PARTITION = -1


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Which columns of the rows are written, by their positions."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    order_by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Rows of one topic, in order; ``partition`` None: their keys choose it."""

    topic: str
    partition: int | None
    records: Columns


def check_columns(
    schema: StructType, topic: str | None, order_by: tuple[str, ...] = ()
) -> SinkColumns:
    """The columns of a write, by name; others are not written. Raises OptionRefused, one line."""
    places = {field.name: index for index, field in enumerate(schema.fields)}

    def place(name: str, kinds: tuple[type[DataType], ...], wanted: str) -> int | None:
        if name not in places:
            return None
        kind = schema.fields[places[name]].dataType
        if not isinstance(kind, kinds):
            raise OptionRefused(
                f"column {name} is of type {kind.simpleString()}; it must be {wanted}"
            )
        return places[name]

    value = place("value", _BYTES, "string or binary")
    if value is None:
        raise OptionRefused("the rows have no column value: it is required")
    named = place("topic", _TEXT, "string")
    if topic is None and named is None:
        raise OptionRefused(
            "the rows have no column topic: name the topic with the option topic, or add the column"
        )
    headers = place("headers", (ArrayType,), _HEADERS)
    if headers is not None and not _are_headers(schema.fields[headers].dataType):
        kind = schema.fields[headers].dataType.simpleString()
        raise OptionRefused(f"column headers is of type {kind}; it must be {_HEADERS}")
    for name in order_by:
        if name not in places:
            raise OptionRefused(f"option orderBy names {name}, which is no column of the rows")
    return SinkColumns(
        value,
        place("key", _BYTES, "string or binary"),
        headers,
        None if topic is not None else named,
        place("partition", (IntegerType,), "int"),
        tuple(places[name] for name in order_by),
    )


_HEADERS = "array<struct<key:string,value:binary>>"


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


def cut(
    batch: pa.RecordBatch, columns: SinkColumns, topic: str | None, most_bytes: int
) -> Iterator[SinkRows]:
    """The rows of a batch by topic and partition; those of a partition in their order.

    Raises RowRefused, one line, for a row that cannot be written; ``most_bytes`` is the largest
    record.
    """
    if not batch.num_rows:
        return
    _check_sizes(batch, columns, most_bytes)
    names, codes = _topics(batch, columns, topic)
    partitions = _partitions(batch, columns)
    if len(names) == 1 and partitions is None:
        yield SinkRows(names[0], None, _records(batch, columns))
        return
    if partitions is None:
        partitions = np.full(batch.num_rows, NO_PARTITION, np.int64)
    for code, name in enumerate(names):
        rows = np.flatnonzero(codes == code)
        for part, chosen in _targets(rows, partitions[rows]):
            some = batch.take(pa.array(chosen))
            yield SinkRows(
                name, None if part == NO_PARTITION else int(part), _records(some, columns)
            )


def _targets(rows: Any, partitions: Any) -> Iterator[tuple[int, Any]]:
    """Rows of one topic by their partitions: grouped, or in runs where some rows have none.

    A row without a partition may go to one that another row names, and must not pass it.
    """
    parts = np.unique(partitions)
    if len(parts) == 1 or parts[0] != NO_PARTITION:
        for part in parts:
            yield part, rows[partitions == part]
        return
    edges = np.flatnonzero(np.diff(partitions)) + 1
    for run in np.split(np.arange(len(rows)), edges):
        yield partitions[run[0]], rows[run]


def _topics(
    batch: pa.RecordBatch, columns: SinkColumns, topic: str | None
) -> tuple[list[str], Any]:
    """The topics of a batch, and the index of each row's topic."""
    if topic is not None or columns.topic is None:
        assert topic is not None, "check_columns refuses rows without a topic"
        return [topic], np.zeros(batch.num_rows, np.int64)
    column = batch.column(columns.topic)
    if column.null_count:
        raise RowRefused("a row has no topic (null): fill the column, or use the option topic")
    encoded = pc.dictionary_encode(column)
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def _partitions(batch: pa.RecordBatch, columns: SinkColumns) -> Any:
    """The partitions that rows name, NO_PARTITION for none; None where no row names one."""
    if columns.partition is None:
        return None
    column = batch.column(columns.partition)
    if column.null_count == batch.num_rows:
        return None
    least = pc.min(column).as_py()
    if least < 0:
        raise RowRefused(f"a row names partition {least}: it must be 0 or larger, or null")
    return pc.fill_null(column, NO_PARTITION).to_numpy(zero_copy_only=False)


def _check_sizes(batch: pa.RecordBatch, columns: SinkColumns, most_bytes: int) -> None:
    """Refuse a record that is larger than a request may be, before any part of it is sent."""
    sizes = pc.fill_null(pc.binary_length(batch.column(columns.value)), 0)
    if columns.key is not None:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(batch.column(columns.key)), 0))
    largest = pc.max(sizes).as_py() + OVERHEAD_BYTES
    if largest > most_bytes:
        raise RowRefused(
            f"a row has {largest} bytes and kafka.max.request.size is {most_bytes}: send less, or"
            " raise it here and max.message.bytes of the topic"
        )


def _records(batch: pa.RecordBatch, columns: SinkColumns) -> Columns:
    keys = None
    if columns.key is not None:
        column = batch.column(columns.key)
        keys = None if column.null_count == len(column) else _bytes(column)
    headers = None
    if columns.headers is not None:
        headers = _headers(batch.column(columns.headers))
    return Columns(_bytes(batch.column(columns.value)), keys, headers)


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _headers(column: pa.Array) -> list[list[Header]] | None:
    """The headers of each row; None where no row has any."""
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    if first == last:
        return None
    structs = column.values.slice(first, last - first)
    names, contents = structs.flatten()
    if names.null_count:
        raise RowRefused("a header has no key (null): name it, or leave it out")
    pairs = list(zip(names.to_pylist(), contents.to_pylist(), strict=True))
    filled = column.is_valid().to_pylist()
    return [
        pairs[begin - first : end - first] if has_some else []
        for begin, end, has_some in zip(offsets, offsets[1:], filled, strict=False)
    ]
