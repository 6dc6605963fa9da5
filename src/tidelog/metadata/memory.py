"""A metadata store in memory, for tests and the simulation: nothing survives the process.

Owns the nodes in place of a disk: several sessions (``MemoryStore``) may share one ``MemoryTree``,
so that a second controller can start on the nodes of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.metadata.store import (
    ANY_VERSION,
    ROOT,
    CheckVersion,
    Conflict,
    Create,
    Delete,
    Node,
    Operation,
    Reason,
    Set,
    StoreUnavailable,
    Watch,
    parent,
    why_invalid,
)
from tidelog.metadata.watches import LocalWatches


@dataclass(frozen=True, slots=True)
class _MemoryNode:
    data: bytes
    version: int
    session: int | None

    @property
    def node(self) -> Node:
        return Node(self.data, self.version, self.session is not None)


class MemoryTree:
    """The nodes, and the watches of all sessions on them."""

    def __init__(self) -> None:
        self.nodes: dict[str, _MemoryNode] = {ROOT: _MemoryNode(b"", 0, None)}
        self.names: dict[str, set[str]] = {ROOT: set()}
        self.watches: dict[int, LocalWatches] = {}
        self._sessions = 0

    def new_session(self) -> int:
        """Return the number of a new session and give it its watches."""
        self._sessions += 1
        self.watches[self._sessions] = LocalWatches()
        return self._sessions

    def apply(self, session: int, operations: Sequence[Operation]) -> Conflict | None:
        """Do all operations or none; then call every session's watches."""
        undo: list[tuple[str, _MemoryNode | None]] = []
        for operation in operations:
            reason = self._do(session, operation, undo)
            if reason is not None:
                for path, kept in reversed(undo):
                    self._put(path, kept)
                return Conflict(operation.path, reason)
        for watches in list(self.watches.values()):
            watches.notify(operations)
        return None

    def _do(
        self, session: int, operation: Operation, undo: list[tuple[str, _MemoryNode | None]]
    ) -> Reason | None:
        path = operation.path
        found = self.nodes.get(path)
        if isinstance(operation, Create):
            above = self.nodes.get(parent(path))
            reason = _why_not_created(found is not None, above is not None)
            if reason is None and above is not None and above.session is not None:
                reason = Reason.EPHEMERAL_PARENT
            kept = _MemoryNode(operation.data, 0, session if operation.ephemeral else None)
        else:
            reason = _why_not_there(None if found is None else found.version, operation.version)
            if found is None or reason is not None or isinstance(operation, CheckVersion):
                return reason
            if isinstance(operation, Set):
                kept = _MemoryNode(operation.data, found.version + 1, found.session)
            elif self.names[path]:
                return Reason.NOT_EMPTY
            else:
                undo.append((path, found))
                self._put(path, None)
                return None
        if reason is None:
            undo.append((path, found))
            self._put(path, kept)
        return reason

    def _put(self, path: str, kept: _MemoryNode | None) -> None:
        name = path.rpartition("/")[2]
        if kept is None:
            del self.nodes[path]
            del self.names[path]
            self.names[parent(path)].discard(name)
            return
        if path not in self.nodes:
            self.names[path] = set()
            self.names[parent(path)].add(name)
        self.nodes[path] = kept

    def end_session(self, session: int) -> None:
        """Remove the session's ephemeral nodes and its watches."""
        self.watches.pop(session, None)
        gone = [path for path, kept in self.nodes.items() if kept.session == session]
        for path in gone:
            self._put(path, None)
        for watches in list(self.watches.values()):
            watches.notify([Create(path, b"") for path in gone])


class MemoryStore:
    """One session on a ``MemoryTree``; without a tree it makes its own."""

    is_shared = True
    max_write_bytes: int | None = None

    def __init__(self, tree: MemoryTree | None = None) -> None:
        self.tree = tree if tree is not None else MemoryTree()
        self.reachable = False
        self.when_lost: Callable[[str], None] | None = None
        self._session: int | None = None

    async def open(self) -> None:
        self._session = self.tree.new_session()
        self.reachable = True

    async def close(self) -> None:
        self.reachable = False
        if self._session is not None:
            self.tree.end_session(self._session)
            self._session = None

    async def get(self, path: str) -> Node | None:
        self._open_session()
        kept = self.tree.nodes.get(path)
        return None if kept is None else kept.node

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def children(self, path: str) -> list[str]:
        self._open_session()
        return sorted(self.tree.names.get(path, ()))

    async def load(self) -> dict[str, Node]:
        self._open_session()
        return {path: kept.node for path, kept in sorted(self.tree.nodes.items())}

    async def multi(self, operations: Sequence[Operation]) -> Conflict | None:
        session = self._open_session()
        check_paths(operations)
        return self.tree.apply(session, operations)

    def watch(self, path: str, callback: Callable[[str], None], *, children: bool = True) -> Watch:
        return self.tree.watches[self._open_session()].add(path, callback)

    def _open_session(self) -> int:
        if self._session is None:
            raise StoreUnavailable("The metadata store is not open.")
        return self._session


def check_paths(operations: Sequence[Operation]) -> None:
    """Raise ValueError for a path that no node can have: a bug in the caller."""
    for operation in operations:
        clause = why_invalid(operation.path)
        if clause is not None:
            raise ValueError(f"{operation.path!r} is no path: {clause}")
        if isinstance(operation, Delete) and operation.path == ROOT:
            raise ValueError("the root cannot be deleted")


def _why_not_created(there: bool, has_parent: bool) -> Reason | None:
    if there:
        return Reason.EXISTS
    return None if has_parent else Reason.MISSING


def _why_not_there(found: int | None, expected: int) -> Reason | None:
    if found is None:
        return Reason.MISSING
    if expected not in (ANY_VERSION, found):
        return Reason.VERSION
    return None
