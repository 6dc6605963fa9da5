"""What is being done to the segments of a log, in pieces: one change at a time.

Owns the kinds of change, and that each ends. Not the changes themselves: see `cutting`, `expiring`,
`compaction.swap` and `future.moving`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Protocol


class LogChange(enum.Enum):
    """Why no other change of a log's segments may begin."""

    REMOVAL = enum.auto()
    """Old segments are removed by retention or DeleteRecords."""
    SWAP = enum.auto()
    """Compacted segments take the place of others."""
    CUT = enum.auto()
    """The end is cut off, or all of it: nothing is appended or synced."""
    MOVE = enum.auto()
    """The log moves to another directory: nothing is synced."""
    ARRIVAL = enum.auto()
    """The log has moved, and its former directory is being removed."""


HOLDS_SYNCS = (LogChange.CUT, LogChange.MOVE)
"""Nothing is synced until these end."""


class Changing(Protocol):
    """What has at most one change at a time: a log's state."""

    change: LogChange | None


@contextlib.contextmanager
def during(log: Changing, change: LogChange) -> Iterator[None]:
    """Have the log say what is done to it, until that ends in any way."""
    begin(log, change)
    try:
        yield
    finally:
        end(log)


def begin(log: Changing, change: LogChange) -> None:
    """Have the log say what is done to it, until ``end``."""
    assert log.change is None, log.change
    log.change = change


def end(log: Changing) -> None:
    """The change has ended: another may begin."""
    log.change = None
