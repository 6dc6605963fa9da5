"""The ``-future`` directories of copies: their names, their beginning, their removal.

Owns these. Not their content: see `mirror` and `moving`.
"""

from __future__ import annotations

from uuid import UUID

from tidelog.model.topics import TopicPartition
from tidelog.runtime.disk import Disk
from tidelog.storage import names
from tidelog.storage.checkpoints import PartitionMetadata, encode_partition_metadata
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.whole_files import write_whole


def new_path(directory: LogDirectory, partition: TopicPartition, unique: UUID) -> str:
    """Return the path of a new copy in a log directory."""
    return f"{directory.path}/{names.future_name(partition, unique.hex)}"


def make(disk: Disk, path: str, metadata: PartitionMetadata) -> None:
    """Make the directory of a copy, with the topic id: a start must know of which replica it is
    one. Blocks. OSError."""
    disk.make_directory(path)
    write_whole(disk, f"{path}/{names.PARTITION_METADATA}", encode_partition_metadata(metadata))


def metadata_of(directory: LogDirectory, path: str) -> bytes:
    """Return the ``partition.metadata`` of a copy. OSError."""
    return directory.resources.disk.read(f"{path}/{names.PARTITION_METADATA}")


def remove(directory: LogDirectory, partition: TopicPartition, path: str) -> None:
    """Remove a copy later, in a thread; durable as a deletion (``syncing_names``). OSError."""
    try:
        directory.remove_later(directory.mark(path, partition, names.DELETE_DIRECTORY), 0)
    except FileNotFoundError:
        return  # it was not made yet
