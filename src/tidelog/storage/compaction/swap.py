"""The replacement of old segments by cleaned ones; a crash at any moment does no harm.

Owns the order of renames, in pieces (``model.work``): a thread waits for the disk.

| step | where | a crash after it finds |
|---|---|---|
| ``.cleaned`` -> ``.swap``, the log file last; the names are synced | a thread | the new segments |
| readers use the ``.swap`` files, no longer the old ones | the owner, in turns | the same |
| the old files -> ``.deleted`` | a thread | the same |
| the names are synced: an old segment that came back would hold its offsets twice | a thread | |
| ``.swap`` -> the final names, the log file last; readers try both | a thread | the same |
| readers use the final names only | the owner, in turns | the same |

Before the first sync the old segments count, after it the new ones do: a start completes the swap.
Each group of segments has a turn. Batches that are appended in the meantime stay; no other change
of the log's segments comes in between (``LogState.change``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from tidelog.model.work import Work
from tidelog.runtime.disk import Directory, Disk
from tidelog.storage import names
from tidelog.storage.compaction.cleaner import discard_cleaned
from tidelog.storage.compaction.plan import CleanedGroup, CompactionResult
from tidelog.storage.log.changes import LogChange, during
from tidelog.storage.log.expiring import keeping_producers
from tidelog.storage.log.segment_removal import exchange
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.segment import Segment

_LOG_LAST = (*names.INDEX_SUFFIXES, names.LOG)


def applying(log: LogState, result: CompactionResult, now_ms: int) -> Work[str | None]:
    """Swap in the result of ``compact``, in pieces; return a sentence for the log, or None when the
    result no longer fits. Once begun, the pieces must be run to the end.

    It no longer fits when the log was cut, or lost or changed a segment of the plan: then the
    ``.cleaned`` files are removed. Two directory syncs.
    """
    if log.failed or log.closed or not _fits(log, result):
        yield partial(discard_cleaned, log.resources.disk, result.plan)
        return None
    with during(log, LogChange.SWAP):
        return (yield from _apply(log, result, now_ms))


def _apply(log: LogState, result: CompactionResult, now_ms: int) -> Work[str | None]:
    files, discard = log.resources.files, partial(discard_cleaned, log.resources.disk, result.plan)
    try:
        is_ready = yield from _keeps_producers(log, result)
        if not is_ready or log.failed or log.closed:
            yield discard
            return None
        directory = files.pin_directory(log.path)
    except OSError as error:
        # Nothing has begun: a shortage of descriptors passes, and the next plan is made later.
        if log.resources.is_full(error):
            yield discard
        else:
            log.resources.fail(f"compaction of {log.path} failed: {error}")
        return None
    try:
        if result.groups:
            yield from _swap(log, result.groups, directory, now_ms)
        log.was_cleaned(result.clean_end_offset)
    except OSError as error:
        # The next start completes a half-finished renaming; this process does not.
        log.resources.fail(f"swapping cleaned segments of {log.path} failed: {error}")
        return None
    finally:
        files.release(directory)
    return (
        f"{log.partition}: compacted to offset {result.clean_end_offset}, "
        f"{result.records_kept} of {result.records_read} records and "
        f"{result.bytes_kept} of {result.bytes_read} bytes kept"
    )


def _swap(
    log: LogState, groups: Sequence[CleanedGroup], directory: Directory, now_ms: int
) -> Work[None]:
    disk = log.resources.disk
    of_aborted = [
        path
        for group in groups
        if group.is_indexed
        for path in _paths(log, group, names.ABORTED_SUFFIXES)
    ]

    def make_ready() -> None:
        _rename(disk, of_aborted, names.CLEANED, names.SWAP)
        if of_aborted:
            directory.sync()  # a start that finds the log takes them as they are, or as none
        for group in groups:
            _rename(disk, _paths(log, group, _LOG_LAST), names.CLEANED, names.SWAP)
        directory.sync()

    yield make_ready
    old: list[str] = []
    for group in groups:
        bases = {source.base_offset for source in group.sources}
        former = [segment for segment in log.segments if segment.base_offset in bases]
        fresh = _segment(log, group, former[0].created_ms, names.SWAP)
        old += exchange(log, former, fresh)
        yield None
    renamed = yield partial(_rename_old, disk, old)
    # At once, not after ``file.delete.delay.ms``: what a read has open stays until it is closed,
    # and a run over a large log would need its room three times.
    log.dirty.remove_renamed(renamed, now_ms)
    number = log.dirty.names_changed
    yield directory.sync
    log.dirty.names_synced(number)
    yield from _settle(log, groups, of_aborted)


def _settle(log: LogState, groups: Sequence[CleanedGroup], of_aborted: Sequence[str]) -> Work[None]:
    """Give the new segments their final names.

    If that fails half-way, the files are still found under the names that they have.
    ``of_aborted``: the final paths of their files of aborted transactions.
    """
    disk, files = log.resources.disk, log.resources.files
    others = [path for group in groups for path in _paths(log, group, _LOG_LAST)]
    final = {path + names.SWAP: path for path in (*of_aborted, *others)}

    def rename() -> None:
        _rename(disk, of_aborted, names.SWAP, "")
        if of_aborted:
            disk.sync_directory(log.path)
        _rename(disk, others, names.SWAP, "")

    # A read may open a file at any moment until all have their names: it tries both.
    files.begin_renaming(final)
    yield rename
    log.dirty.note_names()
    for group in groups:
        base = group.sources[0].base_offset
        former = [segment for segment in log.segments if segment.base_offset == base]
        exchange(log, former, _segment(log, group, former[0].created_ms))
        yield None
    files.end_renaming(final)


def _rename_old(disk: Disk, paths: Sequence[str]) -> list[str]:
    """Rename the files of segments that were replaced; return their new paths. Blocks."""
    there = [path for path in paths if disk.exists(path)]
    for path in there:
        disk.rename(path, path + names.DELETED)
    return [path + names.DELETED for path in there]


def _keeps_producers(log: LogState, result: CompactionResult) -> Work[bool]:
    """Whether a snapshot has the producers: of five batches of each only the last one stays."""
    if not result.groups:
        return True
    try:
        return (yield from keeping_producers(log, result.plan.end_offset))
    except OSError as error:
        if log.resources.is_full(error):
            return False
        raise


def _fits(log: LogState, result: CompactionResult) -> bool:
    if log.change is not None or log.is_mirrored or log.generation != result.plan.generation:
        return False
    if any(one.base_offset in log.aborted.held for group in result.groups for one in group.sources):
        return False  # their files lack something until the next sync
    if any(group.is_indexed != _has_aborted(log, group) for group in result.groups):
        return False
    # The active segment is in no plan: it grows.
    sizes = {segment.base_offset: segment.size for segment in log.segments[:-1]}
    return all(
        sizes.get(source.base_offset) == source.size
        for group in result.groups
        for source in group.sources
    )


def _has_aborted(log: LogState, group: CleanedGroup) -> bool:
    return any(log.aborted.has(source.base_offset) for source in group.sources)


def _rename(disk: Disk, paths: Iterable[str], old: str, new: str) -> None:
    for path in paths:
        disk.rename(path + old, path + new)


def _paths(log: LogState, group: CleanedGroup, suffixes: Sequence[str]) -> list[str]:
    """Return the final paths of a group's files with these suffixes."""
    base = group.sources[0].base_offset
    return [f"{log.path}/{names.file_name(base, suffix)}" for suffix in suffixes]


def _segment(log: LogState, group: CleanedGroup, created_ms: int, ending: str = "") -> Segment:
    base, end = group.sources[0].base_offset, group.sources[-1].next_offset
    fresh = Segment(log.resources, log.path, base, group.size, end, ending=ending)
    fresh.created_ms = created_ms
    return fresh
