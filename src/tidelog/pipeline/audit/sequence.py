"""The order of a field: whether it ever decreases for a key, in the order of the log.

Owns the one question of an audit that needs all records of a key together: Spark sorts them, so it
reads the whole lake each time it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sql

from tidelog.partitioning.audit_rules import EXAMPLES, Remembered, key_text
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.reading import rows_of

# The log's order of a key: (resize epoch, offset).
_WINDOW = "OVER (PARTITION BY key ORDER BY epoch, offset)"
_REMEMBERED = ("number", "partition", "epoch", "offset")
"""The columns of a `Remembered`."""
_STRUCT = f"struct({', '.join(_REMEMBERED)})"


@dataclass(frozen=True, slots=True)
class Steps:
    """How many keys have a number in the field, how many have none, how many records run backwards,
    and some of them."""

    keys: int = 0
    without: int = 0
    back: int = 0
    examples: tuple[str, ...] = ()


def steps_back(spark: SparkSession, layout: Layout, lines: pa.Table, name: str) -> Steps:
    """Check the field `name` of all records with a key in the files of the record's lines.

    A record without the field, such as a tombstone, does not hide a step back after it.
    """
    results = [
        _steps_of_topic(spark, layout, files, name) for files in _files_by_topic(lines).values()
    ]
    return Steps(
        sum(result.keys for result in results),
        sum(result.without for result in results),
        sum(result.back for result in results),
        tuple(text for result in results for text in result.examples)[:EXAMPLES],
    )


def _files_by_topic(lines: pa.Table) -> dict[tuple[str, str], list[str]]:
    """The files that can be read. A topic that was created again is another one."""
    by_topic: dict[tuple[str, str], list[str]] = {}
    columns = (lines.column(name).to_pylist() for name in ("topic", "topic_id", "path", "problem"))
    for topic, topic_id, path, problem in zip(*columns, strict=True):
        if path and not problem:
            by_topic.setdefault((topic, topic_id), []).append(path)
    return by_topic


def _steps_of_topic(spark: SparkSession, layout: Layout, files: list[str], name: str) -> Steps:
    value = sql.get_json_object(sql.col("value").cast("string"), f"$.{name}").cast("double")
    steps = (
        rows_of(spark, layout, files)
        .where(sql.col("key").isNotNull())
        .withColumn("number", value)
        .selectExpr(
            *("key", "topic", *_REMEMBERED),
            f"row_number() {_WINDOW} AS nth",
            f"lag(if(number IS NULL, NULL, {_STRUCT})) IGNORE NULLS {_WINDOW} AS before",
        )
    )
    is_first = sql.col("number").isNotNull() & sql.col("before").isNull()
    now = Remembered(*map(sql.col, _REMEMBERED))
    is_back = now.is_back_from(Remembered(*(sql.col(f"before.{name}") for name in _REMEMBERED)))
    counted = steps.agg(
        sql.sum((sql.col("nth") == 1).cast("long")).alias("all_keys"),
        sql.sum(is_first.cast("long")).alias("keys"),
        sql.sum(is_back.cast("long")).alias("back"),
    ).first()
    assert counted is not None, "an aggregate has one row"
    keys, back = counted["keys"] or 0, counted["back"] or 0
    without = (counted["all_keys"] or 0) - keys
    shown = steps.where(is_back).limit(EXAMPLES).collect() if back else []
    return Steps(
        keys,
        without,
        back,
        tuple(map(_said, shown)),
    )


def _said(row: Row) -> str:
    place = f"{row['topic']}-{row['partition']} offset {row['offset']}"
    return f"{key_text(row['key'])} ({place}, record {row['nth']} of the key)"
