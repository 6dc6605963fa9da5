"""Directories that were set aside, and files of segments, that are removed after a delay.

Owns which ones and when. Each comes here when its renaming is durable, not before. Removing a large
log takes long: it is a value that any thread can run. What somebody else has removed meanwhile, to
make room, counts as removed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.runtime.disk import Disk


@dataclass(slots=True)
class Removal:
    """What is due, removed by ``run`` in any thread."""

    disk: Disk
    paths: Sequence[str]
    left: list[str] = field(default_factory=list)
    """What could not be removed, or not wholly."""
    error: OSError | None = None

    def run(self) -> None:
        """Remove them with all that is in them. Blocks; a failure is kept in ``error``."""
        for path in self.paths:
            try:
                self._remove(path)
            except FileNotFoundError:
                self.left.append(path)
            except OSError as error:
                self.error = error
                self.left.append(path)

    def _remove(self, path: str) -> None:
        try:
            if self.disk.is_directory(path):
                self.disk.remove_tree(path)
            else:
                self.disk.remove(path)
        except FileNotFoundError:
            if self.disk.exists(path):
                raise


class Removals:
    """What waits for its removal. Used by one thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[tuple[int, str]] = []
        """A heap by time; what was let go of stays in it until its time has come."""
        self._due: dict[str, dict[str, int]] = {}
        """By directory, the paths that wait directly below it, and since when they are due."""

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    def add(self, path: str, due_ms: int) -> None:
        """Have ``path`` removed from ``due_ms`` (wall clock) on. O(log what waits)."""
        self._due.setdefault(_above(path), {})[path] = due_ms
        heapq.heappush(self._waiting, (due_ms, path))

    def due_ms(self, path: str) -> int | None:
        """Return when a path is due (wall clock); None for one that nobody will remove."""
        return self._due.get(_above(path), {}).get(path)

    def forget_below(self, directory: str) -> None:
        """Let go of what lies directly in a directory that is renamed. O(1), however much waits:
        thousands of partitions are deleted one after another."""
        self._due.pop(directory, None)

    def due(self, now_ms: int) -> Removal | None:
        """Return what is to be removed now; None if nothing is. Hand it to ``finished``."""
        due = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            due_ms, path = heapq.heappop(self._waiting)
            above = _above(path)
            siblings = self._due.get(above, {})
            # Else it was let go of; a later file of this name has a time of its own.
            if siblings.get(path) == due_ms:
                due.append(path)
                del siblings[path]
                if not siblings:
                    del self._due[above]
        return Removal(self._disk, due) if due else None

    def finished(self, removal: Removal, now_ms: int) -> None:
        """Take back a removal that was run: what is left of it has another turn."""
        for path in removal.left:
            self.add(path, now_ms)


def _above(path: str) -> str:
    return path.rpartition("/")[0]
