"""The fetched batches of one partition, and which of them a reader may see. Pure.

Owns the iteration over raw batches, without a copy and without decoding records. Aborted
transactions are recognized by the list in each response, which is complete for its bytes (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tidelog.client.errors import ClientError, InvalidAnswer
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import MAGIC_POSITION, BatchHeader, crc_is_right, read_header, walk
from tidelog.records.control_records import ABORT, control_type
from tidelog.records.raw_frames import BATCH_MAGIC, walk_frames
from tidelog.records.reader import FastReader, read_batch
from tidelog.records.record import CorruptRecords, Record


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole record batches of one partition, as they are in the response.

    ``offset`` is the requested position: the first batch may begin before it, and records below it
    must be skipped. ``next_offset`` is the offset after the last batch, which has ``leader_epoch``.
    ``aborted`` is None for read_uncommitted, otherwise (producer id, first offset) of each
    transaction aborted in these bytes.
    """

    partition: TopicPartition
    offset: int
    next_offset: int
    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None = field(default=None)
    leader_epoch: int = -1

    @property
    def end_offset(self) -> int:
        """The end of the readable log at the time of the response."""
        return self.high_watermark if self.aborted is None else self.last_stable_offset

    def all_batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield every batch with its header, control batches included."""
        for position, header in walk(self.records):
            yield header, self.records[position : position + header.size]

    def batches(self, *, check_crc: bool = True) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches that a reader sees: no control batches, no aborted ones.

        Raises CorruptRecords for a batch with a wrong CRC, unless that is checked elsewhere.
        """
        starts = sorted(self.aborted or (), key=lambda item: item[1])
        pending = 0
        aborting: set[int] = set()
        for header, batch in self.all_batches():
            if check_crc and not crc_is_right(batch, header.crc):
                raise CorruptRecords(
                    f"{self.partition}: the batch at offset {header.base_offset} has a wrong CRC"
                )
            while pending < len(starts) and starts[pending][1] <= header.last_offset:
                aborting.add(starts[pending][0])
                pending += 1
            if header.control:
                if header.transactional and _is_abort(batch):
                    aborting.discard(header.producer_id)
                continue
            if header.transactional and header.producer_id in aborting:
                continue
            if header.last_offset >= self.offset:
                yield header, batch

    def rows(self, reader: FastReader | None = None) -> Iterator[Record]:
        """Yield the records that a reader sees, from ``offset`` on; CRCs are checked.

        For tools; bulk readers decode ``batches`` themselves.
        """
        reader = reader or FastReader()
        for header, batch in self.batches():
            late = header.max_timestamp if header.log_append_time else None
            for item in reader.records(batch):
                if item.offset >= self.offset:
                    timestamp = item.timestamp if late is None else late
                    yield Record(item.offset, timestamp, item.key, item.value, item.headers)


def _is_abort(batch: memoryview) -> bool:
    records = read_batch(batch)
    return bool(records) and control_type(records[0].key) == ABORT


def split_at(fetched: Fetched, end: int) -> tuple[Fetched | None, Fetched | None]:
    """Return the batches before an offset at which a batch begins, and the others; None for none.

    A fence is a batch of its own, so none reaches over it. Grows with the batches.
    """
    if fetched.next_offset <= end:
        return fetched, None
    position, next_offset, leader_epoch = 0, fetched.offset, fetched.leader_epoch
    aborted = None if fetched.aborted is None else sorted(fetched.aborted, key=lambda one: one[1])
    for header, batch in fetched.all_batches():
        if header.base_offset >= end:
            break
        position += header.size
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
        if aborted and header.control and header.transactional and _is_abort(batch):
            # The first of this producer ends here: a later batch of it is of another transaction.
            ended = next(
                (one for one in aborted if one[0] == header.producer_id),
                None,
            )
            if ended is not None and ended[1] <= header.base_offset:
                aborted.remove(ended)
    if not position:
        return None, fetched
    before = replace(
        fetched,
        next_offset=next_offset,
        records=fetched.records[:position],
        leader_epoch=leader_epoch,
    )
    after = replace(
        fetched,
        offset=max(end, fetched.offset),
        records=fetched.records[position:],
        aborted=aborted,
    )
    return before, after


def whole_batches(records: memoryview, offset: int) -> tuple[memoryview, int, int]:
    """Cut fetched bytes after the last whole batch; return (batches, next offset, leader epoch).

    The epoch is that of the last batch. Without a whole batch the next offset is ``offset``, the
    epoch -1. Grows with the batches.
    """
    end = 0
    next_offset = offset
    leader_epoch = -1
    for position, header in walk(records):
        end = position + header.size
        next_offset = max(next_offset, header.next_offset)
        leader_epoch = header.leader_epoch
    return records[:end], next_offset, leader_epoch


def whole_frames(records: memoryview, offset: int) -> tuple[memoryview, int, int]:
    """As `whole_batches`, with messages of before Kafka 0.11 as they are: for raw readers only."""
    end = 0
    next_offset = offset
    leader_epoch = -1
    for frame in walk_frames(records):
        end = frame.position + frame.size
        after = frame.offset + 1
        if frame.magic == BATCH_MAGIC:
            header = read_header(records, frame.position)
            after, leader_epoch = header.next_offset, header.leader_epoch
        next_offset = max(next_offset, after)
    return records[:end], next_offset, leader_epoch


def no_batch(partition: TopicPartition, offset: int, records: memoryview) -> ClientError:
    """Return the error for bytes without a whole batch: an old format, or an invalid response.

    Formats before Kafka 0.11 (magic 0 and 1) are not read: brokers keep such batches as they are.
    """
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] in (0, 1):
        return ClientError(
            f"{partition} holds records of magic {records[MAGIC_POSITION]} at offset {offset},"
            " written before Kafka 0.11: only magic 2 is read"
        )
    return InvalidAnswer(f"{partition} at {offset}: the response has no whole batch")
