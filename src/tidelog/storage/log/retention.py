"""Retention and the time to roll: Kafka's rules as plain functions.

Owns the decisions: only a prefix of the log is removed, and nothing at or above the high watermark.
Not the removal: see `expiring`. Not the roll: see `rolling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import MAX_INT32, Rejected
from tidelog.storage.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from tidelog.storage.segments.segment import NO_ROOM, Room, Segment
from tidelog.storage.segments.times import largest_timestamp


@dataclass(frozen=True, slots=True)
class Expiry:
    """How many segments from the start may go, and why (for the log line)."""

    count: int
    reason: str


def expired(
    segments: Sequence[Segment],
    configs: TopicConfigs,
    *,
    start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> Expiry:
    """Return the prefix of segments that retention removes now.

    By time, size and log start with cleanup policy delete; by log start alone otherwise.
    """
    limit = 0
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        if segment.next_offset > high_watermark or (last and segment.size == 0):
            break
        limit += 1
    best = Expiry(_before_start(segments, limit, start_offset), "it is before the log start")
    if configs.expires:
        by_time = _too_old(segments, limit, configs.retention_ms, now_ms)
        if by_time > best.count:
            best = Expiry(by_time, f"retention.ms={configs.retention_ms}")
        by_size = _too_many_bytes(segments, limit, configs.retention_bytes)
        if by_size > best.count:
            best = Expiry(by_size, f"retention.bytes={configs.retention_bytes}")
    return best


def _before_start(segments: Sequence[Segment], limit: int, start_offset: int) -> int:
    # The active segment is never removed for this reason: no other could begin the log.
    count = 0
    for segment in segments[: min(limit, len(segments) - 1)]:
        if segment.next_offset > start_offset:
            break
        count += 1
    return count


def _too_old(segments: Sequence[Segment], limit: int, retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments[:limit]:
        if now_ms - largest_timestamp(segment) <= retention_ms:
            break
        count += 1
    return count


def _too_many_bytes(segments: Sequence[Segment], limit: int, retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments[:limit]:
        excess -= segment.size
        if excess < 0:
            break
        count += 1
    return count


def room_in(active: Segment, configs: TopicConfigs, jitter_ms: int) -> Room:
    """Return how far a segment may grow before ``must_roll`` can say yes.

    It holds while the segment is only appended to and the configuration stays. It does not cover an
    append without a timestamp: there the time of day decides.
    """
    first = active.first_timestamp
    if not active.size or first is None or first < 0:
        return NO_ROOM
    # An entry comes after more than so many bytes, so their number is bounded by the size.
    entries = configs.segment_index_bytes // TIME_ENTRY_BYTES - 2 - active.entry_count
    return Room(
        min(configs.segment_bytes, active.size + max(0, entries) * configs.index_interval_bytes),
        first + configs.roll_ms - jitter_ms,
        active.base_offset + MAX_INT32,
    )


ROLL_WAITS = Rejected(
    ErrorCode.KAFKA_STORAGE_ERROR, "its segment is full, and a sync comes before the next one"
)
"""Refused for now, with nothing done: a thread must sync before the segment is closed."""

OUTGROWN_BYTES = 64 * 1024 * 1024
"""A segment may outgrow its limit by so much, or by ``segment.bytes``: appends during one sync."""


def may_outgrow(active: Segment, configs: TopicConfigs, size: int, last_offset: int) -> bool:
    """Whether a segment that cannot be closed yet takes ``size`` bytes of the next one.

    Positions and offsets must fit into its indexes.
    """
    most = configs.segment_bytes + max(configs.segment_bytes, OUTGROWN_BYTES)
    fits = active.size + size <= min(most, MAX_INT32)
    return fits and last_offset - active.base_offset <= MAX_INT32


def must_roll(
    active: Segment,
    configs: TopicConfigs,
    size: int,
    max_timestamp: int,
    last_offset: int,
    jitter_ms: int,
    now_ms: int,
) -> bool:
    """Whether ``size`` bytes that end at ``last_offset`` belong into a new segment."""
    if last_offset - active.base_offset > MAX_INT32:
        return True
    if active.size == 0:
        return False
    if active.size + size > configs.segment_bytes:
        return True
    first = active.first_timestamp
    if max_timestamp >= 0 and first is not None and first >= 0:
        waited = max_timestamp - first
    else:
        waited = now_ms - active.created_ms
    if waited > configs.roll_ms - jitter_ms:
        return True
    # The time index, never longer than the offset index, is full first unless times stand still.
    limit = configs.segment_index_bytes
    if active.entry_count < limit // TIME_ENTRY_BYTES - 1:
        return False
    return (
        active.entry_count >= limit // OFFSET_ENTRY_BYTES
        or len(active.time_index) >= limit // TIME_ENTRY_BYTES - 1
    )
