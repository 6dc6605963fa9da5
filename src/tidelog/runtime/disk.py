"""The disk seam: every file operation of the product goes through a ``Disk``.

Owns the interface and its real implementation. The simulation has another one, in which writes
that were not synced can be lost or torn. No method waits for anything but the operating
system; ``sync`` may take long, so hot paths call it in a thread (``loop.run_in_executor``, which
the simulation's loop runs inline).

Durability rule: file contents are durable after ``File.sync``; names (create, rename, remove) are
durable after ``Disk.sync_directory`` of the directory that holds them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

READ_AHEAD_BYTES = 128 * 1024
"""What Linux reads ahead by default: the pieces in which a file comes into the page cache."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_ANY_BYTE = (bytearray(1),)
"""A sink for bytes that no code reads."""

MAX_IOVEC = 1024
"""Most chunks one pwritev takes (Linux IOV_MAX)."""


class File(Protocol):
    """An open file. There is no cursor: every position is given, in bytes."""

    path: str

    def write_at(self, position: int, chunks: Sequence[Buffer]) -> int:
        """Write all chunks one after another from ``position``; return the bytes written.

        Raises OSError (ENOSPC, EIO …); then any prefix of the bytes may have been written.
        """

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``position``; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to ``size`` bytes."""

    def sync(self) -> None:
        """Make everything written so far durable. Blocks; a failure is final (promise 25)."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def close(self) -> None:
        """Release the file; a second call does nothing."""


class Directory(Protocol):
    """An open directory: its syncs need no further descriptor, so none fails for lack of one."""

    path: str

    def sync(self) -> None:
        """Make the names in it durable. Blocks; a failure is final (promise 25)."""

    def close(self) -> None:
        """Release the directory; a second call does nothing."""


class Disk(Protocol):
    """The operations that tidelog needs of a file system. Paths are strings with "/"."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file; with ``create`` make it if it is missing. FileNotFoundError otherwise."""

    def exists(self, path: str) -> bool:
        """Whether the name exists. OSError where the disk cannot answer: that is no absence."""

    def is_directory(self, path: str) -> bool:
        """Whether it is a directory. OSError as with ``exists``."""

    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""

    def make_directory(self, path: str) -> bool:
        """Make a directory and its parents; False for one that exists."""

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing a target file."""

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; opens it for that."""

    def open_directory(self, path: str) -> Directory:
        """Open a directory for many syncs. OSError when there is no descriptor left."""

    def free_bytes(self, path: str) -> int: ...
    def total_bytes(self, path: str) -> int: ...
    def read(self, path: str) -> bytes: ...
    def replace(self, path: str, content: bytes) -> None:
        """Replace a whole file so that a crash leaves the old or the new content, durably."""

    def lock(self, path: str) -> File | None:
        """Lock a file for this process until it is closed; None when another process has it.

        OSError when it cannot be locked for any other reason.
        """


def holder(disk: Disk, path: str) -> int | None:
    """Return the id of the process that has locked a file; None where that is not known."""
    try:
        found = disk.read(path).strip()
    except OSError:
        return None
    return int(found) if found.isdigit() else None


def said_of_holder(pid: int | None) -> tuple[str, str]:
    """Return the words for a process that has locked a file, and those that say how to end it."""
    return ("", "stop it") if pid is None else (f" (pid {pid})", f"stop it (`kill {pid}`)")


def replace_durably(disk: Disk, path: str, content: bytes) -> None:
    """Replace a file as ``Disk.replace`` promises: write a new file, sync, rename, sync."""
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [content])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(os.path.dirname(path) or ".")


_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def _mode(path: str) -> int | None:
    """Return the mode of what has this name, None when nothing has it. OSError for a bad disk,
    which ``os.path.exists`` would take for an absence."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


FILE_MODE, DIRECTORY_MODE = 0o640, 0o750
"""Data is for the server's user, and for its group to read."""


def keep_from_others() -> None:
    """Give other users no access to files that this process creates, SQLite's among them."""
    present = os.umask(0o777)
    os.umask(present | 0o027)


class RealFile:
    """A ``File`` on a file descriptor."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def write_at(self, position: int, chunks: Sequence[Buffer]) -> int:
        if len(chunks) == 1:
            total = len(chunks[0])
            written = os.pwrite(self._fd, chunks[0], position)
        else:
            total = sum(map(len, chunks))
            written = os.pwritev(self._fd, chunks[:MAX_IOVEC], position)
        if written != total:
            self._write_rest(position, chunks, written)
        return total

    def _write_rest(self, position: int, chunks: Sequence[Buffer], written: int) -> None:
        # A short write: a signal, a nearly full disk or more chunks than one call takes.
        rest = memoryview(b"".join(chunks))
        while written < len(rest):
            count = os.pwrite(self._fd, rest[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "a write made no progress", self.path)
            written += count

    def read_at(self, position: int, size: int) -> bytes:
        return os.pread(self._fd, size, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def in_memory(self, position: int, size: int) -> bool:
        """Whether the page cache has a part of the file: a byte of each 128 KiB, and the last one.

        Also True where the file system has no answer (RWF_NOWAIT). A few microseconds.
        """
        fd, into, read_now = self._fd, _ANY_BYTE, os.preadv
        last = position + size - 1
        try:
            for at in range(position, last, READ_AHEAD_BYTES):
                read_now(fd, into, at, _NOWAIT)
            read_now(fd, into, last, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def fileno(self) -> int:
        """Return the descriptor, for ``os.sendfile``; files of a simulation have none."""
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDirectory:
    """A ``Directory`` on a file descriptor."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """A ``Disk`` on the machine's file system."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT
        return RealFile(path, os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def exists(self, path: str) -> bool:
        return _mode(path) is not None

    def is_directory(self, path: str) -> bool:
        mode = _mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> bool:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileNotFoundError:
            # makedirs would give its mode to the last directory only.
            above = os.path.dirname(path.rstrip("/"))
            if not above or os.path.isdir(above):
                raise  # some file systems, as /proc, take no directory and say ENOENT
            self.make_directory(above)
            return self.make_directory(path)
        except FileExistsError:
            # A file of that name is an error.
            if not os.path.isdir(path):
                raise
            return False
        return True

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        directory = self.open_directory(path)
        try:
            directory.sync()
        finally:
            directory.close()

    def open_directory(self, path: str) -> Directory:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return RealDirectory(path, fd)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, content: bytes) -> None:
        replace_durably(self, path, content)

    def lock(self, path: str) -> RealFile | None:
        file = RealFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        try:
            fcntl.flock(file._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:
            # No process has the lock: this disk, or kind of file system, cannot lock.
            file.close()
            raise
        with contextlib.suppress(OSError):
            # For the message of a process that is refused; a full disk is no reason not to lock.
            # Not truncated first: ext4 would write out a truncated file when it is closed.
            os.ftruncate(file._fd, os.pwrite(file._fd, b"%d\n" % os.getpid(), 0))
        return file
