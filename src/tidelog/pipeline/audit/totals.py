"""The sums of what was found piece by piece, per partition. Pure, over Arrow columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.audit.facts import Piece

HOME = ("topic", "topic_id", "partition")
Home = tuple[str, str, int]
# Of the record's lines; what PartitionFacts calls otherwise is renamed.
_SUMS = {
    "found_rows": "lake_rows",
    "distinct": "lake_distinct",
    "outside": "outside",
    "log_rows": "log_rows",
    "missing": "missing",
    "extra": "extra",
    "differing": "differing",
    "header_rows": "header_rows",
    "read_twice": "read_twice",
    "read_otherwise": "read_otherwise",
    "below": "below",
    "compacted_away": "compacted_away",
    "compared": "compared",
    "compared_now": "compared_now",
    "unexplained": "unexplained",
    "quarantined": "quarantined",
}


def by_partition(lines: pa.Table, now: pa.Array) -> dict[Home, dict[str, Any]]:
    """The sums of each partition under the names of PartitionFacts.

    `now` says which lines this audit compared itself.
    """
    table = _derived(lines, now)
    made = table.group_by(list(HOME)).aggregate(
        [
            *((name, "sum") for name in _SUMS),
            ("first_missing", "min"),
            ("missing_last", "max"),
        ]
    )
    return {_home(line): _facts(line) for line in made.to_pylist()}


def partition_counts(
    lines: pa.Table, pieces: Iterable[Piece], live: Iterable[Home]
) -> dict[tuple[str, str], tuple[int, int]]:
    """How many partitions each topic has had, least and most: in the lake, and as it is now."""
    made = lines.group_by(["topic", "topic_id"]).aggregate(
        [("partitions", "min"), ("partitions", "max")]
    )
    seen = [
        ((line["topic"], line["topic_id"]), line[f"partitions_{which}"])
        for line in made.to_pylist()
        for which in ("min", "max")
    ]
    seen += [((piece.topic, piece.topic_id), piece.partitions) for piece in pieces]
    seen += Counter((topic, topic_id) for topic, topic_id, _ in live).items()
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for topic, count in seen:
        least, most = counts.get(topic, (count, count))
        counts[topic] = min(least, count), max(most, count)
    return counts


def _derived(lines: pa.Table, now: pa.Array) -> pa.Table:
    start, end, log_from, below, lost, missing_first = (
        lines.column(name)
        for name in ("start", "end", "log_from", "below", "lost", "missing_first")
    )
    # Within the piece: `reading` sees to it.
    compared = pc.subtract(end, log_from)
    # Manifests of version 1 do not say what was lost; a hole the log cannot explain may be a loss.
    hole = pc.max_element_wise(pc.subtract(pc.subtract(log_from, start), below), 0)
    added = {
        "compared": compared,
        "compared_now": pc.if_else(now, compared, 0),
        "unexplained": pc.if_else(pc.less(lost, 0), hole, 0),
        "first_missing": pc.if_else(pc.less(missing_first, 0), None, missing_first),
    }
    for name, column in added.items():
        lines = lines.append_column(name, column.cast(pa.int64()))
    return lines


def _home(line: Mapping[str, Any]) -> Home:
    return line["topic"], line["topic_id"], line["partition"]


def _facts(line: Mapping[str, Any]) -> dict[str, Any]:
    first = line["first_missing_min"]
    return {
        **{wanted: line[f"{name}_sum"] for name, wanted in _SUMS.items()},
        "missing_first": -1 if first is None else first,
        "missing_last": line["missing_last_max"],
    }
