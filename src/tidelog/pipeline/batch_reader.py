"""The batch reader, `spark.read.format("tidelog")`: one offset range of each partition.

Owns the batch side of Spark's Python data source API; a batch read has no gates
(docs/operating/pipeline.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.pipeline import brokers
from tidelog.pipeline.errors import DataLost
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.places import Place, PlaceKind
from tidelog.pipeline.planning.positions import Positions
from tidelog.pipeline.planning.ranges import ranges_between
from tidelog.pipeline.planning.resolve import beyond_the_log, check_order, resolve
from tidelog.pipeline.planning.snapshot import Snapshot
from tidelog.pipeline.tasks import ReadTask, check_schema, make_tasks, read_task

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Picklable: holds the options only."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Look up both ends now and split the ranges between them into tasks."""
        options = self._options
        check_order(options.starting, options.ending)
        access = brokers.connect(options)
        snapshot = access.snapshot(options)
        start, end = (
            resolve(
                place,
                snapshot,
                option=name,
                latest_if_no_match=is_end or options.latest_if_no_match,
                by_time=lambda times: access.offsets_at(times, options),
                committed=lambda: access.committed(options, snapshot),
            )
            for place, name, is_end in (
                (options.starting, "startingOffsets", False),
                (options.ending, "endingOffsets", True),
            )
        )
        start = self._within(start, snapshot, options.starting, "startingOffsets")
        end = self._within(end, snapshot, options.ending, "endingOffsets")
        ranges = ranges_between(start, end, snapshot.first_offset)
        return list(make_tasks(options, ranges, end, snapshot))

    def _within(
        self, positions: Positions, snapshot: Snapshot, place: Place, option: str
    ) -> Positions:
        """Return places that the log has reached: later offsets may have been lost, and a task
        would wait in vain for them.

        Places by time are looked up after the snapshot, so the log has reached them.
        """
        if place.kind not in (PlaceKind.OFFSETS, PlaceKind.GROUP):
            return positions
        lines = beyond_the_log(positions, snapshot, option)
        for line in lines.values():
            if self._options.fail_on_data_loss:
                raise DataLost(f"{line}; set failOnDataLoss=false to read up to there")
            _log.warning("%s", line)
        reached = {pid: snapshot.partitions[pid].end for pid in lines}
        return replace(positions, at={**positions.at, **reached})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; none of the partition that PySpark makes where there are no tasks."""
        if not isinstance(partition, ReadTask):
            return iter(())
        return read_task(self._options, partition)
