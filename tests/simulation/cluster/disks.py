"""What stands on the brokers' disks, and what happens to it: seen by the disks themselves.

Owns the books of all appends (promise 14, 27), of directories that go (promises 18-20) and of what
a broker noted of its controllers (promise 23); and reading a replica's log from a disk, whether its
broker lives or not. Parses files on its own: a mistake in the product's storage cannot hide here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from tests.simulation.cluster.nodes import LOGS, BrokerNode, Node
from tests.simulation.kernel import SimulatedDisk
from tests.simulation.kernel.inodes import DirectoryNode, FileNode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader, walk
from tidelog.records.control_records import FenceRecord, changes_in
from tidelog.records.reader import read_batch
from tidelog.records.record import Record
from tidelog.storage.checkpoints import DamagedFile, decode_partition_metadata
from tidelog.storage.names import (
    DAMAGED,
    LOG,
    PARTITION_METADATA,
    STRAY_DIRECTORY,
    offset_of,
    parse_directory,
)

_HEAD = struct.Struct(">qiibI")
_LAST_DELTA = struct.Struct(">i")
HEADER_SIZE = 61
SEEN_FILE = f"{LOGS}/controller-seen"


class Batch(NamedTuple):
    """One record batch as it lies on a disk."""

    base: int
    last: int
    epoch: int
    crc: int
    sound: bool
    """Whether the CRC fits."""


def batches(content: bytes | bytearray | memoryview) -> Iterator[Batch]:
    """Yield the whole batches at the beginning of some bytes."""
    view = memoryview(content)
    at = 0
    while at + HEADER_SIZE <= len(view):
        base, length, epoch, magic, crc = _HEAD.unpack_from(view, at)
        end = at + 12 + length
        if magic != 2 or length < HEADER_SIZE - 12 or end > len(view):
            return
        (delta,) = _LAST_DELTA.unpack_from(view, at + 23)
        yield Batch(base, base + delta, epoch, crc, crc32c(view[at + 21 : end]) == crc)
        at = end


def damaged(content: bytes, at: int, bit: int) -> bytes | None:
    """Return the bytes with one bit of the first sound batch from ``at`` on turned over."""
    while (at := content.find(b"\x02", at)) >= 0:
        first = next(batches(content[max(0, at - 16) :]), None) if at >= 16 else None
        if first is not None and first.sound:
            place = at - 16 + HEADER_SIZE
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            return bytes(changed)
        at += 1
    return None


def topic_id_in(disk: SimulatedDisk, directory: str) -> str:
    """Return the topic id that was put on record in a partition's directory, hex, or ""."""
    return _recorded_in(disk, directory, "topic_id")


def partition_epoch_in(disk: SimulatedDisk, directory: str) -> int:
    """Return the partition epoch on record there, -1 without one (KIP-253)."""
    return int(_recorded_in(disk, directory, "partition_epoch") or -1)


def _has_sound_id(disk: SimulatedDisk, directory: str) -> bool:
    """Whether a topic id can be read there now: a file whose bytes have changed has none."""
    found = disk.lookup(f"{directory}/{PARTITION_METADATA}")
    try:
        return isinstance(found, FileNode) and bool(decode_partition_metadata(bytes(found.data)))
    except DamagedFile:
        return False


def _recorded_in(disk: SimulatedDisk, directory: str, wanted: str) -> str:
    found = disk.lookup(f"{directory}/partition.metadata")
    if not isinstance(found, FileNode):
        return ""
    for line in found.as_written().decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == wanted:
            return value.strip()
    return ""


def replica_log(disk: SimulatedDisk, topic: str, partition: int) -> list[Batch]:
    """Return the batches of a replica, in the order of its segments."""
    path = f"{LOGS}/{topic}-{partition}"
    found = disk.lookup(path)
    if not isinstance(found, DirectoryNode):
        return []
    segments = sorted(name for name in found.entries if offset_of(name, LOG) is not None)
    return [each for name in segments for each in batches(disk.file(f"{path}/{name}").data)]


