"""The rows of one file of a lake, for an audit.

Owns reading Parquet: the offsets first, then the contents in the order of the offsets, a row group
at a time. A file that cannot be read has a `problem` and no rows. What can be said of a row without
the log is counted on the way: its place, its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.partitioning.audit_rules import TopicCounts
from tidelog.pipeline.audit.facts import Keys, Piece, PieceFacts
from tidelog.pipeline.audit.homes import away_from_home
from tidelog.pipeline.lake.digests import file_digest

CONTENT = ("key", "value", "offset", "timestamp", "timestampType", "headers", "epoch")
_PLACE = ("topic", "partition")
_ROWS_AT_ONCE = 64 * 1024
_UNREADABLE = (OSError, pa.ArrowException, KeyError)


class LakeFileRows:
    """One piece's file. `check` first, then `batches` once; then the counts stand."""

    def __init__(
        self,
        root: Path,
        piece: Piece,
        keys: Keys,
        counts: tuple[int, int],
        resized: TopicCounts | None = None,
    ) -> None:
        self._piece = piece
        self._path = root / piece.path
        self._keys = keys
        self._counts = counts
        self._resized = resized
        self._in_order = True
        self.problem = ""
        self.unkeyed = self.misplaced = self.away = 0
        self.away_example = b""

    def check(self) -> PieceFacts:
        """What offsets the file holds and in which order; nothing of the log."""
        piece = self._piece
        if not piece.path:
            return PieceFacts(piece.end)
        try:
            # An open file, as pyarrow takes some characters of a path for its own.
            with self._path.open("rb") as file:
                offsets = pq.read_table(file, columns=["offset"], use_threads=False)
            read = offsets.column("offset").to_numpy()
            wrong_bytes = bool(piece.digest) and file_digest(self._path) != piece.digest
        except _UNREADABLE as error:
            self.problem = _line(error)
            return PieceFacts(piece.end)
        if not len(read):
            return PieceFacts(piece.end, wrong_bytes=wrong_bytes)
        disorder = int((np.diff(read) <= 0).sum())
        self._in_order = not disorder
        return PieceFacts(
            piece.end,
            found_rows=len(read),
            distinct=len(np.unique(read)) if disorder else len(read),
            found_first=int(read[0]),
            found_last=int(read[-1]),
            disorder=disorder,
            outside=int(((read < piece.start) | (read >= piece.end)).sum()),
            wrong_bytes=wrong_bytes,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order of their offsets."""
        if not self._piece.path or self.problem:
            return
        try:
            with self._path.open("rb") as file:
                for batch in self._read(pq.ParquetFile(file)):
                    self._judge(batch)
                    yield batch
        except _UNREADABLE as error:
            self.problem = _line(error)

    def _read(self, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        columns = [*CONTENT, *_PLACE]
        if self._in_order:
            yield from file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False)
            return
        table = file.read(columns, use_threads=False)
        order = np.argsort(table.column("offset").to_numpy(), kind="stable")
        yield from table.take(pa.array(order)).combine_chunks().to_batches()

    def _judge(self, batch: pa.RecordBatch) -> None:
        keys = batch.column("key")
        self.unkeyed += keys.null_count
        here = pc.and_(
            pc.equal(batch.column("topic"), self._piece.topic),
            pc.equal(batch.column("partition"), self._piece.partition),
        )
        self.misplaced += batch.num_rows - (pc.sum(here).as_py() or 0)
        if self._keys is Keys.MURMUR2:
            epochs = batch.column("epoch")
            away = away_from_home(keys, self._piece.partition, self._counts, epochs, self._resized)
            rows = np.flatnonzero(away)
            if len(rows) and not self.away:
                self.away_example = keys[int(rows[0])].as_py()
            self.away += len(rows)


def _line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no column {error.args[0]}"
    return str(error).splitlines()[0]
