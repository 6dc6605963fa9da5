"""The embedded metadata store: one SQLite file, one controller at a time, every write durable.

Owns the file's schema, its lock and its backup. Calls run in a thread, one after another: SQLite
releases the GIL while it waits for the disk. A write is one transaction with ``synchronous=FULL``,
so a commit is on the disk when ``multi`` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from tidelog.metadata import sqlite_room
from tidelog.metadata.memory import check_paths
from tidelog.metadata.sqlite_room import RoomOnDisk
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
    StoreRefused,
    StoreUnavailable,
    Watch,
    parent,
)
from tidelog.metadata.watches import LocalWatches
from tidelog.runtime.disk import Disk, File, holder, said_of_holder

SCHEMA_VERSION = 1
"""``PRAGMA user_version`` of the files that this code writes."""

LOCK_ENDING = ".lock"
"""The controller that has a store open locks the file with the store's name and this ending."""

_SCHEMA = (
    "CREATE TABLE nodes (path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL,"
    " version INTEGER NOT NULL, ephemeral INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX nodes_by_parent ON nodes (parent)",
    "INSERT INTO nodes VALUES ('/', '', x'', 0, 0)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SqliteStore:
    """The session of the one controller that holds the file's lock."""

    is_shared = False
    max_write_bytes: int | None = None

    def __init__(self, path: str, disk: Disk, threads: Executor | None = None) -> None:
        self.path = path
        self.reachable = False
        self.when_lost: Callable[[str], None] | None = None
        self._disk = disk
        self._room = RoomOnDisk(path, disk)
        self._threads = threads
        self._database: sqlite3.Connection | None = None
        self._lock_file: File | None = None
        self._turn = asyncio.Lock()
        self._watches = LocalWatches()

    async def open(self) -> None:
        try:
            self._disk.make_directory(os.path.dirname(self.path) or ".")
            self._lock_file = self._disk.lock(self.path + LOCK_ENDING)
        except OSError as error:
            raise self._unusable(error) from error
        if self._lock_file is None:
            raise StoreRefused(_why_locked(self._disk, self.path))
        try:
            self._database = await self._in_thread(self._connected)
        except OSError as error:
            self._unlock()
            raise self._unusable(error) from error
        except sqlite3.Error as error:
            # Full, and the reserve did not suffice: a full disk may be emptied.
            self._unlock()
            raise self._unavailable(error) from error
        except BaseException:
            self._unlock()
            raise
        self.reachable = True

    def _connected(self) -> sqlite3.Connection:
        database = self._room.opened(lambda takes_room: _connect(self.path, takes_room))
        try:
            # The name of the file must survive a power loss too.
            self._disk.sync_directory(os.path.dirname(self.path) or ".")
        except OSError:
            with contextlib.suppress(sqlite3.Error):
                _close(database)
            raise
        return database

    async def close(self) -> None:
        self.reachable = False
        self._watches.clear()
        database, self._database = self._database, None
        try:
            if database is not None:
                await self._in_thread(lambda: self._end(database))
        except sqlite3.Error as error:
            # A full disk prevents the end of the session; the next open ends it.
            logger.warning(
                "%(store)s was closed without ending its session: %(error)s",
                {"store": self.path, "error": error},
            )
        finally:
            self._unlock()

    def _end(self, database: sqlite3.Connection) -> None:
        try:
            _close(database)
        finally:
            # The end of the session removed files that the next open needs room for.
            self._room.make()

    async def get(self, path: str) -> Node | None:
        return await self._read(lambda database: _get(database, path))

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def children(self, path: str) -> list[str]:
        return await self._read(lambda database: _children(database, path))

    async def load(self) -> dict[str, Node]:
        return await self._read(_load)

    async def multi(self, operations: Sequence[Operation]) -> Conflict | None:
        check_paths(operations)
        conflict = await self._read(lambda database: _multi(database, operations))
        if conflict is None:
            self._watches.notify(operations)
        return conflict

    def watch(self, path: str, callback: Callable[[str], None], *, children: bool = True) -> Watch:
        return self._watches.add(path, callback)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        database = self._database
        if database is None:
            raise StoreUnavailable("The metadata store is not open.")
        try:
            return await self._in_thread(lambda: self._room.used(database, work))
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"The metadata store {self.path} failed: {error}.")

    def _unusable(self, error: OSError) -> Exception:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._unavailable(error)
        # An unusable path does not become usable by itself, as a full disk may.
        return StoreRefused(f"The metadata store {self.path} cannot be used: {error}.")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # One at a time: two threads must not use a connection at once. The work is shielded, so
        # that a cancelled caller never leaves a transaction half done.
        async with self._turn:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                await asyncio.wait([future])
                raise

    def _unlock(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None


def why_locked(disk: Disk, path: str) -> str | None:
    """Return a sentence if another controller has a store open that this process has not, or None.

    It changes nothing. None is no promise that the store can be opened.
    """
    try:
        if not disk.exists(path + LOCK_ENDING):
            return None
        lock = disk.lock(path + LOCK_ENDING)
    except OSError:
        return None
    if lock is None:
        return _why_locked(disk, path)
    lock.close()
    return None


def _why_locked(disk: Disk, path: str) -> str:
    pid = holder(disk, path + LOCK_ENDING)
    process, _ = said_of_holder(pid)
    way_out = "" if pid is None else f" (`kill {pid}`)"
    return (
        f"Another controller has {path} open{process}. A SQLite store "
        f"serves one controller: stop the other one first{way_out}."
    )


def backup(path: str, target: str) -> None:
    """Copy the store at ``path`` to the new file ``target``, also while a controller runs.

    The copy is of one moment. Raises StoreRefused with a sentence.
    """
    if not os.path.exists(path):
        raise StoreRefused(f"There is no metadata store at {path}.")
    if os.path.isdir(target):
        name = os.path.join(target, os.path.basename(path))
        raise StoreRefused(f"{target} is a folder: name a file in it, such as {name}.")
    if os.path.exists(target):
        raise StoreRefused(f"{target} exists already: name a file that does not.")
    folder = os.path.dirname(target) or "."
    if not os.path.isdir(folder):
        raise StoreRefused(f"There is no folder {folder}: make it, or name a file in another one.")
    try:
        source = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            _check_schema(source, path)
            copy = sqlite3.connect(target)
            try:
                source.backup(copy)
            finally:
                copy.close()
        finally:
            source.close()
    except sqlite3.Error as error:
        raise StoreRefused(f"{path} could not be copied to {target}: {error}.") from error


def names_below(path: str, node: str) -> list[str] | None:
    """Return the names below a node of a store that this process has not opened yet.

    Empty if there is no file, None if it cannot be read: the controller that opens it says why.
    This writes no node and takes no lock of a controller.
    """
    if not os.path.exists(path):
        return []
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=1)) as database:
            return _children(database, node)
    except sqlite3.Error:
        return None


