"""Reads of whole batches of one partition: from memory, from its files, or cold ones for a thread.

Owns the choice between these, and that a small read continues in later segments. Not how far a
reader may read, nor what a read is counted as: see ``partition_reads``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected, walk
from tidelog.storage.log.cold import ColdRead, cold_read
from tidelog.storage.log.reading import read_before
from tidelog.storage.log.region import LEAST_BYTES, find_region

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.storage.log.partition_log import PartitionLog

SMALL_READ_BYTES = 4096
"""A read of less that ends at the end of a segment continues in the next segments."""

MAX_SLICES = 64
"""Maximum number of segments in one read."""


def records_at(
    partition: HostedPartition,
    offset: int,
    most: int,
    *,
    limit: int,
    at_least_one: bool,
    from_file: bool,
    may_be_cold: bool,
) -> memoryview | list[Any] | ColdRead | Rejected:
    """Return whole batches from ``offset`` on, at most ``most`` bytes up to ``limit``: in memory,
    or, ``from_file`` and if they are many, as a part of the file. Counts nothing.

    ``at_least_one``: a larger first batch is returned whole. With ``may_be_cold`` a ``ColdRead`` of
    what a thread must read first.
    """
    log = partition.log
    before = read_before(log, offset, most, limit, at_least_one=at_least_one)
    if before is not None:
        return before
    remembered = log.segments.remembered(offset)
    if remembered is None and most < LEAST_BYTES:
        # A larger read asks the index for a region: that has to be in memory then.
        remembered = log.segments.beginning_at(offset)
    if may_be_cold:
        cold = cold_read(log, offset, most, remembered)
        if cold is not None:
            return cold
    if from_file:
        region = find_region(log, offset, most, min(limit, log.high_watermark), remembered)
        if region is not None:
            return [region]
    records = log.read(offset, most, limit, at_least_one=at_least_one)
    if isinstance(records, Rejected):
        if records.error is ErrorCode.KAFKA_STORAGE_ERROR:
            partition.check_disk()
        return records
    # An empty read (no room for the first batch) has no end to continue from.
    if 0 < len(records) < SMALL_READ_BYTES and offset < log.segments.active.base_offset:
        return _read_on(log, records, most, limit)
    return records


def _read_on(log: PartitionLog, first: memoryview, room: int, limit: int) -> list[memoryview]:
    """Return the records read and those that follow in later segments, at most ``room`` bytes.

    For small reads: where compaction left almost nothing of a segment (perhaps one batch without
    records), a client that receives only that takes it for the end of the log.
    """
    parts = [first]
    while len(parts) < MAX_SLICES and len(parts[-1]) < SMALL_READ_BYTES:
        room -= len(parts[-1])
        next_offset = -1
        for _, header in walk(parts[-1]):
            next_offset = header.next_offset
        if next_offset < 0 or room <= 0:
            break
        more = log.read(next_offset, room, limit, at_least_one=False)
        if isinstance(more, Rejected) or not more:
            break
        parts.append(more)
    return parts
