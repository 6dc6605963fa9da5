"""Making a log durable: one pending sync as a value that a thread can run.

Owns the list of files and directories to sync and the claim that follows. The log's owner takes
it (``PartitionLog.unsynced``), runs it anywhere, and gives it back (``PartitionLog.synced``); many
logs' pending syncs in one trip to a thread are the group commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tidelog.runtime.disk import Directory, File
from tidelog.storage.log.snapshots import PendingSnapshot
from tidelog.storage.segments.segment import Segment


class PendingSync:
    """What must reach the disk so that everything below ``end_offset`` survives a power loss."""

    __slots__ = (
        "directories",
        "end_offset",
        "error",
        "files",
        "generation",
        "leaves_rest",
        "log_directory",
        "names",
        "notes_damage",
        "snapshots",
        "undone",
    )

    def __init__(
        self,
        log_directory: str,
        files: Sequence[File],
        directories: Sequence[Directory],
        names: int,
        end_offset: int,
        generation: int,
        snapshots: Sequence[PendingSnapshot] = (),
    ) -> None:
        self.log_directory = log_directory
        """For which a failure is final."""
        self.files = files
        self.directories = directories
        """Open ones: that a descriptor is wanting is known before, and fails no sync."""
        self.names = names
        """How many changes of names in the log's directory this covers."""
        self.end_offset = end_offset
        self.generation = generation
        """Of the log when this was taken: a truncation in between voids the claim."""
        self.snapshots = snapshots
        """Of producers, written before the directories are synced; each keeps its own error."""
        self.undone = 0
        """How many partial writes of the log, cut off again, this covers."""
        self.notes_damage = False
        """Whether this is the note that the log was found damaged, and nothing else."""
        self.leaves_rest = False
        """Whether there were more closed segments than were asked for."""
        self.error: Exception | None = None
        """Anything but an OSError is a bug; no less final."""

    @property
    def overtaken(self) -> bool:
        """Whether the log's directory was renamed meanwhile (deleted, stray): no disk failed."""
        return isinstance(self.error, FileNotFoundError)

    def run(self) -> None:
        """Sync all. Blocks; a failure is kept in ``error`` and not tried again (promise 25)."""
        try:
            for file in self.files:
                file.sync()
            for snapshot in self.snapshots:
                # After the records of which it tells.
                snapshot.write()
            for directory in self.directories:
                directory.sync()
            for newest in self.snapshots[-1:]:
                # Those before it are not needed once its name is durable.
                newest.thin_out()
        except Exception as error:
            self.error = error


def closed_unsynced(
    segments: Sequence[Segment], synced: int, most: int
) -> tuple[list[Segment], list[Segment]]:
    """Return the closed segments that reach above ``synced``: the ``most`` oldest, and the others.

    A claim is of all below an offset, so that it begins with the oldest. Grows with what is found.
    """
    found: list[Segment] = []
    for segment in islice(reversed(segments), 1, None):
        if segment.next_offset <= synced:
            break
        found.append(segment)
    found.reverse()
    return found[:most], found[most:]


def run_all(pendings: Sequence[PendingSync]) -> None:
    """Run many, in any thread; after a failure nothing more of its log directory is synced."""
    failed: dict[str, Exception] = {}
    for pending in pendings:
        pending.error = failed.get(pending.log_directory)
        if pending.error is None:
            pending.run()
        if pending.error is not None and not pending.overtaken:
            failed[pending.log_directory] = pending.error