def _connect(path: str, takes_room: bool) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise StoreRefused(f"The metadata store {path} cannot be opened: {error}.") from error
    try:
        # WAL: one sync per commit instead of three; FULL: every commit has that sync.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if _check_schema(database, path) == 0:
            with _transaction(database):
                for statement in _SCHEMA:
                    database.execute(statement)
        with _transaction(database):
            # An ephemeral node here belongs to a session that ended without closing.
            database.execute("DELETE FROM nodes WHERE ephemeral = 1")
        if takes_room:
            log = path + "-wal"
            size = os.path.getsize(log) if os.path.exists(log) else 0
            sqlite_room.prepare(database, size)
    except sqlite3.Error as error:
        database.close()
        if sqlite_room.is_full(error):
            raise
        raise StoreRefused(f"The metadata store {path} cannot be read: {error}.") from error
    except StoreRefused:
        database.close()
        raise
    return database


def _check_schema(database: sqlite3.Connection, path: str) -> int:
    found = int(database.execute("PRAGMA user_version").fetchone()[0])
    if found > SCHEMA_VERSION:
        raise StoreRefused(
            f"The metadata store {path} has schema version {found}; this code knows "
            f"{SCHEMA_VERSION}: use the newer tidelog that wrote it."
        )
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if found == 0 and tables:
        raise StoreRefused(f"{path} is an SQLite file, but not a metadata store of tidelog.")
    return found


