"""Directories that were set aside and are removed after a delay.

Owns which ones and when. Removing a large log takes long: it is a value that any thread can run.
What somebody else has removed meanwhile, to make room, counts as removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.runtime.disk import Disk


@dataclass(slots=True)
class Removal:
    """Directories that are due, removed by ``run`` in any thread."""

    disk: Disk
    paths: Sequence[str]
    left: list[str] = field(default_factory=list)
    """What could not be removed, or not wholly."""
    error: OSError | None = None

    def run(self) -> None:
        """Remove them with all that is in them. Blocks; a failure is kept in ``error``."""
        for path in self.paths:
            try:
                self.disk.remove_tree(path)
            except FileNotFoundError:
                if self.disk.exists(path):
                    self.left.append(path)
            except OSError as error:
                self.error = error
                self.left.append(path)


class Removals:
    """The directories that wait for their removal. Used by one thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[tuple[int, str]] = []

    def add(self, path: str, due_ms: int) -> None:
        """Have ``path`` removed from ``due_ms`` (wall clock) on."""
        self._waiting.append((due_ms, path))

    def due(self, now_ms: int) -> Removal | None:
        """Return what is to be removed now; None if nothing is. Hand it to ``finished``."""
        due = [path for due_ms, path in self._waiting if due_ms <= now_ms]
        self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        return Removal(self._disk, due) if due else None

    def finished(self, removal: Removal, now_ms: int) -> None:
        """Take back a removal that was run: what is left of it has another turn."""
        self._waiting += [(now_ms, path) for path in removal.left]
