"""The writers that Spark calls, at least once: `df.write` and `df.writeStream`.

Owns the write side of Spark's Python data source API. Writers are picklable: they hold the options
and the columns only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelog.pipeline.sink.options import SinkOptions
from tidelog.pipeline.sink.rows import check_columns
from tidelog.pipeline.sink.tasks import write_rows


@dataclass
class RowsWritten(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: all of its rows are acknowledged."""

    rows: int


class _AtLeastOnce:
    """One write: its options and columns."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = check_columns(schema, options.topic, options.order_by)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write the rows of one task. Raises PipelineError or ClientError, one line."""
        return RowsWritten(write_rows(self._options, self._columns, iterator))


class BatchWriter(_AtLeastOnce, DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of `df.write`: rows of a task that failed may be in the topic."""


class StreamWriter(_AtLeastOnce, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of `df.writeStream`: a batch that Spark runs again is written again."""
