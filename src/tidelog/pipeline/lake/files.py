"""The writer of the data files of a lake, on the executors.

Owns Parquet. Not what belongs to the lake: see `commit`. A task writes under a name of its own into
the in-flight folder, so that a second attempt, a twin or a zombie cannot touch a committed file;
the driver gives the file its place. A file ends when it holds so many bytes of records, so a task
writes as many files as it takes.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pipeline.errors import LakeRefused
from tidelog.pipeline.lake.bad_files import BadRecordsFile, split_off
from tidelog.pipeline.lake.digests import file_digest
from tidelog.pipeline.lake.layout import STAGED_SUFFIX, bad_file_name, file_name
from tidelog.pipeline.lake.manifest import BadFile, LakeFile
from tidelog.pipeline.lake.offsets import LakePartition, SkippedRange
from tidelog.pipeline.schema import LEADER_EPOCH, LOST_TO, arrow_schema

# What is kept of a record: with these a replay can rebuild the order of every key.
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
)
_ARROW = arrow_schema(COLUMNS)
# What a task reads: the leader epochs and losses go to the manifest.
READ_COLUMNS = (*COLUMNS, LEADER_EPOCH, LOST_TO)
# A record without headers has an empty list in the lake.
HEADERS_NOT_NULL = "coalesce(headers, cast(array() AS array<struct<key:string,value:binary>>))"
# One line of JSON per staged file or loss: see `Staged.of`.
STAGED_SCHEMA = "line string"
_STAGED_ARROW = pa.schema([("line", pa.string())])
# A row group of so many rows or bytes: what a reader takes in at once, and what a task buffers.
_ROW_GROUP_ROWS = 256 * 1024
_ROW_GROUP_BYTES = 64 << 20
# A file of so many bytes of records is closed and another begun: a size that readers like, and that
# bounds what one task of an audit has to read.
ROLL_BYTES = 256 << 20
_MICROS = 1000

Batches = Iterable[pa.RecordBatch]


def stage(
    inflight: str, compression: str, roll_bytes: int = ROLL_BYTES
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function of a writing task for `mapInArrow`: rows in, a line per file or loss out.

    Rows must come in the order of the log (no shuffle between source and here): it is checked.
    """

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        lines = [
            json.dumps(line) for line in _lines(batches, Path(inflight), compression, roll_bytes)
        ]
        if lines:
            yield pa.RecordBatch.from_pydict({"line": lines}, schema=_STAGED_ARROW)

    return write


@dataclass(frozen=True, slots=True)
class Staged:
    """What the tasks of a batch said: files by the place that they are to take, and losses."""

    files: tuple[LakeFile, ...]
    places: Mapping[str, Path]
    losses: tuple[SkippedRange, ...]
    bad: tuple[BadFile, ...] = ()

    @classmethod
    def of(cls, lines: Iterable[str], homes: Iterable[LakePartition]) -> Staged:
        """`homes` are the partitions of the batch: tasks do not know topic ids."""
        named = {(home.topic, home.partition): home for home in homes}
        files: list[LakeFile] = []
        places: dict[str, Path] = {}
        losses: list[SkippedRange] = []
        bad: list[BadFile] = []
        for line in sorted(lines):
            row = json.loads(line)
            home = named[row["topic"], row["partition"]]
            if "cause" in row:
                losses.append(SkippedRange(home, row["from"], row["to"], row["cause"]))
                continue
            if "bad" in row:
                path = bad_file_name(home, row["first"], row["last"])
                bad.append(BadFile.from_json({**row, "path": path, "topicId": home.topic_id}))
                places[path] = Path(row["staged"])
                continue
            path = file_name(home, row["first"], row["last"])
            files.append(LakeFile.from_json({**row, "path": path, "topicId": home.topic_id}))
            places[path] = Path(row["staged"])
        files.sort(key=lambda file: (file.home, file.first))
        losses.sort(key=lambda loss: (loss.home, loss.start))
        bad.sort(key=lambda file: (file.home, file.first))
        return cls(tuple(files), places, tuple(losses), tuple(bad))


