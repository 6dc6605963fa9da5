"""The decoder of what one fetch brought for a partition: Arrow record batches.

Owns which records are handed out (no control records, none of aborted transactions, none outside of
the asked range) and up to which offset the log was read; does not fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.pipeline.decoding.batches import AbortedTransactions, Buffer, scan
from tidelog.pipeline.decoding.columns import binary_column, headers_column
from tidelog.pipeline.schema import COLUMNS, EPOCH, LEADER_EPOCH, LOST_TO, arrow_schema
from tidelog.records.batch import BatchHeader
from tidelog.records.fields import Fields, read_fields
from tidelog.records.record import CorruptRecords
from tidelog.records.starts import Span, all_starts
from tidelog.records.varints import Positions

# One Arrow batch is made of about so many uncompressed bytes of records: large enough that the cost
# per batch vanishes, small enough that positions fit into Arrow's 32 bits many times over.
CHUNK_BYTES = 1 << 20

_US_PER_MS = 1000
_MOST_MS = (2**63 - 1) // _US_PER_MS

Chunk = list[tuple[BatchHeader, bytes | memoryview]]


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
    """

    origin: Origin
    columns: Sequence[str]
    next_offset: int
    end: int
    check_crc: bool = True

    def decode(
        self, data: Buffer, aborted: Iterable[tuple[int, int]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records of `data` within the range. Raises CorruptRecords.

        `aborted` lists producer id and first offset of aborted transactions, if they are to be
        left out (read_committed).
        """
        hidden = AbortedTransactions(aborted or ())
        chunk: Chunk = []
        size = 0
        reached = self.next_offset
        for batch in scan(data, check_crc=self.check_crc):
            header = batch.header
            if header.base_offset >= self.end:
                reached = self.end
                break
            reached = max(reached, header.next_offset)
            # A compacted batch may be empty: it still moves the position.
            if hidden.hides(batch) or header.control or not header.record_count:
                continue
            records = batch.payload()
            chunk.append((header, records))
            size += len(records)
            if size >= CHUNK_BYTES:
                yield from self._chunk(chunk)
                chunk, size = [], 0
        if chunk:
            yield from self._chunk(chunk)
        self.next_offset = min(reached, self.end)

    def _chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        data = b"".join(records for _, records in chunk)
        view = np.frombuffer(data, dtype=np.uint8)
        spans: list[Span] = []
        position = 0
        for header, records in chunk:
            spans.append(Span(position, position + len(records), header.record_count))
            position += len(records)
        starts = all_starts(data, view, spans)
        ends = np.empty_like(starts)
        ends[:-1] = starts[1:]
        ends[-1] = len(data)
        fields = read_fields(view, starts, ends)
        counts = np.array([header.record_count for header, _ in chunk])
        offsets = np.repeat([header.base_offset for header, _ in chunk], counts)
        offsets += fields.offset_deltas
        low, high = (int(i) for i in np.searchsorted(offsets, (self.next_offset, self.end)))
        if low < high:
            arrays = self._arrays(chunk, counts, fields, offsets, view, slice(low, high))
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))

    def _arrays(
        self,
        chunk: Chunk,
        counts: Positions,
        fields: Fields,
        offsets: Positions,
        view: np.ndarray,
        rows: slice,
    ) -> list[pa.Array]:
        buffer = pa.py_buffer(view)
        size = rows.stop - rows.start
        made: dict[str, pa.Array] = {}
        for name in self.columns:
            kind = COLUMNS[name][1]
            if name == "key":
                made[name] = binary_column(buffer, fields.keys.cut(rows.start, rows.stop), kind)
            elif name == "value":
                made[name] = binary_column(buffer, fields.values.cut(rows.start, rows.stop), kind)
            elif name == "offset":
                made[name] = pa.array(offsets[rows])
            elif name == "timestamp":
                made[name] = _timestamps(chunk, counts, fields, rows)
            elif name == "timestampType":
                kinds = [header.log_append_time for header, _ in chunk]
                made[name] = pa.array(np.repeat(kinds, counts)[rows].astype(np.int32))
            elif name == LEADER_EPOCH:
                epochs = [header.leader_epoch for header, _ in chunk]
                made[name] = pa.array(np.repeat(epochs, counts)[rows].astype(np.int32))
            elif name == LOST_TO:
                made[name] = pa.nulls(size, kind)
            elif name == "headers":
                made[name] = headers_column(view, buffer, fields)[rows.start : rows.stop]
            elif name == EPOCH and self.origin.fences:
                made[name] = pa.array(self.origin.resize_epochs(offsets[rows]).astype(np.int32))
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


def _timestamps(chunk: Chunk, counts: Positions, fields: Fields, rows: slice) -> pa.Array:
    """Milliseconds of creation, or the batch's largest when the broker set them (KIP-32), as us."""
    times = np.repeat([header.base_timestamp for header, _ in chunk], counts)
    times += fields.timestamp_deltas
    if any(header.log_append_time for header, _ in chunk):
        appended = np.repeat([header.log_append_time for header, _ in chunk], counts)
        largest = np.repeat([header.max_timestamp for header, _ in chunk], counts)
        times = np.where(appended, largest, times)
    times = times[rows]
    worst = max(int(times.min()), int(times.max()), key=abs)
    if abs(worst) > _MOST_MS:
        raise CorruptRecords(
            f"a record's timestamp of {worst} ms does not fit into Spark's microseconds; its"
            " producer may have written nanoseconds: leave out the column timestamp (option"
            " columns) to read it"
        )
    times *= _US_PER_MS
    kind = COLUMNS["timestamp"][1]
    return pa.Array.from_buffers(kind, len(times), [None, pa.py_buffer(times)])
