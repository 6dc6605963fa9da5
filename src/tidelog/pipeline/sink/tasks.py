"""A task of the sink at least once: its rows go through one idempotent producer of its own.

Owns the producer of a task and one connected cluster per process (Spark reuses Python workers, so
connections outlive a task). A task has succeeded when every row is acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidelog.client.blocking import BlockingCluster
from tidelog.client.errors import ClientError
from tidelog.client.producing.bulk_sender import BulkSender
from tidelog.client.producing.send_queue import SendTally
from tidelog.client.producing.sender import RecordSender
from tidelog.pipeline.errors import NotWritten
from tidelog.pipeline.sink.options import SinkOptions, settings_of
from tidelog.pipeline.sink.ordering import in_order
from tidelog.pipeline.sink.rows import SinkColumns, SinkRows, cut

GIVE_UP_S = 1.0
"""How long a task that failed waits for what it has sent."""

_lock = threading.Lock()
_clusters: dict[tuple[int, str, object], BlockingCluster] = {}


def connect(options: SinkOptions) -> BlockingCluster:
    """The cluster of a write, connected at most once per process. Raises ClientError."""
    # A forked worker must not use its parent's thread.
    key = (os.getpid(), options.bootstrap_servers, options.properties)
    with _lock:
        if key not in _clusters:
            # A wrong address should fail in less than a minute.
            settings, _ = settings_of(options)
            _clusters[key] = BlockingCluster(
                options.bootstrap_servers, settings, open_timeout_ms=settings.request_timeout_ms
            )
        return _clusters[key]


def write_rows(
    options: SinkOptions, columns: SinkColumns, batches: Iterable[pa.RecordBatch]
) -> int:
    """Write the rows of one task; return how many, once all are acknowledged.

    Raises NotWritten, RowRefused or ClientError, each one line.
    """
    with _sender(connect(options), options) as sender:
        return send_all(options, columns, sender, batches)


def send_all(
    options: SinkOptions,
    columns: SinkColumns,
    sender: RecordSender,
    batches: Iterable[pa.RecordBatch],
) -> int:
    """Send the rows of one task, and wait until all are acknowledged. Raises as ``write_rows``."""
    task = TaskRows(connect(options), sender)
    most_bytes = settings_of(options)[1].max_request_bytes
    for batch in in_order(batches, columns.order_by, options.order_bytes):
        for rows in cut(batch, columns, options.topic, most_bytes):
            task.send(rows)
    task.finish()
    return task.tally.written


class TaskRows:
    """The rows of a task on their way through its sender."""

    def __init__(self, cluster: BlockingCluster, sender: RecordSender) -> None:
        self.tally = SendTally()
        self._cluster = cluster
        self._bulk = BulkSender(sender)

    def send(self, rows: SinkRows) -> None:
        """Accept rows, in order; waits for memory. Raises what ``finish`` does."""
        send = self._bulk.send_many(rows.topic, rows.records, self.tally, partition=rows.partition)
        self._cluster.call(send)
        self._check()

    def finish(self) -> None:
        """Wait for the outcome of every row. Raises NotWritten for one that was refused."""
        self._cluster.call(self._bulk.flush())
        self._check()
        if self.tally.unanswered:
            raise NotWritten(f"{self.tally.unanswered} rows have no outcome")

    def _check(self) -> None:
        if self.tally.failed:
            why = self.tally.first_error
            raise NotWritten(f"{self.tally.failed} rows of a task were not written: {why}") from why


@contextlib.contextmanager
def _sender(cluster: BlockingCluster, options: SinkOptions) -> Iterator[RecordSender]:
    """The sender of one task. After a failure nothing that waits is sent any more."""

    async def made() -> RecordSender:
        return RecordSender(cluster.cluster, settings_of(options)[1])

    sender = cluster.call(made())
    try:
        yield sender
    except BaseException:
        with contextlib.suppress(ClientError, TimeoutError):
            cluster.call(sender.close(), GIVE_UP_S)
        raise
    cluster.call(sender.close())
