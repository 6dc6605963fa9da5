"""The pieces of a lake: what the tasks of an audit read from lake and log.

Owns which offsets a file answers for: those from the end of the file before it in its batch and
partition, or from the beginning of the batch, up to its own end, or the batch's. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tidelog.pipeline.audit.bad_side import as_text
from tidelog.pipeline.audit.facts import UNKNOWN, Piece, PieceFacts, RecordedLoss
from tidelog.pipeline.audit.totals import HOME
from tidelog.pipeline.lake.manifest import BadFile, LakeFile, Manifest
from tidelog.pipeline.lake.offsets import LakePartition, begins, ends

# A task for each file; small ones share a task until they hold so many offsets together, for a task
# costs tens of milliseconds. Files of a partition stay together, so that the log is read on.
OFFSETS_PER_TASK = 64 * 1024
# The driver keeps some kilobytes of each task.
MAX_TASKS = 4096
_COMPACT = "compact"


def pieces_of(manifest: Manifest) -> Iterator[Piece]:
    """The pieces of one batch; ranges without an offset are left out."""
    begin, end = begins(manifest.start, manifest.end), ends(manifest.end)
    files: dict[LakePartition, list[LakeFile]] = {}
    for file in manifest.files:
        files.setdefault(file.home, []).append(file)
    homes = sorted({*end, *files})
    partitions = Counter((home.topic, home.topic_id) for home in homes)
    for home in homes:
        whole = Piece(
            *home,
            begin.get(home, 0),
            end.get(home, 0),
            lost=0 if manifest.version > 1 else UNKNOWN,
            isolation=manifest.isolation or "",
            compacted=is_compacted(manifest.policies.get(home.topic, "")),
            partitions=partitions[home.topic, home.topic_id],
        )
        of_here = [loss for loss in losses_of(manifest) if loss.home == tuple(home)]
        made = sorted(files.get(home, ()), key=lambda file: file.first)
        bad = [file for file in manifest.bad if file.home == home]
        for piece in _cut(whole, made):
            yield _with_losses(_with_bad(piece, bad), of_here)


def _cut(whole: Piece, files: Sequence[LakeFile]) -> Iterator[Piece]:
    offset = whole.start
    for index, file in enumerate(files):
        # The last file answers for what follows it in the batch.
        until = file.last + 1 if index < len(files) - 1 else max(whole.end, file.last + 1)
        yield replace(
            whole,
            start=min(offset, file.first),
            end=until,
            path=file.path,
            first=file.first,
            last=file.last,
            rows=file.rows,
            size_bytes=file.size_bytes,
            digest=file.digest or "",
        )
        offset = until
    if not files and whole.end > offset:
        yield whole


def _with_bad(piece: Piece, files: Sequence[BadFile]) -> Piece:
    here = [file for file in files if file.first < piece.end and piece.start <= file.last]
    return replace(piece, bad_files=as_text(here)) if here else piece


def _with_losses(piece: Piece, losses: Sequence[RecordedLoss]) -> Piece:
    lost = sum(
        max(0, min(piece.end, loss.start + loss.offsets) - max(piece.start, loss.start))
        for loss in losses
    )
    return replace(piece, lost=lost) if lost else piece


def is_compacted(policy: str) -> bool:
    """Whether a cleanup.policy removes older records of a key."""
    return _COMPACT in policy.replace(" ", "").split(",")


def explained(piece: Piece, facts: PieceFacts, is_compacted_now: bool) -> PieceFacts:
    """Compaction takes records out of the log; nothing else may."""
    if facts.extra and (piece.compacted or is_compacted_now):
        return replace(facts, extra=0, compacted_away=facts.extra)
    return facts


def losses_of(manifest: Manifest) -> list[RecordedLoss]:
    """What a batch's manifest records as lost, some of it perhaps outside of all pieces."""
    return [
        RecordedLoss(*loss.home, loss.start, max(0, loss.end - loss.start), loss.cause)
        for loss in manifest.losses
    ]


def tasks_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of each task, in the order of partitions and offsets."""
    total = sum(piece.end - piece.start for piece in pieces)
    enough = max(OFFSETS_PER_TASK, total // MAX_TASKS)
    tasks: list[list[Piece]] = []
    filled = enough
    for piece in sorted(pieces, key=_place):
        size = piece.end - piece.start
        if max(filled, size) >= enough:
            tasks.append([])
            filled = 0
        tasks[-1].append(piece)
        filled += size
    return tasks


def _place(piece: Piece) -> tuple[str, str, int, int]:
    return *piece.home, piece.first if piece.path else piece.start


def overlaps(lines: pa.Table) -> list[tuple[str, str]]:
    """Files of the record's lines that hold offsets of another of their partition, with that."""
    pairs: list[tuple[str, str]] = []
    ordered = lines.select([*HOME, "first", "last", "path"]).sort_by(
        [(name, "ascending") for name in (*HOME, "first")]
    )
    here: tuple[object, ...] = ()
    reached, before = -1, ""
    for *home, first, last, path in zip(
        *(column.to_pylist() for column in ordered.columns), strict=True
    ):
        if tuple(home) != here:
            here, reached, before = tuple(home), -1, ""
        if not path:
            continue
        if first <= reached:
            pairs.append((path, before))
        if last > reached:
            reached, before = last, path
    return pairs
