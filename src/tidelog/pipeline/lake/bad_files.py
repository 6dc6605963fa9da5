"""The writer of a lake's table of bad records, on the executors.

Owns its columns and its files; they are staged and committed as the data files are (see `files`).
What is bad, and why, the source says (docs/decisions/0151).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pipeline.lake.digests import file_digest
from tidelog.pipeline.lake.layout import STAGED_SUFFIX
from tidelog.pipeline.schema import BAD_COLUMNS, BAD_REASON, BAD_TO, arrow_schema

COLUMNS = ("key", "value", "topic", "partition", "offset", "headers", "epoch", *BAD_COLUMNS)
_ARROW = arrow_schema(COLUMNS)


def split_off(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The good rows, and the bad ones if there are any."""
    if BAD_REASON not in batch.schema.names:
        return batch, None
    reasons = batch.column(BAD_REASON)
    if reasons.null_count == len(reasons):
        return batch, None
    return batch.filter(reasons.is_null()), batch.filter(reasons.is_valid())


class BadRecordsFile:
    """The bad records of one partition in one task. It stays when the task fails."""

    def __init__(self, place: tuple[str, int], inflight: Path, compression: str) -> None:
        self._place = place
        self._first = self._end = -1
        self._rows = self._offsets = 0
        self._reason = ""
        self._path = inflight / f"{uuid.uuid4().hex}{STAGED_SUFFIX}"
        self._file = self._path.open("wb")
        self._writer = pq.ParquetWriter(self._file, _ARROW, compression=compression)

    def add(self, rows: pa.RecordBatch) -> None:
        """Rows of the partition, in the order of their offsets."""
        if not self._rows:
            self._first = rows.column("offset")[0].as_py()
            self._reason = rows.column(BAD_REASON)[0].as_py()
        self._end = rows.column(BAD_TO)[-1].as_py()
        self._rows += rows.num_rows
        spans = pc.subtract(rows.column(BAD_TO), rows.column("offset"))
        self._offsets += pc.sum(spans).as_py()
        table = pa.Table.from_batches([rows.select(COLUMNS)]).cast(_ARROW)
        # Each is as large as a batch of the log may be: they are not collected.
        self._writer.write_table(table)

    def finish(self) -> dict[str, Any]:
        """Make the file durable and describe it."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        topic, number = self._place
        return {
            "bad": True,
            "staged": str(self._path),
            "topic": topic,
            "partition": number,
            "first": self._first,
            "last": self._end - 1,
            "rows": self._rows,
            "offsets": self._offsets,
            "sizeBytes": self._path.stat().st_size,
            "digest": file_digest(self._path),
            "reason": self._reason,
        }
