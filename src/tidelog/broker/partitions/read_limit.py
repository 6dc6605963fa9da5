"""How far clients and followers may read a partition: one rule for Fetch and ListOffsets.

Owns the rule only. Not which readers may read: see ``fetching.partition_reads``; not the limit of a
consumer with a count: see ``resize_checks.limit_of_consumer``.

| reader | limit |
|---|---|
| a consumer, at any isolation level (there are no transactions yet) | the high watermark |
| a consumer with a count | the same, or the first fence or seal of a newer resize epoch below it |
| a follower that is a replica | the log's end |

What is copied into memory may have all of that. A part of a file, which ``sendfile`` sends later,
has committed batches only, a follower's too: a truncation must not cut it on its way, or another
leader's records come in its place.
"""

from __future__ import annotations

from tidelog.storage.log.state import LogState


def read_limit(log: LogState, committed: bool) -> int:
    """Return the offset below which records may be read; ``committed``: only committed ones."""
    return log.high_watermark if committed else log.end_offset


def is_at_limit(offset: int, limit: int, high_watermark: int) -> bool:
    """Return whether nothing can be read at an offset now: it is the limit, or beyond the fence
    that is the limit (another member committed it)."""
    return offset == limit or limit < offset <= high_watermark
