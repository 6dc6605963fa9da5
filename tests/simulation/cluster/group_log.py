"""A group's records as they lie on a broker's disk: the truth of what was committed.

Owns reading them from a replica of the group's partition, whether its broker lives or not. The
segments of so short a run are never compacted, so that everything is there, in its order.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.cluster.nodes import LOGS
from tests.simulation.group_history import StoredGeneration, StoredOffset
from tests.simulation.kernel import SimulatedDisk
from tests.simulation.kernel.inodes import DirectoryNode
from tidelog.groups.records import GroupRecord, OffsetRecord, decode
from tidelog.records.reader import read_all
from tidelog.storage.names import LOG, offset_of


def stored_in(
    disk: SimulatedDisk, topic: str, partition: int, group: str
) -> list[StoredGeneration | StoredOffset]:
    """Return what a replica of a partition of ``__consumer_offsets`` has of one group."""
    return [
        record
        for content in _segments(disk, f"{LOGS}/{topic}-{partition}")
        for record in _records(content, group)
    ]


def _segments(disk: SimulatedDisk, path: str) -> Iterator[bytes]:
    found = disk.lookup(path)
    if isinstance(found, DirectoryNode):
        for name in sorted(name for name in found.entries if offset_of(name, LOG) is not None):
            yield bytes(disk.file(f"{path}/{name}").data)


def _records(content: bytes, group: str) -> Iterator[StoredGeneration | StoredOffset]:
    for record in read_all(content):
        if record.key is None:
            continue
        found = decode(record.key, record.value)
        if isinstance(found, GroupRecord) and found.group_id == group:
            yield StoredGeneration(None if found.value is None else found.value.generation)
        elif isinstance(found, OffsetRecord) and found.group_id == group:
            name = f"{found.topic}-{found.partition}"
            if found.value is None:
                yield StoredOffset(name, None, "")
            else:
                yield StoredOffset(name, found.value.offset, found.value.metadata)
