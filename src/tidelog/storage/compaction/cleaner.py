"""Rewriting segments by key, in a helper process: the newest record of each key stays.

Owns ``compact``: reads the segments of a plan, writes ``.cleaned`` files beside them, syncs them,
and changes nothing else. A run reads the dirty segments once for their keys (`keys`), then each
segment once to write it without what goes (`rewriting`). Rules, as Apache Kafka's cleaner has them:

| record                                              | kept                                     |
|-----------------------------------------------------|------------------------------------------|
| not the newest of its key within the cleaned range  | no                                       |
| newest of its key, has a value                      | yes                                      |
| newest of its key, no value (tombstone)             | until its batch's delete horizon, which  |
|                                                     | the plan may put off (`plan`)            |
| an ancestor tombstone of a key (KIP-253)            | as a tombstone of it, never put off; it  |
|                                                     | voids older values of the key; just      |
|                                                     | before a fence or seal it stays          |
| no key                                              | no: a compacted topic has none           |
| of an aborted transaction (KIP-98)                  | no, and it is the newest of no key       |
| a marker                                            | while the run finds records of its       |
|                                                     | transaction; then until a delete horizon |
|                                                     | (decision 0123)                          |
| any other in a control batch: fences, seals         | yes                                      |
| in one of the last five batches of an idempotent    | if all go, its batch stays, empty; the   |
| producer in the cleaned range                       | last one, if it is a marker, as it is    |
| in a batch that is not what its header says         | yes, the batch as it is                  |
| last of the group of segments                       | the same: neighbouring segments stay     |
|                                                     | without a gap, so a lost tail is seen    |

Kafka keeps the last batch of a producer only. A replica that copies the cleaned log would then not
recognize the retry of one before it: after a resize it would refuse that batch as one that is not
in the log, and the client would write its records a second time in another partition.

Offsets never change: a batch keeps its base offset and last offset. The delete horizon (the time
of the first cleaning that saw a tombstone + ``delete.retention.ms``) is kept in the batch:
attribute bit 6, and the base timestamp, to which the records' timestamps are then relative.
"""

from __future__ import annotations

from functools import partial

from tidelog.runtime.disk import Disk
from tidelog.storage import names
from tidelog.storage.compaction.pace import Pace, read_rate
from tidelog.storage.compaction.plan import CompactionPlan, CompactionResult, Share


def compact(disk: Disk, plan: CompactionPlan, pace: Pace | None = None) -> CompactionResult:
    """Carry out the plan and return the result. Takes long: run it in a helper process.

    CorruptRecords when a batch is damaged, OSError from the disk: then nothing is to be applied
    (``discard_cleaned`` removes what was written). Time grows with the bytes of the plan, memory
    with the records in its dirty part, up to ``plan.share.buffer_bytes``, or to the keys of one
    batch if these have more.
    """
    # numpy takes 0.1 s and 20 MB, which a server must not pay.
    from tidelog.storage.compaction.keys import newest_offsets
    from tidelog.storage.compaction.reading import SegmentReading
    from tidelog.storage.compaction.rewriting import Rewriting
    from tidelog.storage.segments.resources import Resources

    reading = SegmentReading(Resources.of(disk, 8), plan, pace or _pace_of(disk, plan.share))
    try:
        keys = newest_offsets(reading)
        rewriting = Rewriting(reading, keys)
        groups = []
        for group in plan.groups:
            if group[0].base_offset >= keys.end_offset:
                break
            cleaned = rewriting.clean(group)
            if cleaned is not None:
                groups.append(cleaned)
        disk.sync_directory(plan.directory)
    finally:
        reading.shared.files.close()
    counts = reading.counts
    return CompactionResult(
        plan,
        tuple(groups),
        keys.end_offset,
        counts.records_read,
        counts.records_kept,
        counts.bytes_read,
        counts.bytes_kept,
        counts.bytes_from_disk,
        counts.bytes_to_disk,
    )


def _pace_of(disk: Disk, share: Share) -> Pace:
    if not share.rate_file:
        return Pace(share.bytes_per_second)
    return Pace(share.bytes_per_second, check=partial(read_rate, disk, share.rate_file))


def discard_cleaned(disk: Disk, plan: CompactionPlan) -> None:
    """Remove the ``.cleaned`` files of a plan that is not applied."""
    for group in plan.groups:
        for suffix in names.SEGMENT_SUFFIXES:
            name = names.file_name(group[0].base_offset, suffix + names.CLEANED)
            if disk.exists(f"{plan.directory}/{name}"):
                disk.remove(f"{plan.directory}/{name}")
