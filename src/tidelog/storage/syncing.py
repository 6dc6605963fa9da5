"""Making a log durable: one pending sync as a value that a thread can run.

Owns the list of files and directories to sync and the claim that follows. The log's owner takes
it (``PartitionLog.unsynced``), runs it anywhere, and gives it back (``PartitionLog.synced``); many
logs' pending syncs in one trip to a thread are the group commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.runtime.disk import Disk, File


class PendingSync:
    """What must reach the disk so that everything below ``end_offset`` survives a power loss."""

    __slots__ = (
        "_disk",
        "directories",
        "end_offset",
        "error",
        "files",
        "generation",
        "log_directory",
    )

    def __init__(
        self,
        disk: Disk,
        log_directory: str,
        files: Sequence[File],
        directories: Sequence[str],
        end_offset: int,
        generation: int,
    ) -> None:
        self._disk = disk
        self.log_directory = log_directory
        """For which a failure is final."""
        self.files = files
        self.directories = directories
        self.end_offset = end_offset
        self.generation = generation
        """Of the log when this was taken: a truncation in between voids the claim."""
        self.error: OSError | None = None

    @property
    def overtaken(self) -> bool:
        """Whether the log's directory was renamed meanwhile (deleted, stray): no disk failed."""
        return isinstance(self.error, FileNotFoundError)

    def run(self) -> None:
        """Sync all. Blocks; a failure is kept in ``error`` and not tried again (promise 25)."""
        try:
            for file in self.files:
                file.sync()
            for directory in self.directories:
                self._disk.sync_directory(directory)
        except OSError as error:
            self.error = error


def run_all(pendings: Sequence[PendingSync]) -> None:
    """Run many, in any thread; after a failure nothing more of its log directory is synced."""
    failed: dict[str, OSError] = {}
    for pending in pendings:
        pending.error = failed.get(pending.log_directory)
        if pending.error is None:
            pending.run()
        if pending.error is not None and not pending.overtaken:
            failed[pending.log_directory] = pending.error
