"""The file of a log's leader epochs: what is known of it, and a write of it as a value.

Owns the file and its checksum. Not which epochs a log has: see `epoch_writing`. Not what a start
believes of the file: see `epoch_recovery`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass

from tidelog.storage import names
from tidelog.storage.checkpoints import encode_checksums
from tidelog.storage.log.whole_files import write_whole
from tidelog.storage.segments.resources import Resources


class PendingEpochs:
    """The files of a log's leader epochs as they should be, written by ``run`` in any thread.

    ``call_off`` (before anybody else writes them, or the directory is renamed) has it write nothing
    that is not written yet.
    """

    def __init__(
        self, resources: Resources, directory: str, content: bytes, former_crc: int | None
    ) -> None:
        self.is_written = False
        """Durably, but for the names."""
        self.error: Exception | None = None
        """Anything but an OSError is a bug; final."""
        checksums, self.crc = encode_checksums(content, former_crc)
        self._files = [
            (f"{directory}/{names.EPOCH_CHECKSUM}", checksums),
            (f"{directory}/{names.EPOCH_CHECKPOINT}", content),
        ]
        # Of this one alone: it may be late, and another replica have this path by then.
        self._ending = f".{next(resources.numbers)}{names.TEMPORARY}"
        self._disk = resources.disk
        self._lock = threading.Lock()
        self._called_off = False

    def run(self) -> None:
        """Write and sync both, the checksum first. Blocks; a failure is kept in ``error``."""
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
class EpochFile:
    """What is known of the file of the leader epochs."""

    unwritten: bool = False
    """Whether the next sync must write it: the file does not say what is in memory."""
    pending: PendingEpochs | None = None
    """What a thread may be writing to it; any other writer calls that off."""
    crc: int | None = None
    """The CRC of what the file says, None when that is not known."""
