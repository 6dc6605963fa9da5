"""The second pass of a run: each group of segments is read once, and written without what goes.

Owns which records stay (``_judged``, for all of a piece at once), and the bytes of the batches that
stay. Rules: see `cleaner`. Not the batches that stay for the sake of others: see `staying`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidelog.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    seal_batch,
)
from tidelog.records.compression import compress
from tidelog.records.control_records import marker_in
from tidelog.records.reader import payload_of
from tidelog.records.record import CorruptRecords, RecordSpan, write_varint
from tidelog.storage import names
from tidelog.storage.compaction.keys import DirtyKeys, voided_key
from tidelog.storage.compaction.opened import (
    FURTHEST_MS,
    Item,
    OpenedBatches,
    opened,
    pieces,
    readable,
)
from tidelog.storage.compaction.plan import CleanedGroup, CompactionPlan, SourceSegment
from tidelog.storage.compaction.reading import SegmentReading
from tidelog.storage.compaction.staying import Staying
from tidelog.storage.compaction.transactions import OF_TRANSACTION, aborted_batches
from tidelog.storage.log.aborted import encode_check
from tidelog.storage.log.whole_files import write_whole
from tidelog.storage.segments.segment import Segment

WRITTEN_BYTES = 1024 * 1024
"""What is written in one piece."""

_NO_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class _Judged:
    """What stays of the batches of a piece: a row each."""

    stays: np.ndarray
    """Of each record."""
    counts: list[int]
    has_tombstone: list[bool]
    newest_times: list[int]
    """The greatest timestamp delta of a record that stays."""
    run_counts: list[int]
    run_starts: list[int]
    run_ends: list[int]
    """Neighbouring records that stay, in bytes of the piece; so many for each batch."""


class _Target:
    """The ``.cleaned`` segment of a group."""

    def __init__(self, reading: SegmentReading, base_offset: int) -> None:
        shared, plan = reading.shared, reading.plan
        self._reading = reading
        self.segment = Segment(shared, plan.directory, base_offset, 0, base_offset, ending=_CLEANED)
        self.segment.restart_indexes()
        self._interval = plan.index_interval_bytes
        self._chunks: list[bytes | memoryview] = []
        self._waiting = 0
        shared.files.get(self.segment.log_path, create=True).truncate(0)

    def add(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """Have a batch follow."""
        size = len(batch)
        self.segment.note(
            self.segment.size + self._waiting,
            size,
            header.last_offset,
            header.newest_time,
            self._interval,
        )
        self._chunks.append(batch)
        self._waiting += size
        self._reading.counts.bytes_kept += size
        if self._waiting >= WRITTEN_BYTES:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        if self._waiting:
            self.segment.write([b"".join(self._chunks)], self._waiting)
            self._reading.written(self._waiting)
            self._chunks, self._waiting = [], 0

    def finish(self) -> None:
        """Write and sync all of it: the swap only renames, and what it renames has to be on the
        disk."""
        self.write()
        self.segment.close_indexes()
        segment, files = self.segment, self._reading.shared.files
        for path in (segment.index_path, segment.time_index_path, segment.log_path):
            files.get(path).sync()

    def write_aborted(self, index: bytes) -> None:
        """Write and sync the files of aborted transactions (docs/decisions/0119)."""
        disk, path = self._reading.shared.disk, self.segment.path
        write_whole(disk, path(names.ABORTED), index, synced=True)
        write_whole(disk, path(names.ABORTED_CHECK), encode_check(index), synced=True)
        self._reading.written(len(index))

    def discard(self) -> None:
        """Remove it."""
        shared = self._reading.shared
        shared.files.forget(self.segment.log_path)
        shared.disk.remove(self.segment.log_path)


_CLEANED = names.CLEANED


class Rewriting:
    """One run, whose first pass has ended."""

    def __init__(self, reading: SegmentReading, keys: DirtyKeys) -> None:
        self._reading = reading
        self._plan: CompactionPlan = reading.plan
        self._keys = keys
        self._staying = Staying(reading, keys)
        self._aborted = aborted_batches(reading)
        self._with_records: set[int] = set()
        """The producers of transactions that have records before the batch at hand, and no marker
        yet."""
        self._gone: list[int] = []
        """Markers in the group whose transactions have no records: the index forgets these."""

    def clean(self, group: tuple[SourceSegment, ...]) -> CleanedGroup | None:
        """Write the group's ``.cleaned`` segment; None when it would be the same as before."""
        counts = self._reading.counts
        target = _Target(self._reading, group[0].base_offset)
        changed = len(group) > 1
        end = group[-1].next_offset
        self._gone = []
        for source in group:
            if self._aborted is not None:
                self._aborted.begin(source)
            for items in pieces(self._reading.batches(source), self._aborted):
                for part, records in opened(items):
                    for item, kept in self._kept(source, part, records, end):
                        changed = changed or kept is not item.batch
                        if kept is item.batch:
                            target.add(item.header, kept)
                        elif kept is not None:
                            target.add(read_header(kept), kept)
            counts.bytes_read += source.size
        if not changed:
            target.discard()
            return None
        target.finish()
        index = None if self._aborted is None else self._aborted.index_of(group, self._gone)
        if index is not None:
            target.write_aborted(index)
        return CleanedGroup(group, target.segment.size, is_indexed=index is not None)

    def _kept(
        self, source: SourceSegment, items: Sequence[Item], records: OpenedBatches | None, end: int
    ) -> list[tuple[Item, bytes | memoryview | None]]:
        """Return what stays of each batch: itself, a smaller one, an empty one, or None.

        A group ends at ``end``: its last batch stays, so that a lost tail is seen.
        """
        counts = self._reading.counts
        judged = None if records is None else self._judged(items, records)
        kept_of: list[tuple[Item, bytes | memoryview | None]] = []
        row = run = 0
        for place, item in enumerate(items):
            header = item.header
            ends_group = header.next_offset >= end
            count = header.record_count
            if header.attributes & OF_TRANSACTION == TRANSACTIONAL_BIT and count:
                self._with_records.add(header.producer_id)
            kept: bytes | memoryview | None = item.batch
            if judged is not None and item.payload is not None and records is not None:
                runs = slice(run, run + judged.run_counts[row])
                if header.base_offset < self._keys.end_offset:
                    kept = self._of_judged(item, records, judged, row, runs, ends_group)
                    count = judged.counts[row]
                row, run = row + 1, runs.stop
            elif header.base_offset >= self._keys.end_offset:
                pass  # what the table does not know is the newest of its key
            elif header.control:
                following = items[place + 1].header if place + 1 < len(items) else None
                kept = self._of_control(source, item, following, ends_group)
                count = 0 if kept is None else count
            elif item.is_aborted or not count:
                stays = ends_group or self._staying.for_producer(header)
                emptied = _empty_batch(header) if count else item.batch
                kept, count = emptied if stays else None, 0
            counts.records_read += header.record_count
            counts.records_kept += count
            kept_of.append((item, kept))
        return kept_of

    def _judged(self, items: Sequence[Item], records: OpenedBatches) -> _Judged:
        """Say which records stay: the newest of their keys, and tombstones until their time."""
        stays = records.has_key.copy()
        newest = self._keys.newest_of(records)
        stays[records.has_key] = records.offsets[records.has_key] >= newest
        firsts = records.firsts
        if not records.has_value.all() and not self._plan.keeps_tombstones:
            is_over = [
                _is_over(self._plan, item.header) for item in items if item.payload is not None
            ]
            sizes = np.diff(firsts, append=len(stays))
            stays &= records.has_value | ~np.repeat(np.array(is_over, dtype=np.bool_), sizes)
        before = np.concatenate(([False], stays[:-1]))
        before[firsts] = False
        after = np.concatenate((stays[1:], [False]))
        after[firsts[1:] - 1] = False
        begins = stays & ~before
        times = np.where(stays, records.times, _NO_TIME)
        return _Judged(
            stays,
            np.add.reduceat(stays, firsts, dtype=np.int64).tolist(),
            np.logical_or.reduceat(stays & ~records.has_value, firsts).tolist(),
            np.maximum.reduceat(times, firsts).tolist(),
            np.add.reduceat(begins, firsts, dtype=np.int64).tolist(),
            records.starts[begins].tolist(),
            records.ends[stays & ~after].tolist(),
        )

    def _of_judged(
        self,
        item: Item,
        records: OpenedBatches,
        judged: _Judged,
        row: int,
        runs: slice,
        ends_group: bool,
    ) -> bytes | memoryview | None:
        plan, header = self._plan, item.header
        count = judged.counts[row]
        if not count:
            # Its offsets and sequence numbers stay: the end of the group, or the check of a retry,
            # rests on them (promise 6).
            stays = ends_group or self._staying.for_producer(header)
            return _empty_batch(header) if stays else None
        horizon = header.delete_horizon_ms
        # While tombstones are kept their time does not run: it begins when no reader can find an
        # older value any longer.
        needs_horizon = judged.has_tombstone[row] and horizon is None and not plan.keeps_tombstones
        if needs_horizon:
            first = int(records.firsts[row])
            readers = readable(item)
            if readers is None:
                return item.batch
            payload, records_there = readers
            stays = judged.stays[first : first + header.record_count].tolist()
            kept = [span for span, is_kept in zip(records_there, stays, strict=True) if is_kept]
            return _with_horizon(plan, header, payload, kept)
        if judged.has_tombstone[row] and horizon is not None and plan.keeps_tombstones:
            header = header._replace(attributes=header.attributes & ~DELETE_HORIZON_BIT)
        elif count == header.record_count:
            return item.batch
        data, begins, ends = records.data, judged.run_starts[runs], judged.run_ends[runs]
        content = b"".join([data[begin:end] for begin, end in zip(begins, ends, strict=True)])
        return _smaller_batch(header, content, count, judged.newest_times[row])

    def _of_control(
        self, source: SourceSegment, item: Item, following: BatchHeader | None, ends_group: bool
    ) -> bytes | memoryview | None:
        """Return the control batch that stays, as ``_kept`` does. ``following``: the next batch,
        where it is known."""
        plan, header = self._plan, item.header
        if marker_in(header, item.batch) is not None:
            return self._of_marker(source, item, following, ends_group)
        voided = voided_key(header, item.batch)
        if voided is None:
            is_empty = header.record_count == 0  # an ancestor tombstone at the end of its segments
            return None if is_empty and not ends_group else item.batch
        if self._staying.before_fence(source, item.position, header):
            return item.batch
        if header.last_offset < self._keys.newest_of_key(voided) or _is_over(plan, header):
            return _empty_batch(header) if ends_group else None
        return item.batch if header.delete_horizon_ms is not None else _timed(plan, item)

    def _of_marker(
        self, source: SourceSegment, item: Item, following: BatchHeader | None, ends_group: bool
    ) -> bytes | memoryview | None:
        """Return the marker that stays. Its time begins when a run finds no record of its
        transaction: a power loss may bring those back that go in this one
        (docs/decisions/0123)."""
        header = item.header
        if header.producer_id in self._with_records:
            self._with_records.remove(header.producer_id)
            return item.batch
        if self._aborted is not None:
            self._gone.append(header.base_offset)
        if header.delete_horizon_ms is None:
            return _timed(self._plan, item)
        if not _is_over(self._plan, header) or self._staying.for_fencing(header):
            return item.batch
        follows_at_once = following is None or (
            following.control and following.base_offset == header.next_offset
        )
        if follows_at_once and self._staying.before_fence(source, item.position, header):
            return item.batch
        return _empty_batch(header) if ends_group else None


