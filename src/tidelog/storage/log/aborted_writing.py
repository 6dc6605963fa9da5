"""Writing the files of aborted transactions, before a sync claims their markers.

Owns that step (docs/decisions/0119): below the recovery point the files are right, so a start needs
no batch from there. A log in which nothing was aborted has none of it.
"""

from __future__ import annotations

from tidelog.storage import names
from tidelog.storage.log.aborted import encode_check
from tidelog.storage.log.aborted_files import HeldEntries
from tidelog.storage.log.state import LogState


def write_missing_aborted(log: LogState) -> None:
    """Write what the files lack; the next sync covers it. OSError leaves the rest for later.

    The entries come before their check, which names so many: a kill in between adds none.
    """
    for base, held in list(log.aborted.held.items()):
        if held.written != len(held.entries):
            _write(log, base, held)
        if base != log.segments.active.base_offset:
            del log.aborted.held[base]


def _write(log: LogState, base: int, held: HeldEntries) -> None:
    segment = log.segments[log.segments.segment_at(base)]
    path, entries = segment.path(names.ABORTED), held.entries
    file = log.resources.files.get(path, create=True)
    if held.written < 0:
        file.truncate(0)
    position = max(held.written, 0)
    file.write_at(position, [bytes(entries[position:])])
    log.write_file(names.file_name(base, names.ABORTED_CHECK), encode_check(entries))
    log.dirty.files.add(path)
    held.written = len(entries)
