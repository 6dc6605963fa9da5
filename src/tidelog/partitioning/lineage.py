"""Lineage of partitions under linear hashing: parents, survivors, and the keys that move. Pure.

Owns what the counts of a topic alone decide. Not the order of delivery: see ``gates``. Not the hash
of a key: see ``hashing``. Source: KIP-253 and docs/design/elastic.md, "Hash".

N is a topic's ``initial_partition_count``. Partitions below N have no parent; each other one was
split from its parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


def parent_of(partition: int, initial_count: int) -> int | None:
    """Return the partition that a partition was split from; None below the initial count."""
    if partition < initial_count:
        return None
    return partition - level_of(initial_count, partition)


def first_child_of(partition: int, initial_count: int) -> int:
    """Return the lowest partition that has this one as its parent; it need not exist."""
    level = initial_count
    while level <= partition:
        level *= 2
    return partition + level


def level_of(initial_count: int, count: int) -> int:
    """Return the largest ``initial_count`` times a power of two that is at most ``count``.

    A count below the initial count is refused with ValueError.
    """
    if not 0 < initial_count <= count:
        raise ValueError(f"a topic of {initial_count} partitions cannot have {count}")
    return initial_count << ((count // initial_count).bit_length() - 1)


def ancestors_of(partition: int, initial_count: int) -> Iterator[int]:
    """Yield the parent, its parent and so on: one for each doubling at most."""
    parent = parent_of(partition, initial_count)
    while parent is not None:
        yield parent
        parent = parent_of(parent, initial_count)


def nearest_ancestor(partition: int, initial_count: int, count: int) -> int:
    """Return the nearest ancestor below ``count``, which is at least the initial count.

    For a child and the count before its growth it is the blocking parent, whose records of the
    child's keys come first. For a retired partition and the count after its shrink it is the
    survivor, which takes its keys.
    """
    if partition < count:
        raise ValueError(f"partition {partition} is below the count of {count} partitions")
    if count < initial_count:
        raise ValueError(f"a topic of {initial_count} partitions cannot have {count}")
    return next(each for each in ancestors_of(partition, initial_count) if each < count)


def modulus_of(partition: int, initial_count: int, count: int) -> int:
    """Return m: the hashes of a partition at a count are those with ``hash % m == partition``."""
    if not 0 <= partition < count:
        raise ValueError(f"partition {partition} is not below the count of {count} partitions")
    level = level_of(initial_count, count)
    is_split = partition < count - level or partition >= level
    return 2 * level if is_split else level


def share_of(partition: int, initial_count: int, count: int) -> Fraction:
    """Return the share of all hashes that a partition has at a count."""
    return Fraction(1, modulus_of(partition, initial_count, count))


@dataclass(frozen=True, slots=True)
class KeyMove:
    """Keys that a resize moves from one partition to another, as a share of all hashes."""

    source: int
    target: int
    share: Fraction


def moves_of_keys(initial_count: int, before: int, after: int) -> tuple[KeyMove, ...]:
    """Return the keys that a resize moves: to each child, or from each retired partition.

    Keys never move between two partitions that both counts have. One entry for each partition that
    comes or goes.
    """
    if after > before:
        return tuple(
            KeyMove(
                nearest_ancestor(child, initial_count, before),
                child,
                share_of(child, initial_count, after),
            )
            for child in range(before, after)
        )
    return tuple(
        KeyMove(
            retired,
            nearest_ancestor(retired, initial_count, after),
            share_of(retired, initial_count, before),
        )
        for retired in range(after, before)
    )
