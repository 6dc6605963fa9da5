"""The steps of an audit on the driver: pieces of the lake beside the log, one Spark task per file.

Owns these steps. Not the verdict: see `rules`. What earlier audits compared is taken from their
record. Nothing is shuffled, but for the order of a field, which is asked of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tidelog.partitioning.audit_rules import EXAMPLES, key_text
from tidelog.pipeline.audit import live, reading, record, sequence
from tidelog.pipeline.audit.facts import (
    AuditFacts,
    AuditRequest,
    GoneTopic,
    KeyFacts,
    Keys,
    PartitionFacts,
    Piece,
    PieceFacts,
)
from tidelog.pipeline.audit.live import GONE, Live
from tidelog.pipeline.audit.pieces import explained, overlaps, tasks_of
from tidelog.pipeline.audit.record import AuditRecord, known_and_new
from tidelog.pipeline.audit.totals import Home, by_partition, partition_counts
from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.chain import summary
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.summary import Summary


def whole_lake(location: str) -> tuple[Layout, Summary]:
    """The layout and the summary of a lake. Raises LakeRefused where there is none."""
    layout = Layout.at(location)
    whole, _ = summary(layout)
    if whole.batch < 0:
        raise LakeRefused(f"there is no lake in {layout.root}: the job archive makes one")
    return layout, whole


def gather(
    spark: SparkSession, location: str, options: Mapping[str, str], question: AuditRequest
) -> AuditFacts:
    """Everything about a lake and its topics; `options` are the source's, without topics.

    Raises LakeRefused, PipelineError, ClientError.
    """
    layout, whole = whole_lake(location)
    now = live.check(sorted({home.topic for home in whole.parts}), options)
    asked = _Asked(layout, options, question, now)
    old, fresh = known_and_new(layout, whole, None if question.full else record.load(layout.root))
    stands = record.standing(layout.root, old.table, question.keys, asked.isolation)
    kept = old.table.filter(stands)
    again = [piece for piece, _ in record.pairs_of(old.table.filter(pc.invert(stands)))]
    added, bad = _compared(spark, asked, kept, [*again, *fresh])
    lines = pa.concat_tables([kept, added])
    is_new = pa.array([False] * len(kept) + [True] * len(added), pa.bool_())
    parts = by_partition(lines, is_new)
    return AuditFacts(
        lake=str(layout.root),
        batches=whole.batch + 1,
        partitions=tuple(_partitions(whole, parts, now)),
        keys=_keys(spark, layout, lines, bad, question),
        files=whole.files,
        files_now=_files(added),
        bad=bad,
        overlaps=tuple(overlaps(lines)),
        losses=old.losses,
        gone=tuple(_gone(whole, now)),
        orphans=tuple(sorted({*layout.data_files()} - {*lines.column("path").to_pylist()})),
        remarks=_kept_for_next_time(layout, replace(old, table=lines)),
    )


class _Asked:
    """What is the same for all pieces of an audit."""

    def __init__(
        self, layout: Layout, options: Mapping[str, str], question: AuditRequest, now: Live
    ) -> None:
        self.root = layout.root
        # Topics are named piece by piece.
        self.options = live.parsed(options, ["any"])
        self.keys = question.keys
        self.now = now
        self.isolation = "read_committed" if self.options.read_committed else "read_uncommitted"


def _compared(
    spark: SparkSession, asked: _Asked, kept: pa.Table, pieces: Sequence[Piece]
) -> tuple[pa.Table, tuple[tuple[Piece, PieceFacts], ...]]:
    """Compare pieces with the log: lines for the record, and the pieces that are not right."""
    groups = tasks_of(pieces)
    ordered = [piece for group in groups for piece in group]
    counts = partition_counts(kept, ordered, asked.now.bounds)
    # Before they are read: a file that changes meanwhile is compared again next time.
    seen = [record.size_and_time(asked.root, piece.path) for piece in ordered]
    tasks = [
        reading.Task(
            str(asked.root),
            asked.options,
            asked.keys,
            [
                reading.PieceToCompare(
                    piece,
                    *asked.now.of(piece.home),
                    counts[piece.home[:2]],
                    asked.now.resized.get(piece.topic),
                )
                for piece in group
            ],
        )
        for group in groups
    ]
    results: list[list[PieceFacts]] = []
    if tasks:
        lines = spark.sparkContext.parallelize(tasks, len(tasks))
        results = lines.mapPartitions(reading.run).collect()
    pairs = [
        (piece, explained(piece, facts, piece.topic in asked.now.compacted))
        for piece, facts in zip(ordered, (one for part in results for one in part), strict=True)
    ]
    bad = tuple((piece, facts) for piece, facts in pairs if facts.away or not facts.is_clean(piece))
    return record.lines_of(pairs, seen, asked.keys, asked.isolation), bad


def _partitions(
    whole: Summary, parts: Mapping[Home, Mapping[str, Any]], now: Live
) -> Iterator[PartitionFacts]:
    for home, part in sorted(whole.parts.items()):
        start, end = now.of(home)
        yield PartitionFacts(
            topic=home.topic,
            partition=str(home.partition),
            archived_from=part.begin,
            archived_to=max(part.end, part.reached),
            log_start=start,
            log_end=end,
            topic_id=home.topic_id,
            **parts.get(home, {}),
        )


def _gone(whole: Summary, now: Live) -> Iterator[GoneTopic]:
    for topic, topic_id in sorted({(home.topic, home.topic_id) for home in whole.parts}):
        what = now.what_became_of(topic, topic_id)
        if what is not None:
            yield GoneTopic(topic, topic_id, what)
    for home, part in sorted(whole.parts.items()):
        if now.what_became_of(home.topic, home.topic_id) is not None or now.of(home) != GONE:
            continue
        key = home.topic, home.topic_id
        end = now.data_end_of(home)
        if end is None:
            yield GoneTopic(*key, "the partition is gone", str(home.partition))
            continue
        lacking = max(0, end - max(part.end, part.reached))
        what = "the partition was removed after a shrink of its topic"
        yield GoneTopic(*key, what, str(home.partition), lacking)


def _keys(
    spark: SparkSession,
    layout: Layout,
    lines: pa.Table,
    bad: Sequence[tuple[Piece, PieceFacts]],
    question: AuditRequest,
) -> KeyFacts:
    examples = [key_text(facts.away_example) for _, facts in bad if facts.away]
    made = KeyFacts(
        unkeyed=pc.sum(lines.column("unkeyed")).as_py() or 0,
        homes=question.keys,
        away=0 if question.keys is Keys.ANY else pc.sum(lines.column("away")).as_py() or 0,
        away_examples=tuple(dict.fromkeys(examples))[:EXAMPLES],
    )
    if question.sequence is None:
        return made
    steps = sequence.steps_back(spark, layout, lines, question.sequence)
    return replace(
        made,
        sequence=question.sequence,
        keys=steps.keys,
        keys_without=steps.without,
        out_of_sequence=steps.back,
        out_of_sequence_examples=steps.examples,
    )


def _files(lines: pa.Table) -> int:
    return pc.sum(pc.not_equal(lines.column("path"), "")).as_py() or 0


def _kept_for_next_time(layout: Layout, made: AuditRecord) -> tuple[str, ...]:
    """Save the record; a lake that cannot be written to is audited all the same."""
    try:
        record.save(layout.root, made)
    except OSError as error:
        return (f"the next audit compares all of this again: no record can be written: {error}",)
    return ()
