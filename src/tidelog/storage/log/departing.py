"""Renaming the files of segments that a log has let go of, in any thread.

Owns the order: each segment is gone durably before the next one goes, so that no crash leaves a
hole between two others; and what takes over is durable before the first goes. Which segments, and
what becomes of the files, is ``logfiles``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.runtime.disk import Directory, Disk
from tidelog.storage import names


class Departing:
    """The files of some segments of one log, in the order in which they go."""

    __slots__ = (
        "_disk",
        "_names_first",
        "_paths",
        "directory",
        "durable",
        "names",
        "renamed",
        "synced",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Directory,
        paths: Sequence[Sequence[str]],
        changed: int,
        names_first: bool,
    ) -> None:
        """``paths``: of each segment. ``changed``: how many changes of names there were before.
        ``names_first``: some of them may not be durable, and what takes over is among them."""
        self.directory = directory
        """Open: its syncs do not fail half-way for want of a descriptor."""
        self.names = changed
        self.renamed: list[str] = []
        """The new paths of what was renamed."""
        self.durable = 0
        """So many of them stay renamed through a power loss."""
        self.synced = False
        """Whether all names of before are durable."""
        self._disk = disk
        self._paths = paths
        self._names_first = names_first

    def run(self) -> None:
        """Rename them. Blocks. OSError: what was renamed is in ``renamed``."""
        if self._names_first and self._paths:
            self._sync()
        for at, paths in enumerate(self._paths):
            if at:
                self._sync()
            for path in paths:
                if self._disk.exists(path):
                    self._disk.rename(path, path + names.DELETED)
                    self.renamed.append(path + names.DELETED)

    def _sync(self) -> None:
        self.directory.sync()
        self.synced = True
        self.durable = len(self.renamed)
