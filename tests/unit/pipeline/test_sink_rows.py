"""Rows of Spark as records: the columns that the sink takes, its refusals, and how it cuts."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import types

from tests.support.drawn_seed import drawn_seed
from tidelog.pipeline.errors import OptionRefused, RowRefused
from tidelog.pipeline.sink.ordering import in_order
from tidelog.pipeline.sink.rows import SinkRows, check_columns, cut

MOST = 1 << 20
HEADERS = "headers array<struct<key:string,value:binary>>"


def array_of(key: str, kind: types.DataType) -> types.DataType:
    names = [types.StructField(key, types.StringType()), types.StructField("value", kind)]
    return types.ArrayType(types.StructType(names))


# Spark's own parser of such a text needs a JVM.
KINDS: dict[str, types.DataType] = {
    "string": types.StringType(),
    "varchar(3)": types.VarcharType(3),
    "binary": types.BinaryType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "map<string,binary>": types.MapType(types.StringType(), types.BinaryType()),
    "array<struct<key:string,value:binary>>": array_of("key", types.BinaryType()),
    "array<struct<k:string,value:binary>>": array_of("k", types.BinaryType()),
    "array<struct<key:string,value:string>>": array_of("key", types.StringType()),
}


def schema(ddl: str) -> types.StructType:
    fields = [field.split(" ") for field in ddl.split(", ")]
    return types.StructType([types.StructField(name, KINDS[kind]) for name, kind in fields])


def rows_of(ddl: str, columns: dict[str, pa.Array], topic: str | None = "t") -> list[SinkRows]:
    batch = pa.record_batch(columns)
    return list(cut(batch, check_columns(schema(ddl), topic), topic, MOST))


@pytest.mark.parametrize(
    ("ddl", "topic", "line"),
    [
        ("key string", "t", "the rows have no column value: it is required"),
        ("value string", None, "the rows have no column topic: name the topic"),
        ("value int", "t", "column value is of type int; it must be string or binary"),
        ("value string, key bigint", "t", "column key is of type bigint; it must be string or"),
        ("value string, topic binary", None, "column topic is of type binary; it must be string"),
        ("value string, topic int", "t", "column topic is of type int; it must be string"),
        ("value string, partition bigint", "t", "column partition is of type bigint; it must be"),
        ("value string, headers map<string,binary>", "t", "column headers is of type map<string"),
        ("value string, headers array<struct<k:string,value:binary>>", "t", "column headers is"),
        ("value string, headers array<struct<key:string,value:string>>", "t", "column headers is"),
        ("Value string", "t", "no column value"),
    ],
)
def test_columns_that_cannot_be_written(ddl: str, topic: str | None, line: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        check_columns(schema(ddl), topic)
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_a_column_to_sort_by_must_be_there() -> None:
    with pytest.raises(OptionRefused, match="option orderBy names offset, which is no column"):
        check_columns(schema("value string"), "t", ("offset",))


def test_strings_and_binary_nulls_and_other_columns() -> None:
    (rows,) = rows_of(
        f"more int, value binary, key string, {HEADERS}, topic string, v varchar(3)",
        {
            "more": pa.array([1, 2, 3], pa.int32()),
            "value": pa.array([b"a", None, b""], pa.binary()),
            "key": pa.array(["ä", None, "k"]),
            "headers": pa.array(
                [[("h", b"1"), ("h", None)], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "topic": pa.array(["never", None, "used"]),
            "v": pa.array(["", "", ""]),
        },
    )
    assert (rows.topic, rows.partition) == ("t", None)
    assert rows.records.values == [b"a", None, b""]
    assert rows.records.keys == ["ä".encode(), None, b"k"]
    assert rows.records.headers == [[("h", b"1"), ("h", None)], [], []]


def test_large_types_and_slices_of_a_batch() -> None:
    """Spark may give 64-bit offsets, and batches that begin in the midst of their buffers."""
    headers = pa.array(
        [[("a", b"1")], [("b", b"2"), ("c", b"3")], [("d", b"4")]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = pa.record_batch(
        {"value": pa.array(["x", "y", "z"], pa.large_string()), "headers": headers}
    ).slice(1)
    columns = check_columns(schema(f"value string, {HEADERS}"), "t")
    (rows,) = cut(batch, columns, "t", MOST)
    assert rows.records.values == [b"y", b"z"]
    assert rows.records.headers == [[("b", b"2"), ("c", b"3")], [("d", b"4")]]


def test_keys_and_headers_that_no_row_has_cost_nothing() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    (rows,) = rows_of(
        f"value binary, key binary, {HEADERS}",
        {
            "value": pa.array([b"a", b"b"]),
            "key": pa.nulls(2, pa.binary()),
            "headers": pa.array([[], None], kind),
        },
    )
    assert rows.records.keys is None and rows.records.headers is None


def test_topics_and_partitions_of_rows() -> None:
    made = rows_of(
        "value string, topic string, partition int",
        {
            "value": pa.array(list("abcdef")),
            "topic": pa.array(["x", "y", "x", "y", "x", "x"]),
            "partition": pa.array([1, 0, 0, 0, 1, 0], pa.int32()),
        },
        topic=None,
    )
    assert [(rows.topic, rows.partition, rows.records.values) for rows in made] == [
        ("x", 0, [b"c", b"f"]),
        ("x", 1, [b"a", b"e"]),
        ("y", 0, [b"b", b"d"]),
    ]


def test_rows_without_a_partition_pass_none_that_name_one() -> None:
    """P1: the key of a row may choose the partition that the next row names."""
    seed = drawn_seed()
    drawn_by = random.Random(seed)
    for _ in range(200):
        count = drawn_by.randrange(1, 12)
        partitions = [drawn_by.choice([None, None, 0, 1, 2]) for _ in range(count)]
        made = rows_of(
            "value string, partition int",
            {
                "value": pa.array([str(row) for row in range(count)]),
                "partition": pa.array(partitions, pa.int32()),
            },
        )
        order = [(int(value or b""), rows.partition) for rows in made for value in rows.records[0]]
        assert sorted(row for row, _ in order) == list(range(count)), f"seed {seed}"
        assert all(partitions[row] == part for row, part in order), f"seed {seed}"
        if None in partitions:
            assert [row for row, _ in order] == list(range(count)), f"seed {seed}"
        for wanted in range(3):
            of_it = [row for row, part in order if part == wanted]
            assert of_it == sorted(of_it), f"seed {seed}"


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"topic": pa.array(["t", None])}, "a row has no topic (null)"),
        ({"partition": pa.array([0, -1], pa.int32())}, "a row names partition -1"),
        (
            {
                "headers": pa.array(
                    [[(None, b"x")], []],
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                )
            },
            "a header has no key (null)",
        ),
        ({"key": pa.array([b"k" * 600_000, b""])}, "a row has 1100100 bytes and kafka.max.request"),
    ],
)
def test_rows_that_cannot_be_written(columns: dict[str, pa.Array], line: str) -> None:
    ddl = f"value binary, key binary, topic string, partition int, {HEADERS}"
    kinds = {
        "value": pa.binary(),
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    filled = {name: pa.nulls(2, kind) for name, kind in kinds.items()}
    filled |= {"value": pa.array([b"v" * 500_000, b""]), "topic": pa.array(["t", "t"])}
    with pytest.raises(RowRefused) as refused:
        rows_of(ddl, {**filled, **columns}, topic=None)
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_a_batch_without_rows() -> None:
    assert rows_of("value string", {"value": pa.array([], pa.string())}) == []


def test_the_rows_of_a_task_are_sorted_within_a_bound() -> None:
    seed = drawn_seed()
    drawn_by = random.Random(seed)
    numbers = [(drawn_by.choice([None, 0, 1]), drawn_by.randrange(50), n) for n in range(45_000)]
    kinds = {"epoch": pa.int32(), "offset": pa.int64(), "n": pa.int64()}
    table = pa.table(
        {
            name: pa.array(column, kind)
            for (name, kind), column in zip(kinds.items(), zip(*numbers, strict=True), strict=True)
        }
    )
    batches = table.to_batches(max_chunksize=7_000)
    made = [row for batch in in_order(batches, (0, 1), 1 << 30) for row in batch.to_pylist()]
    wanted = sorted(numbers, key=lambda row: (row[0] is None, row[0] or 0, row[1], row[2]))
    assert [tuple(row.values()) for row in made] == wanted, f"seed {seed}"
    assert list(in_order(batches, (), 0)) == batches
    assert list(in_order([], (0,), 0)) == []
    with pytest.raises(RowRefused, match="more than 100000 bytes of rows to sort"):
        list(in_order(batches, (0,), 100_000))
