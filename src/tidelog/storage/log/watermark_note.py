"""The high watermark of one replica as of now, in a file of 16 bytes beside its log.

Owns that file, ``tidelog.high-watermark``. The checkpoint of all watermarks is written every few
seconds; a replica that was killed and must cut its log finds in this note which committed records
go (KIP-704). It is written in place and not synced: exact after a kill, a lower bound after a power
loss. Before a cut it is lowered, durably, for what follows may not be committed.

After a power loss that took committed records the file has 16 bytes more: the offset up to which
records were lost (docs/decisions/0046). They stay until the loss is in the notes of data losses, or
is a loss no longer.

The caller that moves the watermark decides when it is worth a write; an older note is still true.
"""

from __future__ import annotations

import struct

from tidelog.model.work import Work, finish
from tidelog.runtime.disk import Disk
from tidelog.storage.segments.resources import Resources

FILE = "tidelog.high-watermark"

_PAIR = struct.Struct(">qq")
"""An offset and its complement: they show whether a note is torn or damaged."""

NOTHING = -1


class WatermarkNote:
    """The note of one replica, whose directory is ``folder``."""

    __slots__ = ("_closed", "_lost", "_resources", "known", "offset", "path")

    def __init__(self, resources: Resources, folder: str) -> None:
        self._resources = resources
        self.path = f"{folder}/{FILE}"
        self.offset = NOTHING
        """The offset in the file, as far as is known."""
        self.known = NOTHING
        """The watermark of earlier processes, by note or checkpoint. Above the log's end: committed
        records were lost."""
        self._lost = NOTHING
        """The second offset in the file; ``NOTHING`` where no record was lost."""
        self._closed = False

    def read(self) -> int:
        """Return the note of an earlier process, -1 for no sound one. OSError for a bad disk."""
        self.offset, self._lost = _read(self._resources.disk, self.path)
        return self.offset

    def begin(self, committed: int, end: int) -> None:
        """Begin with a log that ends at ``end`` and was once committed up to ``committed``.

        The note claims at most what the log has; the loss stays on the disk, durably. OSError.
        """
        self.known = max(committed, self._lost)
        lost = self.known if self.known > end else NOTHING
        if lost == self._lost and self.offset <= end:
            return
        claims_more = self.offset > end
        try:
            self._put(min(self.offset, end), lost)
            finish(self._syncing())
        except OSError as error:
            # Memory has the loss, and the file claims nothing that is not there.
            if claims_more or not self._resources.is_full(error):
                raise

    def write(self, offset: int) -> None:
        """Note a watermark. A full disk keeps the older one; another failure is final."""
        if offset != self.offset:
            # Offsets that are committed again, or have other records by now, are not lost.
            self._try_to_put(offset, NOTHING if offset >= self._lost else self._lost)

    def on_record(self) -> None:
        """The loss is in the notes of data losses, durably: it is not reported again."""
        self.known = NOTHING
        if self._lost != NOTHING:
            self._try_to_put(self.offset, NOTHING)

    def lowering(self, offset: int) -> Work[None]:
        """Let the note claim at most ``offset``, durably, in pieces. OSError: to be done again."""
        former = self.offset, self._lost
        if offset < max(former):
            try:
                self._put(min(self.offset, offset), NOTHING)
                yield from self._syncing()
            except OSError:
                # Not durable: the next call must do it again.
                self.offset, self._lost = former
                raise
        self.known = min(self.known, offset)

    def _syncing(self) -> Work[None]:
        files = self._resources.files
        yield from files.syncing(files.pin(self.path))

    def _try_to_put(self, offset: int, lost: int) -> None:
        if self._closed:
            return
        try:
            self._put(offset, lost)
        except OSError as error:
            if not self._resources.is_full(error):
                self._resources.fail(f"writing {self.path} failed: {error}")

    def _put(self, offset: int, lost: int) -> None:
        file = self._resources.files.get(self.path, create=True)
        pair = _PAIR.pack(offset, ~offset)
        # Most notes never have the second pair; it is written only when it changes.
        both = pair if lost == self._lost else pair + _PAIR.pack(lost, ~lost)
        file.write_at(0, [both])
        self.offset, self._lost = offset, lost

    @property
    def content(self) -> bytes:
        """The bytes of the file; none where there is no note."""
        if self.offset == NOTHING and self._lost == NOTHING:
            return b""
        pair = _PAIR.pack(self.offset, ~self.offset)
        return pair if self._lost == NOTHING else pair + _PAIR.pack(self._lost, ~self._lost)

    def elsewhere(self, resources: Resources, folder: str) -> WatermarkNote:
        """Return the same note in another folder, whose file has the same ``content``."""
        note = WatermarkNote(resources, folder)
        note.offset, note.known, note._lost = self.offset, self.known, self._lost
        return note

    def close(self) -> None:
        """Close the file before its directory is renamed; later writes do nothing."""
        self._closed = True
        self._resources.files.forget(self.path)


def _read(disk: Disk, path: str) -> tuple[int, int]:
    if not disk.exists(path):
        return NOTHING, NOTHING
    content = disk.read(path)
    if len(content) not in (_PAIR.size, 2 * _PAIR.size):
        return NOTHING, NOTHING
    offset, lost, *_ = *map(_sound, _PAIR.iter_unpack(content)), NOTHING
    return offset, lost


def _sound(pair: tuple[int, int]) -> int:
    offset, complement = pair
    return offset if offset == ~complement and offset >= 0 else NOTHING
