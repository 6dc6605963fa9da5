"""Putting cleaned segments in the place of the old ones, so that a crash at any moment is harmless.

Owns the order of renames:

1. ``.cleaned`` -> ``.swap``, the log file last, then the directory is synced. Before this the old
   segments count, after it the new one does: a start completes the swap.
2. The old files -> ``.deleted``.
3. ``.swap`` -> the final names, the log file last.

Readers see the old or the new segment: all of it happens between two calls of the log.
"""

from __future__ import annotations

from tidelog.storage import names
from tidelog.storage.cleaner import discard_cleaned
from tidelog.storage.compaction import CleanedGroup, CompactionResult
from tidelog.storage.log import PartitionLog
from tidelog.storage.segment import Segment

_LOG_LAST = (names.INDEX, names.TIME_INDEX, names.LOG)


def apply_compaction(log: PartitionLog, result: CompactionResult, now_ms: int) -> str | None:
    """Swap in what ``compact`` made; a sentence for the log, or None when it no longer fits.

    It no longer fits when the log was cut, or lost or changed a segment of the plan, meanwhile:
    then the ``.cleaned`` files are removed. One directory sync per call.
    """
    disk = log.resources.disk
    try:
        if log.failed or log.closed or not _fits(log, result):
            discard_cleaned(disk, result.plan)
            return None
        for group in result.groups:
            _rename(log, group, names.CLEANED, names.SWAP)
        if result.groups:
            disk.sync_directory(log.path)
        for group in result.groups:
            _replace(log, group, now_ms)
        log.first_dirty_offset = max(log.first_dirty_offset, result.clean_end_offset)
    except OSError as error:
        # Half-renamed files are completed by the next start, not by this life.
        log.resources.fail(f"swapping cleaned segments of {log.path} failed: {error}")
        return None
    return (
        f"{log.partition}: compacted to offset {result.clean_end_offset}, "
        f"{result.records_kept} of {result.records_read} records and "
        f"{result.bytes_kept} of {result.bytes_read} bytes kept"
    )


def _fits(log: PartitionLog, result: CompactionResult) -> bool:
    if log.generation != result.plan.generation:
        return False
    sizes = {segment.base_offset: segment.size for segment in log.segments[:-1]}
    return all(
        sizes.get(source.base_offset) == source.size
        for group in result.groups
        for source in group.sources
    )


def _rename(log: PartitionLog, group: CleanedGroup, old: str, new: str) -> None:
    base = group.sources[0].base_offset
    for suffix in _LOG_LAST:
        path = f"{log.path}/{names.file_name(base, suffix)}"
        log.resources.disk.rename(path + old, path + new)


def _replace(log: PartitionLog, group: CleanedGroup, now_ms: int) -> None:
    bases = {source.base_offset for source in group.sources}
    doomed = [segment for segment in log.segments if segment.base_offset in bases]
    at = log.segments.index(doomed[0])
    log.remove_segments(doomed, now_ms)
    # An old segment that came back beside the new one would hold its offsets twice.
    log.resources.disk.sync_directory(log.path)
    _rename(log, group, names.SWAP, "")
    base, end = group.sources[0].base_offset, group.sources[-1].next_offset
    fresh = Segment(log.resources, log.path, base, group.size, end)
    fresh.created_ms = doomed[0].created_ms
    log.segments.insert(at, fresh)
