"""What a Spark task of the source reads, and how it reads it on an executor.

Owns one range of offsets from its first fetch to its last Arrow batch; does not plan ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidelog.client.batches import Fetched
from tidelog.client.errors import GaveUp
from tidelog.client.fetcher import OffsetOutOfRange
from tidelog.pipeline import brokers
from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.errors import DataLost, OptionRefused, PipelineError, TopicChanged
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.planning.losses import Loss, LossKind
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.schema import LOST_TO, arrow_schema
from tidelog.records.record import CorruptRecords

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReadTask(InputPartition):  # type: ignore[misc]
    """One task: offsets [start, end) of one partition of the topic with this id ("": unknown)."""

    range: OffsetRange
    topic_id: str


def check_schema(options: SourceOptions, schema: object) -> None:
    """Refuse a schema given by the user: the columns follow from the options."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(options.columns)):
        raise OptionRefused("the source has a schema of its own: use the option columns instead")


def read_task(
    options: SourceOptions, task: ReadTask, seen: Callable[[Fetched], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a task in the order of their offsets; `seen` gets what they are read from first.

    Raises DataLost when records of the range are gone and failOnDataLoss is set; otherwise it warns
    and reads what is left. Raises PipelineError for damaged records, TopicChanged when the topic
    was replaced since the task was planned.
    """
    part = task.range
    pid = part.pid
    origin = Origin(pid.topic, pid.partition, pid.incarnation)
    decoder = Decoder(origin, options.columns, part.start, part.end, options.check_crcs)
    access = brokers.connect(options)
    while decoder.next_offset < part.end:
        left = OffsetRange(pid, decoder.next_offset, part.end)
        try:
            for fetched in access.fetch(left, options):
                if seen is not None:
                    seen(fetched)
                yield from decoder.decode(fetched.records, fetched.aborted)
        except CorruptRecords as error:
            raise PipelineError(f"{pid}: {error}") from error
        except OffsetOutOfRange:
            # Each round begins further on: at the log start, or behind the range.
            lost_from = decoder.next_offset
            decoder.next_offset, kind = _resume(options, access, lost_from, part)
            yield from _marker(options, OffsetRange(pid, lost_from, decoder.next_offset), kind)
        except GaveUp:
            # At its end a log is silent and not out of range: was it cut back to there?
            if decoder.next_offset < access.bounds(pid, options)[1]:
                raise
            lost_from = decoder.next_offset
            decoder.next_offset, kind = _resume(options, access, part.end, part)
            yield from _marker(options, OffsetRange(pid, lost_from, decoder.next_offset), kind)
    # Fetches go by name. An id that is still the same was the same all the time.
    found = access.topic_id(pid.topic, options)
    if task.topic_id and found and found != task.topic_id:
        raise TopicChanged(f"topic {pid.topic} was deleted and created again while it was read")


def _resume(
    options: SourceOptions, access: brokers.Brokers, position: int, part: OffsetRange
) -> tuple[int, LossKind]:
    """Where to go on after records were found to be gone: the log start, or the range's end."""
    start, end = access.bounds(part.pid, options)
    kind = LossKind.RETENTION if position < start else LossKind.REWOUND
    loss = Loss(part.pid, kind, position, start if kind is LossKind.RETENTION else end)
    if options.fail_on_data_loss:
        raise DataLost(f"{loss}; set failOnDataLoss=false to go on without them")
    _log.warning("%s", loss)
    return (min(start, part.end) if kind is LossKind.RETENTION else part.end), kind


def _marker(options: SourceOptions, lost: OffsetRange, kind: LossKind) -> Iterator[pa.RecordBatch]:
    """The row that tells of a loss, where such rows are wanted."""
    if LOST_TO in options.columns and lost.size > 0:
        row = {
            "topic": lost.pid.topic,
            "partition": lost.pid.partition,
            "offset": lost.start,
            "value": kind.value.encode(),
            LOST_TO: lost.end,
        }
        yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(options.columns))