def record_values(disk: SimulatedDisk, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Return offset and value of each data record of a replica."""
    found = stored_records(disk, topic, partition)
    return [(record.offset, bytes(record.value or b"")) for record in found]


def stored_records(disk: SimulatedDisk, topic: str, partition: int) -> list[Record]:
    """Return the data records of a replica."""
    return [
        record
        for header, batch in _whole(disk, topic, partition)
        if not header.control
        for record in read_batch(batch)
    ]


def fences_on_disk(
    disk: SimulatedDisk, topic: str, partition: int
) -> list[tuple[int, FenceRecord]]:
    """Return offset and contents of each fence and seal in the log of a replica."""
    found = _whole(disk, topic, partition)
    return [each for header, batch in found for each in changes_in(header, batch)]


def _whole(
    disk: SimulatedDisk, topic: str, partition: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a replica with their headers, in the order of its segments."""
    path = f"{LOGS}/{topic}-{partition}"
    found = disk.lookup(path)
    if not isinstance(found, DirectoryNode):
        return
    for name in sorted(name for name in found.entries if offset_of(name, LOG) is not None):
        content = memoryview(bytes(disk.file(f"{path}/{name}").data))
        for position, header in walk(content):
            yield header, content[position : position + header.size]


class DiskWatch:
    """Watches the disks of all brokers; ``found`` is what should not have happened."""

    def __init__(
        self,
        assigned: Callable[[str, int, int, int], bool],
        life_without_id: Callable[[str], str] = lambda topic: "",
    ) -> None:
        """``assigned(topic id, partition, broker, partition epoch)``: whether the store says so.

        ``life_without_id(topic)``: of which topic id a replica is that is made now without one.
        """
        self.found: list[str] = []
        self.compacted: set[str] = set()
        """Topics in which a follower may copy a batch that its leader has cleaned."""
        self.appends: dict[tuple[str, str, int, int], tuple[int, str]] = {}
        """(topic id, partition name, leader epoch, base offset) -> CRC and its first writer."""
        self.deleted = 0
        self.batches = 0
        self._assigned = assigned
        self._life_without_id = life_without_id
        self._made: dict[tuple[str, str], str] = {}
        """(host, directory) -> the topic id of the life for which it was made: at a level below 1.4
        a replica has none on record, and is known by when it was made."""
        self._recorded: dict[tuple[str, str], str] = {}
        """(host, directory) -> the topic id that was last put on record there: a power loss may
        take the record and leave the replica, and below level 1.4 no request names its id again."""
        self._seen: dict[str, tuple[int, int]] = {}
        self.when_named: Callable[[BrokerNode, str], None] = lambda node, replica: None
        """ScriptedRun when a broker puts on record that a replica is damaged."""
        self.when_appended: Callable[[BrokerNode], None] = lambda node: None
        """ScriptedRun of each write to a log."""
        self.when_made: Callable[[BrokerNode, str], None] = lambda node, path: None
        """ScriptedRun when a broker makes the directory of a replica."""
        self.when_removed: Callable[[BrokerNode, TopicPartition, str, str, str], None] = (
            lambda node, where, topic_id, path, ending: None
        )
        """ScriptedRun when a broker takes a replica away that is not damaged."""
        self.when_stray: Callable[[BrokerNode, str, bool, bool], None] = (
            lambda node, name, damaged, has_id: None
        )
        """ScriptedRun when a broker quarantines a replica: its name, whether for damage, whether it
        has the id of its topic."""
        self._damaged: set[tuple[str, str]] = set()

    def watch(self, node: BrokerNode) -> None:
        """Watch one broker's disks from now on."""

        def observe(kind: str, path: str, at: int, content: bytes) -> None:
            if kind == "write":
                if path.endswith(LOG):
                    self._written(node, path, content)
                elif path == SEEN_FILE:
                    self._noted(node)
            elif kind == "rename":
                self._renamed(node, *path.split(" "))
            elif kind == "make_directory":
                self._directory_made(node, path)

        node.machine.observe_disk(observe)

    def forget(self, node: BrokerNode) -> None:
        """The disk was replaced: what stood on it is gone."""
        self._seen.pop(node.host, None)

    def id_of(self, node: Node, directory: str) -> str:
        """Return the topic id of a partition's directory, "" if there is none.

        The id on record there, or on record until a power loss; otherwise (below level 1.4) that of
        the incarnation for which the directory was made.
        """
        disk = node.machine.disk
        if not isinstance(disk.lookup(directory), DirectoryNode):
            return ""
        key = (node.host, directory)
        return topic_id_in(disk, directory) or self._recorded.get(key) or self._made.get(key, "")

    def forgot_its_id(self, node: Node, directory: str, *, lost_power: bool) -> bool:
        """Whether a power loss took the topic id of a replica, which no controller has named since.

        The id becomes durable with the log's first sync: the replica comes back without one, and
        counts as lost until then. Its log has at most what was not synced and
        survived; of a machine that never ``lost_power`` it must be empty.
        """
        disk = node.machine.disk
        if not isinstance(disk.lookup(directory), DirectoryNode):
            return False  # it is gone, with all that was on record
        if (node.host, directory) not in self._recorded or topic_id_in(disk, directory):
            return False
        logs = [path for path in disk.walk(directory) if path.endswith(LOG)]
        return lost_power or not any(len(disk.file(path).data) for path in logs)

    def _directory_made(self, node: BrokerNode, path: str) -> None:
        above, _, name = path.rpartition("/")
        found = parse_directory(name)
        if above == LOGS and found is not None and not found.ending:
            self._made[node.host, path] = self._life_without_id(found.partition.topic)
            self._recorded.pop((node.host, path), None)
            self.when_made(node, path)

    def _written(self, node: BrokerNode, path: str, content: bytes) -> None:
        directory = path.rpartition("/")[0]
        name = directory.rpartition("/")[2]
        found = parse_directory(name)
        if found is None or found.ending:
            return
        topic_id = self.id_of(node, directory)
        node.has_appended = True
        self.when_appended(node)
        for each in batches(content):
            self.batches += 1
            if not each.sound:
                self.found.append(
                    f"no_bad_crc_is_accepted: {node.host} wrote {name} {each.base} with a bad CRC"
                )
            key = (topic_id, name, each.epoch, each.base)
            crc, writer = self.appends.setdefault(key, (each.crc, node.host))
            if crc != each.crc and found.partition.topic not in self.compacted:
                self.found.append(
                    f"one_leader_per_epoch: {name} {each.base} of leader epoch {each.epoch} was "
                    f"written by {writer} and, with other bytes, by {node.host}"
                )

    def _noted(self, node: BrokerNode) -> None:
        content = bytes(node.machine.disk.file(SEEN_FILE).data)
        newest = (-1, -1)
        for line in content.split(b"\n"):
            _, brace, text = line.partition(b"{")
            if brace:
                try:
                    said = json.loads(b"{" + text)
                except ValueError:
                    continue
                newest = max(newest, (said["controller_epoch"], said["store_revision"]))
        before = self._seen.get(node.host, (-1, -1))
        if newest < before:
            self.found.append(
                f"no_step_back: {node.host} noted controller epoch and revision {newest} after "
                f"{before}"
            )
        self._seen[node.host] = max(newest, before)

    def _renamed(self, node: BrokerNode, source: str, target: str) -> None:
        folder, _, name = target.rpartition("/")
        if name == DAMAGED:
            self._damaged.add((node.host, folder.rpartition("/")[2]))
            self.when_named(node, folder.rpartition("/")[2])
        elif name == PARTITION_METADATA:
            self._recorded[node.host, folder] = topic_id_in(node.machine.disk, folder)
        if source.rpartition("/")[0] != LOGS:
            return
        source_name = source.rpartition("/")[2]
        before = parse_directory(source_name)
        after = parse_directory(target.rpartition("/")[2])
        if before is None or before.ending or after is None or not after.ending:
            return
        is_damaged = (node.host, source_name) in self._damaged
        if after.ending == STRAY_DIRECTORY:
            has_id = _has_sound_id(node.machine.disk, target)
            self.when_stray(node, target.rpartition("/")[2], is_damaged, has_id)
        if after.ending == STRAY_DIRECTORY and is_damaged:
            # Quarantined for its damage: it is rebuilt from its leader (promise 26).
            self._damaged.discard((node.host, source_name))
            return
        topic_id = topic_id_in(node.machine.disk, target) or self._made.get((node.host, source), "")
        self.deleted += 1
        place = before.partition
        self.when_removed(node, place, topic_id, source, after.ending)
        epoch = partition_epoch_in(node.machine.disk, target)
        if self._assigned(topic_id, place.partition, node.node_id, epoch):
            self.found.append(
                f"no_delete_without_proof: {node.host} removed {place} of topic id {topic_id}, "
                "which is assigned to it"
            )
