"""Counts what an audit needs: files by pyarrow on the executors, contents by Spark.

Owns the queries; does not judge. Each record of the lake is compared with the log by a hash of key,
value, headers and timestamp, joined on partition and offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from tidelog.pipeline import brokers
from tidelog.pipeline.audit.facts import Facts, KeyFacts, PartitionFacts
from tidelog.pipeline.errors import LakeRefused, TopicChanged
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.files import COLUMNS, HEADERS_NOT_NULL, FileFacts, inspect
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import Manifest
from tidelog.pipeline.lake.offsets import Offset, begins, ends
from tidelog.pipeline.lake.reading import rows_of
from tidelog.pipeline.options import Mode, parse
from tidelog.pipeline.planning.positions import Pid
from tidelog.pipeline.planning.snapshot import Snapshot

_EXAMPLES = 5
_FILE_SCHEMA = (
    "path string, rows bigint, first bigint, last bigint, disorder bigint, problem string"
)
_FILE_ARROW = pa.schema(
    [
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("disorder", pa.int64()),
        ("problem", pa.string()),
    ]
)
_PLACE = ["topic", "partition"]


def gather(
    spark: SparkSession,
    location: str,
    bootstrap_servers: str,
    options: Mapping[str, str],
    sequence: str | None,
) -> Facts:
    """Everything about a lake and its topics. Raises LakeRefused, PipelineError, ClientError."""
    layout = Layout.at(location)
    manifests = list(read_manifests(layout))
    if not manifests:
        raise LakeRefused(f"there is no lake in {layout.root}")
    listed = tuple(file for manifest in manifests for file in manifest.files)
    found = inspect_files(spark, layout.root, [file.path for file in listed])
    readable = [file for file in listed if file.path in found and not found[file.path].problem]
    ranges = archived_ranges(manifests)
    topics = sorted({pid.topic for pid in ranges})
    source = {"subscribe": ",".join(topics), "kafka.bootstrap.servers": bootstrap_servers}
    snapshot = look(source, options, manifests[-1].end)
    rows = rows_of(spark, layout, [file.path for file in readable])
    partitions = compare(spark, rows, source, options, ranges, snapshot)
    names = {file.path for file in listed}
    return Facts(
        lake=str(layout.root),
        batches=len(manifests),
        partitions=tuple(partitions),
        keys=key_facts(rows, sequence),
        listed=listed,
        found=found,
        orphans=tuple(sorted(name for name in layout.data_files() if name not in names)),
    )


def archived_ranges(manifests: Sequence[Manifest]) -> dict[Pid, tuple[int, int]]:
    """What the lake says it holds of each partition: from its first batch to its last."""
    ranges: dict[Pid, tuple[int, int]] = {}
    for manifest in manifests:
        begin = begins(manifest.start, manifest.end)
        for home, end in ends(manifest.end).items():
            pid = Pid(home.topic, home.partition)
            first = ranges[pid][0] if pid in ranges else begin[home]
            ranges[pid] = (first, end)
    return ranges


def look(source: Mapping[str, str], options: Mapping[str, str], archived: Offset) -> Snapshot:
    """The live topics. Raises TopicChanged when they are others than the archived ones."""
    parsed = parse({**options, **source}, Mode.BATCH)
    snapshot = brokers.connect(parsed).snapshot(parsed)
    for topic, known in {(home.topic, home.topic_id) for home in ends(archived)}:
        live = snapshot.topic_ids.get(topic)
        if known and live and known != live:
            raise TopicChanged(f"topic {topic} has the id {live}; the lake is of {known}")
    return snapshot


def inspect_files(spark: SparkSession, root: Path, names: Sequence[str]) -> dict[str, FileFacts]:
    """The facts of every file, read where Spark has room."""
    if not names:
        return {}

    def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen = [asdict(inspect(root, name)) for name in batch.column("path").to_pylist()]
            yield pa.RecordBatch.from_pylist(seen, schema=_FILE_ARROW)

    tasks = max(1, min(len(names), spark.sparkContext.defaultParallelism))
    frame = spark.createDataFrame([(name,) for name in names], "path string").repartition(tasks)
    lines = frame.mapInArrow(each, _FILE_SCHEMA).collect()
    return {line["path"]: FileFacts(**line.asDict()) for line in lines}


def compare(
    spark: SparkSession,
    rows: DataFrame,
    source: Mapping[str, str],
    options: Mapping[str, str],
    ranges: Mapping[Pid, tuple[int, int]],
    snapshot: Snapshot,
) -> list[PartitionFacts]:
    """Lake and log side by side, partition by partition."""
    lake = rows.groupBy(*_PLACE, "offset").agg(
        sql.count(sql.lit(1)).alias("times"), sql.min(_content()).alias("in_lake")
    )
    log = _log_rows(spark, source, options, ranges, snapshot).select(
        *_PLACE, "offset", _content().alias("in_log")
    )
    both = lake.join(log, [*_PLACE, "offset"], "full_outer")
    bounds = spark.createDataFrame(
        [
            (
                pid.topic,
                pid.partition,
                *ranges[pid],
                snapshot.partitions[pid].start if pid in snapshot.partitions else -1,
            )
            for pid in sorted(ranges)
        ],
        "topic string, partition int, lo bigint, hi bigint, log_start bigint",
    )
    missing = sql.col("in_lake").isNull() & sql.col("in_log").isNotNull()
    in_log = (sql.col("log_start") >= 0) & (sql.col("offset") >= sql.col("log_start"))
    counted = (
        both.join(sql.broadcast(bounds), _PLACE)
        .groupBy(*_PLACE)
        .agg(
            sql.coalesce(sql.sum("times"), sql.lit(0)).alias("lake_rows"),
            sql.count("times").alias("lake_distinct"),
            sql.count("in_log").alias("log_rows"),
            _count(missing).alias("missing"),
            _count(sql.col("in_log").isNull() & in_log).alias("extra"),
            _count(sql.col("in_lake") != sql.col("in_log")).alias("differing"),
            _count(
                sql.col("times").isNotNull()
                & ~((sql.col("offset") >= sql.col("lo")) & (sql.col("offset") < sql.col("hi")))
            ).alias("outside"),
            sql.min(sql.when(missing, sql.col("offset"))).alias("missing_first"),
            sql.max(sql.when(missing, sql.col("offset"))).alias("missing_last"),
        )
    )
    found = {Pid(*(line[name] for name in _PLACE)): line.asDict() for line in counted.collect()}
    return [_facts(pid, ranges[pid], snapshot, found.get(pid, {})) for pid in sorted(ranges)]


def _facts(
    pid: Pid, archived: tuple[int, int], snapshot: Snapshot, line: Mapping[str, Any]
) -> PartitionFacts:
    state = snapshot.partitions.get(pid)
    counts = {
        name: value for name, value in line.items() if name not in _PLACE and value is not None
    }
    return PartitionFacts(
        pid.topic,
        pid.text,
        *archived,
        log_start=-1 if state is None else state.start,
        log_end=-1 if state is None else state.end,
        **counts,
    )


def _log_rows(
    spark: SparkSession,
    source: Mapping[str, str],
    options: Mapping[str, str],
    ranges: Mapping[Pid, tuple[int, int]],
    snapshot: Snapshot,
) -> DataFrame:
    """The log within the archived ranges, as far as it still holds them."""
    begin: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for pid, state in snapshot.partitions.items():
        low, high = ranges.get(pid, (state.start, state.start))
        low = max(low, state.start)
        high = min(max(high, low), state.end)
        begin.setdefault(pid.topic, {})[str(pid.partition)] = low
        end.setdefault(pid.topic, {})[str(pid.partition)] = high
    return (
        spark.read.format("tidelog")
        .options(
            **{
                **options,
                **source,
                "startingOffsets": json.dumps(begin),
                "endingOffsets": json.dumps(end),
                "columns": ",".join(COLUMNS),
            }
        )
        .load()
    )


def _content() -> Column:
    # A hash of nulls and of the empty value is the same: their nullness is hashed too.
    return sql.xxhash64(
        sql.col("key").isNull(),
        sql.col("key"),
        sql.col("value").isNull(),
        sql.col("value"),
        sql.to_json(sql.expr(HEADERS_NOT_NULL)),
        sql.col("timestamp"),
        sql.col("timestampType"),
    )


def _count(condition: Column) -> Column:
    return sql.coalesce(sql.sum(condition.cast("long")), sql.lit(0))


def key_facts(rows: DataFrame, sequence: str | None) -> KeyFacts:
    """Keys in two partitions of one epoch, and records that run backwards in a JSON field.

    `sequence` names a field of JSON values that must never decrease for a key, as the log's order
    (epoch, offset) has it.
    """
    keyed = rows.where(sql.col("key").isNotNull())
    homes = keyed.groupBy("topic", "epoch", "key").agg(
        sql.count_distinct("partition").alias("homes")
    )
    counts = homes.agg(
        sql.count_distinct("topic", "key").alias("keys"), _count(sql.col("homes") > 1).alias("two")
    ).first()
    assert counts is not None, "an aggregate has one row"
    two = homes.where(sql.col("homes") > 1).limit(_EXAMPLES).collect() if counts["two"] else []
    facts = {
        "keys": counts["keys"],
        "unkeyed": rows.where(sql.col("key").isNull()).count(),
        "two_homes": counts["two"],
        "two_homes_examples": tuple(_key_text(line["key"]) for line in two),
    }
    if sequence is None:
        return KeyFacts(**facts)
    value = sql.get_json_object(sql.col("value").cast("string"), f"$.{sequence}")
    order = "row_number() OVER (PARTITION BY topic, key ORDER BY epoch, offset)"
    # A record without the field, as a tombstone, hides no step back behind it.
    lag = "lag(number) IGNORE NULLS OVER (PARTITION BY topic, key ORDER BY epoch, offset)"
    steps = keyed.withColumn("number", value.cast("double")).selectExpr(
        "key", "number", f"{order} AS nth", f"{lag} AS before"
    )
    back = steps.where(sql.col("number") < sql.col("before")).cache()
    count = back.count()
    shown = back.limit(_EXAMPLES).collect() if count else []
    back.unpersist()
    return KeyFacts(
        **facts,
        sequence=sequence,
        out_of_sequence=count,
        out_of_sequence_examples=tuple(
            f"{_key_text(line['key'])} (record {line['nth']})" for line in shown
        ),
    )


def _key_text(key: bytes) -> str:
    return bytes(key)[:60].decode("utf-8", "backslashreplace")
