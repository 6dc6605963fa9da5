"""`spark.readStream.format("tidelog")`: micro-batches, as Spark's Python API asks for them.

Owns the order of calls (spark.md 1.1): `initialOffset` gives the sentinel; the first `latestOffset`
resolves startingOffsets and returns them as the end of an empty batch 0, so that Spark's own log
keeps them; every later one plans. After a restart Spark runs the uncommitted batch from its start
and end alone, before it asks for anything. What is planned is decided in `planning`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.client.errors import ClientError
from tidelog.pipeline import brokers
from tidelog.pipeline.errors import DataLost, TopicChanged
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.planning.planner import Plan, plan
from tidelog.pipeline.planning.positions import SENTINEL, Pid, Positions, is_sentinel
from tidelog.pipeline.planning.ranges import ranges_between, split
from tidelog.pipeline.planning.resolve import resolve
from tidelog.pipeline.planning.snapshot import Snapshot
from tidelog.pipeline.tasks import ReadTask, check_schema, read_task

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One running query. Made twice in two processes: opens nothing until it is asked."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._target: Snapshot | None = None
        self._seen: Snapshot | None = None
        self._planned_at_s: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """No limit of Spark's: ours are options, which it cannot express together."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the target: what the log holds now is read, and nothing that comes later."""
        self._target = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` itself when there is none."""
        self._seen = self._target or self._look()
        if is_sentinel(start):
            return self._resolve(self._seen).to_json()
        positions = Positions.from_json(start)
        self._check_topics(positions, self._seen)
        made = plan(positions, self._seen, self._options.limits, self._waited_ms())
        self._report(made)
        if made.end == positions:
            return start
        self._planned_at_s = time.monotonic()
        return made.end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the log as `latestOffset` saw it, for the progress of the query."""
        if self._seen is None:
            return None
        ends = {pid: state.end for pid, state in self._seen.partitions.items()}
        return Positions(ends, dict(self._seen.topic_ids)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, from its two offsets alone."""
        if is_sentinel(start) or is_sentinel(end):
            return []
        options = self._options
        begin, until = Positions.from_json(start), Positions.from_json(end)
        if self._seen is None:
            # A restart: make sure that the batch is of this topic before it is read.
            self._seen = self._target or self._look()
        self._check_topics(until, self._seen)
        ranges = ranges_between(begin, until, self._first_offset)
        tasks = split(ranges, options.min_partitions, options.max_records_per_partition)
        return [ReadTask(part, until.topic_ids.get(part.pid.topic, "")) for part in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the positions to the group `kafka.group.id`, so that others see the progress.

        The truth is Spark's checkpoint: a commit that fails is a warning, and the next one makes
        up for it.
        """
        options = self._options
        if options.group_id is None or not options.commit_group_offsets or is_sentinel(end):
            return
        try:
            brokers.connect(options).commit(options.group_id, Positions.from_json(end))
        except ClientError as error:
            _log.warning("offsets of group %s were not committed: %s", options.group_id, error)

    def stop(self) -> None:
        """Nothing: Spark kills this process instead of calling (spark.md 1.1)."""

    def _look(self) -> Snapshot:
        return brokers.connect(self._options).snapshot(self._options)

    def _first_offset(self, pid: Pid) -> int:
        return (self._seen or self._look()).first_offset(pid)

    def _waited_ms(self) -> int:
        if self._planned_at_s is None or self._target is not None:
            # As the stock source: the first batch of a run does not wait. A run that ends with what
            # is there waits for nothing at all: nothing more would come.
            return self._options.limits.max_trigger_delay_ms
        return int((time.monotonic() - self._planned_at_s) * 1000)

    def _resolve(self, snapshot: Snapshot) -> Positions:
        options = self._options
        access = brokers.connect(options)
        return resolve(
            options.starting,
            snapshot,
            option="startingOffsets",
            latest_if_no_match=options.latest_if_no_match,
            by_time=lambda times: access.offsets_at(times, options),
            committed=lambda: access.committed(options, snapshot),
        )

    def _check_topics(self, positions: Positions, snapshot: Snapshot) -> None:
        for topic, known in positions.topic_ids.items():
            found = snapshot.topic_ids.get(topic)
            if known and found and known != found:
                raise TopicChanged(
                    f"topic {topic} has the id {found}, the checkpoint is of {known}: the topic was"
                    " deleted and created again, or this is another cluster; use a new checkpoint"
                )

    def _report(self, made: Plan) -> None:
        if made.losses and self._options.fail_on_data_loss:
            lines = "; ".join(str(loss) for loss in made.losses)
            raise DataLost(f"{lines}; set failOnDataLoss=false to go on without them")
        for loss in made.losses:
            _log.warning("%s", loss)
