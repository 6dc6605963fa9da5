"""The producer snapshot files of a partition: written at roll and stop, read at start.

Owns finding, reading and removing them. A torn one is removed and an older one used; what it
lacks is rebuilt from the batch headers behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.storage import names
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.producers import ProducerState
from tidelog.storage.resources import Resources
from tidelog.storage.scan import HEADERS_BYTES, scan
from tidelog.storage.segment import Segment

SNAPSHOTS_KEPT = 2
"""Beside those at the base of a living segment."""


def snapshot_offsets(resources: Resources, directory: str) -> list[int]:
    """Return the offsets of the snapshot files in a directory, rising."""
    return sorted(
        offset
        for name in resources.disk.list(directory)
        if (offset := names.offset_of(name, names.SNAPSHOT)) is not None
    )


def snapshot_path(directory: str, offset: int) -> str:
    """Return the path of the snapshot of what was before ``offset``."""
    return f"{directory}/{names.file_name(offset, names.SNAPSHOT)}"


def write_snapshot(
    resources: Resources, directory: str, offset: int, producers: ProducerState
) -> str:
    """Write the producers as they are before ``offset``; return the path. Not synced."""
    path = snapshot_path(directory, offset)
    content = producers.encode()
    file = resources.disk.open(path + names.TEMPORARY, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [content])
    finally:
        file.close()
    resources.files.forget(path)
    resources.disk.rename(path + names.TEMPORARY, path)
    return path


def remove_snapshots(
    resources: Resources, directory: str, *, below: int = 0, above: int | None = None
) -> None:
    """Remove snapshots below one offset or above another."""
    for offset in snapshot_offsets(resources, directory):
        if offset < below or (above is not None and offset > above):
            path = snapshot_path(directory, offset)
            resources.files.forget(path)
            resources.disk.remove(path)


def thin_out(resources: Resources, directory: str, segments: Sequence[Segment]) -> None:
    """Keep the newest snapshots and those where a segment begins."""
    bases = {segment.base_offset for segment in segments}
    for offset in snapshot_offsets(resources, directory)[:-SNAPSHOTS_KEPT]:
        if offset not in bases:
            path = snapshot_path(directory, offset)
            resources.files.forget(path)
            resources.disk.remove(path)


def load_producers(
    resources: Resources, directory: str, segments: Sequence[Segment], end_offset: int, now_ms: int
) -> ProducerState:
    """Return the producers as of ``end_offset``: the newest usable snapshot and what follows it.

    Grows with the batches behind that snapshot. A batch found in the log counts as taken now:
    its own timestamp may be years old, and must not make its producer expire.
    """
    offsets = snapshot_offsets(resources, directory)
    if offsets and offsets[-1] > end_offset:
        remove_snapshots(resources, directory, above=end_offset)
        # Durable at once: what they tell of is not in the log. If a power loss brought one back
        # when the log is as long again, a batch would be taken for a duplicate of what is lost.
        resources.disk.sync_directory(directory)
    state = ProducerState()
    start = segments[0].base_offset
    for offset in reversed(offsets):
        path = snapshot_path(directory, offset)
        if offset > end_offset:
            continue
        if offset < start:
            break
        try:
            state = ProducerState.decode(resources.disk.read(path))
        except DamagedFile:
            # If it comes back, it is as damaged as it is now.
            resources.disk.remove(path)
            continue
        start = offset
        break
    _note_from(state, segments, start, end_offset, now_ms)
    return state


def _note_from(
    state: ProducerState, segments: Sequence[Segment], start: int, end_offset: int, now_ms: int
) -> None:
    for segment in segments:
        if segment.next_offset <= start or not segment.size:
            continue
        located = segment.locate(start) if start > segment.base_offset else None
        position = 0 if located is None else located[0]
        for _, header in scan(
            segment.open_log(), position, segment.size, check=False, chunk_bytes=HEADERS_BYTES
        ):
            if header.base_offset >= end_offset:
                return
            if header.base_offset >= start and header.producer_id >= 0:
                state.note(header, header.base_offset, now_ms)
