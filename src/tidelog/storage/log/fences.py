"""The fences and seals of one log, and the bytes of ``fence-checkpoint`` (KIP-253). Pure.

Owns the list, its look-ups and its text. Not the write of the file: see `fence_file`. Not what a
start believes of it: see `fence_recovery`.

The list outlives the records: retention removes a fence's batch and leaves its entry, because
gates of readers that start late still ask for it (docs/decisions/0063).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tidelog.model.topics import TopicPartition
from tidelog.records.control_records import ChangeKind
from tidelog.storage.checkpoints import (
    DamagedFile,
    PartitionMetadata,
    decode_checked_lines,
    encode_checked_lines,
    encode_uuid,
)


class FenceEntry(NamedTuple):
    """One fence or seal: which resize it belongs to, and where it stands in the log."""

    resize_epoch: int
    undeleted_count: int
    kind: ChangeKind
    offset: int
    data_end: int
    """The end of the data before it: control records between do not count."""


def _epoch_of(entry: FenceEntry) -> int:
    return entry.resize_epoch


def _offset_of(entry: FenceEntry) -> int:
    return entry.offset


@dataclass(frozen=True, slots=True)
class Fences:
    """The fences and seals of a log: resize epochs and offsets rise together."""

    entries: tuple[FenceEntry, ...] = ()

    @property
    def newest(self) -> FenceEntry | None:
        """The last one, None without any."""
        return self.entries[-1] if self.entries else None

    def of(self, resize_epoch: int) -> FenceEntry | None:
        """Return the fence or seal of exactly this resize epoch."""
        place = bisect_left(self.entries, resize_epoch, key=_epoch_of)
        entry = self.entries[place] if place < len(self.entries) else None
        return entry if entry is not None and entry.resize_epoch == resize_epoch else None

    def first_after(self, resize_epoch: int) -> FenceEntry | None:
        """Return the first fence or seal of a newer resize epoch."""
        place = bisect_right(self.entries, resize_epoch, key=_epoch_of)
        return self.entries[place] if place < len(self.entries) else None

    def below(self, offset: int) -> Fences:
        """Return those that stand below an offset."""
        keep = bisect_left(self.entries, offset, key=_offset_of)
        return self if keep == len(self.entries) else Fences(self.entries[:keep])

    def with_one(self, entry: FenceEntry) -> Fences:
        """Return these and one more at the end; the same where it is not newer than all of them.

        The first fence of a resize epoch is the one that counts: gates have waited for it.
        """
        newest = self.newest
        if newest is not None and not (
            entry.resize_epoch > newest.resize_epoch and entry.offset > newest.offset
        ):
            return self
        return Fences((*self.entries, entry))


def fence_key(metadata: PartitionMetadata, partition: TopicPartition) -> TopicPartition:
    """Return how the record of first fences names a replica: by topic id, for a version that does
    not know the record may have let a topic of the same name take its place."""
    return TopicPartition(encode_uuid(metadata.topic_id), partition.partition)


def encode_fences(fences: Iterable[FenceEntry]) -> bytes:
    """Return ``fence-checkpoint``: Kafka's text of a checkpoint, and a line with the CRC."""
    return encode_checked_lines(" ".join(map(str, map(int, entry))) for entry in fences)


def decode_fences(content: bytes) -> Fences:
    """Return the fences of a file; DamagedFile when it is not whole, or they do not rise."""
    fences = []
    for fields in decode_checked_lines(content, len(FenceEntry._fields)):
        epoch, count, kind, offset, data_end = fields
        if kind not in (ChangeKind.FENCE, ChangeKind.SEAL):
            raise DamagedFile(f"an entry of kind {kind}, which is no fence and no seal")
        fences.append(FenceEntry(epoch, count, ChangeKind(kind), offset, data_end))
    for earlier, later in pairwise(fences):
        if later.resize_epoch <= earlier.resize_epoch or later.offset <= earlier.offset:
            raise DamagedFile("fences out of order")
    return Fences(tuple(fences))
