"""The highest controller epoch and store revision that a broker ever heard of, on disk.

Owns the file. It must take a new number on a full disk too: else no control request would be
obeyed any more, not even the one that makes room. So its room is taken once, and written in place:
two slots in turn, each with a CRC, so that a torn write leaves the other.
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
from tidelog.runtime.disk import Disk
from tidelog.runtime.turns import Pieces, at_once
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.directory.log_directory import LogDirectory

SEEN_FILE = "controller-seen"

SLOTS = (0, 4096)
"""Positions; so far apart that no write touches both."""
SLOT_BYTES = 256
FILE_BYTES = 8192


@dataclass(frozen=True, slots=True, order=True)
class SeenEpochs:
    """The highest controller epoch and store revision; neither ever steps back."""

    controller_epoch: int = -1
    store_revision: int = -1

    def joined(self, other: SeenEpochs) -> SeenEpochs:
        """Return the higher of both epochs and of both revisions."""
        return SeenEpochs(
            max(self.controller_epoch, other.controller_epoch),
            max(self.store_revision, other.store_revision),
        )


class SeenEpochsFile:
    """One file at ``path``, made with the first ``write``."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._slots: list[SeenEpochs | None] | None = None
        """What each slot says (None: nothing sound); None while there is no file."""
        self._lock = threading.Lock()
        self._written = SeenEpochs()

    def read(self) -> SeenEpochs:
        """Return what was written last. DamagedFile when no slot is sound."""
        if not self._disk.exists(self.path):
            return SeenEpochs()
        content = self._disk.read(self.path)
        self._slots = [_decode(content[at : at + SLOT_BYTES]) for at in SLOTS]
        sound = [each for each in self._slots if each is not None]
        if not sound:
            raise DamagedFile(
                f"{self.path} is damaged: restore it, or remove it if the controllers lost nothing"
            )
        newest = max(sound)
        if not leaves_room(newest.controller_epoch, newest.store_revision):
            raise DamagedFile(
                f"{self.path} names controller epoch {newest.controller_epoch} and store revision "
                f"{newest.store_revision}, which leave no room above them: a stranger "
                "must have sent them to a version that asked for no secret; remove the file if the "
                "controllers lost nothing"
            )
        self._written = newest
        return newest

    def write(self, seen: SeenEpochs) -> None:
        """Keep ``seen`` durably, and what is newer of what was kept. For any thread; it blocks.

        Once there is a file this needs no room. OSError if it fails.
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
        # The newer one stays whatever becomes of the other.
        turn = 0 if slots[0] is None or (slots[1] is not None and slots[0] < slots[1]) else 1
        slots[turn] = None
        file = self._disk.open(self.path)
        try:
            file.write_at(SLOTS[turn], [_encode(seen)])
            file.sync()
        finally:
            file.close()
        slots[turn] = seen


class SeenEpochsStore:
    """What one broker has heard of, in its log directories.

    The first has all of it, the others have the controller epochs: a broker whose first disk is
    away must not obey a former controller.
    """

    def __init__(
        self, disk: Disk, folders: Sequence[str], directories: Sequence[LogDirectory]
    ) -> None:
        """Read what earlier lives heard of. Raises DamagedFile when a file cannot be read."""
        self._directories = directories
        self._file, *self._copies = (
            SeenEpochsFile(disk, f"{folder}/{SEEN_FILE}") for folder in folders
        )
        of_first, *of_copies = (
            _read(file, directory)
            for file, directory in zip((self._file, *self._copies), directories, strict=True)
        )
        epochs = [each.controller_epoch for each in of_copies]
        self.highest = of_first.joined(SeenEpochs(max(epochs, default=-1)))
        if any(epoch < self.highest.controller_epoch for epoch in epochs):
            at_once(self._noting_copies(self.highest))

    def noting(self, seen: SeenEpochs) -> Pieces[None]:
        """Keep it durably, in pieces. OSError when that failed, or is to be tried again.

        Where the first directory has failed, a controller epoch is kept that one of the others has:
        what lies there is to be commanded on, by the next controller too. A revision is the first
        one's alone.
        """
        is_epoch = seen.controller_epoch > self.highest.controller_epoch
        others = [each for each in self._directories[1:] if each.failed is None]
        refused: OSError | None = None
        if not (is_epoch and others and self._directories[0].failed is not None):
            try:
                yield partial(self._file.write, seen)
            except OSError as error:
                resources = self._directories[0].resources
                if not resources.is_full(error):
                    # Promise 25: a failed write is final for its directory, whatever was written.
                    resources.fail(f"writing {self._file.path} failed: {error}")
                if not (is_epoch and self._directories[0].failed is not None):
                    raise
                refused = error
        else:
            refused = OSError(errno.EIO, self._directories[0].failed)
        if is_epoch and not (yield from self._noting_copies(seen)) and refused is not None:
            raise refused
        self.highest = self.highest.joined(seen)

    def _noting_copies(self, seen: SeenEpochs) -> Pieces[int]:
        """Return how many of the other directories have it."""
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
    """Return what a file says. What a disk does not give is out of service with its directory: the
    others have the epoch, too."""
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
    found = json.loads(text)
    return SeenEpochs(int(found["controller_epoch"]), int(found["store_revision"]))
