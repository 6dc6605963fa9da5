"""Log directories without room, as heartbeats report them: a leader there can write no fence.

Owns which directories count as short of room, and why. Not the line in the log about a refused
write: see ``refused_writes``; not which directory gets a new replica: see ``placement``.

| a directory | it is short |
|---|---|
| has less than ``LEAST_FREE_BYTES`` left | the disk is full |
| refused a write for a shortage, and has not been checked since | with that reason |
| the same, and at a later check its free bytes are not above the first ones | with that reason, |
| | until ``REMEMBERED_MS`` after its last refusal |
| any other | no |

A check asks the file system, in a thread. Quotas and open files show in refusals alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.storage.segments.resources import DISK_FULL

if TYPE_CHECKING:
    from tidelog.runtime.clock import Clock
    from tidelog.storage.directory.log_directory import LogDirectory

LEAST_FREE_BYTES = 64 * 1024
"""A fence takes 100 bytes; a segment that begins with it, some pages."""

REMEMBERED_MS = 5_000
"""Clients and owed fences try again within a second."""


@dataclass(slots=True)
class _Refusal:
    reason: str
    at_ms: int
    free_bytes: int | None = None
    """The free bytes at the first check after it."""


class Shortages:
    """The log directories of one broker. Used on its event loop, but for ``measured``."""

    def __init__(self, directories: Sequence[LogDirectory], clock: Clock) -> None:
        self._directories = directories
        self._clock = clock
        self._refusals: dict[LogDirectory, _Refusal] = {}

    def refused(self, directory: LogDirectory, reason: str) -> None:
        """Note that a directory refused a write just now, for a shortage that can pass."""
        self._refusals[directory] = _Refusal(reason, self._clock.monotonic_ms())
        directory.resources.shortage = reason

    def measured(self) -> dict[LogDirectory, int]:
        """Return the free bytes of the directories in service; called in a thread."""
        free = {}
        for directory in self._directories:
            if directory.failed is None:
                try:
                    free[directory] = directory.free_bytes()
                except OSError:
                    # Unknown: its refusals count alone.
                    continue
        return free

    def check(self, free: dict[LogDirectory, int]) -> None:
        """Judge each directory by its free bytes."""
        now_ms = self._clock.monotonic_ms()
        for directory in self._directories:
            directory.resources.shortage = self._judged(directory, free.get(directory), now_ms)

    def _judged(self, directory: LogDirectory, free: int | None, now_ms: int) -> str | None:
        refusal = self._refusals.get(directory)
        is_full = free is not None and free < LEAST_FREE_BYTES
        if refusal is not None:
            if refusal.free_bytes is None:
                refusal.free_bytes = free
            before = refusal.free_bytes
            has_more = free is not None and before is not None and free > before
            if has_more or now_ms - refusal.at_ms > REMEMBERED_MS:
                del self._refusals[directory]
            else:
                return refusal.reason
        return DISK_FULL if is_full else None
