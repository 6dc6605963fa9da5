"""The files of a run of the cleaner, read and written at its pace.

Owns the bytes that a run reads and writes: each access counts, and takes its time. Not what is read
for: see `keys`, `staying` and `rewriting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.records.batch import BatchHeader
from tidelog.runtime.disk import File
from tidelog.storage import names
from tidelog.storage.compaction.pace import Pace
from tidelog.storage.compaction.plan import CompactionPlan, SourceSegment
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import HEADERS_BYTES, scan, sound_batches


@dataclass(slots=True)
class RunCounts:
    """What a run has done so far."""

    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0
    bytes_from_disk: int = 0
    """All that was read; ``bytes_read`` is what was rewritten."""
    bytes_to_disk: int = 0


@dataclass(frozen=True, slots=True)
class SegmentReading:
    """The segments of a plan. CorruptRecords and OSError as the files have them."""

    shared: Resources
    plan: CompactionPlan
    pace: Pace
    counts: RunCounts = field(default_factory=RunCounts)

    @property
    def sources(self) -> list[SourceSegment]:
        """All segments of the plan, the oldest first."""
        return [source for group in self.plan.groups for source in group]

    def file(self, source: SourceSegment) -> File:
        """Return a segment's log file."""
        name = names.file_name(source.base_offset, names.LOG)
        return self.shared.files.get(f"{self.plan.directory}/{name}")

    def batches(self, source: SourceSegment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Yield position, header and bytes of a segment's batches; CorruptRecords at the first
        bad one."""
        position = 0
        for header, batch in sound_batches(self.file(source), source.size):
            self.took(header.size)
            yield position, header, batch
            position += header.size

    def headers(
        self, source: SourceSegment, position: int = 0
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of a segment's batches, which are not checked."""
        walk = scan(
            self.file(source), position, source.size, check=False, chunk_bytes=HEADERS_BYTES
        )
        for place, header in walk:
            self.took(min(header.size, HEADERS_BYTES))
            yield place, header

    def batch_at(self, source: SourceSegment, position: int, size: int) -> memoryview:
        """Return a batch again."""
        self.took(size)
        return memoryview(self.file(source).read_at(position, size))

    def written(self, size: int) -> None:
        """Note bytes that were written."""
        self.counts.bytes_to_disk += size
        self.pace.take(size)

    def took(self, size: int) -> None:
        """Note bytes that were read."""
        self.counts.bytes_from_disk += size
        self.pace.take(size)
