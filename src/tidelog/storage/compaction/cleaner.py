"""Rewriting segments by key, in a helper process: the newest record of each key stays.

Owns ``compact``: reads the segments of a plan, writes ``.cleaned`` files beside them, syncs them,
and changes nothing else. Rules, as Apache Kafka's cleaner has them:

| record                                              | kept                                     |
|-----------------------------------------------------|------------------------------------------|
| not the newest of its key within the cleaned range  | no                                       |
| newest of its key, has a value                      | yes                                      |
| newest of its key, no value (tombstone)             | until its batch's delete horizon, which  |
|                                                     | the plan may put off (`plan`)            |
| an ancestor tombstone of a key (KIP-253)            | as a tombstone of it, never put off; it  |
|                                                     | voids older values of the key; just      |
|                                                     | before a fence or seal it stays          |
| no key                                              | no: a compacted topic has none           |
| any other in a control batch: markers, fences,      | yes                                      |
| seals                                               |                                          |
| in one of the last five batches of an idempotent    | if all go, its batch stays, empty        |
| producer in the cleaned range                       |                                          |
| in a batch that is not what its header says         | yes, the batch as it is                  |
| last of the group of segments                       | the same: neighbouring segments stay     |
|                                                     | without a gap, so a lost tail is seen    |

Kafka keeps the last batch of a producer only. A replica that copies the cleaned log would then not
recognize the retry of one before it: after a resize it would refuse that batch as one that is not
in the log, and the client would write its records a second time in another partition.

Offsets never change: a batch keeps its base offset and last offset. The delete horizon (the time
of the first cleaning that saw a tombstone + ``delete.retention.ms``) is kept in the batch:
attribute bit 6, and the base timestamp, to which the records' timestamps are then relative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import lt

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
from tidelog.records.control_records import (
    PARTITION_CHANGE,
    AncestorTombstone,
    changes_in,
    control_type,
    decode_change,
)
from tidelog.records.reader import payload_of, read_batch
from tidelog.records.record import CorruptRecords, RecordSpan, spans, write_varint
from tidelog.runtime.disk import Disk, File
from tidelog.storage import names
from tidelog.storage.compaction.newest import NewestOffsets
from tidelog.storage.compaction.pace import Pace, read_rate
from tidelog.storage.compaction.plan import (
    CleanedGroup,
    CompactionPlan,
    CompactionResult,
    Share,
    SourceSegment,
)
from tidelog.storage.log.producers import BATCHES_REMEMBERED
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import HEADERS_BYTES, scan, sound_batches
from tidelog.storage.segments.segment import Segment

MOST_RECORDS = 1_000_000
"""Most records of a batch that is rewritten: some 200 MB. Clients may send 131,072."""

FURTHEST_MS = 2**62
"""The greatest time of a record, or delete horizon: beyond it there is no room for the delta
between the two."""


@dataclass(slots=True)
class _Counts:
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0


@dataclass(frozen=True, slots=True)
class _Reading:
    """The files of a run, read and written at its pace."""

    shared: Resources
    plan: CompactionPlan
    pace: Pace

    def file(self, source: SourceSegment) -> File:
        """Return a segment's log file."""
        name = names.file_name(source.base_offset, names.LOG)
        return self.shared.files.get(f"{self.plan.directory}/{name}")

    def batches(self, source: SourceSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches of a segment; CorruptRecords at the first bad one."""
        for header, batch in sound_batches(self.file(source), source.size):
            self.pace.take(header.size)
            yield header, batch


@dataclass(slots=True)
class _Kept:
    """Batches that stay although no record of them has to."""

    last_of_producer: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Producer id -> last offsets of its last batches, as many as leaders recognize."""
    before_fence: set[int] = field(default_factory=set)
    """Ancestor tombstones with nothing but control batches up to the next fence or seal: without
    them, a replica that copies the log would find a gap there, and a higher end of the data."""


def compact(disk: Disk, plan: CompactionPlan, pace: Pace | None = None) -> CompactionResult:
    """Carry out the plan and return the result. Takes long: run it in a helper process.

    CorruptRecords when a batch is damaged, OSError from the disk: then nothing is to be applied
    (``discard_cleaned`` removes what was written). Time grows with the bytes of the plan, memory
    with the records in its dirty part, up to ``plan.share.buffer_bytes``, or to the keys of one
    batch if these have more.
    """
    reading = _Reading(Resources.of(disk, 8), plan, pace or _pace_of(disk, plan.share))
    try:
        newest, clean_end = _newest_offsets(reading)
        stays = _kept_batches(reading)
        counts = _Counts()
        groups = []
        for group in plan.groups:
            if group[0].base_offset >= clean_end:
                break
            cleaned = _clean_group(reading, group, newest, stays, counts)
            if cleaned is not None:
                groups.append(cleaned)
        disk.sync_directory(plan.directory)
    finally:
        reading.shared.files.close()
    return CompactionResult(
        plan,
        tuple(groups),
        clean_end,
        counts.records_read,
        counts.records_kept,
        counts.bytes_read,
        counts.bytes_kept,
    )


def _pace_of(disk: Disk, share: Share) -> Pace:
    if not share.rate_file:
        return Pace(share.bytes_per_second)
    return Pace(share.bytes_per_second, check=partial(read_rate, disk, share.rate_file))


def discard_cleaned(disk: Disk, plan: CompactionPlan) -> None:
    """Remove the ``.cleaned`` files of a plan that is not applied."""
    for group in plan.groups:
        for suffix in names.SEGMENT_SUFFIXES:
            name = names.file_name(group[0].base_offset, suffix + names.CLEANED)
            if disk.exists(f"{plan.directory}/{name}"):
                disk.remove(f"{plan.directory}/{name}")


def _newest_offsets(reading: _Reading) -> tuple[NewestOffsets, int]:
    """Return the newest offsets of keys over the dirty part, or over its first batches whose keys
    fit, and where that ends. One batch is always taken."""
    plan = reading.plan
    newest = plan.share.table_for(plan.end_offset - plan.first_dirty_offset)
    for group in plan.groups:
        for source in group:
            if source.next_offset <= plan.first_dirty_offset:
                continue
            for header, batch in reading.batches(source):
                if header.last_offset < plan.first_dirty_offset:
                    continue
                voided = _voided(header, batch) if header.control else None
                opened = None if header.control else _opened(header, batch)
                if voided is None and opened is None:
                    continue
                if not newest.has_room(header.record_count):
                    if newest.count:
                        return newest, header.base_offset
                    newest = NewestOffsets(header.record_count, header.record_count)
                if voided is not None:
                    newest.put(voided, header.last_offset)
                for _, _, delta, _, key, _, _ in opened[1] if opened is not None else ():
                    if key is not None:
                        newest.put(key, header.base_offset + delta)
    return newest, plan.end_offset


def _kept_batches(reading: _Reading) -> _Kept:
    """Find the batches that stay for the sake of others; reads headers, and control batches.

    The last batches of a producer are those in the cleaned range, not in the log: batches after
    the range may be cut or lost with a power loss, and then these have its last sequences.
    """
    kept = _Kept()
    plan = reading.plan
    run: list[int] = []
    run_end = -1
    for group in plan.groups:
        for source in group:
            file = reading.file(source)
            for position, header in scan(
                file, 0, source.size, check=False, chunk_bytes=HEADERS_BYTES
            ):
                reading.pace.take(min(header.size, HEADERS_BYTES))
                if header.producer_id in plan.producers and not header.control:
                    last = kept.last_of_producer.get(header.producer_id, ())
                    last = (*last[1 - BATCHES_REMEMBERED :], header.last_offset)
                    kept.last_of_producer[header.producer_id] = last
                if not header.control or header.base_offset != run_end:
                    run = []
                if not header.control:
                    continue
                run_end = header.next_offset
                batch = memoryview(file.read_at(position, header.size))
                reading.pace.take(header.size)
                if _voided(header, batch) is not None:
                    run.append(header.base_offset)
                elif changes_in(header, batch):
                    kept.before_fence.update(run)
    # The segment after the range may begin with a fence.
    kept.before_fence.update(run)
    return kept


def _voided(header: BatchHeader, batch: memoryview) -> bytes | None:
    """Return the key of an ancestor tombstone; None for any other control batch, or a damaged
    one."""
    if header.record_count != 1 or header.last_offset != header.base_offset:
        return None
    try:
        (record,) = read_batch(batch)
        if control_type(record.key) != PARTITION_CHANGE:
            return None
        change = decode_change(record.value)
    except CorruptRecords:
        return None
    return change.key if isinstance(change, AncestorTombstone) else None


def _clean_group(
    reading: _Reading,
    group: tuple[SourceSegment, ...],
    newest: NewestOffsets,
    stays: _Kept,
    counts: _Counts,
) -> CleanedGroup | None:
    """Write the group's ``.cleaned`` segment; None when it would be the same as before."""
    shared, plan = reading.shared, reading.plan
    base = group[0].base_offset
    target = Segment(shared, plan.directory, base, 0, base, ending=names.CLEANED)
    target.restart_indexes()
    log = shared.files.get(target.log_path, create=True)
    log.truncate(0)
    changed = len(group) > 1
    for source in group:
        for header, batch in reading.batches(source):
            ends_group = header.next_offset >= group[-1].next_offset
            kept = _clean_batch(plan, header, batch, newest, stays, counts, ends_group)
            changed = changed or kept is not batch
            if kept is None:
                continue
            counts.bytes_kept += len(kept)
            now = read_header(kept)
            position = target.write([kept], len(kept))
            reading.pace.take(len(kept))
            target.note(
                position, len(kept), now.last_offset, now.newest_time, plan.index_interval_bytes
            )
        counts.bytes_read += source.size
    if not changed:
        shared.files.forget(target.log_path)
        shared.disk.remove(target.log_path)
        return None
    target.close_indexes()
    # The swap only renames: what it renames has to be on the disk.
    for path in (target.index_path, target.time_index_path, target.log_path):
        shared.files.get(path).sync()
    return CleanedGroup(group, target.size)


def _clean_batch(
    plan: CompactionPlan,
    header: BatchHeader,
    batch: memoryview,
    newest: NewestOffsets,
    stays: _Kept,
    counts: _Counts,
    ends_group: bool,
) -> bytes | memoryview | None:
    """Return the batch that stays: itself, a smaller one, an empty one, or None."""
    counts.records_read += header.record_count
    if header.control:
        kept_control = _clean_control(plan, header, batch, newest, stays, ends_group)
        counts.records_kept += header.record_count if kept_control is not None else 0
        return kept_control
    opened = _opened(header, batch)
    if opened is None:
        counts.records_kept += header.record_count
        return batch
    payload, records = opened
    horizon = header.delete_horizon_ms
    tombstones_go = _is_over(plan, horizon) and not plan.keeps_tombstones
    kept: list[RecordSpan] = []
    has_tombstone = False
    base = header.base_offset
    for span in records:
        _, _, delta, _, key, has_value, _ = span
        if key is None:
            continue
        if base + delta < newest.get(key):
            continue
        if not has_value:
            if tombstones_go:
                continue
            has_tombstone = True
        kept.append(span)
    counts.records_kept += len(kept)
    if not kept:
        last = stays.last_of_producer.get(header.producer_id, ())
        if not ends_group and header.last_offset not in last:
            return None
        # Its offsets and sequence numbers stay: the end of the group, or the check of a retry,
        # rests on them (promise 6).
        return _empty_batch(header) if header.record_count else batch
    # While tombstones are kept their time does not run: it begins when no reader can find an older
    # value any longer.
    needs_horizon = has_tombstone and horizon is None and not plan.keeps_tombstones
    if has_tombstone and horizon is not None and plan.keeps_tombstones:
        header = header._replace(attributes=header.attributes & ~DELETE_HORIZON_BIT)
    elif len(kept) == header.record_count and not needs_horizon:
        return batch
    return _smaller_batch(plan, header, payload, kept, needs_horizon)


def _clean_control(
    plan: CompactionPlan,
    header: BatchHeader,
    batch: memoryview,
    newest: NewestOffsets,
    stays: _Kept,
    ends_group: bool,
) -> bytes | memoryview | None:
    """Return the control batch that stays, as ``_clean_batch`` does."""
    if header.base_offset in stays.before_fence:
        return batch
    voided = _voided(header, batch)
    if voided is None:
        is_empty = header.record_count == 0  # an ancestor tombstone at the end of its segments
        return None if is_empty and not ends_group else batch
    horizon = header.delete_horizon_ms
    if header.last_offset < newest.get(voided) or _is_over(plan, horizon):
        return _empty_batch(header) if ends_group else None
    opened = _opened(header, batch)
    if horizon is not None or opened is None:
        return batch
    return _smaller_batch(plan, header, *opened, needs_horizon=True)


def _is_over(plan: CompactionPlan, horizon_ms: int | None) -> bool:
    return horizon_ms is not None and plan.now_ms >= horizon_ms


def _opened(header: BatchHeader, batch: memoryview) -> tuple[bytes, list[RecordSpan]] | None:
    """Return a batch's payload and its records; None when they contradict the header.

    Such a batch is as its producer sent it (its CRC is right), and stays so. Above all, offsets
    outside the batch are not used: they would remove newer records of their keys.
    """
    if header.record_count > MOST_RECORDS:
        return None
    try:
        payload = payload_of(header, batch)
        records = spans(payload, header.record_count)
    except CorruptRecords:
        return None
    deltas = [span.offset_delta for span in records]
    times = [span.timestamp_delta for span in records]
    if records and not (
        deltas[0] >= 0
        and deltas[-1] <= header.last_offset_delta
        and all(map(lt, deltas, deltas[1:]))
        and header.base_timestamp + min(times) >= -FURTHEST_MS
        and header.base_timestamp + max(times) <= FURTHEST_MS
    ):
        return None
    return payload, records


def _empty_batch(header: BatchHeader) -> bytes:
    """Return the batch with its offsets, producer and newest time, but without records."""
    kept_bits = TRANSACTIONAL_BIT | CONTROL_BIT | LOG_APPEND_TIME_BIT
    emptied = header._replace(
        attributes=header.attributes & kept_bits,
        base_timestamp=header.max_timestamp,
        record_count=0,
    )
    return seal_batch(emptied, b"")


def _smaller_batch(
    plan: CompactionPlan,
    header: BatchHeader,
    payload: bytes,
    kept: list[RecordSpan],
    needs_horizon: bool,
) -> bytes:
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    if needs_horizon:
        attributes |= DELETE_HORIZON_BIT
        # An unlimited retention is common: it must leave room for the deltas.
        base_timestamp = min(plan.now_ms + plan.delete_retention_ms, FURTHEST_MS)
        shift = header.base_timestamp - base_timestamp
        records = b"".join(_moved(payload, span, shift) for span in kept)
    else:
        records = b"".join(payload[span.start : span.end] for span in kept)
    max_timestamp = header.max_timestamp
    if not header.log_append_time:
        newest = header.base_timestamp + max(span.timestamp_delta for span in kept)
        max_timestamp = min(newest, header.max_timestamp)
    smaller = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(kept),
    )
    codec = attributes & CODEC_MASK
    return seal_batch(smaller, compress(codec, records) if codec else records)


def _moved(payload: bytes, span: RecordSpan, shift: int) -> bytes:
    """Return a record whose timestamp delta is relative to another base timestamp."""
    rest = payload[span.after_timestamp : span.end]
    time = write_varint(span.timestamp_delta + shift)
    return b"".join((write_varint(1 + len(time) + len(rest)), b"\0", time, rest))
