"""The high watermark of one replica as of now, in a file of 16 bytes beside its log.

Owns that file, ``tidelog.high-watermark``. The checkpoint of all watermarks is written every few
seconds; a replica that was killed and must cut its log knows by this note which committed records
go (KIP-704). It is written in place and not synced: exact after a kill, a lower bound after a power
loss. Before a cut it is lowered, durably, for what follows may not be committed.

Whoever moves the watermark decides when it is worth a write; an older note is a true one.
"""

from __future__ import annotations

import struct

from tidelog.runtime.disk import Disk
from tidelog.storage.resources import Resources

FILE = "tidelog.high-watermark"

_PAIR = struct.Struct(">qq")
"""The offset and its complement: a torn or damaged note is told from a sound one."""

NOTHING = -1


class WatermarkNote:
    """The note of one replica, whose directory is ``folder``."""

    __slots__ = ("_closed", "_resources", "known", "offset", "path")

    def __init__(self, resources: Resources, folder: str) -> None:
        self._resources = resources
        self.path = f"{folder}/{FILE}"
        self.offset = NOTHING
        """What the file says, as far as we know."""
        self.known = NOTHING
        """The watermark that earlier lives knew of, by note or checkpoint. Above the log's end:
        committed records went."""
        self._closed = False

    def read(self) -> int:
        """Return what an earlier life noted, -1 for nothing sound. OSError for a bad disk."""
        self.offset = _read(self._resources.disk, self.path)
        return self.offset

    def write(self, offset: int) -> None:
        """Note a watermark. A full disk keeps the older one; another failure is final."""
        if offset == self.offset or self._closed:
            return
        try:
            self._put(offset)
        except OSError as error:
            if not self._resources.is_full(error):
                self._resources.fail(f"writing {self.path} failed: {error}")

    def lower(self, offset: int) -> None:
        """Let the note claim no more than ``offset``, durably. OSError: it is to be done again."""
        former = self.offset
        if offset < former:
            try:
                self._put(offset)
                self._resources.files.get(self.path).sync()
            except OSError:
                # Not durable: the next time must not take it for done.
                self.offset = former
                raise
        self.known = min(self.known, offset)

    def _put(self, offset: int) -> None:
        file = self._resources.files.get(self.path, create=True)
        file.write_at(0, [_PAIR.pack(offset, ~offset)])
        self.offset = offset

    def close(self) -> None:
        """Close the file, before its directory is renamed; nothing is noted any more."""
        self._closed = True
        self._resources.files.forget(self.path)


def _read(disk: Disk, path: str) -> int:
    if not disk.exists(path):
        return NOTHING
    content = disk.read(path)
    if len(content) != _PAIR.size:
        return NOTHING
    offset, complement = _PAIR.unpack(content)
    return int(offset) if offset == ~complement and offset >= 0 else NOTHING
