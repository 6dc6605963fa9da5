"""The task of an audit on an executor: pieces of a lake compared with the log.

Owns its steps: the file's own offsets, its rows beside the log's, the counts. Pieces that
follow one another are compared with one reading of the log: a fetch brings more than a small file
holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tidelog.partitioning.audit_rules import TopicCounts
from tidelog.pipeline.audit.bad_side import kept_offsets, not_kept
from tidelog.pipeline.audit.comparing import compare
from tidelog.pipeline.audit.facts import Keys, Piece, PieceFacts
from tidelog.pipeline.audit.lake_side import LakeFileRows
from tidelog.pipeline.audit.log_side import LogRows
from tidelog.pipeline.options import SourceOptions


@dataclass(frozen=True, slots=True)
class PieceToCompare:
    """A piece to compare, the bounds of its log (-1: the log is gone), how many partitions its
    topic has had, least and most, and the counts of a topic that was resized."""

    piece: Piece
    log_start: int
    log_end: int
    counts: tuple[int, int]
    resized: TopicCounts | None = None

    @property
    def begin(self) -> int:
        """From where on the log can be compared."""
        if self.log_start < 0:
            return self.piece.end
        return min(self.piece.end, max(self.piece.start, self.log_start))

    @property
    def end(self) -> int:
        """Up to where the log reaches."""
        return max(self.begin, min(self.piece.end, self.log_end))


@dataclass(frozen=True, slots=True)
class Task:
    """What one Spark task compares: pieces in the order of their partitions and offsets."""

    root: str
    options: SourceOptions
    keys: Keys
    wanted: Sequence[PieceToCompare]


def run(tasks: Iterable[Task]) -> Iterator[list[PieceFacts]]:
    """The function of the Spark tasks: for each task the facts of its pieces, in their order.

    Raises PipelineError and ClientError where the log cannot be read.
    """
    for task in tasks:
        facts: list[PieceFacts] = []
        for following in runs(task.wanted):
            ranges = [(piece.begin, piece.end) for piece in following]
            first = following[0]
            with LogRows(task.options, first.piece, ranges, _newest(first.resized)) as log:
                facts += [_examine(task, one, log, index) for index, one in enumerate(following)]
        yield facts


def runs(wanted: Sequence[PieceToCompare]) -> Iterator[list[PieceToCompare]]:
    """The pieces in groups whose ranges of the log follow one another."""
    group: list[PieceToCompare] = []
    for piece in wanted:
        if group and not _follows(group[-1], piece):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _newest(resized: TopicCounts | None) -> int:
    """The newest resize epoch that is known of a topic."""
    return 0 if resized is None else max(resized.by_epoch, default=0)


def _follows(before: PieceToCompare, after: PieceToCompare) -> bool:
    one, two = before.piece, after.piece
    return one.home == two.home and one.isolation == two.isolation and before.end == after.begin


def _examine(task: Task, wanted: PieceToCompare, log: LogRows, index: int) -> PieceFacts:
    piece = wanted.piece
    file = LakeFileRows(Path(task.root), piece, task.keys, wanted.counts, wanted.resized)
    facts = file.check()
    counts = compare(file.batches(), log.batches(index))
    log_from = wanted.begin
    if wanted.log_start >= 0 and counts.unmatched_from(log_from):
        # Retention may have moved the log's start while the log was read.
        log_from = min(piece.end, max(log_from, log.log_start()))
    extra = counts.unmatched_from(log_from)
    headers, again = log.headers.rows[index], log.again[index]
    bad = log.bad[index]
    kept = kept_offsets(Path(task.root), piece.bad_files) if bad else []
    left = not_kept(bad, kept)
    for low, high in left:
        counts.add_missing(np.arange(low, high))
    return replace(
        facts,
        log_from=log_from,
        problem=file.problem,
        unkeyed=file.unkeyed,
        away=file.away,
        away_example=file.away_example,
        log_rows=counts.log_rows,
        header_rows=headers,
        read_twice=again.rows,
        read_otherwise=again.differing,
        differing=counts.differing + file.misplaced,
        missing=counts.missing,
        missing_first=counts.missing_first,
        missing_last=counts.missing_last,
        extra=extra,
        below=counts.unmatched_rows - extra,
        quarantined=_offsets(bad) - _offsets(left),
    )


def _offsets(spans: Iterable[tuple[int, int]]) -> int:
    return sum(high - low for low, high in spans)
