"""Homes in which older values of a partition's keys may be (KIP-253, promise 12). Pure.

Owns which partitions these are, and when none is left. Not how the cleaner uses it: see
``storage.compaction``. Under linear hashing all homes of a key, at whatever counts, lie on one line
of descent. So older values of the keys of a partition are in

- its ancestors, below their fence of its birth epoch, for as long as they have records there;
- retired partitions of which it is an ancestor, for as long as they are listed: a survivor takes
  over their keys, and nothing is ever written to them again.

While there are any, its tombstones must stay: a reader takes the older value first.
Source: docs/design/elastic.md, "Compacted topics".
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.partitioning.lineage import ancestors_of


def ancestors_with_older_values(
    partition: int, initial_count: int, birth_epoch: int
) -> tuple[int, ...]:
    """Return the ancestors of a partition, if it was born by a growth."""
    return tuple(ancestors_of(partition, initial_count)) if birth_epoch > 0 else ()


def survives_retired(partition: int, initial_count: int, retired: Iterable[int]) -> bool:
    """Whether a partition is an ancestor of any of the retired partitions that are listed."""
    return any(partition in ancestors_of(one, initial_count) for one in retired)


def has_no_older_values(log_start: int, fence_offset: int | None) -> bool:
    """Whether an ancestor has no record left below its fence; an unknown fence says no."""
    return fence_offset is not None and log_start >= fence_offset
