"""The writers that Spark calls for `df.write` and `df.writeStream`.

Owns the write side of Spark's Python data source API. Writers are picklable: they hold the options
and the columns, and one that writes exactly once the plan of its batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelog.client.errors import ClientError
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.sink import protocol
from tidelog.pipeline.sink.execution import SinkCluster
from tidelog.pipeline.sink.options import SinkOptions
from tidelog.pipeline.sink.protocol import SinkBatch, TaskResult
from tidelog.pipeline.sink.rows import check_columns
from tidelog.pipeline.sink.tasks import send_all, write_rows

_log = logging.getLogger(__name__)


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


@dataclass
class TaskReport(WriterCommitMessage):  # type: ignore[misc]
    """What a task of an exactly-once write reports."""

    result: TaskResult


class ExactlyOnceWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of `df.writeStream` with the option transactionalId.

    Spark makes one in a process of the driver for each batch, and pickles it for the tasks: that is
    where a batch begins. It makes another one for the commit, which is not pickled.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        assert options.sink is not None, "the sink has no transactional id"
        self._options = options
        self._sink = options.sink
        self._columns = check_columns(schema, options.topic, options.order_by)
        self._plan: SinkBatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._plan is None:
            begin = protocol.begin_batch(self._sink, self._options.on_lost)
            self._plan = SinkCluster(self._options).run(begin)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one attempt of a task in a transaction, and leave that open.

        Raises PipelineError or ClientError, one line; the transaction is aborted then.
        """
        context = TaskContext.get()
        plan, cluster = self._plan, SinkCluster(self._options)
        assert plan is not None and context is not None, "Spark pickles the writer for its tasks"
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        on_new_query = self._options.on_new_query
        if not cluster.run(protocol.admit_task(self._sink, plan, query, batch, on_new_query)):
            for _ in iterator:
                # Spark waits for a task that does not take its rows.
                pass
            return TaskReport(TaskResult(plan.driver, query, None, passed_over=True))
        first = next(iterator, None)
        if first is None:
            return TaskReport(TaskResult(plan.driver, query, None))
        name = protocol.task_id(
            self._sink,
            plan.driver,
            context.partitionId(),
            context.attemptNumber(),
            context.taskAttemptId(),
        )
        with cluster.transaction(name) as transaction:
            batches = chain([first], iterator)
            rows = send_all(self._options, self._columns, transaction.sender, batches)
            prepared = transaction.prepare()
        return TaskReport(TaskResult(plan.driver, query, prepared, rows=rows))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Decide the batch, and end its transactions. Raises PipelineError or ClientError."""
        steps = protocol.commit_batch(self._sink, _results(messages), batchId)
        SinkCluster(self._options).run(steps)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort what tasks have left open, unless the batch is decided."""
        try:
            steps = protocol.abort_batch(_results(messages), batchId)
            SinkCluster(self._options).run(steps)
        except (ClientError, PipelineError) as error:
            # The next batch does it; until then readers of committed records wait.
            _log.warning("sink %s: batch %d is not aborted yet: %s", self._sink, batchId, error)


def _results(messages: list[WriterCommitMessage | None]) -> list[TaskResult]:
    """What tasks have reported; for one that failed there is None."""
    return [message.result for message in messages if isinstance(message, TaskReport)]
