"""`spark.read.format("tidelog")`: one read between two places of each partition.

Owns the batch side of Spark's Python data source API; a batch read has no gates (spark.md 3.3).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.pipeline import brokers
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.planning.ranges import ranges_between, split
from tidelog.pipeline.planning.resolve import resolve
from tidelog.pipeline.tasks import ReadTask, check_schema, read_task


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Picklable: holds the options only."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Look up both ends now and cut what lies between them into tasks."""
        options = self._options
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
        ranges = ranges_between(start, end, snapshot.first_offset)
        tasks = split(ranges, options.min_partitions, options.max_records_per_partition)
        return [ReadTask(part) for part in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return read_task(self._options, partition.range)
