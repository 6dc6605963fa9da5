"""The decoder of what one fetch brought for a partition: Arrow record batches.

Owns which records are handed out (no control records, none of aborted transactions, none outside of
the asked range) and up to which offset the log was read; does not fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.pipeline.decoding.bad import BadTimes, bad_batch, bad_times
from tidelog.pipeline.decoding.batches import (
    AbortedTransactions,
    BadFrame,
    Batch,
    Buffer,
    frames,
)
from tidelog.pipeline.decoding.columns import binary_column, headers_column
from tidelog.pipeline.schema import (
    BAD_COLUMNS,
    COLUMNS,
    EPOCH,
    LEADER_EPOCH,
    LOST_TO,
    TIMESTAMP_MS,
    arrow_schema,
)
from tidelog.records.batch import BatchHeader
from tidelog.records.fields import Fields, read_fields
from tidelog.records.record import CorruptRecords
from tidelog.records.starts import Span, all_starts
from tidelog.records.varints import Positions

# One Arrow batch is made of about so many uncompressed bytes of records: large enough that the cost
# per batch vanishes, small enough that positions fit into Arrow's 32 bits many times over.
CHUNK_BYTES = 1 << 20

_US_PER_MS = 1000


class Whole(NamedTuple):
    """A batch of a chunk, its records uncompressed; `raw` is the batch as the log has it."""

    header: BatchHeader
    records: bytes | memoryview
    raw: memoryview


Chunk = list[Whole]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where records come from: what is the same for all of them.

    `fences` are those of the partition, as (offset, resize epoch) in the order of both.
    """

    topic: str
    partition: int
    fences: tuple[tuple[int, int], ...] = ()

    def resize_epochs(self, offsets: Positions) -> Positions:
        """Of each record: that of the last fence at or below it, 0 before the first one."""
        fences = np.array(self.fences, np.int64).reshape(-1, 2)
        epochs: Positions = np.concatenate(([0], fences[:, 1]))
        return epochs[np.searchsorted(fences[:, 0], offsets, "right")]


