"""Delayed removals of quarantined directories and of the files of deleted segments.

Owns what is removed, and when. A path is added once its renaming is durable, not before. Removing a
large log takes long, so a removal is a value that any thread can run. A directory is removed only
if its content is a partition's: a name proves nothing. A path that an operator has
removed in the meantime, to make room, counts as removed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.runtime.disk import Disk
from tidelog.storage.foreign import why_kept


@dataclass(slots=True)
class Removal:
    """Paths that are due for removal; any thread may ``run`` it."""

    disk: Disk
    paths: Sequence[str]
    left: list[str] = field(default_factory=list)
    """Paths that could not be removed, or not completely."""
    kept: list[str] = field(default_factory=list)
    """Sentences about directories that are none of a partition: they stay."""
    error: OSError | None = None

    def run(self) -> None:
        """Remove the paths with all their content. Blocks; a failure is kept in ``error``."""
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
            if not self.disk.is_directory(path):
                self.disk.remove(path)
            elif (why := why_kept(self.disk, path)) is None:
                self.disk.remove_tree(path)
            else:
                self.kept.append(f"{path} is not removed: {why}; remove it yourself")
        except FileNotFoundError:
            if self.disk.exists(path):
                raise


class Removals:
    """The paths that wait for their removal. Used by one thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[tuple[int, str]] = []
        """A heap by time; a forgotten path stays in it until its time has come."""
        self._due: dict[str, dict[str, int]] = {}
        """By directory: the paths that wait directly below it, and when each is due."""

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    def add(self, path: str, due_ms: int) -> None:
        """Remove ``path`` at ``due_ms`` (wall clock) or later. O(log n) in the waiting paths."""
        self._due.setdefault(_above(path), {})[path] = due_ms
        heapq.heappush(self._waiting, (due_ms, path))

    def due_ms(self, path: str) -> int | None:
        """Return when a path is due (wall clock); None when no removal of it waits."""
        return self._due.get(_above(path), {}).get(path)

    def forget_below(self, directory: str) -> None:
        """Forget the paths directly in a directory that is renamed. O(1), however many wait:
        thousands of partitions are deleted one after another."""
        self._due.pop(directory, None)

    def due(self, now_ms: int) -> Removal | None:
        """Return the removal that is due now, None without one. Give it to ``finished``
        afterwards."""
        due = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            due_ms, path = heapq.heappop(self._waiting)
            above = _above(path)
            siblings = self._due.get(above, {})
            # Otherwise it was forgotten; a later file of this name has a time of its own.
            if siblings.get(path) == due_ms:
                due.append(path)
                del siblings[path]
                if not siblings:
                    del self._due[above]
        return Removal(self._disk, due) if due else None

    def finished(self, removal: Removal, now_ms: int) -> None:
        """Take back a removal that was run: its remaining paths are tried again."""
        for path in removal.left:
            self.add(path, now_ms)


def _above(path: str) -> str:
    return path.rpartition("/")[0]
