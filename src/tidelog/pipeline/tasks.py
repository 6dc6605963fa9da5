"""The Spark tasks of the source: reading one range of offsets on an executor.

Owns one range from its first fetch to its last Arrow batch. Not the planning of ranges: see
`planning`. A loss in a range is proven first (`planning.losses`): while the log has the position,
it is fetched again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidelog.client.errors import ClientError, GaveUp, LogTruncated, OffsetOutOfRange, Refused
from tidelog.client.fences import FormerIncarnation
from tidelog.client.fetching.batches import Fetched
from tidelog.model.errors import ErrorCode
from tidelog.pipeline import brokers
from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.errors import DataLost, OptionRefused, PipelineError, TopicChanged
from tidelog.pipeline.options import OnBadRecord, OnOutage, SourceOptions
from tidelog.pipeline.planning.losses import LossKind, PartitionLoss
from tidelog.pipeline.planning.positions import UNKNOWN_EPOCH, Pid, Positions
from tidelog.pipeline.planning.ranges import OffsetRange, clip, split, without_former_tails
from tidelog.pipeline.planning.snapshot import Snapshot
from tidelog.pipeline.resized_topics import OffsetEpochs
from tidelog.pipeline.schema import EPOCH, LOST_TO, arrow_schema
from tidelog.records.record import CorruptRecords

_log = logging.getLogger(__name__)

# onOutage=wait: a task occupies a slot of Spark, so it does not wait for ever.
_LONGEST_OUTAGE_S = 3600.0

Result = TypeVar("Result")


@dataclass(slots=True)
class ReadTask(InputPartition):  # type: ignore[misc]
    """One task: offsets [start, end) of one partition of the topic with this id ("": unknown).

    `leader_epoch` is that in which the end of the batch was looked up, -1 if it is unknown: all
    that was planned is of it or of earlier ones. So with `resize_epoch`, 0 if it is unknown.
    `lost_from` is where the part begins that was
    clipped off in front of the range, if any; the range itself may be empty then. `of_stream`: the
    batch is in a checkpoint and must end, even if its topic is gone.
    """

    range: OffsetRange
    topic_id: str
    leader_epoch: int = UNKNOWN_EPOCH
    lost_from: int | None = None
    of_stream: bool = False
    resize_epoch: int = 0


def make_tasks(
    options: SourceOptions,
    ranges: Sequence[OffsetRange],
    end: Positions,
    snapshot: Snapshot | None,
    *,
    of_stream: bool = False,
) -> list[ReadTask]:
    """The tasks of ranges that lead to `end`: clipped to the log's starts, as far as they are known
    (`snapshot`), then split.
    """
    starts: dict[Pid, int] = {}
    if snapshot is not None:
        ranges = without_former_tails(ranges, snapshot.former)
        starts = {pid: state.start for pid, state in snapshot.partitions.items()}
        removed = filter(snapshot.is_removed, snapshot.former)
        starts |= {pid: snapshot.former[pid].data_end for pid in removed}
    kept, lost = clip(ranges, starts)
    tasks = []
    for part in split(kept, options.min_partitions, options.max_records_per_partition):
        pid = part.pid
        # In front of the first piece.
        lost_from = lost.pop(pid).start if pid in lost else None
        resize_epoch = end.resize_epochs.get(pid.topic, 0)
        tasks.append(
            ReadTask(part, pid.topic_id, end.epoch(pid), lost_from, of_stream, resize_epoch)
        )
    return tasks


def check_schema(options: SourceOptions, schema: object) -> None:
    """Refuse a schema given by the user: the columns follow from the options."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(options.columns)):
        raise OptionRefused("the source has a fixed schema: use the option columns instead")


