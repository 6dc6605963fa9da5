"""Writing the checkpoint files of a log directory: in any thread, one moment after the other.

Owns their order: what a checkpoint of an older moment says never replaces what a newer one wrote,
whichever thread is late. Does not know what the files say.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tidelog.runtime.disk import Disk


class Checkpoint:
    """The checkpoint files of one moment, written by ``run`` in any thread."""

    def __init__(self, owner: Checkpoints, number: int, files: dict[str, bytes]) -> None:
        self.number = number
        self.files = files
        self.error: OSError | None = None
        self._owner = owner

    def run(self) -> None:
        """Replace the files durably, unless a newer checkpoint did. Blocks; a failure is kept in
        ``error``.
        """
        try:
            self._owner.write(self)
        except OSError as error:
            self.error = error


class Checkpoints:
    """Which contents the checkpoint files of one directory have. ``write`` is for any thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._number = 0
        self._newest_begun = 0
        self._written: dict[str, bytes] = {}

    def changed(self, contents: Mapping[str, bytes]) -> Checkpoint | None:
        """Return what to write so that the files say ``contents``; None when they do."""
        files = {
            path: content
            for path, content in contents.items()
            if self._written.get(path) != content
        }
        if not files:
            return None
        for path in files:
            # Until it is known how this ends, nobody knows what the file says.
            self._written.pop(path, None)
        self._number += 1
        return Checkpoint(self, self._number, files)

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the files of ``checkpoint``, one checkpoint at a time. OSError if it fails."""
        with self._lock:
            if checkpoint.number < self._newest_begun:
                return
            self._newest_begun = checkpoint.number
            for path, content in checkpoint.files.items():
                self._disk.replace(path, content)

    def finished(self, checkpoint: Checkpoint) -> None:
        """Note that ``checkpoint`` was run without an error."""
        if checkpoint.number == self._number:
            self._written.update(checkpoint.files)