def _timed(plan: CompactionPlan, item: Item) -> bytes | memoryview:
    """Return a control batch with the time from which it may go."""
    try:
        readers = readable(item._replace(payload=payload_of(item.header, item.batch)))
    except CorruptRecords:
        return item.batch
    return item.batch if readers is None else _with_horizon(plan, item.header, *readers)


def _is_over(plan: CompactionPlan, header: BatchHeader) -> bool:
    """Whether the time of a batch's tombstones, or of its marker, has passed."""
    horizon_ms = header.delete_horizon_ms
    return horizon_ms is not None and plan.now_ms >= horizon_ms


def _empty_batch(header: BatchHeader) -> bytes:
    """Return the batch with its offsets, producer and newest time, but without records."""
    kept_bits = TRANSACTIONAL_BIT | CONTROL_BIT | LOG_APPEND_TIME_BIT
    emptied = header._replace(
        attributes=header.attributes & kept_bits,
        base_timestamp=header.max_timestamp,
        record_count=0,
    )
    return seal_batch(emptied, b"")


def _with_horizon(
    plan: CompactionPlan, header: BatchHeader, payload: bytes, kept: list[RecordSpan]
) -> bytes:
    """Return a batch of the records that stay, with the time from which its tombstones may go."""
    # An unlimited retention is common: it must leave room for the deltas.
    horizon_ms = min(plan.now_ms + plan.delete_retention_ms, FURTHEST_MS)
    shift = header.base_timestamp - horizon_ms
    records = b"".join(_moved(payload, span, shift) for span in kept)
    newest = max(span.timestamp_delta for span in kept)
    marked = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT)
    return _smaller_batch(marked, records, len(kept), newest, horizon_ms)


def _smaller_batch(
    header: BatchHeader,
    records: bytes,
    count: int,
    newest_delta: int,
    base_timestamp: int | None = None,
) -> bytes:
    """Return a batch of these records; their newest time is counted from the header's base."""
    max_timestamp = header.max_timestamp
    if not header.log_append_time:
        max_timestamp = min(header.base_timestamp + newest_delta, header.max_timestamp)
    smaller = header._replace(
        base_timestamp=header.base_timestamp if base_timestamp is None else base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
    )
    codec = header.attributes & CODEC_MASK
    return seal_batch(smaller, compress(codec, records) if codec else records)


def _moved(payload: bytes, span: RecordSpan, shift: int) -> bytes:
    """Return a record whose timestamp delta is relative to another base timestamp."""
    rest = payload[span.after_timestamp : span.end]
    time = write_varint(span.timestamp_delta + shift)
    return b"".join((write_varint(1 + len(time) + len(rest)), b"\0", time, rest))