class _transaction:  # noqa: N801
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._database.in_transaction:
            self._database.execute("COMMIT" if kind is None else "ROLLBACK")


def _close(database: sqlite3.Connection) -> None:
    try:
        with _transaction(database):
            database.execute("DELETE FROM nodes WHERE ephemeral = 1")
    finally:
        database.close()


def _get(database: sqlite3.Connection, path: str) -> Node | None:
    wanted = "SELECT data, version, ephemeral FROM nodes WHERE path = ?"
    found = database.execute(wanted, (path,)).fetchone()
    return None if found is None else Node(found[0], found[1], bool(found[2]))


def _children(database: sqlite3.Connection, path: str) -> list[str]:
    rows = database.execute("SELECT path FROM nodes WHERE parent = ? ORDER BY path", (path,))
    return [row[0].rpartition("/")[2] for row in rows]


def _load(database: sqlite3.Connection) -> dict[str, Node]:
    rows = database.execute("SELECT path, data, version, ephemeral FROM nodes ORDER BY path")
    return {path: Node(data, version, bool(ephemeral)) for path, data, version, ephemeral in rows}


def _multi(database: sqlite3.Connection, operations: Sequence[Operation]) -> Conflict | None:
    database.execute("BEGIN IMMEDIATE")
    try:
        # Nodes that may have children: many creations share a parent, or create it first.
        parents: set[str] = set()
        for operation in operations:
            if isinstance(operation, Create):
                reason = _create(database, operation, parents)
            elif isinstance(operation, Set):
                reason = _set(database, operation)
            else:
                reason = _check_or_delete(database, operation, parents)
            if reason is not None:
                database.execute("ROLLBACK")
                return Conflict(operation.path, reason)
        database.execute("COMMIT")
    except sqlite3.Error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    return None


def _set(database: sqlite3.Connection, operation: Set) -> Reason | None:
    # One statement in the expected case; a second one only finds the reason of a conflict.
    path, version = operation.path, operation.version
    done = database.execute(
        "UPDATE nodes SET data = ?1, version = version + 1"
        " WHERE path = ?2 AND (?3 = ?4 OR version = ?3)",
        (operation.data, path, version, ANY_VERSION),
    )
    return None if done.rowcount else _why_not(database, path, version)


def _check_or_delete(
    database: sqlite3.Connection, operation: CheckVersion | Delete, parents: set[str]
) -> Reason | None:
    path = operation.path
    reason = _why_not(database, path, operation.version)
    if reason is not None or isinstance(operation, CheckVersion):
        return reason
    child = database.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone()
    if child is not None:
        return Reason.NOT_EMPTY
    database.execute("DELETE FROM nodes WHERE path = ?", (path,))
    parents.discard(path)
    return None


def _why_not(database: sqlite3.Connection, path: str, version: int) -> Reason | None:
    row = database.execute("SELECT version FROM nodes WHERE path = ?", (path,)).fetchone()
    if row is None:
        return Reason.MISSING
    return None if version in (ANY_VERSION, row[0]) else Reason.VERSION


def _create(database: sqlite3.Connection, operation: Create, parents: set[str]) -> Reason | None:
    path = operation.path
    if path == ROOT:
        return Reason.EXISTS
    above = parent(path)
    wrong = None if above in parents else _why_no_parent(database, above)
    done = database.execute(
        "INSERT OR IGNORE INTO nodes VALUES (?, ?, ?, 0, ?)",
        (path, above, operation.data, int(operation.ephemeral)),
    )
    if not done.rowcount:
        return Reason.EXISTS
    parents.add(above)
    if not operation.ephemeral:
        parents.add(path)
    # EXISTS comes before a missing parent, which undoes the whole write.
    return wrong


def _why_no_parent(database: sqlite3.Connection, above: str) -> Reason | None:
    row = database.execute("SELECT ephemeral FROM nodes WHERE path = ?", (above,)).fetchone()
    if row is None:
        return Reason.MISSING
    return Reason.EPHEMERAL_PARENT if row[0] else None
