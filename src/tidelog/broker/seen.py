"""The highest controller epoch and store revision that a broker ever heard of, on disk.

Owns the file. It must take a new number on a full disk too: else no control request would be
obeyed any more, not even the one that makes room. So its room is taken once, and written in place:
two slots in turn, each with a CRC, so that a torn write leaves the other.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass

from tidelog.runtime.disk import Disk
from tidelog.storage.checkpoints import DamagedFile

SLOTS = (0, 4096)
"""Positions; so far apart that no write touches both."""
SLOT_BYTES = 256
FILE_BYTES = 8192


@dataclass(frozen=True, slots=True, order=True)
class Seen:
    """The highest controller epoch and store revision; neither ever steps back."""

    controller_epoch: int = -1
    store_revision: int = -1


class SeenFile:
    """One file at ``path``, made with the first ``write``."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._slots: list[Seen | None] | None = None
        """What each slot says (None: nothing sound); None while there is no file."""

    def read(self) -> Seen:
        """Return what was written last. DamagedFile when no slot is sound."""
        if not self._disk.exists(self.path):
            return Seen()
        content = self._disk.read(self.path)
        self._slots = [_decode(content[at : at + SLOT_BYTES]) for at in SLOTS]
        sound = [each for each in self._slots if each is not None]
        if not sound:
            raise DamagedFile(
                f"{self.path} is damaged: restore it, or remove it if the controllers lost nothing"
            )
        return max(sound)

    def write(self, seen: Seen) -> None:
        """Keep ``seen`` durably. Once there is a file this needs no room. OSError if it fails."""
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


def _encode(seen: Seen) -> bytes:
    text = json.dumps({"version": 1, **asdict(seen)}).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(slot: bytes) -> Seen | None:
    line, newline, _ = slot.partition(b"\n")
    crc, _, text = line.partition(b" ")
    if not newline or crc != b"%08x" % zlib.crc32(text):
        return None
    found = json.loads(text)
    return Seen(int(found["controller_epoch"]), int(found["store_revision"]))
