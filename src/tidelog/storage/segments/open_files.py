"""A bounded cache of the open files and directories of one log directory, least recently used first
out.

Owns file handles, not their content. A pinned file (one that a thread is syncing) stays open until
it is released, so that no other file gets its descriptor in the meantime. The limit counts handles
that are not pinned. A file that a thread is renaming is found under both names.

One thread owns the counts. A pin that ends in any thread and at any moment (the garbage collector
runs in any of them) is given back with ``let_go``; the owner releases it later.
"""

from __future__ import annotations

import errno
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tidelog.model.work import Work
from tidelog.runtime.disk import Directory, Disk, File

DEFAULT_OPEN_FILES = 4096
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})


_Opened = TypeVar("_Opened", File, Directory)


class OpenFiles:
    """Open files by path. Used by one thread, except for ``let_go``; a pinned ``File`` by any."""

    def __init__(self, disk: Disk, limit: int = DEFAULT_OPEN_FILES) -> None:
        self.disk = disk
        self._limit = max(2, limit)
        self._open: OrderedDict[str, File | Directory] = OrderedDict()
        self._pins: dict[File | Directory, int] = {}
        self._renaming: dict[str, str] = {}
        """By former path: the path that a thread is giving a file, or has given it."""
        self._let_go: deque[File] = deque()
        """Pins that have ended and still count. ``append`` is atomic."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> File:
        """Return the open file; valid until the next call. OSError as ``Disk.open`` raises it."""
        if self._let_go:
            self.take_up()
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file  # type: ignore[return-value]  # a directory's key ends in a slash
        later = self._renaming.get(path)
        if later is None:
            return self._opened(path, lambda: self.disk.open(path, create=create))
        try:
            return self._opened(path, lambda: self.disk.open(path))
        except FileNotFoundError:
            return self.get(later, create=create)

    def get_directory(self, path: str) -> Directory:
        """Return the open directory; valid until the next call."""
        key = _key(path)
        directory = self._open.get(key)
        if directory is not None:
            self._open.move_to_end(key)
            return directory
        return self._opened(key, lambda: self.disk.open_directory(path))

    def _opened(self, key: str, opening: Callable[[], _Opened]) -> _Opened:
        try:
            file = opening()
        except OSError as error:
            if error.errno not in _TOO_MANY or len(self._open) < 2:
                raise
            # The operating system allows fewer than configured: continue with half of the open
            # ones.
            self._limit = max(2, len(self._open) // 2)
            self._shrink()
            file = opening()
        self._open[key] = file
        self._closed = False
        self._shrink()
        return file

    def _shrink(self) -> None:
        while len(self._open) > self._limit:
            _, oldest = self._open.popitem(last=False)
            self._close(oldest)

    def pin(self, path: str) -> File:
        """Return the open file, which stays open until ``release``."""
        return self._pin(self.get(path))

    def pin_directory(self, path: str) -> Directory:
        """Return the open directory, which stays open until ``release``."""
        return self._pin(self.get_directory(path))

    def _pin(self, file: _Opened) -> _Opened:
        self._pins[file] = self._pins.get(file, 0) + 1
        return file

    def pin_all(
        self, paths: Sequence[str], directories: Sequence[str]
    ) -> tuple[list[File], list[Directory]]:
        """Return all of them pinned, except for files that are gone. OSError: none is pinned."""
        pinned: list[File] = []
        opened: list[Directory] = []
        try:
            for path in paths:
                try:
                    pinned.append(self.pin(path))
                except FileNotFoundError:
                    # Removed since it was noted (an old snapshot, an index of a removed segment).
                    continue
            opened.extend(map(self.pin_directory, directories))
        except OSError:
            for file in (*pinned, *opened):
                self.release(file)
            raise
        return pinned, opened

    def release(self, file: File | Directory) -> None:
        """Undo one ``pin``; closes a file that was forgotten or evicted in the meantime."""
        count = self._pins[file] - 1
        if count:
            self._pins[file] = count
            return
        del self._pins[file]
        path = file.path
        if self._open.get(path) is not file and self._open.get(_key(path)) is not file:
            file.close()

    def syncing(self, pinned: File | Directory) -> Work[None]:
        """Sync what was pinned for it, in pieces, and release it. OSError as usual."""
        try:
            yield pinned.sync
        finally:
            self.release(pinned)

    def let_go(self, file: File) -> None:
        """Undo one ``pin`` at the owner's next ``get`` or ``take_up``; in any thread. At once when
        the cache is closed: its owner has finished."""
        self._let_go.append(file)
        if self._closed:
            self.take_up()

    def take_up(self) -> None:
        """Release the pins that were let go: an open descriptor keeps the room of a removed
        file."""
        while self._let_go:
            self.release(self._let_go.popleft())

    def begin_renaming(self, paths: Mapping[str, str]) -> None:
        """Let files be found by their former paths while a thread renames them, until
        ``end_renaming``. No other file has, or had, one of the new paths."""
        for later in paths.values():
            self._forget(later)
        self._renaming.update(paths)

    def end_renaming(self, paths: Iterable[str]) -> None:
        """Forget the former paths: no caller uses them any longer."""
        for path in paths:
            self._renaming.pop(path, None)

    def exists(self, path: str) -> bool:
        """Whether there is such a file, under this name or under its new one."""
        later = self._renaming.get(path)
        return self.disk.exists(path) or (later is not None and self.disk.exists(later))

    def size(self, path: str) -> int:
        """Return a file's length in bytes, whether it is open or not. FileNotFoundError."""
        try:
            return self.disk.size(path)
        except FileNotFoundError:
            later = self._renaming.get(path)
            if later is None:
                raise
            return self.disk.size(later)

    def forget(self, path: str) -> None:
        """Close a file before it is renamed or removed; nothing when it is not open."""
        self._forget(path)

    def forget_directory(self, path: str) -> None:
        """Close a directory before it is renamed; nothing when it is not open."""
        self._forget(_key(path))

    def forget_below(self, path: str) -> None:
        """Close a directory and what is open in it, before it is removed; grows with open files."""
        self._forget(_key(path))
        for key in [key for key in self._open if key.startswith(f"{path}/")]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        file = self._open.pop(key, None)
        if file is not None:
            self._close(file)

    def close(self) -> None:
        """Close every file that is not pinned, and the others when they are released."""
        self._closed = True
        self.take_up()
        while self._open:
            _, file = self._open.popitem()
            self._close(file)

    def _close(self, file: File | Directory) -> None:
        if file not in self._pins:
            file.close()


def _key(directory: str) -> str:
    """Return the key of a directory among the paths of files."""
    return f"{directory}/"
