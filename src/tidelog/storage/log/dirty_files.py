"""The files, directories and renamings of one log that no sync has covered yet.

Owns these sets, and the renamed files that may be removed once their renaming is durable. Not the
sync itself: see `syncing`. Not the removal: see `storage.removals`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidelog.model.work import Work
from tidelog.storage.removals import Removals
from tidelog.storage.segments.open_files import OpenFiles


class DirtyFiles:
    """What the next sync of one log has to cover beside the bytes of its segments."""

    __slots__ = (
        "_directory",
        "_pending_deletes",
        "_removals",
        "directories",
        "files",
        "names_changed",
        "names_durable",
    )

    def __init__(self, directory: str, removals: Removals) -> None:
        self.files: set[str] = set()
        self.directories: set[str] = set()
        self.names_changed = 0
        """How often a name in the log's directory has changed since the log was opened."""
        self.names_durable = 0
        """How many of these changes a sync that has returned covers."""
        self._directory = directory
        self._removals = removals
        self._pending_deletes: deque[tuple[int, int, str]] = deque()
        """Renamed files: the number of the change, the time from which they may be removed, the
        path."""

    @property
    def names_unsynced(self) -> bool:
        """Whether a power loss could undo a change of names."""
        return self.names_durable < self.names_changed

    def note_names(self) -> int:
        """Have the next sync cover a change of names; return its number."""
        self.directories.add(self._directory)
        self.names_changed += 1
        return self.names_changed

    def syncing_names(self, files: OpenFiles) -> Work[None]:
        """Make the names in the log's directory durable, in pieces. OSError as usual."""
        number = self.names_changed
        yield from files.syncing(files.pin_directory(self._directory))
        self.names_synced(number)

    def names_synced(self, number: int) -> None:
        """Take note of a sync of the directory that came after the first ``number`` changes."""
        if number == self.names_changed:
            self.directories.discard(self._directory)
        self.names_are_durable(number)

    def names_are_durable(self, number: int) -> None:
        """Schedule the removal of the files whose renaming is among the first ``number`` changes.

        Before that a power loss could bring back one name and not another, and leave a hole.
        """
        self.names_durable = max(self.names_durable, number)
        pending = self._pending_deletes
        while pending and pending[0][0] <= self.names_durable:
            _, due_ms, path = pending.popleft()
            self._removals.add(path, due_ms)

    def remove_renamed(self, paths: Iterable[str], due_ms: int) -> None:
        """Remove files that were just renamed: once that is durable, and not before ``due_ms``."""
        number = self.note_names()
        self._pending_deletes.extend((number, due_ms, path) for path in paths)
