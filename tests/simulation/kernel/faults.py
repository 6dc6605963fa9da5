"""What can go wrong with a simulated disk, and the plans that say when.

Owns the words for faults. The disk asks its plan before each operation and carries out the answer.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass


class ProcessKilled(BaseException):
    """The simulated process ends here. No product code may catch it; its later writes are refused.

    A BaseException, so that ``except Exception`` and ``except OSError`` let it pass.
    """


@dataclass(frozen=True)
class DiskOperation:
    """One call about to be made: its number on this disk, kind, path and size in bytes.

    Kinds: read, write, truncate, sync, create, rename, remove, make_directory, sync_directory.
    """

    number: int
    kind: str
    path: str
    size: int = 0


@dataclass(frozen=True)
class Fail:
    """The call raises OSError; a write has then written ``part`` (0 to 1) of its bytes."""

    number: int = errno.EIO
    part: float = 0.0


@dataclass(frozen=True)
class Crash:
    """The process dies (``kill``) or the machine loses power (``power``) in this call.

    ``part`` of the call's effect has happened: of a write that share of its bytes, of other
    calls all of it if ``part`` is at least one half.
    """

    kind: str = "kill"
    part: float = 0.0


Fault = Fail | Crash
Plan = Callable[[DiskOperation], Fault | None]


def crash_at(number: int, crash: Crash) -> Plan:
    """Return a plan that crashes once, at the operation with this number."""
    return lambda operation: crash if operation.number == number else None


def fail_once(kind: str, ending: str = "", fault: Fail | None = None) -> Plan:
    """Return a plan that fails the first operation of a kind on a path with this ending."""
    used = False

    def plan(operation: DiskOperation) -> Fault | None:
        nonlocal used
        if used or operation.kind != kind or not operation.path.endswith(ending):
            return None
        used = True
        return fault or Fail()

    return plan
