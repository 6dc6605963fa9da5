"""The files of a log's leader epochs and fences: what is known of them, and a write as a value.

Owns the files and the checksum. Not which epochs and fences a log has: see `epoch_writing` and
`fence_writing`. Not what a start believes of the files: see `epoch_recovery`, `fence_recovery`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from tidelog.storage import names
from tidelog.storage.checkpoints import encode_checksums
from tidelog.storage.log.fences import Fences, encode_fences
from tidelog.storage.log.whole_files import write_whole
from tidelog.storage.segments.resources import Resources


class PendingEpochs:
    """The files of a log's leader epochs, of its fences, or of both, as they should be, written by
    ``run`` in any thread.

    ``call_off`` (before anybody else writes them, or the directory is renamed) has it write nothing
    that is not written yet.
    """

    def __init__(
        self,
        resources: Resources,
        directory: str,
        content: bytes | None,
        former_crc: int | None,
        fences: Fences | None = None,
    ) -> None:
        """``content``: of the file of the leader epochs. None for it, or for ``fences``, has that
        file stay as it is."""
        self.is_written = False
        """Durably, but for the names."""
        self.error: Exception | None = None
        """Anything but an OSError is a bug; final."""
        self.crc: int | None = None
        """Of the leader epochs, if they are written."""
        self.fences = fences
        self.log_directory = directory.rpartition("/")[0]
        """A failure is final for this directory."""
        self._resources = resources
        self._files: list[tuple[str, bytes]] = []
        if fences is not None:
            path = f"{directory}/{names.FENCE_CHECKPOINT}"
            self._files.append((path, encode_fences(fences.entries)))
        if content is not None:
            checksums, self.crc = encode_checksums(content, former_crc)
            self._files.append((f"{directory}/{names.EPOCH_CHECKSUM}", checksums))
            self._files.append((f"{directory}/{names.EPOCH_CHECKPOINT}", content))
        # Of this one alone: it may be late, and another replica have this path by then.
        self._ending = f".{next(resources.numbers)}{names.TEMPORARY}"
        self._disk = resources.disk
        self._lock = threading.Lock()
        self._called_off = False

    @property
    def is_refused(self) -> bool:
        """Whether it failed for a shortage that can pass (a full disk): no disk failed."""
        return isinstance(self.error, OSError) and self._resources.is_full(self.error)

    @property
    def overtaken(self) -> bool:
        """Whether the log's directory was renamed meanwhile (deleted, stray): no disk failed."""
        return isinstance(self.error, FileNotFoundError)

    def run(self) -> None:
        """Write and sync all, the checksum before the epochs. Blocks; ``error`` has a failure."""
        try:
            for path, content in self._files:
                write_whole(self._disk, path + self._ending, content, synced=True)
            with self._lock:
                if not self._called_off:
                    for path, _ in self._files:
                        self._disk.rename(path + self._ending, path)
                    self.is_written = True
        except Exception as error:
            self.error = error
        if not self.is_written:
            for path, _ in self._files:
                with suppress(OSError):
                    self._disk.remove(path + self._ending)

    def call_off(self) -> None:
        """Write nothing from now on; ``is_written`` says whether it is."""
        with self._lock:
            self._called_off = True


@dataclass(slots=True)
class FenceFile:
    """What is known of the file of the fences."""

    written: Fences = field(default_factory=Fences)
    """What the file has; no fences without a file. Durable with the name."""
    durable: Fences = field(default_factory=Fences)
    """What it has in any case, whatever becomes of the newest name."""
    change: int = 0
    """The number of the last change of its name, as ``DirtyFiles`` counts them."""
    first_on_record: int | None = None
    """The offset of the oldest fence as the log directory had it at the start, None for none."""

    def was_written(self, fences: Fences, change: int) -> None:
        """Note the content of the file, which has its name since a change of names."""
        self.written, self.change = fences, change


@dataclass(slots=True)
class EpochFile:
    """What is known of the file of the leader epochs."""

    unwritten: bool = False
    """Whether the next sync must write it: the file does not say what is in memory."""
    pending: PendingEpochs | None = None
    """What a thread may be writing to it, or to the fences; any other writer calls that off."""
    crc: int | None = None
    """The CRC of what the file says, None when that is not known."""
