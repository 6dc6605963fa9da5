"""The stores that ``striking_store`` wraps: what each session of them shares, and another's hand.

In virtual time a thread's work is done inline, so SQLite's real file serves there too.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Protocol

from tidelog.metadata import sqlite
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.metadata.store import Conflict, MetadataStore, Node, Operation
from tidelog.runtime.disk import RealDisk


class Place(Protocol):
    """What outlives the sessions."""

    def session(self) -> MetadataStore:
        """Return a new session, not yet open."""

    def node(self, path: str) -> Node | None:
        """Return what is durable now."""

    def nodes(self) -> dict[str, Node]:
        """Return all that is durable now."""

    def write(self, *operations: Operation) -> Conflict | None:
        """Write as another would."""

    def close(self) -> None:
        """Let go of it."""


class InMemory:
    """A tree that several sessions share, as a ZooKeeper is."""

    def __init__(self) -> None:
        self.tree = MemoryTree()

    def session(self) -> MetadataStore:
        return MemoryStore(self.tree)

    def node(self, path: str) -> Node | None:
        kept = self.tree.nodes.get(path)
        return None if kept is None else kept.node

    def nodes(self) -> dict[str, Node]:
        return {path: kept.node for path, kept in self.tree.nodes.items()}

    def write(self, *operations: Operation) -> Conflict | None:
        session = self.tree.new_session()
        try:
            return self.tree.apply(session, operations)
        finally:
            self.tree.end_session(session)

    def close(self) -> None:
        pass


class InFile:
    """SQLite's file, which an editor of tables may also have open.

    Its commits are not synced: what a power loss leaves of a file is not asked here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hand: sqlite3.Connection | None = None

    def session(self) -> MetadataStore:
        return sqlite.SqliteStore(str(self.path), RealDisk())

    def node(self, path: str) -> Node | None:
        hand = self._connection()
        return None if hand is None else sqlite._get(hand, path)

    def nodes(self) -> dict[str, Node]:
        hand = self._connection()
        return {} if hand is None else sqlite._load(hand)

    def write(self, *operations: Operation) -> Conflict | None:
        hand = self._connection()
        assert hand is not None, "there is no file yet"
        return sqlite._multi(hand, operations)

    def close(self) -> None:
        if self._hand is not None:
            self._hand.close()
            self._hand = None

    def _connection(self) -> sqlite3.Connection | None:
        if self._hand is None and self.path.exists():
            self._hand = sqlite3.connect(self.path, isolation_level=None)
            self._hand.execute("PRAGMA synchronous = OFF")
        return self._hand
