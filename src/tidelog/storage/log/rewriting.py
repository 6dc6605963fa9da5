"""Rewriting of bytes that an earlier process may have failed to sync.

Owns which bytes are written again, unchanged, and their sync.
"""

from __future__ import annotations

from tidelog.storage.log.service import found_damaged
from tidelog.storage.log.state import LogState
from tidelog.storage.log.syncing import sync
from tidelog.storage.segments.soundness import Unsound

REWRITE_BYTES = 1024 * 1024


def write_again(log: LogState) -> None:
    """Write everything above the recovery point once more, as it is. OSError as usual,
    LoadAbandoned.

    After an fsync that failed in an earlier process the page cache may hold bytes that are not on
    the disk and count as clean: no later fsync writes them, unless they are written again.
    """
    for segment in log.segments:
        if segment.next_offset <= log.start_offset and segment is not log.segments.active:
            continue  # perhaps a removed file that came back torn: no reader gets it
        located = segment.locate(max(log.synced_end_offset, segment.base_offset))
        position = segment.size if located is None else located[0]
        while position < segment.size:
            content = segment.read_bytes(position, min(REWRITE_BYTES, segment.size - position))
            segment.open_log().write_at(position, [content])
            position += len(content)
            log.resources.loading.note(0)
    for path in sorted(log.dirty.files - {log.segments.active.log_path}):
        content = log.resources.disk.read(path)
        log.resources.files.get(path).write_at(0, [content])
    if log.end_offset <= log.synced_end_offset and log.resources.disk.exists(
        log.segments.active.log_path
    ):
        # No sync covers the file, yet it may have been cut there without a sync: a power loss would
        # bring back the bytes that were cut off. So its length is set again, as its bytes are, and
        # the sync that follows covers it.
        file = log.segments.active.open_log()
        file.truncate(log.segments.active.size + 1)
        file.truncate(log.segments.active.size)
        log.dirty.files.add(log.segments.active.log_path)
    log.write_again = None


def sync_again(log: LogState) -> None:
    """Do as ``write_again``, and sync; what fails takes the log or its directory out of service.
    LoadAbandoned.

    A shortage that can pass (room, file descriptors) does not: the recovery point stays where it
    is, so nothing above counts as stored, and the log's next sync writes it again.
    """
    log.write_again = write_again
    try:
        write_again(log)
    except OSError as error:
        if log.resources.refused_for(error) is None:
            log.resources.fail(f"a write to {log.path} failed: {error}")
        return
    except Unsound as error:
        found_damaged(log, f"{log.path}: {error}")
        return
    sync(log)
