"""The real disk, which notes the thread of each slow call: syncs, reads, writes, renames."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.storage_logs import QuickDisk, QuickFile
from tidelog.runtime.disk import Buffer, RealFile


class Call(NamedTuple):
    """``kind``: sync, sync_directory, read, write, rename, remove, truncate. ``size`` in bytes."""

    kind: str
    path: str
    size: int
    thread: int


class WatchedFile(QuickFile):
    """A file of a ``WatchedDisk``."""

    disk: WatchedDisk

    def write_at(self, position: int, chunks: Sequence[Buffer]) -> int:
        self.disk.note("write", self.path, sum(map(len, chunks)))
        return super().write_at(position, chunks)

    def read_at(self, position: int, size: int) -> bytes:
        self.disk.note("read", self.path, size)
        return super().read_at(position, size)

    def truncate(self, size: int) -> None:
        self.disk.note("truncate", self.path, size)
        super().truncate(size)

    def sync(self) -> None:
        self.disk.note("sync", self.path)


class WatchedDisk(QuickDisk):
    """Notes the calls in ``calls``; ``here`` are those of the thread that made it (the loop's)."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._thread = threading.get_ident()

    def note(self, kind: str, path: str, size: int = 0) -> None:
        self.calls.append(Call(kind, path, size, threading.get_ident()))

    def here(self, *kinds: str, ending: str = "") -> list[Call]:
        """Return the calls of some kinds, of this disk's own thread, on paths with an ending."""
        return [each for each in self.of(*kinds, ending=ending) if each.thread == self._thread]

    def of(self, *kinds: str, ending: str = "") -> list[Call]:
        """Return the calls of some kinds, of any thread, on paths with an ending."""
        return [each for each in self.calls if each.kind in kinds and each.path.endswith(ending)]

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        file = WatchedFile(plain.path, plain._fd)
        file.disk = self
        return file

    def rename(self, source: str, target: str) -> None:
        self.note("rename", target)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.note("remove", path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.note("sync_directory", path)

    def read(self, path: str) -> bytes:
        content = super().read(path)
        self.note("read", path, len(content))
        return content
