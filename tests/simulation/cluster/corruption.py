"""Flipped bits in the files of brokers: which, where, and whether they still stand.

Owns the choice of the bit and the record of all flips, which the verdict reads. A bit is flipped
only where promise 26 can hold: on one broker at a time (``hosts``), outside of the last batch of a
log (recovery cannot distinguish a corrupted last batch from a torn tail, and cuts both) and, where
a loss of power must lose nothing, below the recovery point (above it, power leaves holes).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from tests.simulation.cluster.disks import batches
from tests.simulation.cluster.nodes import LOGS, BrokerNode, Cluster
from tests.simulation.history import History
from tests.simulation.kernel.inodes import DirectoryNode, FileNode
from tidelog.storage import names
from tidelog.storage.names import offset_of, parse_directory

KINDS: dict[str, float] = {
    names.LOG: 5,
    names.INDEX: 2,
    names.TIME_INDEX: 1,
    names.SNAPSHOT: 1,
    names.EPOCH_CHECKPOINT: 2,
    names.EPOCH_CHECKSUM: 0.5,
    names.PARTITION_METADATA: 1,
    "tidelog.high-watermark": 1,
    names.RECOVERY_POINTS: 1,
    names.LOG_STARTS: 1,
    names.HIGH_WATERMARKS: 1,
    names.CLEANER_OFFSETS: 0.3,
}
"""How a file's name ends -> how often such a file is corrupted."""


class Corruption(NamedTuple):
    """One bit of one file."""

    host: str
    path: str
    kind: str
    replica: str
    """The directory of the replica whose file it is, "" for a file of all of them."""
    offset: int
    """The base offset of the corrupted batch; -1 for another file."""
    node: FileNode
    byte: int


class Corruptions:
    """All bits that were flipped in a run."""

    def __init__(self, cluster: Cluster, history: History, *, synced: bool) -> None:
        self.kinds: Mapping[str, float] = KINDS
        self.corruptions: list[Corruption] = []
        self._cluster = cluster
        self._history = history
        self._synced = synced

    def standing(self) -> list[Corruption]:
        """Return the flips that still stand, in a file that has the name that it had then."""
        disks = {broker.host: broker.machine.disk for broker in self._cluster.brokers}
        return [
            flip
            for flip in self.corruptions
            if flip.byte in flip.node.flips and disks[flip.host].lookup(flip.path) is flip.node
        ]

    def hosts(self) -> set[str]:
        """Return the brokers on whose disk a flip stands."""
        return {flip.host for flip in self.standing()}

    def unmet(self) -> set[str]:
        """Return the brokers that only a start lets meet what is corrupted: small files."""
        return {flip.host for flip in self.standing() if flip.kind != names.LOG}

    def flip(self, node: BrokerNode, rng: random.Random, lonely: set[str]) -> Corruption | None:
        """Turn over a bit of some file of a broker; None when there is none to be corrupted.

        ``lonely`` replicas are left alone, and if there are any, the files of all replicas too.
        """
        disk = node.machine.disk
        if not isinstance(disk.lookup(LOGS), DirectoryNode):
            return None  # the disk is new, and its broker has only begun to start
        paths: dict[str, list[str]] = {}
        for path in disk.walk(LOGS):
            directory = parse_directory(path.split("/")[-2])
            if (directory is not None and directory.ending) or path.split("/")[-2] in lonely:
                continue
            if directory is None and lonely:
                continue
            for kind in self.kinds:
                if path.endswith(kind) and len(disk.file(path).data):
                    paths.setdefault(kind, []).append(path)
        if not paths:
            return None
        kinds = sorted(paths)
        kind = rng.choices(kinds, [self.kinds[each] for each in kinds])[0]
        path = rng.choice(paths[kind])
        data = disk.file(path).data
        if kind == names.LOG:
            place = self._batch(node, path, rng)
            if place is None:
                return None
            offset, first, last = place
        else:
            offset, first, last = -1, 0, len(data)
        bit = rng.randrange(first * 8, last * 8)
        directory = parse_directory(path.split("/")[-2])
        replica = "" if directory is None else str(path.split("/")[-2])
        disk.flip_bit(path, bit)
        flip = Corruption(node.host, path, kind, replica, offset, disk.file(path), bit // 8)
        self.corruptions.append(flip)
        self._history.corruption("corrupted", node.host, replica)
        return flip

    def _batch(
        self, node: BrokerNode, path: str, rng: random.Random
    ) -> tuple[int, int, int] | None:
        """Return base offset, first byte and end of a batch that may be corrupted."""
        disk = node.machine.disk
        folder, _, name = path.rpartition("/")
        logs = sorted(
            x for x in disk.directory(folder).entries if offset_of(x, names.LOG) is not None
        )
        content = bytes(disk.file(path).data)
        limit = self._recovery_point(node, folder.rpartition("/")[2]) if self._synced else 1 << 62
        found, at = [], 0
        for batch in batches(content):
            size = 12 + int.from_bytes(content[at + 8 : at + 12], "big")
            if batch.last < limit:
                found.append((batch.base, at, at + size))
            at += size
        if name == logs[-1] and found and found[-1][2] == at:
            found.pop()
        return rng.choice(found) if found else None

    def _recovery_point(self, node: BrokerNode, replica: str) -> int:
        file = node.machine.disk.lookup(f"{LOGS}/{names.RECOVERY_POINTS}")
        if not isinstance(file, FileNode):
            return 0
        for line in bytes(file.data).split(b"\n"):
            fields = line.split()
            if len(fields) == 3 and b"-".join(fields[:2]) == replica.encode():
                return int(fields[2]) if fields[2].isdigit() else 0
        return 0
