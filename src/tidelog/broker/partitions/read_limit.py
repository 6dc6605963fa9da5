"""How far clients and followers may read a partition: one rule for Fetch and ListOffsets.

Owns the rule only. Not which readers may read: see ``fetching.partition_reads``.

| reader | limit |
|---|---|
| a consumer, at any isolation level (there are no transactions yet) | the high watermark |
| a follower that is a replica | the log's end |

A part of a file is sent with ``sendfile`` only where all of its segment is below the high
watermark: see ``storage.log.region``.
"""

from __future__ import annotations

from tidelog.storage.log.state import LogState


def read_limit(log: LogState, committed: bool) -> int:
    """Return the offset below which records may be read; ``committed``: only committed ones."""
    return log.high_watermark if committed else log.end_offset