def _lines(
    batches: Batches, inflight: Path, compression: str, roll_bytes: int
) -> Iterator[dict[str, Any]]:
    current: _DataFile | None = None
    bad: dict[tuple[str, int], BadRecordsFile] = {}
    for batch in batches:
        lost = batch.column(LOST_TO)
        if lost.null_count < len(lost):
            yield from _losses(batch.filter(lost.is_valid()))
            batch = batch.filter(lost.is_null())
        batch, bad_rows = split_off(batch)
        for part in () if bad_rows is None else _by_partition(bad_rows):
            place = _place_of(part)
            if place not in bad:
                bad[place] = BadRecordsFile(place, inflight, compression)
            bad[place].add(part)
        for part in _by_partition(batch):
            place = _place_of(part)
            if current is not None and (current.place != place or current.raw_bytes >= roll_bytes):
                reached = current.last if current.place == place else -1
                yield current.finish()
                current = _DataFile(place, inflight, compression, reached)
            if current is None:
                current = _DataFile(place, inflight, compression, -1)
            current.add(part)
    if current is not None:
        yield current.finish()
    for file in bad.values():
        yield file.finish()


def _place_of(part: pa.RecordBatch) -> tuple[str, int]:
    return part.column("topic")[0].as_py(), part.column("partition")[0].as_py()


def _losses(markers: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in markers.to_pylist():
        yield {
            "topic": row["topic"],
            "partition": row["partition"],
            "from": row["offset"],
            "to": row[LOST_TO],
            "cause": row["value"].decode(),
        }


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of rows of one partition; nearly always the whole batch."""
    if not batch.num_rows:
        return
    numbers = batch.column("partition").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
    for low, high in pairwise(edges):
        yield batch.slice(low, high - low)


class _DataFile:
    """One file that is being written. It stays when the task fails; `recover` removes it."""

    def __init__(
        self, place: tuple[str, int], inflight: Path, compression: str, reached: int
    ) -> None:
        self.place = place
        self.last = reached
        self.raw_bytes = 0
        self._first = -1
        self._rows = 0
        self._least_us = self._most_us = 0
        self._epochs: list[tuple[int, int]] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._path = inflight / f"{uuid.uuid4().hex}{STAGED_SUFFIX}"
        self._file = self._path.open("wb")
        self._writer = pq.ParquetWriter(self._file, _ARROW, compression=compression)

    def add(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_numpy()
        if offsets[0] <= self.last or (np.diff(offsets) <= 0).any():
            topic, number = self.place
            raise LakeRefused(f"{topic}-{number}: rows do not come in the order of their offsets")
        times = batch.column("timestamp").cast(pa.int64()).to_numpy()
        least, most = int(times.min()), int(times.max())
        if not self._rows:
            self._first = int(offsets[0])
            self._least_us, self._most_us = least, most
        self._least_us, self._most_us = min(self._least_us, least), max(self._most_us, most)
        self._note_epochs(batch.column(LEADER_EPOCH).to_numpy(), offsets)
        self.last = int(offsets[-1])
        self._rows += batch.num_rows
        self.raw_bytes += raw_bytes(batch)
        kept = batch.select(COLUMNS)
        self._pending.append(kept)
        self._pending_rows += kept.num_rows
        self._pending_bytes += kept.nbytes
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._write_pending()

    def _note_epochs(self, epochs: np.ndarray, offsets: np.ndarray) -> None:
        for index in (0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()):
            epoch = int(epochs[index])
            if not self._epochs or self._epochs[-1][0] != epoch:
                self._epochs.append((epoch, int(offsets[index])))

    def _write_pending(self) -> None:
        # Spark may say "not null" and another time zone: every file of a lake has one schema.
        table = pa.Table.from_batches(self._pending).cast(_ARROW)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def finish(self) -> dict[str, Any]:
        """Make the file durable and describe it."""
        if self._pending:
            self._write_pending()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        topic, number = self.place
        return {
            "staged": str(self._path),
            "topic": topic,
            "partition": number,
            "first": self._first,
            "last": self.last,
            "rows": self._rows,
            "sizeBytes": self._path.stat().st_size,
            "rawBytes": self.raw_bytes,
            "minTimeMs": self._least_us // _MICROS,
            "maxTimeMs": self._most_us // _MICROS,
            "leaderEpochs": self._epochs,
            "digest": file_digest(self._path),
        }


def raw_bytes(batch: pa.RecordBatch) -> int:
    """The size of keys, values and headers as the log has them, without their framing."""
    headers = batch.column("headers").flatten()
    columns = [batch.column("key"), batch.column("value"), *headers.flatten()]
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)
