"""Logs of a broker that its cleaner finds dirty."""

from __future__ import annotations

import time

from tidelog.broker.partitions.partition import HostedPartition
from tidelog.records.builder import NewRecord, build_batch

COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"}


def fill(hosted: HostedPartition, count: int = 30, keys: int = 10) -> None:
    """Records in a segment of their own, synced."""
    now = int(time.time() * 1000)
    for number in range(count):
        record = NewRecord(now, b"%d" % (number % keys), b"v%d" % number)
        assert hasattr(hosted.append(build_batch([record]), now), "first_offset")
    hosted.log.roll(now)
    hosted.log.sync()


def is_clean(hosted: HostedPartition) -> bool:
    return hosted.log.first_dirty_offset == hosted.log.segments[-1].base_offset
