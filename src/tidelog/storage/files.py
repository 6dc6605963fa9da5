"""Open files of all logs of one directory: at most so many at a time, the least used closed first.

Owns file handles, not their content. A pinned file (one that a thread is syncing) stays open
until it is released, so that no other file can get its descriptor meanwhile. The limit is one of
handles beyond the pinned ones.
"""

from __future__ import annotations

import errno
from collections import OrderedDict

from tidelog.runtime.disk import Disk, File

DEFAULT_OPEN_FILES = 4096
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})


class OpenFiles:
    """A bounded cache of open files by path. Used by one thread; a pinned ``File`` by any."""

    def __init__(self, disk: Disk, limit: int = DEFAULT_OPEN_FILES) -> None:
        self.disk = disk
        self._limit = max(2, limit)
        self._open: OrderedDict[str, File] = OrderedDict()
        self._pins: dict[File, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> File:
        """Return the open file; valid until the next call. OSError as ``Disk.open`` raises it."""
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        try:
            file = self.disk.open(path, create=create)
        except OSError as error:
            if error.errno not in _TOO_MANY or len(self._open) < 2:
                raise
            # The operating system allows fewer than we were told: live with half of what we have.
            self._limit = max(2, len(self._open) // 2)
            self._shrink()
            file = self.disk.open(path, create=create)
        self._open[path] = file
        self._shrink()
        return file

    def _shrink(self) -> None:
        while len(self._open) > self._limit:
            _, oldest = self._open.popitem(last=False)
            self._close(oldest)

    def pin(self, path: str) -> File:
        """Return the open file, which stays open until ``release``."""
        file = self.get(path)
        self._pins[file] = self._pins.get(file, 0) + 1
        return file

    def release(self, file: File) -> None:
        """Undo one ``pin``; closes a file that was forgotten or evicted meanwhile."""
        count = self._pins[file] - 1
        if count:
            self._pins[file] = count
            return
        del self._pins[file]
        if self._open.get(file.path) is not file:
            file.close()

    def forget(self, path: str) -> None:
        """Close a file before it is renamed or removed; nothing when it is not open."""
        file = self._open.pop(path, None)
        if file is not None:
            self._close(file)

    def close(self) -> None:
        """Close every file that is not pinned."""
        while self._open:
            _, file = self._open.popitem()
            self._close(file)

    def _close(self, file: File) -> None:
        if file not in self._pins:
            file.close()
