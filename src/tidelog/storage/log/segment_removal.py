"""Removal of segments from a log: readers find them no longer, their files are renamed in a thread.

Owns the order of the renames: each segment is gone durably before the next one goes, so that no
crash leaves a hole between two others; and the segment that takes over is durable before the first
goes. Not which segments go: see `expiring`, `cutting` and `compaction.swap`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.runtime.disk import Directory, Disk
from tidelog.storage import names
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.segment import Segment


class SegmentRemoval:
    """The files of some segments of one log, in the order of their removal."""

    __slots__ = (
        "_disk",
        "_names_first",
        "_paths",
        "directory",
        "durable",
        "names",
        "renamed",
        "synced",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Directory,
        paths: Sequence[Sequence[str]],
        changed: int,
        names_first: bool,
    ) -> None:
        """``paths``: of each segment. ``changed``: how many changes of names there were before.
        ``names_first``: some of them may not be durable, and what takes over is among them."""
        self.directory = directory
        """Open: its syncs do not fail half-way for want of a descriptor."""
        self.names = changed
        self.renamed: list[str] = []
        """The new paths of what was renamed."""
        self.durable = 0
        """So many of them stay renamed through a power loss."""
        self.synced = False
        """Whether all names of before are durable."""
        self._disk = disk
        self._paths = paths
        self._names_first = names_first

    def run(self) -> None:
        """Rename them. Blocks. OSError: what was renamed is in ``renamed``."""
        if self._names_first and self._paths:
            self._sync()
        for place, paths in enumerate(self._paths):
            if place:
                self._sync()
            for path in paths:
                if self._disk.exists(path):
                    self._disk.rename(path, path + names.DELETED)
                    self.renamed.append(path + names.DELETED)

    def _sync(self) -> None:
        self.directory.sync()
        self.synced = True
        self.durable = len(self.renamed)


def take_out(log: LogState, leaving: Sequence[Segment]) -> SegmentRemoval:
    """Take segments out of the log, in this order; readers find them no longer.

    ``run`` the removal anywhere, then give it to ``taken_out``, always. OSError: nothing has
    changed.
    """
    files = log.resources.files
    directory = files.pin_directory(log.path)
    log.segments.remove(leaving)
    paths = [_forget_segment(log, segment) for segment in leaving]
    return SegmentRemoval(
        log.resources.disk, directory, paths, log.dirty.names_changed, log.dirty.names_unsynced
    )


def _forget_segment(log: LogState, segment: Segment) -> list[str]:
    """Close the files of a segment that goes; return their paths."""
    files = log.resources.files
    log.segments.forget_positions()
    log.resources.kept_reads.forget(log)
    log.resources.indexes.forget(segment)
    log.aborted.forget(segment.base_offset)
    paths = [segment.path(suffix) for suffix in names.SEGMENT_SUFFIXES]
    for path in paths:
        files.forget(path)
        log.dirty.files.discard(path)
    return paths


def exchange(log: LogState, former: Sequence[Segment], fresh: Segment) -> list[str]:
    """Replace some neighbouring segments by one whose files exist; return the paths of their
    files. Readers find the new one."""
    had_aborted = any(log.aborted.has(segment.base_offset) for segment in former)
    log.segments.exchange(former, fresh)
    paths = [path for segment in former for path in _forget_segment(log, segment)]
    if had_aborted:
        log.aborted.note(fresh.base_offset)
    return paths


def taken_out(log: LogState, removal: SegmentRemoval, now_ms: int) -> None:
    """Take back a removal: its files are deleted when their renaming is durable, and after
    ``file.delete.delay.ms``."""
    log.resources.files.release(removal.directory)
    if log.closed:
        return  # the next start finds them
    if removal.synced:
        log.dirty.names_are_durable(removal.names)
    due_ms = now_ms + log.configs.file_delete_delay_ms
    for path in removal.renamed[: removal.durable]:
        log.resources.removals.add(path, due_ms)
    if len(removal.renamed) > removal.durable:
        log.dirty.remove_renamed(removal.renamed[removal.durable :], due_ms)
