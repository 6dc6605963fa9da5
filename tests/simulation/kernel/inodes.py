"""What a simulated disk stores: files with a page cache above durable bytes, and directories.

Owns what power loss does to them. Does not own paths, faults or permission to write (``disk.py``).

A file keeps two contents. ``data`` is what processes see; ``durable`` is what is on the platter.
They differ by sectors of 512 bytes (a sector is written whole or not at all) and by the
history of the file's length, for lengths are journaled in order while sectors are written back in
any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

SECTOR = 512
"""Bytes that a disk writes atomically."""


class FileNode:
    """One file's content, cached and durable."""

    __slots__ = (
        "_dirty",
        "_lengths",
        "allocated",
        "data",
        "durable",
        "flips",
        "locked_by",
        "modified_ms",
        "number",
    )

    def __init__(self, number: int, modified_ms: int) -> None:
        self.number = number
        self.data = bytearray()
        self.durable = bytearray()
        self.flips: dict[int, int] = {}
        """Byte -> its flipped bits that were not written again since."""
        self.allocated: set[int] = set()
        self._dirty: set[int] = set()
        self._lengths: list[int] = []
        self.modified_ms = modified_ms
        self.locked_by: object | None = None

    def missing_sectors(self, position: int, size: int) -> int:
        """Return how many sectors a write would have to allocate."""
        if not size:
            return 0
        wanted = range(position // SECTOR, (position + size - 1) // SECTOR + 1)
        return sum(1 for sector in wanted if sector not in self.allocated)

    def write(self, position: int, content: bytes | memoryview) -> None:
        """Write into the page cache; a gap before ``position`` reads as zeros."""
        if not len(content):
            return
        end = position + len(content)
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = content
        self._keep_flips(lambda byte: not position <= byte < end)
        touched = range(position // SECTOR, (end - 1) // SECTOR + 1)
        self.allocated.update(touched)
        self._dirty.update(touched)
        self._note_length()

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros; extending allocates nothing."""
        if size < len(self.data):
            del self.data[size:]
            last = (size + SECTOR - 1) // SECTOR
            self.allocated = {sector for sector in self.allocated if sector < last}
            self._dirty = {sector for sector in self._dirty if sector < last}
            self._keep_flips(lambda byte: byte < size)
        else:
            self.data.extend(bytes(size - len(self.data)))
        self._note_length()

    def _note_length(self) -> None:
        if not self._lengths or self._lengths[-1] != len(self.data):
            self._lengths.append(len(self.data))

    @property
    def synced(self) -> bool:
        """Whether a power loss would leave this file as it is."""
        return not self._dirty and not self._lengths

    def persist(self) -> None:
        """Make the cached content durable, as fsync does."""
        self._apply_lengths(self._lengths)
        self._copy(self._dirty)
        self._dirty.clear()
        self._lengths.clear()

    def give_up(self) -> None:
        """What Linux does when an fsync fails: the pages count as clean, but are not on disk.

        A later fsync reports success without writing them: a retry would believe it.
        """
        self._dirty.clear()
        self._lengths.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Keep some prefix of the changes of length and any subset of the unsynced sectors."""
        self._apply_lengths(self._lengths[: rng.randint(0, len(self._lengths))])
        kept = rng.choice((0.0, 0.5, 0.9, 1.0))
        self._copy({sector for sector in sorted(self._dirty) if rng.random() < kept})
        self.data = bytearray(self.durable)
        self._keep_flips(lambda byte: byte < len(self.data))
        self.allocated = set(range((len(self.data) + SECTOR - 1) // SECTOR))
        self._dirty.clear()
        self._lengths.clear()
        self.locked_by = None

    def _apply_lengths(self, lengths: list[int]) -> None:
        for length in lengths:
            if length < len(self.durable):
                del self.durable[length:]
            else:
                self.durable.extend(bytes(length - len(self.durable)))

    def _copy(self, sectors: set[int]) -> None:
        for sector in sectors:
            start = sector * SECTOR
            end = min(start + SECTOR, len(self.durable), len(self.data))
            if start < end:
                self.durable[start:end] = self.data[start:end]

    def flip_bit(self, bit: int) -> None:
        """Turn over one bit of the stored bytes, cached and durable."""
        byte, mask = bit // 8, 1 << (bit % 8)
        self.data[byte] ^= mask
        self.flips[byte] = self.flips.get(byte, 0) ^ mask
        self._keep_flips(lambda byte: self.flips[byte] != 0)
        if byte < len(self.durable):
            self.durable[byte] ^= mask

    def as_written(self) -> bytes:
        """Return what processes have written here, whatever bits were turned over since."""
        content = bytearray(self.data)
        for byte, mask in self.flips.items():
            content[byte] ^= mask
        return bytes(content)

    def _keep_flips(self, is_kept: Callable[[int], bool]) -> None:
        if self.flips:
            self.flips = {byte: mask for byte, mask in self.flips.items() if is_kept(byte)}


@dataclass
class DirectoryNode:
    """A directory's entries, cached and durable."""

    number: int
    modified_ms: int
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = FileNode | DirectoryNode


@dataclass(frozen=True)
class EntryChange:
    """One name in one directory now means ``node`` (None: nothing)."""

    directory: DirectoryNode
    name: str
    node: Node | None

    @property
    def place(self) -> tuple[int, str]:
        return self.directory.number, self.name

    def apply(self) -> None:
        if self.node is None:
            self.directory.durable.pop(self.name, None)
        else:
            self.directory.durable[self.name] = self.node


class NameJournal:
    """Changes of directory entries that no ``sync_directory`` has made durable yet.

    One change may touch several names (a rename): all of them become durable, or none.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[EntryChange, ...]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, *changes: EntryChange) -> None:
        """Apply to the cached entries and remember."""
        for change in changes:
            if change.node is None:
                change.directory.entries.pop(change.name, None)
            else:
                change.directory.entries[change.name] = change.node
        self._pending.append(changes)

    def sync(self, directory: DirectoryNode) -> None:
        """Make durable what touches ``directory``, and what these changes build on."""
        wanted: set[tuple[int, str]] = set()
        kept: list[tuple[EntryChange, ...]] = []
        chosen: list[tuple[EntryChange, ...]] = []
        for changes in reversed(self._pending):
            places = {change.place for change in changes}
            if places & wanted or any(c.directory is directory for c in changes):
                wanted |= places
                chosen.append(changes)
            else:
                kept.append(changes)
        for changes in reversed(chosen):
            for change in changes:
                change.apply()
        self._pending = kept[::-1]

    def lose_power(self, rng: random.Random) -> None:
        """Keep a prefix of the changes, or any subset in which nothing builds on what is lost."""
        if rng.random() < 0.5:
            chosen = self._pending[: rng.randint(0, len(self._pending))]
        else:
            chosen = self._consistent_subset(rng)
        for changes in chosen:
            for change in changes:
                change.apply()
        self._pending.clear()

    def _consistent_subset(self, rng: random.Random) -> list[tuple[EntryChange, ...]]:
        lost: set[tuple[int, str]] = set()
        chosen = []
        for changes in self._pending:
            places = {change.place for change in changes}
            if places & lost or rng.random() < 0.5:
                lost |= places
            else:
                chosen.append(changes)
        return chosen
