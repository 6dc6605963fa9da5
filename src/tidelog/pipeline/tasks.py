"""What a Spark task of the source reads, and how it reads it on an executor.

Owns one range of offsets from its first fetch to its last Arrow batch; does not plan ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidelog.client.fetcher import OffsetOutOfRange
from tidelog.pipeline import brokers
from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.errors import DataLost, OptionRefused, PipelineError
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.planning.losses import Loss, LossKind
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.schema import arrow_schema
from tidelog.records.record import CorruptRecords

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReadTask(InputPartition):  # type: ignore[misc]
    """One task: offsets [start, end) of one partition."""

    range: OffsetRange


def check_schema(options: SourceOptions, schema: object) -> None:
    """Refuse a schema given by the user: the columns follow from the options."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(options.columns)):
        raise OptionRefused("the source has a schema of its own: use the option columns instead")


def read_task(options: SourceOptions, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The rows of a task in the order of their offsets.

    Raises DataLost when records of the range are gone and failOnDataLoss is set; otherwise it warns
    and reads what is left. Raises PipelineError for damaged records.
    """
    pid = part.pid
    origin = Origin(pid.topic, pid.partition, pid.incarnation)
    decoder = Decoder(origin, options.columns, part.start, part.end, options.check_crcs)
    access = brokers.connect(options)
    while decoder.next_offset < part.end:
        left = OffsetRange(pid, decoder.next_offset, part.end)
        try:
            for fetched in access.fetch(left, options):
                yield from decoder.decode(fetched.records, fetched.aborted)
        except CorruptRecords as error:
            raise PipelineError(f"{pid}: {error}") from error
        except OffsetOutOfRange:
            # Each round begins further on: at the log start, or behind the range.
            decoder.next_offset = _resume(options, access, decoder.next_offset, part)


def _resume(
    options: SourceOptions, access: brokers.Brokers, position: int, part: OffsetRange
) -> int:
    """Where to go on after records were found to be gone: the log start, or the range's end."""
    start, end = access.bounds(part.pid, options)
    kind = LossKind.RETENTION if position < start else LossKind.REWOUND
    loss = Loss(part.pid, kind, position, start if kind is LossKind.RETENTION else end)
    if options.fail_on_data_loss:
        raise DataLost(f"{loss}; set failOnDataLoss=false to go on without them")
    _log.warning("%s", loss)
    return min(start, part.end) if kind is LossKind.RETENTION else part.end
