"""The plan and the result of log compaction, as values for a helper process and from it.

Owns the decision what to clean, as Apache Kafka's cleaner makes it. Pure. Not the rewriting: see
`cleaner`. Not putting the result in place: see `swap`.

Never touched: the active segment, anything at or above the last stable offset (KIP-98), anything
not synced, and segments younger than ``min.compaction.lag.ms``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tidelog.records.batch import MAX_INT32
from tidelog.storage.log.stable import last_stable_offset
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.times import largest_timestamp

ENTRY_BYTES = 24
"""Of a key in the table of a run, whatever its length: as Apache Kafka's."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one run may use of what the cleaner has, and its threads share. Picklable."""

    buffer_bytes: int = 128 << 20
    """Of the table of its keys (``log.cleaner.dedupe.buffer.size``). More keys take more runs."""
    load_factor: float = 0.9
    """How full the table may be (``log.cleaner.io.buffer.load.factor``)."""
    bytes_per_second: float = inf
    """Read and written (``log.cleaner.io.max.bytes.per.second``), when the run begins."""
    rate_file: str = ""
    """The file that has the present rate; "" where there is no limit to follow."""


WHOLE = Share()
"""All that the cleaner has by default: of its one thread."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """One segment to be cleaned, as it was when the plan was made."""

    base_offset: int
    size: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """One segment in which transactions were aborted (KIP-98)."""

    base_offset: int
    entries: bytes | None
    """Its entries, where its files may lack some; None: what its files say."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The work of one run. Each group of segments becomes one segment. Picklable."""

    directory: str
    generation: int
    groups: tuple[tuple[SourceSegment, ...], ...]
    first_dirty_offset: int
    end_offset: int
    producers: frozenset[int]
    """Producers that the log remembers: the last batch of each stays, if need be without
    records."""
    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    dirty_ratio: float
    share: Share = WHOLE
    keeps_tombstones: bool = False
    """Whether older values of its keys may be in other partitions of the topic (KIP-253): then
    tombstones stay, and their time does not run."""
    indexed: tuple[IndexedSegment, ...] = ()
    """The segments of the log with aborted transactions, from the first of the plan on: one after
    it may have the marker of what began in the plan."""
    following: tuple[SourceSegment, ...] = ()
    """The closed segments after those of the plan; none when ``indexed`` is empty."""


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """A group that was rewritten into ``.cleaned`` files at its first base offset."""

    sources: tuple[SourceSegment, ...]
    size: int
    is_indexed: bool = False
    """Whether it has files of aborted transactions, because one of its sources has."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a run. Picklable. ``groups`` has only the groups that changed."""

    plan: CompactionPlan
    groups: tuple[CleanedGroup, ...]
    clean_end_offset: int
    """The next run's first dirty offset."""
    records_read: int
    records_kept: int
    bytes_read: int
    """Of the segments that were rewritten, or left as they were."""
    bytes_kept: int
    bytes_from_disk: int = 0
    """All reads of the run: dirty segments are read twice, for keys and for records."""
    bytes_to_disk: int = 0


@dataclass(frozen=True, slots=True)
class Dirtiness:
    """How much of a log is dirty; ``overdue`` by ``max.compaction.lag.ms``."""

    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(log: LogState, now_ms: int) -> list[Segment]:
    """Return the segments that a run may rewrite: a prefix of the log."""
    bound = min(last_stable_offset(log), log.synced_end_offset)
    lag = log.configs.min_compaction_lag_ms
    segments: list[Segment] = []
    for segment in log.segments[:-1]:
        if segment.next_offset > bound:
            break
        dirty = segment.next_offset > log.first_dirty_offset
        if dirty and lag > 0 and largest_timestamp(segment) > now_ms - lag:
            break
        segments.append(segment)
    return segments


def dirtiness(log: LogState, now_ms: int) -> Dirtiness:
    """Return how dirty a log is. Grows with the number of segments."""
    clean = dirty = 0
    overdue = False
    for segment in cleanable(log, now_ms):
        if segment.next_offset <= log.first_dirty_offset:
            clean += segment.size
            continue
        dirty += segment.size
        first = segment.first_timestamp
        if first is not None and first >= 0:
            overdue = overdue or now_ms - first > log.configs.max_compaction_lag_ms
    return Dirtiness(clean, dirty, overdue)


def plan_compaction(
    log: LogState, now_ms: int, *, share: Share = WHOLE, keeps_tombstones: bool = False
) -> CompactionPlan | None:
    """Return the plan of a run; None unless the log is dirty enough or overdue."""
    configs = log.configs
    if not configs.compacted or log.failed or log.closed or log.is_mirrored:
        return None
    dirty = dirtiness(log, now_ms)
    due = dirty.ratio > configs.min_cleanable_dirty_ratio or dirty.overdue
    if not dirty.dirty_bytes or not due:
        return None
    segments = cleanable(log, now_ms)
    indexed = _indexed_from(log, segments[0].base_offset)
    groups = _groups(segments, configs.segment_bytes, configs.segment_index_bytes)
    return CompactionPlan(
        directory=log.path,
        generation=log.generation,
        groups=groups,
        first_dirty_offset=max(log.first_dirty_offset, log.start_offset),
        end_offset=segments[-1].next_offset,
        producers=frozenset(log.producers.entries),
        now_ms=now_ms,
        delete_retention_ms=configs.delete_retention_ms,
        index_interval_bytes=configs.index_interval_bytes,
        dirty_ratio=dirty.ratio,
        share=share,
        keeps_tombstones=keeps_tombstones,
        indexed=indexed,
        following=tuple(map(_source, log.segments[len(segments) : -1])) if indexed else (),
    )


def _indexed_from(log: LogState, base: int) -> tuple[IndexedSegment, ...]:
    held = log.aborted.held
    return tuple(
        IndexedSegment(one, bytes(held[one].entries) if one in held else None)
        for one in log.aborted.since(base)
    )


def _source(segment: Segment) -> SourceSegment:
    return SourceSegment(segment.base_offset, segment.size, segment.next_offset)


def _groups(
    segments: Sequence[Segment], max_bytes: int, max_index_bytes: int
) -> tuple[tuple[SourceSegment, ...], ...]:
    """Group neighbouring segments while one segment can hold them."""
    groups: list[list[SourceSegment]] = []
    size = entries = times = 0
    for segment in segments:
        index, time_index = len(segment.index), len(segment.time_index)
        fits = (
            groups
            and size + segment.size <= max_bytes
            and (entries + index) * OFFSET_ENTRY_BYTES <= max_index_bytes
            and (times + time_index) * TIME_ENTRY_BYTES <= max_index_bytes
            and segment.next_offset - groups[-1][0].base_offset <= MAX_INT32
        )
        if not fits:
            groups.append([])
            size = entries = times = 0
        groups[-1].append(_source(segment))
        size, entries, times = size + segment.size, entries + index, times + time_index
    return tuple(tuple(group) for group in groups)
