"""The highest controller epoch and store revision that a broker has ever received, on disk.

Owns the file ``controller-seen`` of each log directory. A new number must fit on a full disk, or
the broker could apply no control request, not even the one that frees space. So the file has its
full size from the start and is written in place: two slots in turn, each with a CRC, so that a torn
write leaves the other one.
"""

from __future__ import annotations

import errno
import json
import threading
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from tidelog.model.epochs import leaves_room
from tidelog.model.work import Work, finish
from tidelog.runtime.disk import Disk
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.directory.log_directory import LogDirectory

SEEN_FILE = "controller-seen"

SLOTS = (0, 4096)
"""Positions in the file, so far apart that no write touches both."""
SLOT_BYTES = 256
FILE_BYTES = 8192


@dataclass(frozen=True, slots=True, order=True)
class SeenEpochs:
    """The highest controller epoch and store revision; neither ever decreases."""

    controller_epoch: int = -1
    store_revision: int = -1

    def joined(self, other: SeenEpochs) -> SeenEpochs:
        """Return the higher epoch and the higher revision of the two."""
        return SeenEpochs(
            max(self.controller_epoch, other.controller_epoch),
            max(self.store_revision, other.store_revision),
        )


class SeenEpochsFile:
    """One file at ``path``, created by the first ``write``."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._slots: list[SeenEpochs | None] | None = None
        """The value of each slot (None: it is damaged); None while there is no file."""
        self._lock = threading.Lock()
        self._written = SeenEpochs()

    def read(self) -> SeenEpochs:
        """Return the last written value. Raises DamagedFile when both slots are damaged."""
        if not self._disk.exists(self.path):
            return SeenEpochs()
        content = self._disk.read(self.path)
        self._slots = [_decode(content[begin : begin + SLOT_BYTES]) for begin in SLOTS]
        sound = [slot for slot in self._slots if slot is not None]
        if not sound:
            raise DamagedFile(
                f"{self.path} is damaged: restore it, or remove it if the controllers lost no data"
            )
        newest = max(sound)
        if not leaves_room(newest.controller_epoch, newest.store_revision):
            raise DamagedFile(
                f"{self.path} names controller epoch {newest.controller_epoch} and store revision "
                f"{newest.store_revision}, which leave no room for later ones: a stranger must "
                "have sent them to a version that required no secret; remove the file if the "
                "controllers lost no data"
            )
        self._written = newest
        return newest

    def write(self, seen: SeenEpochs) -> None:
        """Write the newest of ``seen`` and the written values, durably. Blocks; for any thread.

        Needs no disk space once the file exists. Raises OSError.
        """
        with self._lock:
            newest = self._written.joined(seen)
            if newest != self._written:
                self._write(newest)
                self._written = newest

    def _write(self, seen: SeenEpochs) -> None:
        slots = self._slots
        if slots is None:
            self._disk.replace(self.path, _encode(seen).ljust(FILE_BYTES, b"\0"))
            self._slots = [seen, None]
            return
        # Overwrite the older slot: the newer one stays if this write is torn.
        target = 0 if slots[0] is None or (slots[1] is not None and slots[0] < slots[1]) else 1
        slots[target] = None
        file = self._disk.open(self.path)
        try:
            file.write_at(SLOTS[target], [_encode(seen)])
            file.sync()
        finally:
            file.close()
        slots[target] = seen


class SeenEpochsStore:
    """The seen epochs of one broker, in all its log directories.

    The first directory has epoch and revision, the others only the controller epoch: a broker whose
    first disk is missing must not apply commands of a former controller.
    """

    def __init__(
        self, disk: Disk, folders: Sequence[str], directories: Sequence[LogDirectory]
    ) -> None:
        """Read the files of earlier starts. Raises DamagedFile when one has no sound value."""
        self._directories = directories
        self._file, *self._copies = (
            SeenEpochsFile(disk, f"{folder}/{SEEN_FILE}") for folder in folders
        )
        of_first, *of_copies = (
            _read(file, directory)
            for file, directory in zip((self._file, *self._copies), directories, strict=True)
        )
        epochs = [of_copy.controller_epoch for of_copy in of_copies]
        self.highest = of_first.joined(SeenEpochs(max(epochs, default=-1)))
        if any(epoch < self.highest.controller_epoch for epoch in epochs):
            finish(self._noting_copies(self.highest))

    def noting(self, seen: SeenEpochs) -> Work[None]:
        """Write ``seen`` durably, in pieces. Raises OSError when that failed.

        When the first directory has failed, a controller epoch counts as written if another
        directory has it: later controllers can still command the partitions there. A revision
        counts only in the first directory.
        """
        is_epoch = seen.controller_epoch > self.highest.controller_epoch
        others = [directory for directory in self._directories[1:] if directory.failed is None]
        refused: OSError | None = None
        if not (is_epoch and others and self._directories[0].failed is not None):
            try:
                yield partial(self._file.write, seen)
            except OSError as error:
                resources = self._directories[0].resources
                if not resources.is_full(error):
                    # Promise 25: a failed write takes its directory out of service.
                    resources.fail(f"writing {self._file.path} failed: {error}")
                if not (is_epoch and self._directories[0].failed is not None):
                    raise
                refused = error
        else:
            refused = OSError(errno.EIO, self._directories[0].failed)
        if is_epoch and not (yield from self._noting_copies(seen)) and refused is not None:
            raise refused
        self.highest = self.highest.joined(seen)

    def _noting_copies(self, seen: SeenEpochs) -> Work[int]:
        """Write the epoch to the other directories; return how many have it."""
        count = 0
        for directory, copy in zip(self._directories[1:], self._copies, strict=True):
            if directory.failed is None:
                try:
                    yield partial(copy.write, seen)
                    count += 1
                except OSError as error:
                    if not directory.resources.is_full(error):
                        directory.resources.fail(f"writing {copy.path} failed: {error}")
        return count


def _read(file: SeenEpochsFile, directory: LogDirectory) -> SeenEpochs:
    """Return the value of a file. An unreadable file takes its directory out of service: the other
    directories have the epoch, too."""
    try:
        return file.read()
    except OSError as error:
        directory.resources.fail(f"{file.path} cannot be read: {error}")
        return SeenEpochs()


def _encode(seen: SeenEpochs) -> bytes:
    text = json.dumps({"version": 1, **asdict(seen)}).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(slot: bytes) -> SeenEpochs | None:
    line, newline, _ = slot.partition(b"\n")
    crc, _, text = line.partition(b" ")
    if not newline or crc != b"%08x" % zlib.crc32(text):
        return None
    content = json.loads(text)
    return SeenEpochs(int(content["controller_epoch"]), int(content["store_revision"]))
