"""What lies on the disk of a node: the batches of Kafka's segment files, header by header.

A second reader beside the product's own, kept apart from it on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct(">qiibIhiqqqhii")
COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class BatchOnDisk:
    """The header of one batch of format v2."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    attributes: int
    last_offset_delta: int
    producer_id: int
    base_sequence: int
    record_count: int
    producer_epoch: int = -1

    @property
    def compression(self) -> str:
        return COMPRESSION_NAMES[self.attributes & 7]

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)


def segments(log_folder: Path, topic: str, partition: int = 0) -> list[Path]:
    """The segment files of a partition, oldest first."""
    return sorted((log_folder / f"{topic}-{partition}").glob("*.log"))


def log_bytes(log_folder: Path, topic: str, partition: int = 0) -> int:
    """How large a partition's segments are together."""
    return sum(path.stat().st_size for path in segments(log_folder, topic, partition))


def batches(log_folder: Path, topic: str, partition: int = 0) -> list[BatchOnDisk]:
    """Every whole batch of a partition."""
    return [
        batch
        for path in segments(log_folder, topic, partition)
        for batch in _batches(path.read_bytes())
    ]


def batches_by_partition(
    log_folders: Iterable[Path], topic: str
) -> Callable[[int], list[BatchOnDisk]]:
    """Return what gives the batches of a partition, of the replica that has most of them."""
    folders = list(log_folders)
    return lambda number: max((batches(each, topic, number) for each in folders), key=len)


def _batches(raw: bytes) -> Iterator[BatchOnDisk]:
    position = 0
    while position + HEADER.size <= len(raw):
        f = HEADER.unpack_from(raw, position)
        size = 12 + f[1]
        # A file that grows by preallocation ends in zeros.
        if f[1] <= 0 or position + size > len(raw):
            return
        yield BatchOnDisk(f[0], size, f[2], f[3], f[5], f[6], f[9], f[11], f[12], f[10])
        position += size
