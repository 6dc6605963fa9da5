"""The same log in another directory, of which a copy of its files was made.

Owns what of the state belongs to the log, and what to its directory. Reads and writes no file. Not
the copy: see `storage.future`.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.segments.resources import Resources


def elsewhere(
    log: PartitionLog, resources: Resources, path: str, metadata: PartitionMetadata, epochs_crc: int
) -> PartitionLog:
    """Return ``log`` as the log of the directory ``path``, whose files are the same but for
    ``partition.metadata``. ``log`` must not be used afterwards. O(segments).

    ``epochs_crc``: of the file of its leader epochs; the one of its fences has them all. What was
    not synced may be there only, not in the copy: the recovery point stays. The next sync covers
    the name of the directory, too.
    """
    segments = [segment.elsewhere(resources, path) for segment in log.segments]
    recovered = replace(
        log.recovered,
        segments=segments,
        log_start=log.start_offset,
        metadata=metadata,
        damaged=None,
    )
    moved = PartitionLog(resources, path, log.partition, log.configs, recovered)
    moved.take_over(log)
    moved.epoch_file.crc, moved.epoch_file.unwritten = epochs_crc, False
    moved.dirty.directories.add(path.rpartition("/")[0])
    moved.dirty.note_names()
    return moved