def read_task(
    options: SourceOptions, task: ReadTask, seen: Callable[[Fetched], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a task in the order of their offsets; `seen` is called with each fetch first.

    Raises DataLost when records of the range are gone and failOnDataLoss is set; otherwise it warns
    and reads the rest. Raises PipelineError for damaged records, TopicChanged when the topic
    was replaced since the task was planned, ClientError for a log that cannot be read.
    """
    part = task.range
    pid = part.pid
    access = _waiting_out(options, pid, lambda: brokers.connect(options))
    fate = _waiting_out(options, pid, lambda: _look_up(options, access, task))
    if (now := fate.replaced_by) is not None:
        if options.fail_on_data_loss or not task.of_stream:
            raise TopicChanged(f"topic {pid.topic} was deleted or created again before it was read")
        begin = part.start if task.lost_from is None else task.lost_from
        planned = pid._replace(topic_id=task.topic_id)
        yield from _lose(
            options, PartitionLoss(planned, LossKind.DELETED, begin, -1, now), begin, part.end
        )
        return
    if task.lost_from is not None:
        lost = PartitionLoss(pid, LossKind.RETENTION, task.lost_from, part.start)
        yield from _lose(options, lost, task.lost_from, part.start)
    if fate.former is not None:
        yield from _lose_removed(options, fate.former, part)
    elif part.start < part.end:
        yield from _Reading(options, access, task, seen, fate.fences).rows()
        # Fetches go by name. An id that is still the same was the same all the time.
        if _waiting_out(options, pid, lambda: _replaced_by(options, access, task)):
            raise TopicChanged(f"topic {pid.topic} was deleted and created again while it was read")


class _Reading:
    """Reads one range; fetches again from its position while records may still arrive."""

    def __init__(
        self,
        options: SourceOptions,
        access: brokers.Brokers,
        task: ReadTask,
        seen: Callable[[Fetched], None] | None,
        fences: OffsetEpochs,
    ) -> None:
        part = task.range
        self._options = options
        self._access = access
        self._seen = seen
        self._pid, self._planned_end = part.pid, part.end
        self._planned_in = task.leader_epoch
        # At least that of the record before the position; a log that ends it earlier was truncated.
        self._epoch = task.leader_epoch
        self._log_end = part.end
        origin = Origin(part.pid.topic, part.pid.partition, fences)
        self._decoder = Decoder(
            origin,
            options.columns,
            part.start,
            part.end,
            options.check_crcs,
            options.on_bad_record is OnBadRecord.QUARANTINE,
        )
        self._moved_s = time.monotonic()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows up to the end of the range, or up to where the rest of it is lost."""
        decoder = self._decoder
        try:
            yield from self._all_fetched()
        except Refused as error:
            # The partition may have been removed while it was read.
            former = None
            if _says_unknown(error):
                former = self._access.former(self._pid, self._options)
            if former is None:
                raise
            left = OffsetRange(self._pid, decoder.next_offset, decoder.end)
            yield from _lose_removed(self._options, former, left)
            return
        if decoder.end < self._planned_end:
            lost = PartitionLoss(self._pid, LossKind.REWOUND, self._planned_end, self._log_end)
            yield from _lose(self._options, lost, decoder.end, self._planned_end)

    def _all_fetched(self) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder
        while decoder.next_offset < decoder.end:
            try:
                yield from self._fetched()
            except CorruptRecords as error:
                raise PipelineError(f"{self._pid}: {error}") from error
            except LogTruncated as error:
                self._cut_at(error.end_offset)
            except OffsetOutOfRange:
                yield from self._out_of_range()
            except GaveUp as error:
                self._silent(error)

    def _fetched(self) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder
        left = OffsetRange(self._pid, decoder.next_offset, decoder.end)
        for fetched in self._access.fetch(left, self._options, self._epoch):
            self._search_for_later_epochs(fetched)
            if self._seen is not None:
                self._seen(fetched)
            yield from decoder.decode(fetched.records, fetched.aborted)
            self._moved_s = time.monotonic()
            if decoder.stopped or decoder.next_offset >= decoder.end:
                return
            self._epoch = fetched.leader_epoch

    def _search_for_later_epochs(self, fetched: Fetched) -> None:
        """A batch of a later epoch than the plan's, below the planned end: the log was truncated.

        The next plan goes back to that offset, and reads the new records there once.
        """
        if not 0 <= self._planned_in < fetched.leader_epoch:
            return
        for header, _ in fetched.all_batches():
            if header.leader_epoch > self._planned_in:
                self._cut_at(header.base_offset)
                return

    def _cut_at(self, offset: int) -> None:
        """Stop reading at the offset of the truncation."""
        decoder = self._decoder
        # At or above the end it cuts nothing off.
        self._log_end = min(self._log_end, offset)
        decoder.end = max(decoder.next_offset, min(decoder.end, offset))

    def _out_of_range(self) -> Iterator[pa.RecordBatch]:
        decoder, options = self._decoder, self._options
        self._access.ask_who_leads(self._pid, options)
        start, end = self._access.bounds(self._pid, options, readable=False)
        position = decoder.next_offset
        if position < start:
            lost = PartitionLoss(self._pid, LossKind.RETENTION, position, start)
            decoder.next_offset = min(start, decoder.end)
            yield from _lose(options, lost, position, decoder.next_offset)
            self._moved_s = time.monotonic()
        elif time.monotonic() - self._moved_s < options.poll_timeout_ms / 1000:
            # A deposed leader, or a new one that lags: try again.
            time.sleep(options.offset_retry_interval_ms / 1000)
        elif position > end:
            self._cut_at(end)
        else:
            raise PipelineError(
                f"{self._pid}: its leader has no offset {position} for {options.poll_timeout_ms}"
                f" ms, although it reports a log from {start} to {end}"
            )

    def _silent(self, error: GaveUp) -> None:
        """No records for kafkaConsumer.pollTimeoutMs: the log ends here, or no broker responds."""
        another_leads = self._access.ask_who_leads(self._pid, self._options)
        try:
            _, end = self._access.bounds(self._pid, self._options, readable=False)
        except ClientError as outage:
            if _says_unknown(outage):
                raise
            waited_s = time.monotonic() - self._moved_s
            if self._options.on_outage is OnOutage.FAIL or waited_s > _LONGEST_OUTAGE_S:
                raise
            _log.warning("waiting for %s: %s", self._pid, outage)
            return
        # At its end a log returns no records and no error: was it truncated to there?
        if self._decoder.next_offset >= end:
            self._cut_at(end)
        elif not another_leads:
            raise error


def _lose(
    options: SourceOptions, loss: PartitionLoss, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Refuse a loss, or warn and continue without the offsets `start` to `end` (exclusive).

    Yields the marker row of the loss, if such rows are requested.
    """
    if options.fail_on_data_loss:
        raise DataLost(f"{loss}; set failOnDataLoss=false to continue without them")
    _log.warning("%s", loss)
    if LOST_TO in options.columns and end > start:
        row = {
            "topic": loss.pid.topic,
            "partition": loss.pid.partition,
            "offset": start,
            "value": loss.kind.value.encode(),
            LOST_TO: end,
        }
        yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(options.columns))


class _Found(NamedTuple):
    """What has become of a task's partition since it was planned, and its fences if they are used.

    `replaced_by`: the id of another topic that has the name now, "" for none; None if it is the
    planned one. `former`: where the partition ended, if it was removed.
    """

    replaced_by: str | None = None
    former: FormerIncarnation | None = None
    fences: OffsetEpochs = ()


def _look_up(options: SourceOptions, access: brokers.Brokers, task: ReadTask) -> _Found:
    pid = task.range.pid
    if (gone := _gone(options, access, task)) is not None:
        return gone
    if task.range.start >= task.range.end or EPOCH not in options.columns:
        return _Found()
    try:
        return _Found(fences=access.fences(pid, task.resize_epoch, options))
    except Refused as error:
        # It may have been removed, or its topic deleted, since the first check.
        gone = _gone(options, access, task) if _says_unknown(error) else None
        if gone is None:
            raise
        return gone


def _gone(options: SourceOptions, access: brokers.Brokers, task: ReadTask) -> _Found | None:
    """What a task finds whose partition cannot be read any longer; None if it is there."""
    if (now := _replaced_by(options, access, task)) is not None:
        return _Found(replaced_by=now)
    if task.range.start >= task.range.end:
        return None
    former = access.former(task.range.pid, options)
    return None if former is None else _Found(former=former)


def _replaced_by(options: SourceOptions, access: brokers.Brokers, task: ReadTask) -> str | None:
    return access.was_replaced(task.range.pid.topic, task.topic_id, options)


def _says_unknown(error: ClientError) -> bool:
    """Whether brokers do not know the partition: it was removed, or its topic was deleted."""
    return isinstance(error, Refused) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _lose_removed(
    options: SourceOptions, former: FormerIncarnation, left: OffsetRange
) -> Iterator[pa.RecordBatch]:
    """The loss of what is left of a removed partition; what follows its data is none."""
    end = min(left.end, former.data_end)
    if left.start < end:
        gone = PartitionLoss(left.pid, LossKind.DELETED, left.start, end, was_removed=True)
        yield from _lose(options, gone, left.start, end)


def _waiting_out(options: SourceOptions, pid: Pid, ask: Callable[[], Result]) -> Result:
    """Call `ask`; with onOutage=wait repeat it until a broker responds."""
    begun_s = time.monotonic()
    while True:
        try:
            return ask()
        except ClientError as error:
            waited_s = time.monotonic() - begun_s
            if options.on_outage is OnOutage.FAIL or waited_s > _LONGEST_OUTAGE_S:
                raise
            _log.warning("waiting for %s: %s", pid, error)
        time.sleep(options.offset_retry_interval_ms / 1000)