@dataclass(slots=True)
class Decoder:
    """Decodes the fetches of one range of one partition, in order.

    `next_offset` is where the next fetch has to begin; `end` (exclusive) is where the range ends.
    With `quarantine` what cannot be decoded has a row of its own instead of raising CorruptRecords.
    Then `stopped` says that the rest of the bytes was left: the next fetch begins at `next_offset`.
    """

    origin: Origin
    columns: Sequence[str]
    next_offset: int
    end: int
    check_crc: bool = True
    quarantine: bool = False
    stopped: bool = field(default=False, init=False)

    def decode(
        self, data: Buffer, aborted: Iterable[tuple[int, int]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records of `data` within the range. Raises CorruptRecords.

        `aborted` lists producer id and first offset of aborted transactions, if they are to be
        left out (read_committed).
        """
        self.stopped = False
        hidden = AbortedTransactions(aborted or ())
        chunk: Chunk = []
        size = 0
        begin = reached = self.next_offset
        rest = frames(data, check_crc=self.check_crc)
        for frame in rest:
            first = frame.first if isinstance(frame, BadFrame) else frame.header.base_offset
            if first is not None and first >= self.end:
                reached = self.end
                break
            whole = frame if isinstance(frame, BadFrame) else self._judged(frame, hidden)
            if isinstance(whole, BadFrame):
                yield from self._chunk(chunk)
                chunk, size = [], 0
                self.next_offset = reached
                yield from self._bad_frame(whole, rest, is_first=reached <= begin)
                if self.stopped:
                    return
                reached = self.next_offset
                continue
            assert isinstance(frame, Batch)
            reached = max(reached, frame.header.next_offset)
            if whole is not None:
                chunk.append(whole)
                size += len(whole.records)
            if size >= CHUNK_BYTES:
                yield from self._chunk(chunk)
                chunk, size = [], 0
        yield from self._chunk(chunk)
        self.next_offset = min(reached, self.end)

    def _judged(self, batch: Batch, hidden: AbortedTransactions) -> Whole | BadFrame | None:
        """A batch for a chunk; None for one without records to read."""
        header = batch.header
        try:
            # A compacted batch may be empty: it still moves the position.
            if hidden.hides(batch) or header.control or not header.record_count:
                return None
            return Whole(header, batch.payload(), batch.raw)
        except CorruptRecords as error:
            # A marker that cannot be read leaves its transaction open: what follows is fetched with
            # a list of aborted transactions of its own.
            damaged = header.control
            return BadFrame(
                header.base_offset, header.next_offset, batch.raw, str(error), is_damaged=damaged
            )

    def _bad_frame(
        self, bad: BadFrame, rest: Iterator[Batch | BadFrame], *, is_first: bool
    ) -> Iterator[pa.RecordBatch]:
        """The row of bytes that are no batch, from the position on.

        Damaged ones in the middle of a fetch are fetched again: that may bring other bytes, and
        what follows them says where they end. After them, too, the next bytes are of a new fetch:
        one may have been the marker of a transaction.
        """
        if not self.quarantine:
            raise CorruptRecords(bad.reason)
        if bad.is_damaged and not is_first:
            self.stopped = True
            return
        until = bad.next_offset
        if bad.is_damaged:
            first = self.next_offset if bad.first is None else bad.first
            until = _end_of_damage(first, until, next(rest, None))
            until = max(until, self.next_offset + 1)
            self.stopped = True
        begin = self.next_offset if bad.first is None else max(bad.first, self.next_offset)
        until = min(until, self.end)
        if begin < until:
            yield self._bad_row((begin, until), bad.reason, bad.raw)
        self.next_offset = max(self.next_offset, until)

    def _chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The rows of whole batches; one that cannot be decoded does not take others with it."""
        try:
            made = self._rows(chunk)
        except CorruptRecords as error:
            if not self.quarantine:
                raise
            if len(chunk) > 1:
                for one in chunk:
                    yield from self._chunk([one])
                return
            header, _, raw = chunk[0]
            begin = max(header.base_offset, self.next_offset)
            until = min(header.next_offset, self.end)
            made = None
            if begin < until:
                made = self._bad_row((begin, until), str(error), raw)
        if made is not None:
            yield made

    def _bad_row(
        self, span: tuple[int, int], reason: str, raw: bytes | memoryview
    ) -> pa.RecordBatch:
        epoch = int(self.origin.resize_epochs(np.array(span[:1]))[0])
        place = (self.origin.topic, self.origin.partition, epoch)
        return bad_batch(place, self.columns, span, reason, raw)

    def _rows(self, chunk: Chunk) -> pa.RecordBatch | None:
        if not chunk:
            return None
        data = b"".join(whole.records for whole in chunk)
        view = np.frombuffer(data, dtype=np.uint8)
        spans: list[Span] = []
        position = 0
        for whole in chunk:
            spans.append(Span(position, position + len(whole.records), whole.header.record_count))
            position += len(whole.records)
        starts = all_starts(data, view, spans)
        ends = np.empty_like(starts)
        ends[:-1] = starts[1:]
        ends[-1] = len(data)
        fields = read_fields(view, starts, ends)
        headers = [whole.header for whole in chunk]
        counts = np.array([header.record_count for header in headers])
        offsets = np.repeat([header.base_offset for header in headers], counts)
        offsets += fields.offset_deltas
        low, high = (int(i) for i in np.searchsorted(offsets, (self.next_offset, self.end)))
        if low >= high:
            return None
        bad = times = None
        if "timestamp" in self.columns or TIMESTAMP_MS in self.columns:
            times = _times(headers, counts, fields)[low:high]
        if times is not None and "timestamp" in self.columns:
            bounds = (starts[low:high], ends[low:high])
            bad = bad_times(times, bounds, data, quarantine=self.quarantine)
        taken = _Taken(headers, counts, fields, offsets, view, slice(low, high), times, bad)
        return pa.RecordBatch.from_arrays(self._arrays(taken), schema=arrow_schema(self.columns))

    def _arrays(self, taken: _Taken) -> list[pa.Array]:
        fields, rows = taken.fields, taken.rows
        buffer = pa.py_buffer(taken.view)
        offsets = taken.offsets[rows]
        size = len(offsets)
        made: dict[str, pa.Array] = {}
        for name in self.columns:
            kind = COLUMNS[name][1]
            if name == "key":
                made[name] = binary_column(buffer, fields.keys.cut(rows.start, rows.stop), kind)
            elif name == "value":
                made[name] = binary_column(buffer, fields.values.cut(rows.start, rows.stop), kind)
            elif name == "offset":
                made[name] = pa.array(offsets)
            elif name == "timestamp":
                made[name] = taken.timestamps()
            elif name == TIMESTAMP_MS:
                made[name] = pa.array(taken.times)
            elif name == "timestampType":
                made[name] = taken.of_batches([header.log_append_time for header in taken.headers])
            elif name == LEADER_EPOCH:
                made[name] = taken.of_batches([header.leader_epoch for header in taken.headers])
            elif name in BAD_COLUMNS and taken.bad is not None:
                made[name] = taken.bad.column(name, offsets)
            elif name == LOST_TO or name in BAD_COLUMNS:
                made[name] = pa.nulls(size, kind)
            elif name == "headers":
                made[name] = headers_column(taken.view, buffer, fields)[rows.start : rows.stop]
            elif name == EPOCH and self.origin.fences:
                made[name] = pa.array(self.origin.resize_epochs(offsets).astype(np.int32))
            else:
                made[name] = pa.repeat(pa.scalar(self._constant(name), kind), size)
        return [made[name] for name in self.columns]

    def _constant(self, name: str) -> object:
        if name == "topic":
            return self.origin.topic
        if name == "partition":
            return self.origin.partition
        # The resize epoch of a partition without fences.
        return 0


@dataclass(frozen=True, slots=True)
class _Taken:
    """The rows of a chunk that lie in the range: `rows` of all its records. `times` (ms) and `bad`
    are of these rows."""

    headers: Sequence[BatchHeader]
    counts: Positions
    fields: Fields
    offsets: Positions
    view: np.ndarray
    rows: slice
    times: Positions | None
    bad: BadTimes | None

    def of_batches(self, values: Sequence[int]) -> pa.Array:
        """A value of each batch, for each of its rows."""
        return pa.array(np.repeat(values, self.counts)[self.rows].astype(np.int32))

    def timestamps(self) -> pa.Array:
        """In microseconds; null where they do not fit."""
        assert self.times is not None
        kind = COLUMNS["timestamp"][1]
        mask = None
        times = self.times
        if self.bad is not None:
            mask = np.zeros(len(times), np.bool_)
            mask[self.bad.rows] = True
            times = np.where(mask, 0, times)
        times = times * _US_PER_MS
        if mask is not None:
            return pa.array(times, mask=mask).cast(kind)
        return pa.Array.from_buffers(kind, len(times), [None, pa.py_buffer(times)])


def _end_of_damage(first: int, until: int, after: Batch | BadFrame | None) -> int:
    """Where damaged bytes end that begin at `first` and name `until`: where the next batch begins.

    Of two words that may both be damaged the lesser counts: what is left is fetched again, and what
    is passed over is not.
    """
    if isinstance(after, Batch) and after.header.base_offset > first:
        return after.header.base_offset
    if isinstance(after, BadFrame) and after.first is not None and after.first > first:
        return min(until, after.first)
    return until


def _times(headers: Sequence[BatchHeader], counts: Positions, fields: Fields) -> Positions:
    """Milliseconds of creation, or the batch's largest when the broker set them (KIP-32)."""
    times = np.repeat([header.base_timestamp for header in headers], counts)
    times += fields.timestamp_deltas
    if any(header.log_append_time for header in headers):
        appended = np.repeat([header.log_append_time for header in headers], counts)
        largest = np.repeat([header.max_timestamp for header in headers], counts)
        times = np.where(appended, largest, times)
    return times
