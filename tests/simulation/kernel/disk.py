"""The simulated disk: the product's ``Disk`` and ``File`` over memory, with faults.

Owns paths, space, locks, faults and crashes. What is stored, and what power loss leaves of it, is
in ``inodes.py``.

A ``SimulatedDisk`` lives as long as its machine. Each life of a process gets a ``DiskView`` of it;
when the process dies, its view refuses everything with ``ProcessKilled``, so nothing that unwinds
later can touch the world.
"""

from __future__ import annotations

import errno
import functools
import os
import random
from collections.abc import Callable, Sequence

from tests.simulation.kernel.faults import Crash, DiskOperation, Fail, Plan, ProcessKilled
from tests.simulation.kernel.inodes import (
    SECTOR,
    DirectoryNode,
    EntryChange,
    FileNode,
    NameJournal,
    Node,
)
from tests.simulation.kernel.trace import Trace, fingerprint
from tests.support.loop_guard import look
from tidelog.runtime.disk import Buffer, replace_durably

UNLIMITED = 1 << 40
"""Bytes on a disk for which a test set no budget."""


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class SimulatedDisk:
    """One machine's disk: survives its processes, and partly its power.

    ``capacity`` is the byte budget (ENOSPC beyond it), ``plan`` is asked before each operation,
    ``on_crash`` is called when a planned crash happens ("kill" or "power").
    """

    def __init__(
        self,
        rng: random.Random,
        trace: Trace,
        wall_ms: Callable[[], int],
        *,
        name: str = "disk",
        capacity: int = UNLIMITED,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.plan: Plan | None = None
        self.on_crash: Callable[[DiskView, str], None] | None = None
        self.observer: Callable[[str, str, int, bytes], None] | None = None
        """ScriptedRun of each write and rename that happened: kind, path, position, bytes."""
        self.operations = 0
        self.failed_paths: list[tuple[str, str]] = []
        """Every (kind, path) that was answered with a planned error, in order."""
        self._rng = rng
        self._trace = trace
        self._wall_ms = wall_ms
        self._numbers = 0
        self._names = NameJournal()
        self._root = DirectoryNode(0, wall_ms())
        self._files: dict[int, FileNode] = {}
        self._views: list[DiskView] = []

    def view(self, owner: str = "process") -> DiskView:
        """Return the disk as one new life of a process sees it."""
        view = DiskView(self, owner)
        self._views.append(view)
        return view

    # --- what happens to the machine -----------------------------------------------------

    def kill(self, view: DiskView) -> None:
        """End one life: its locks go, what it wrote stays."""
        view.alive = False
        if view in self._views:
            self._views.remove(view)
        for node in self._files.values():
            if node.locked_by is not None and node.locked_by in view.handles:
                node.locked_by = None

    def lose_power(self) -> None:
        """End all lives; what was not synced may vanish or tear."""
        for view in list(self._views):
            self.kill(view)
        self._names.lose_power(self._rng)
        reachable: dict[int, FileNode] = {}
        self._settle(self._root, reachable)
        self._files = reachable
        for node in sorted(reachable):
            reachable[node].lose_power(self._rng)
        self._trace.event("power-loss", self.name, self.fingerprint())

    def _settle(self, directory: DirectoryNode, reachable: dict[int, FileNode]) -> None:
        directory.entries = dict(directory.durable)
        for node in directory.entries.values():
            if isinstance(node, DirectoryNode):
                self._settle(node, reachable)
            else:
                reachable[node.number] = node

    def flip_bit(self, path: str, bit: int) -> None:
        """Turn over one bit of a stored file (bit 0 is the lowest of the first byte)."""
        self.file(path).flip_bit(bit)
        self._trace.event("flip", self.name, path, bit)

    def fingerprint(self) -> str:
        """Return a text that two disks with the same files and bytes share."""
        lines = [f"{path} {fingerprint(self.file(path).data)}" for path in self.walk()]
        return fingerprint("\n".join(lines).encode())

    def walk(self, path: str = "/") -> list[str]:
        """Return the sorted paths of all files below a directory."""
        found: list[str] = []
        self._walk(self.directory(path), path.rstrip("/"), found)
        return sorted(found)

    def _walk(self, directory: DirectoryNode, prefix: str, found: list[str]) -> None:
        for name, node in directory.entries.items():
            path = f"{prefix}/{name}"
            if isinstance(node, DirectoryNode):
                self._walk(node, path, found)
            else:
                found.append(path)

    # --- paths ---------------------------------------------------------------------------

    def lookup(self, path: str) -> Node | None:
        node: Node = self._root
        for part in _parts(path):
            if not isinstance(node, DirectoryNode):
                return None
            found = node.entries.get(part)
            if found is None:
                return None
            node = found
        return node

    def file(self, path: str) -> FileNode:
        node = self.lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, DirectoryNode):
            raise _error(errno.EISDIR, path)
        return node

    def directory(self, path: str) -> DirectoryNode:
        node = self.lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def parent(self, path: str) -> tuple[DirectoryNode, str]:
        parts = _parts(path)
        if not parts:
            raise _error(errno.EINVAL, path)
        return self.directory("/".join(parts[:-1])), parts[-1]

    # --- operations, called by views -----------------------------------------------------

    def begin(self, view: DiskView, kind: str, path: str, size: int = 0) -> Crash | Fail | None:
        """Count an operation, ask the plan, refuse the dead."""
        if not view.alive:
            raise ProcessKilled(f"{view.owner} is dead and asks to {kind} {path}")
        self.operations += 1
        fault = self.plan and self.plan(DiskOperation(self.operations, kind, path, size))
        if isinstance(fault, Fail):
            self.failed_paths.append((kind, path))
            self._trace.event("disk-error", self.name, kind, path, fault.number)
        return fault or None

    def change(self, view: DiskView, kind: str, path: str, apply: Callable[[], None]) -> None:
        """Carry out an operation that happens as a whole or not at all."""
        fault = self.begin(view, kind, path)
        if isinstance(fault, Fail):
            raise _error(fault.number, path)
        if fault is None or fault.part >= 0.5:
            apply()
            self._trace.event(kind, self.name, path)
            if self.observer is not None:
                self.observer(kind, path, 0, b"")
        if fault is not None:
            self._crash(view, fault, kind, path)

    def write(self, view: DiskView, node: FileNode, path: str, at: int, content: bytes) -> int:
        """Write, or a part of it when the plan or the space says so."""
        fault = self.begin(view, "write", path, len(content))
        count = len(content) if fault is None else int(len(content) * fault.part)
        room = self._room(node, at, count)
        written = content[: min(count, room)]
        node.write(at, memoryview(written))
        node.modified_ms = self._wall_ms()
        if self.observer is not None:
            self.observer("write", path, at, written)
        self._trace.event("write", self.name, path, at, fingerprint(content), min(count, room))
        if isinstance(fault, Crash):
            self._crash(view, fault, "write", path)
        if isinstance(fault, Fail):
            raise _error(fault.number, path)
        if room < count:
            raise _error(errno.ENOSPC, path)
        return count

    def _room(self, node: FileNode, at: int, count: int) -> int:
        """Return how many of ``count`` bytes fit the budget."""
        if self.capacity >= UNLIMITED:
            return count
        free = max(0, self.capacity - self.used()) // SECTOR
        if node.missing_sectors(at, count) <= free:
            return count
        while count and node.missing_sectors(at, count) > free:
            count = max(0, (at + count - 1) // SECTOR * SECTOR - at)
        return count

    def _crash(self, view: DiskView, crash: Crash, kind: str, path: str) -> None:
        self._trace.event("crash", self.name, crash.kind, kind, path)
        self.kill(view)
        if self.on_crash is not None:
            self.on_crash(view, crash.kind)
        elif crash.kind == "power":
            self.lose_power()
        raise ProcessKilled(f"{crash.kind} in {kind} {path}")

    def used(self) -> int:
        """Return the allocated bytes."""
        return sum(len(node.allocated) for node in self._files.values()) * SECTOR

    def new_file(self) -> FileNode:
        self._numbers += 1
        node = FileNode(self._numbers, self._wall_ms())
        self._files[node.number] = node
        return node

    def new_directory(self) -> DirectoryNode:
        self._numbers += 1
        return DirectoryNode(self._numbers, self._wall_ms())

    def enter(self, *changes: EntryChange) -> None:
        """Change directory entries as one step, durable at the next ``sync_directory``."""
        for change in changes:
            change.directory.modified_ms = self._wall_ms()
            old = change.directory.entries.get(change.name)
            moved = change.node is None and len(changes) > 1
            if isinstance(old, FileNode) and old is not change.node and not moved:
                self._files.pop(old.number, None)
        self._names.add(*changes)

    def sync_names(self, directory: DirectoryNode) -> None:
        self._names.sync(directory)

    def real_sync(self, view: DiskView, node: FileNode, path: str) -> None:
        """Make a file durable; a failure forgets what was not written, as Linux does."""
        look(f"a sync of {path}")
        fault = self.begin(view, "sync", path)
        if isinstance(fault, Fail):
            node.give_up()
            raise _error(fault.number, path)
        if fault is None or fault.part >= 0.5:
            node.persist()
            self._trace.event("sync", self.name, path, len(node.data))
        if fault is not None:
            self._crash(view, fault, "sync", path)


@functools.lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


class SimulatedFile:
    """A ``File`` of one life of a process."""

    __slots__ = ("__weakref__", "_closed", "_node", "_read_only", "_view", "path")

    def __init__(self, view: DiskView, path: str, node: FileNode, *, read_only: bool) -> None:
        self.path = path
        self._view = view
        self._node = node
        self._read_only = read_only
        self._closed = False

    def _check(self, *, write: bool = False) -> None:
        if self._closed or (write and self._read_only):
            raise _error(errno.EBADF, self.path)

    def write_at(self, position: int, chunks: Sequence[Buffer]) -> int:
        self._check(write=True)
        content = b"".join(chunks)
        return self._view.disk.write(self._view, self._node, self.path, position, content)

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        self._view.check_read(self.path, size)
        return bytes(memoryview(self._node.data)[position : position + size])

    def truncate(self, size: int) -> None:
        self._check(write=True)
        self._view.disk.change(self._view, "truncate", self.path, lambda: self._truncate(size))

    def _truncate(self, size: int) -> None:
        self._node.truncate(size)
        self._node.modified_ms = self._view.disk._wall_ms()

    def sync(self) -> None:
        self._check()
        self._view.disk.real_sync(self._view, self._node, self.path)

    def size(self) -> int:
        self._check()
        self._view.check_alive(self.path)
        return len(self._node.data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._view.handles.discard(self)
            if self._node.locked_by is self:
                self._node.locked_by = None


class SimulatedDirectory:
    """A ``Directory`` of one life of a process: it follows its directory through renames."""

    def __init__(self, view: DiskView, path: str, node: DirectoryNode) -> None:
        self.path = path
        self._view = view
        self._node = node

    def sync(self) -> None:
        look(f"a sync of {self.path}")
        disk = self._view.disk
        disk.change(self._view, "sync_directory", self.path, lambda: disk.sync_names(self._node))

    def close(self) -> None:
        """Nothing is held."""


class DiskView:
    """A ``Disk`` of one life of a process."""

    def __init__(self, disk: SimulatedDisk, owner: str) -> None:
        self.disk = disk
        self.owner = owner
        self.alive = True
        self.handles: set[SimulatedFile] = set()

    def check_alive(self, path: str) -> None:
        if not self.alive:
            raise ProcessKilled(f"{self.owner} is dead and asks for {path}")

    def check_read(self, path: str, size: int) -> None:
        fault = self.disk.begin(self, "read", path, size)
        if isinstance(fault, Fail):
            raise _error(fault.number, path)
        if fault is not None:
            self.disk._crash(self, fault, "read", path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SimulatedFile:
        self.check_alive(path)
        if create and self.disk.lookup(path) is None:
            self._create(path)
        file = SimulatedFile(self, path, self.disk.file(path), read_only=read_only)
        self.handles.add(file)
        return file

    def _create(self, path: str) -> None:
        parent, name = self.disk.parent(path)
        self.disk.change(
            self,
            "create",
            path,
            lambda: self.disk.enter(EntryChange(parent, name, self.disk.new_file())),
        )

    def exists(self, path: str) -> bool:
        self.check_alive(path)
        return self.disk.lookup(path) is not None

    def is_directory(self, path: str) -> bool:
        self.check_alive(path)
        return isinstance(self.disk.lookup(path), DirectoryNode)

    def size(self, path: str) -> int:
        self.check_alive(path)
        return len(self.disk.file(path).data)

    def modified_ms(self, path: str) -> int:
        self.check_alive(path)
        node = self.disk.lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node.modified_ms

    def list(self, path: str) -> list[str]:
        self.check_alive(path)
        return sorted(self.disk.directory(path).entries)

    def make_directory(self, path: str) -> bool:
        self.check_alive(path)
        is_new = False
        parts = _parts(path)
        for depth in range(1, len(parts) + 1):
            partial = "/" + "/".join(parts[:depth])
            node = self.disk.lookup(partial)
            if isinstance(node, FileNode):
                raise _error(errno.EEXIST, partial)
            is_new = node is None
            if is_new:
                self._make_one(partial)
        return is_new

    def _make_one(self, path: str) -> None:
        parent, name = self.disk.parent(path)
        self.disk.change(
            self,
            "make_directory",
            path,
            lambda: self.disk.enter(EntryChange(parent, name, self.disk.new_directory())),
        )

    def rename(self, source: str, target: str) -> None:
        self.check_alive(source)
        from_directory, from_name = self.disk.parent(source)
        to_directory, to_name = self.disk.parent(target)
        node = self.disk.lookup(source)
        if node is None:
            raise _error(errno.ENOENT, source)
        old = self.disk.lookup(target)
        if isinstance(old, DirectoryNode) and (old.entries or isinstance(node, FileNode)):
            raise _error(errno.ENOTEMPTY, target)
        gone = EntryChange(from_directory, from_name, None)
        come = EntryChange(to_directory, to_name, node)
        changes = (come,) if gone.place == come.place else (gone, come)
        self.disk.change(self, "rename", f"{source} {target}", lambda: self.disk.enter(*changes))

    def remove(self, path: str) -> None:
        self.check_alive(path)
        self.disk.file(path)
        parent, name = self.disk.parent(path)
        self.disk.change(
            self, "remove", path, lambda: self.disk.enter(EntryChange(parent, name, None))
        )

    def remove_tree(self, path: str) -> None:
        for name in self.list(path):
            child = f"{path}/{name}"
            if self.is_directory(child):
                self.remove_tree(child)
            else:
                self.remove(child)
        parent, name = self.disk.parent(path)
        self.disk.change(
            self, "remove", path, lambda: self.disk.enter(EntryChange(parent, name, None))
        )

    def sync_directory(self, path: str) -> None:
        self.check_alive(path)
        self.open_directory(path).sync()

    def open_directory(self, path: str) -> SimulatedDirectory:
        self.check_alive(path)
        return SimulatedDirectory(self, path, self.disk.directory(path))

    def free_bytes(self, path: str) -> int:
        self.check_alive(path)
        return max(0, self.disk.capacity - self.disk.used())

    def total_bytes(self, path: str) -> int:
        self.check_alive(path)
        return self.disk.capacity

    def read(self, path: str) -> bytes:
        self.check_alive(path)
        node = self.disk.file(path)
        self.check_read(path, len(node.data))
        return bytes(node.data)

    def replace(self, path: str, content: bytes) -> None:
        replace_durably(self, path, content)

    def lock(self, path: str) -> SimulatedFile | None:
        file = self.open(path, create=True)
        if file._node.locked_by is not None:
            file.close()
            return None
        file._node.locked_by = file
        return file
