"""What the checkpoint files of a log directory claim of its logs, asked in turns.

Owns which files there are, and what each says of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog.model.topics import TopicPartition
from tidelog.runtime.turns import Pieces
from tidelog.storage import names
from tidelog.storage.log import PartitionLog

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
    logs: Mapping[TopicPartition, PartitionLog], at_a_time: int = ASKED_AT_ONCE
) -> Pieces[dict[str, Offsets]]:
    """Return the offsets for each file, in turns: each log as it is at one moment between the
    beginning and the end, and without those that went meanwhile."""
    found: dict[str, Offsets] = {name: {} for name in CLAIMS}
    asked = list(logs.items())
    for count, (partition, log) in enumerate(asked, 1):
        for name, claim in CLAIMS.items():
            found[name][partition] = claim(log)
        if not count % at_a_time:
            yield None
    for partition, log in asked:
        if logs.get(partition) is not log:
            # What it claimed must not be taken for the next one's of that name.
            for offsets in found.values():
                del offsets[partition]
    return found
