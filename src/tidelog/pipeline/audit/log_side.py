"""The log's records of pieces that follow one another, for an audit.

Owns one reading of the log, cut where the pieces meet, and two second opinions on it, by code that
the archive does not use: how many records the headers of the batches announce, and a batch of each
piece decoded in plain Python. One decoder on both sides of a comparison would agree with itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa

from tidelog.client.fetching.batches import Fetched
from tidelog.pipeline import brokers
from tidelog.pipeline.audit.bad_side import Offsets, clipped
from tidelog.pipeline.audit.facts import Piece
from tidelog.pipeline.audit.lake_side import CONTENT
from tidelog.pipeline.decoding.bad import fits
from tidelog.pipeline.lake.bad_files import split_off
from tidelog.pipeline.options import OnBadRecord, SourceOptions
from tidelog.pipeline.planning.positions import Pid
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.schema import BAD_RAW, BAD_TO, TIMESTAMP_MS, choose_columns
from tidelog.pipeline.tasks import ReadTask, read_task
from tidelog.records.batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    crc_is_right,
    read_header,
)
from tidelog.records.raw_frames import BATCH_MAGIC
from tidelog.records.reader import payload_of, read_batch
from tidelog.records.record import CorruptRecords, Record, spans

# A batch of so many records takes some milliseconds in plain Python; longer ones are passed over.
_AGAIN_RECORDS = 2000
_US_PER_MS = 1000


class LogRows:
    """The log from the first range to the last; `batches(0)`, `batches(1)`, … in turn.

    `ranges` are [begin, end), each beginning where the one before ends, of the log of `piece`;
    `resize_epoch` is one that its topic is known to have reached. To be closed: fetches run ahead.
    """

    def __init__(
        self,
        options: SourceOptions,
        piece: Piece,
        ranges: Sequence[tuple[int, int]],
        resize_epoch: int = 0,
    ) -> None:
        committed = piece.isolation == "read_committed" if piece.isolation else None
        self._options = replace(
            options,
            columns=choose_columns(CONTENT, headers=True, epoch=True, bad=True),
            # What cannot be read must be in the lake's table of bad records.
            on_bad_record=OnBadRecord.QUARANTINE,
            read_committed=options.read_committed if committed is None else committed,
            fail_on_data_loss=False,
        )
        self._pid = Pid(piece.topic, piece.partition)
        self._topic_id = piece.topic_id
        self._resize_epoch = resize_epoch
        self._begin = begin = ranges[0][0]
        self._ends = [end for _, end in ranges]
        self.headers = HeaderCount(begin, self._ends)
        self.again = [Again() for _ in ranges]
        self.bad: list[list[Offsets]] = [[] for _ in ranges]
        self._rows = self._read(OffsetRange(self._pid, begin, self._ends[-1]))
        self._held: pa.RecordBatch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def batches(self, index: int) -> Iterator[pa.RecordBatch]:
        """The records of the range `index`, in the order of their offsets."""
        end = self._ends[index]
        while (batch := self._next()) is not None:
            cut = int(np.searchsorted(batch.column("offset").to_numpy(), end))
            if cut:
                part = batch.slice(0, cut)
                self.again[index].compare(part)
                yield part
            if cut < batch.num_rows:
                self._held = batch.slice(cut)
                return

    def log_start(self) -> int:
        """Where the log begins now."""
        return brokers.connect(self._options).bounds(self._pid, self._options)[0]

    def _next(self) -> pa.RecordBatch | None:
        if self._held is not None:
            batch, self._held = self._held, None
            return batch
        return next(self._rows, None)

    def _read(self, whole: OffsetRange) -> Generator[pa.RecordBatch, None, None]:
        if whole.size > 0:
            task = ReadTask(whole, self._topic_id, resize_epoch=self._resize_epoch)
            for batch in read_task(self._options, task, self._seen):
                rows, bad = split_off(batch)
                if bad is not None:
                    self._note_bad(bad)
                yield rows

    def _note_bad(self, rows: pa.RecordBatch) -> None:
        names = ("offset", BAD_TO, TIMESTAMP_MS, BAD_RAW)
        lists = [rows.column(name).to_pylist() for name in names]
        bounds = list(pairwise([self._begin, *self._ends]))
        for first, end, time, raw in zip(*lists, strict=True):
            for noted, (low, high) in zip(self.bad, bounds, strict=True):
                noted += clipped([(first, end)], low, high)
            if time is not None:
                self.headers.forget_one(first)
            elif (header := _header_of(raw)) is not None:
                self.headers.forget(header)

    def _seen(self, fetched: Fetched) -> None:
        """Called before the rows of these bytes are handed out."""
        # The decoder checks the checksums; what a damaged header announces is not counted.
        for header, batch in fetched.batches(check_crc=False):
            if not crc_is_right(batch, header.crc):
                continue
            with suppress(CorruptRecords):
                self.headers.add(header, batch)
            index = self.headers.range_of(header)
            if index is not None:
                self.again[index].offer(header, batch)


class HeaderCount:
    """How many records the headers of batches announce in each range.

    A batch that lies in two ranges, or partly outside, counts by its offsets where it has a record
    for each of them. Where compaction has taken some, it is inspected, in plain Python.
    """

    def __init__(self, begin: int, ends: Sequence[int]) -> None:
        self._bounds = [begin, *ends]
        self._reached = begin
        self.rows = [0] * len(ends)

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        """Count one batch that a reader sees; offsets that were counted before are left out."""
        low = max(header.base_offset, self._reached)
        high = min(header.next_offset, self._bounds[-1])
        if low >= high:
            return
        self._reached = high
        index = self.range_of(header)
        if index is not None and low == header.base_offset:
            self.rows[index] += header.record_count
        elif header.record_count == header.last_offset_delta + 1:
            self._spread(low, high)
        else:
            for span in spans(payload_of(header, batch), header.record_count):
                offset = header.base_offset + span.offset_delta
                if low <= offset < high:
                    self.rows[self._at(offset)] += 1

    def forget(self, header: BatchHeader) -> None:
        """Take back what was counted of a batch that no decoder can read."""
        low, high = max(header.base_offset, self._bounds[0]), self._bounds[-1]
        high = min(header.next_offset, high)
        if (index := self.range_of(header)) is not None:
            self.rows[index] -= header.record_count
        elif header.record_count == header.last_offset_delta + 1 and low < high:
            self._spread(low, high, -1)

    def forget_one(self, offset: int) -> None:
        """Take back one record."""
        self.rows[self._at(offset)] -= 1

    def range_of(self, header: BatchHeader) -> int | None:
        """The range that the whole batch lies in; None when there is none."""
        if header.base_offset < self._bounds[0] or header.next_offset > self._bounds[-1]:
            return None
        index = self._at(header.base_offset)
        return index if header.next_offset <= self._bounds[index + 1] else None

    def _at(self, offset: int) -> int:
        return bisect_right(self._bounds, offset) - 1

    def _spread(self, low: int, high: int, sign: int = 1) -> None:
        while low < high:
            index = self._at(low)
            end = min(high, self._bounds[index + 1])
            self.rows[index] += sign * (end - low)
            low = end


@dataclass(slots=True)
class Again:
    """One batch of a range, decoded in plain Python too; `rows` and `differing` are records."""

    rows: int = 0
    differing: int = 0
    _waiting: list[Record] = field(default_factory=list)

    def offer(self, header: BatchHeader, batch: memoryview) -> None:
        """Take the first batch that is not too long."""
        if self.rows or not 0 < header.record_count <= _AGAIN_RECORDS:
            return
        try:
            # One whose time does not fit is no row.
            self._waiting = [record for record in read_batch(batch) if fits(record.timestamp)]
        except CorruptRecords:
            # This decoder refuses names of headers that are not UTF-8.
            return
        self.rows = self.differing = len(self._waiting)

    def compare(self, batch: pa.RecordBatch) -> None:
        """Look for the records among rows of the same range; whole batches come at once."""
        offsets = batch.column("offset").to_numpy()
        if not self._waiting or offsets[-1] < self._waiting[0].offset:
            return
        low, high = (
            int(np.searchsorted(offsets, offset))
            for offset in (self._waiting[0].offset, self._waiting[-1].offset + 1)
        )
        rows = list(_rows(batch.slice(low, high - low)))
        same = sum(_row(one) == two for one, two in zip(self._waiting, rows, strict=False))
        self.differing = max(len(self._waiting), len(rows)) - same
        self._waiting = []


def _header_of(raw: bytes) -> BatchHeader | None:
    """The header of a bad batch that was counted: one with a right checksum."""
    if len(raw) < HEADER_SIZE or raw[MAGIC_POSITION] != BATCH_MAGIC:
        return None
    header = read_header(raw)
    return header if crc_is_right(raw, header.crc) else None


def _row(record: Record) -> tuple[object, ...]:
    time_us = record.timestamp * _US_PER_MS
    return (
        record.offset,
        time_us,
        record.key,
        record.value,
        [tuple(header) for header in record.headers],
    )


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    lists = (
        batch.column("offset").to_pylist(),
        batch.column("timestamp").cast(pa.int64()).to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        batch.column("headers").to_pylist(),
    )
    for offset, time_us, key, value, headers in zip(*lists, strict=True):
        made = [(header["key"], header["value"]) for header in headers or ()]
        yield offset, time_us, key, value, made
