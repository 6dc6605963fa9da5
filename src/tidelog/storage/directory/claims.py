"""What the checkpoint files of a log directory claim of its logs, asked in turns.

Owns which files there are, and what each says of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog.model.topics import TopicPartition
from tidelog.runtime.turns import Pieces
from tidelog.storage import names
from tidelog.storage.log.partition_log import PartitionLog

Offsets = dict[TopicPartition, int]

CLAIMS: Mapping[str, Callable[[PartitionLog], int]] = {
    names.RECOVERY_POINTS: lambda log: log.synced_end_offset,
    names.LOG_STARTS: lambda log: log.start_offset,
    names.HIGH_WATERMARKS: lambda log: log.high_watermark,
    names.CLEANER_OFFSETS: lambda log: log.first_dirty_offset,
}
"""Each file, and its offset of a log."""

ASKED_AT_ONCE = 256
"""Logs that are asked before others have a turn: about a millisecond."""


def claims_of(
    logs: Mapping[TopicPartition, PartitionLog],
) -> Pieces[dict[str, Offsets]]:
    """Return the offsets for each file, in turns: of each log that is there at the end, as it is at
    one moment since the beginning, and not before its claims were last lowered.

    The last turn looks at all logs, 0.4 us for each, and asks those that changed so again.
    """
    found: dict[str, Offsets] = {name: {} for name in CLAIMS}
    asked: dict[TopicPartition, tuple[PartitionLog, int]] = {}
    for count, (partition, log) in enumerate(list(logs.items()), 1):
        asked[partition] = _ask(partition, log, found)
        if not count % ASKED_AT_ONCE:
            yield None
    for partition, log in logs.items():
        if asked.get(partition) != (log, log.lowered):
            # A cut waits for a checkpoint that claims less: none that comes later may claim more.
            # Nor may what a log claimed that went be taken for the next one's of that name.
            _ask(partition, log, found)
    for partition in asked.keys() - logs.keys():
        for offsets in found.values():
            del offsets[partition]
    return found


def _ask(
    partition: TopicPartition, log: PartitionLog, found: dict[str, Offsets]
) -> tuple[PartitionLog, int]:
    for name, claim in CLAIMS.items():
        found[name][partition] = claim(log)
    return log, log.lowered
