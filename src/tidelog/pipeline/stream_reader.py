"""The stream reader, `spark.readStream.format("tidelog")`: micro-batches for Spark's Python API.

Owns the order of calls (docs/internals/pipeline.md): `initialOffset` returns the sentinel; the
first `latestOffset` resolves startingOffsets and returns them as the end of an empty batch 0, so
that Spark's own log keeps them; every later call plans a batch. After a restart Spark runs the
uncommitted batch from its start and end alone, before any other call. Not what is planned: see
`planning`.

A stream with a group that has read retired partitions to their ends, and has nothing more to read,
runs one empty batch, so that Spark has the batch before it committed.

With onOutage=wait a partition without a response, or with a leader or metadata older than its
position, keeps its position while the others are read; each trigger looks it up again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.client.errors import ClientError
from tidelog.pipeline import brokers
from tidelog.pipeline.errors import DataLost, PipelineError, TopicChanged
from tidelog.pipeline.options import OnOutage, SourceOptions
from tidelog.pipeline.planning.planner import BatchPlan, plan
from tidelog.pipeline.planning.positions import SENTINEL, Pid, Positions, is_sentinel
from tidelog.pipeline.planning.ranges import ranges_between
from tidelog.pipeline.planning.resolve import resolve
from tidelog.pipeline.planning.snapshot import Snapshot
from tidelog.pipeline.tasks import ReadTask, check_schema, make_tasks, read_task

_log = logging.getLogger(__name__)

# Spark calls `commit` between two batches: an unreachable group must not delay them.
_COMMIT_TIMEOUT_S = 5.0

# More rows than any log has.
_NO_LIMIT = 2**62

# A count in offsets that have the same positions; and how often such an offset is made, while the
# group cannot be reached.
_REPORTS = "drainsReported"
_REPORT_PAUSE_S = 30.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One running query. Spark creates it in two processes: it connects only when needed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._ends = False
        self._target: Snapshot | None = None
        self._seen: Snapshot | None = None
        self._planned_at_s: float | None = None
        self._committed = Positions()
        self._reports_from_s = float("-inf")
        self._warned: set[str] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """No limit that counts: this source has options instead, which can be combined.

        But not ReadAllAvailable, which Spark passes with Trigger.Once alone.
        """
        return ReadMaxRows(_NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the current ends of the log, and no later records.

        The first `latestOffset` takes the target as soon as the positions are known. A start by
        time is looked up before the target, so it is not after it.
        """
        self._ends = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` itself when there is none.

        Raises PipelineError for Trigger.Once at the beginning: the batch that it runs is empty.
        """
        if is_sentinel(start):
            if isinstance(limit, ReadAllAvailable):
                raise PipelineError(
                    "trigger(once=True) would read nothing: set trigger(availableNow=True), which"
                    " reads what is there and ends"
                )
            self._seen = brokers.connect(self._options).snapshot(self._options)
            return self._resolve(self._seen).to_json()
        positions = Positions.from_json(start)
        made = self._plan(positions)
        if self._ends and made.held and not _moves(made, positions):
            made = self._plan_for_held(positions)
        if not _moves(made, positions):
            if self._ends:
                # Spark commits a batch when the next one begins, and here none does. It asks for a
                # batch after the one that ends at `start` is done.
                self.commit(start)
            return self._with_drains_reported(start, positions)
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
        begin, until = Positions.from_json(start), Positions.from_json(end)
        ranges = ranges_between(begin, until, self._first_offset)
        return make_tasks(self._options, ranges, until, self._glance(), of_stream=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the positions to the group `kafka.group.id`, so that others see the progress.

        Spark's checkpoint is authoritative: a failed commit is a warning, and the next one includes
        its positions.
        """
        options = self._options
        if options.group_id is None or not options.commit_group_offsets or is_sentinel(end):
            return
        positions = Positions.from_json(end)
        try:
            # Another query of the group may read on what this one has dropped.
            gone = positions.dropped
            read = {pid: offset for pid, offset in positions.at.items() if pid not in gone}
            wanted = replace(positions, at=read)
            brokers.connect(options).commit(options.group_id, wanted, _COMMIT_TIMEOUT_S)
            self._committed = positions
        except ClientError as error:
            _log.warning("offsets of group %s were not committed: %s", options.group_id, error)

    def _with_drains_reported(self, start: dict[str, Any], positions: Positions) -> dict[str, Any]:
        """`start`, or the same positions as another offset, for an empty batch.

        Spark commits a batch when the next one begins. On an idle stream the group would never have
        committed past a retired partition, and the cluster would keep it (retired.purge=drained).
        """
        options, seen = self._options, self._seen
        if options.group_id is None or not options.commit_group_offsets or seen is None:
            return start
        with_ids = positions.with_ids(seen.topic_ids)
        drained = {
            pid: state.end
            for pid, state in seen.partitions.items()
            if state.is_retired and with_ids.at.get(pid, 0) >= state.end
        }
        committed = self._committed.with_ids(seen.topic_ids).at
        now_s = time.monotonic()
        if now_s < self._reports_from_s or all(
            committed.get(pid, 0) >= end for pid, end in drained.items()
        ):
            return start
        self._reports_from_s = now_s + _REPORT_PAUSE_S
        return {**start, _REPORTS: int(start.get(_REPORTS, 0)) + 1}

    def stop(self) -> None:
        """Nothing: Spark kills this process instead of calling."""

    def _plan(self, positions: Positions) -> BatchPlan:
        """Plan from the current log, or from the target of a run with an end.

        Raises DataLost and TopicChanged for refused losses; with onOutage=fail PipelineError for
        partitions that cannot be read.
        """
        options = self._options
        chooses = options.subscription.chooses
        positions, left = positions.parted(lambda pid: chooses(pid.topic, pid.partition))
        try:
            seen = self._target or brokers.connect(options).settled(options, positions)
        except ClientError as error:
            if options.on_outage is OnOutage.FAIL:
                raise
            made = BatchPlan(positions, held=dict.fromkeys(positions.at, str(error)))
        else:
            self._seen = seen
            if self._ends:
                self._target = seen
            with_ids = positions.with_ids(seen.topic_ids)
            made = plan(with_ids, seen, options.limits, self._waited_ms())
        self._report(made, left)
        return replace(made, end=made.end.beside(left))

    def _plan_for_held(self, positions: Positions) -> BatchPlan:
        """Wait for the partitions that a run with an end still has to read.

        Raises PipelineError after kafkaConsumer.pollTimeoutMs: a successful run has read all.
        """
        options = self._options
        overdue_s = time.monotonic() + options.poll_timeout_ms / 1000
        while True:
            self._target = None
            made = self._plan(positions)
            if not made.held or _moves(made, positions):
                return made
            if time.monotonic() >= overdue_s:
                raise PipelineError(
                    f"{_first(made.held)}; all other partitions were read: run again"
                )
            time.sleep(options.offset_retry_interval_ms / 1000)

    def _first_offset(self, pid: Pid) -> int:
        seen = self._seen or brokers.connect(self._options).glance(self._options)
        return seen.first_offset(pid)

    def _glance(self) -> Snapshot | None:
        """The starts of the log, to clip lost ranges; they may be unknown after a restart."""
        if self._seen is None:
            try:
                self._seen = brokers.connect(self._options).glance(self._options)
            except ClientError as error:
                _log.warning("the batch is planned without a lookup of the log: %s", error)
        return self._seen

    def _waited_ms(self) -> int:
        if self._planned_at_s is None or self._ends:
            # As in the stock source the first batch of a run does not wait. A run that ends at the
            # current end of the log never waits.
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

    def _report(self, made: BatchPlan, left: Positions) -> None:
        """Raise for losses that the options refuse; log each of the others once while it lasts."""
        options = self._options
        if made.losses and options.fail_on_data_loss:
            losses = "; ".join(str(loss) for loss in made.losses)
            kind = TopicChanged if any(loss.replaced_by for loss in made.losses) else DataLost
            raise kind(f"{losses}; set failOnDataLoss=false to continue without them")
        if made.held and options.on_outage is OnOutage.FAIL:
            raise PipelineError(f"{_first(made.held)} (onOutage=fail)")
        lines = {str(loss) for loss in made.losses}
        lines |= {f"waiting for {pid}: {why}" for pid, why in made.held.items()}
        lines |= {
            f"{pid} is no longer read: its position {offset} is kept"
            for pid, offset in left.at.items()
        }
        for line in sorted(lines - self._warned):
            _log.warning("%s", line)
        self._warned = lines


def _moves(made: BatchPlan, positions: Positions) -> bool:
    """Whether a plan reads anything."""
    return made.end.at != positions.with_ids(made.end.topic_ids).at


def _first(held: Mapping[Pid, str]) -> str:
    pid, why = min(held.items())
    more = f" (and {len(held) - 1} more partitions)" if len(held) > 1 else ""
    return f"{pid} cannot be read: {why}{more}"
