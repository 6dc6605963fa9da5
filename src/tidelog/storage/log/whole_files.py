"""Small files that are replaced as a whole.

Owns the replacing: a kill leaves the former or the new content. Neither the bytes nor the name are
synced, unless the caller asks for it.
"""

from __future__ import annotations

from tidelog.runtime.disk import Disk
from tidelog.storage import names


def replace(disk: Disk, path: str, content: bytes) -> None:
    """Replace a file that is not open; neither its bytes nor its name are synced."""
    write_whole(disk, path + names.TEMPORARY, content)
    disk.rename(path + names.TEMPORARY, path)


def write_whole(disk: Disk, path: str, content: bytes, *, synced: bool = False) -> None:
    """Write a file from its first byte; OSError leaves a part of it."""
    file = disk.open(path, create=True)
    try:
        if file.size():
            # Only then: ext4 writes a file out at its close that was cut to nothing.
            file.truncate(0)
        file.write_at(0, [content])
        if synced:
            file.sync()
    finally:
        file.close()
