"""The room that an SQLite store keeps on its disk, so that a full disk can be cured.

Owns where that room is, and the order in which it is used. A controller that cannot write can
neither delete a topic nor shorten its retention, and no disk would ever have room again.

| room | where it is | what uses it |
|---|---|---|
| pages of the database | free pages in it, made at the open | a node that grows |
| pages of the write-ahead log | written once at the open, then over and over | every commit |
| the reserve | a file beside the store, given up when there is no other room | an open, a commit |

What lies in the store's own files no other program can take, as it takes freed room of the disk: a
commit that finds no room moves the log's pages into the database (a checkpoint) and begins at the
start of the log again. An open needs files that a clean end has removed: these get the room of the
reserve, which is made again as soon as there is room.
Source: docs/decisions/0086.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from tidelog.runtime.disk import Disk

logger = logging.getLogger(__name__)

T = TypeVar("T")

ENDING = ".reserve"

RESERVE_BYTES = 512 * 1024
"""Enough for the index of the log (32 KiB), the log that ``prepare`` writes, and the pages."""

PAGES = 64
"""Pages that the log has room for, and that are free in the database: a commit takes some five."""

MAKE_AGAIN_BYTES = 16 * RESERVE_BYTES
"""Free room of the disk above which the reserve is made again."""

_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})


def is_full(error: BaseException) -> bool:
    """Return whether an SQLite error says that the disk has no room."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) in _FULL


def prepare(database: sqlite3.Connection, log_bytes: int) -> None:
    """Take the room in the database and in its log, which has so many bytes. Raises sqlite3.Error.

    Every checkpoint is synced: the log that is written over may have commits of a former process.
    """
    restart = "PRAGMA wal_checkpoint(RESTART)"
    database.execute(restart).fetchone()
    (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
    (free_pages,) = database.execute("PRAGMA freelist_count").fetchone()
    if free_pages >= PAGES and log_bytes >= PAGES * page_bytes:
        return
    # Nothing of this must survive a power loss, so that it needs no sync of its own.
    database.execute("PRAGMA synchronous = OFF")
    try:
        database.execute("DROP TABLE IF EXISTS room")
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute("CREATE TABLE room (pages BLOB)")
            database.execute("INSERT INTO room VALUES (zeroblob(?))", (PAGES * page_bytes,))
            database.execute("COMMIT")
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")
        database.execute("DROP TABLE room")
    finally:
        database.execute("PRAGMA synchronous = FULL")
    database.execute(restart).fetchone()


class RoomOnDisk:
    """The reserve of one store, and work that may need it. Used by one thread at a time."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path + ENDING
        self._folder = path.rpartition("/")[0] or "."
        self._disk = disk
        self._is_missing = True

    def opened(self, connect: Callable[[bool], T]) -> T:
        """Open the store; with the room of the reserve if there is none otherwise.

        ``connect`` is called with True to take the other rooms. Without them an open store is
        still of more use than none.
        """
        for takes_room in (True, True, False):
            try:
                made = connect(takes_room)
            except sqlite3.Error as error:
                if not is_full(error) or not takes_room:
                    raise
                self._give_up()
            else:
                self.make()
                return made
        raise AssertionError

    def used(self, database: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work that may find the disk full, and once more with each room that there is.

        Such work leaves nothing when it fails: a transaction that found no room was rolled back.
        """
        for make_room in (_restart_log, lambda _: self._give_up()):
            try:
                return self._done(work(database))
            except sqlite3.Error as error:
                if not is_full(error) or not make_room(database):
                    raise
        return self._done(work(database))

    def _done(self, result: T) -> T:
        if self._is_missing and self._disk.free_bytes(self._folder) > MAKE_AGAIN_BYTES:
            self.make()
        return result

    def make(self) -> None:
        """Make the reserve, if there is room."""
        try:
            if not self._disk.exists(self.path) or self._disk.size(self.path) < RESERVE_BYTES:
                self._disk.replace(self.path, bytes(RESERVE_BYTES))
            self._is_missing = False
        except OSError as error:
            self._is_missing = True
            logger.warning(
                "%(reserve)s, which the metadata store needs when the disk is full, cannot be "
                "made: %(error)s",
                {"reserve": self.path, "error": error},
            )

    def _give_up(self) -> bool:
        """Remove the reserve; False when there is none."""
        try:
            self._disk.remove(self.path)
        except OSError:
            return False
        self._is_missing = True
        logger.error(
            "the disk is full: the metadata store gave up its reserve %(reserve)s; make room "
            "(delete topics, shorten retention.ms): it is made again then",
            {"reserve": self.path},
        )
        return True


def _restart_log(database: sqlite3.Connection) -> bool:
    """Have the next commit write over the log from its start, if no other connection reads it."""
    try:
        database.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    except sqlite3.Error as error:
        # The next attempt finds no room either, and then uses the reserve.
        logger.debug("the log was not restarted: %s", error)
    return True
