"""The offsets of each log for the checkpoint files of its directory, collected in turns.

Owns which checkpoint files there are, and which offset of a log each of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.storage import names
from tidelog.storage.log.fences import fence_key
from tidelog.storage.log.partition_log import PartitionLog

Offsets = dict[TopicPartition, int]

FirstFences = dict[TopicPartition, tuple[TopicPartition, int]]
"""By partition: its name in the record of first fences, and the offset."""


def _log_start(log: PartitionLog) -> int:
    # After a power loss a log begins at this offset whatever it has lost: so all fences below it
    # must be in their file.
    unwritten = log.first_unwritten_fence
    return log.start_offset if unwritten is None else min(log.start_offset, unwritten)


CLAIMS: Mapping[str, Callable[[PartitionLog], int]] = {
    names.LOG_STARTS: _log_start,
    names.RECOVERY_POINTS: lambda log: log.synced_end_offset,
    names.HIGH_WATERMARKS: lambda log: log.high_watermark,
    names.CLEANER_OFFSETS: lambda log: log.first_dirty_offset,
}
"""Each file, and the offset of a log that it has, in the order in which they are written.

The log's start first: removal raises both, and a removed segment that a power loss brings back torn
is damage below the recovery point, unless it is below the log's start.
"""


def claims_of(
    logs: Mapping[TopicPartition, PartitionLog],
) -> Work[dict[str, Offsets]]:
    """Return the offsets for each file, in turns: of each log that exists at the end, as they were
    at one moment during the call, and not before its claims were last lowered.

    The last turn goes over all logs, 0.4 us for each, and reads again those whose claims fell.

    One more file comes before these, with the first fence of each log that has any, by topic id:
    the recovery point must not pass a fence that is in no record (docs/decisions/0157).
    """
    claims: dict[str, Offsets] = {name: {} for name in CLAIMS}
    fences: FirstFences = {}
    asked: dict[TopicPartition, tuple[PartitionLog, int]] = {}
    for partition, log in list(logs.items()):
        asked[partition] = _ask(partition, log, claims, fences)
        yield None
    for partition, log in logs.items():
        if asked.get(partition) != (log, log.lowered):
            # A cut waits for a checkpoint that claims less: no later one may claim more. Nor may
            # the claims of a deleted log be taken for those of the next log of the same name.
            _ask(partition, log, claims, fences)
    for partition in asked.keys() - logs.keys():
        for offsets in claims.values():
            del offsets[partition]
        fences.pop(partition, None)
    return {names.FIRST_FENCES: dict(fences.values()), **claims}


def _ask(
    partition: TopicPartition,
    log: PartitionLog,
    claims: dict[str, Offsets],
    fences: FirstFences,
) -> tuple[PartitionLog, int]:
    for name, claim in CLAIMS.items():
        claims[name][partition] = claim(log)
    first = log.first_fence
    if first is None or log.metadata is None:
        fences.pop(partition, None)  # a cut took what an earlier turn has noted
    else:
        fences[partition] = fence_key(log.metadata, partition), first
    return log, log.lowered
