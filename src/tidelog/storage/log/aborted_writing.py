"""Writing the files of aborted transactions, before a sync claims their markers.

Owns that step (docs/decisions/0119): below the recovery point the files are right, so a start needs
no batch from there. A log in which nothing was aborted has none of it.
"""

from __future__ import annotations

from tidelog.storage import names
from tidelog.storage.log.aborted import check_with, crc_of_entries
from tidelog.storage.log.aborted_files import HeldEntries
from tidelog.storage.log.state import LogState


def write_missing_aborted(log: LogState) -> None:
    """Write what the files lack; the next sync covers it. OSError leaves the rest for later.

    Grows with what they lack, not with what they have.
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
    position, crc = (held.written, held.crc) if held.written > 0 else (0, 0)
    added = bytes(entries[position:])
    file.write_at(position, [added])
    crc = crc_of_entries(added, crc)
    log.write_file(names.file_name(base, names.ABORTED_CHECK), check_with(len(entries), crc))
    log.dirty.files.add(path)
    held.written, held.crc = len(entries), crc
