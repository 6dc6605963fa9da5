"""The bad records of a piece: those that the log has now beside those that the lake has kept.

Owns what counts as kept: offsets that a file of bad records has rows for, whose bytes are those of
the manifest. A bad record of the log that is not kept is missing in the lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.lake.digests import file_digest
from tidelog.pipeline.lake.manifest import BadFile
from tidelog.pipeline.schema import BAD_TO

Offsets = tuple[int, int]
"""[from, to)."""


def as_text(files: Iterable[BadFile]) -> str:
    """The files of a piece as its record keeps them; no name of a topic has a space."""
    return "\n".join(f"{file.path} {file.digest}" for file in files)


def kept_offsets(root: Path, text: str) -> list[Offsets]:
    """What the files of a piece have rows for; nothing of a file that is not as it was written."""
    spans: list[Offsets] = []
    for line in text.splitlines():
        path, _, digest = line.partition(" ")
        try:
            if file_digest(root / path) != digest:
                continue
            with (root / path).open("rb") as file:
                table = pq.read_table(file, columns=["offset", BAD_TO], use_threads=False)
        except (OSError, pa.ArrowException, KeyError):
            continue
        spans += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return spans


def clipped(spans: Iterable[Offsets], begin: int, end: int) -> list[Offsets]:
    """The parts of spans between two offsets."""
    parts = ((max(low, begin), min(high, end)) for low, high in spans)
    return [(low, high) for low, high in parts if low < high]


def not_kept(log: Sequence[Offsets], kept: Sequence[Offsets]) -> list[Offsets]:
    """The parts of the log's spans that no span of the lake covers. Sorts once."""
    left: list[Offsets] = []
    ordered = sorted(kept)
    index = 0
    for low, high in sorted(log):
        while index < len(ordered) and ordered[index][1] <= low:
            index += 1
        reached = low
        for begin, end in ordered[index:]:
            if begin >= high:
                break
            if begin > reached:
                left.append((reached, begin))
            reached = max(reached, end)
        if reached < high:
            left.append((reached, high))
    return left
