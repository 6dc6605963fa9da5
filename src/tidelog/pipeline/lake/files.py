"""Writes and inspects the data files of a lake, on the executors.

Owns Parquet; does not decide what belongs to the lake. A task writes under a name of its own into
the in-flight folder, so that a second attempt, a twin or a zombie cannot touch a committed file.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.layout import file_name
from tidelog.pipeline.planning.positions import Pid

# What is kept of a record: with these a replay can rebuild the order of every key (spark.md 5.3).
COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "epoch",
    "incarnation",
)
# A record without headers has an empty list in the lake.
HEADERS_NOT_NULL = "coalesce(headers, cast(array() AS array<struct<key:string,value:binary>>))"
STAGED_SCHEMA = (
    "staged string, path string, topic string, partition int, incarnation int,"
    " first bigint, last bigint, rows bigint, size_bytes bigint"
)
_STAGED_ARROW = pa.schema(
    [
        ("staged", pa.string()),
        ("path", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("incarnation", pa.int32()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)
# A row group of so many rows or bytes: what a reader takes in at once, and what a task buffers.
_ROW_GROUP_ROWS = 256 * 1024
_ROW_GROUP_BYTES = 64 << 20

Batches = Iterable[pa.RecordBatch]


def stage(inflight: str, compression: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function of a writing task for `mapInArrow`: rows in, one line per staged file out.

    Rows must come in the order of the log (no shuffle between source and here): it is checked.
    """

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        staged = [file.finish() for file in _files(batches, Path(inflight), compression)]
        if staged:
            yield pa.RecordBatch.from_pylist(staged, schema=_STAGED_ARROW)

    return write


def _files(batches: Batches, inflight: Path, compression: str) -> Iterator[_Staged]:
    current: _Staged | None = None
    for batch in batches:
        for part in _by_partition(batch):
            pid = _pid(part)
            if current is not None and current.pid != pid:
                yield current
                current = None
            if current is None:
                current = _Staged(pid, inflight, part.schema, compression)
            current.add(part)
    if current is not None:
        yield current


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of rows of one partition; nearly always the whole batch."""
    if not batch.num_rows:
        return
    numbers = batch.column("partition").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
    for low, high in pairwise(edges):
        yield batch.slice(low, high - low)


def _pid(batch: pa.RecordBatch) -> Pid:
    topic, number, life = (
        batch.column(name)[0].as_py() for name in ("topic", "partition", "incarnation")
    )
    return Pid(topic, number, life)


class _Staged:
    """One file under construction. Left behind when the task fails; `recover` removes it."""

    def __init__(self, pid: Pid, inflight: Path, schema: pa.Schema, compression: str) -> None:
        self.pid = pid
        self._first = self._last = -1
        self._rows = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._place = inflight / f"{uuid.uuid4().hex}.parquet"
        self._file = self._place.open("wb")
        self._writer = pq.ParquetWriter(self._file, schema, compression=compression)

    def add(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_numpy()
        if offsets[0] <= self._last or (np.diff(offsets) <= 0).any():
            raise LakeRefused(f"{self.pid}: rows do not come in the order of their offsets")
        if not self._rows:
            self._first = int(offsets[0])
        self._last = int(offsets[-1])
        self._rows += batch.num_rows
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        table = pa.Table.from_batches(self._pending)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def finish(self) -> dict[str, object]:
        """Make the file durable and describe it."""
        if self._pending:
            self._write_pending()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {
            "staged": str(self._place),
            "path": file_name(self.pid, self._first, self._last),
            "topic": self.pid.topic,
            "partition": self.pid.partition,
            "incarnation": self.pid.incarnation,
            "first": self._first,
            "last": self._last,
            "rows": self._rows,
            "size_bytes": self._place.stat().st_size,
        }


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a data file really holds. `problem` is empty when it could be read."""

    path: str
    rows: int = 0
    first: int = -1
    last: int = -1
    disorder: int = 0
    problem: str = ""


def inspect(root: Path, name: str) -> FileFacts:
    """Read the offsets of a file as they lie in it, without Spark."""
    try:
        with (root / name).open("rb") as file:
            offsets = pq.read_table(file, columns=["offset"]).column("offset").to_numpy()
    except (OSError, pa.ArrowInvalid) as error:
        return FileFacts(name, problem=str(error).splitlines()[0])
    if not len(offsets):
        return FileFacts(name)
    return FileFacts(
        name,
        len(offsets),
        int(offsets[0]),
        int(offsets[-1]),
        int((np.diff(offsets) <= 0).sum()),
    )
