"""Preview of a resize: which partitions come or go, whose keys move, and what waits for what. Pure.

Owns the numbers of ``topics --alter --dry-run``. Not the questions to the cluster: see ``dry_run``.

No record is copied in a resize: records stay where they are, and from the fence on the keys of a
child go to it. So the bytes are an estimate of how much of a log belongs to keys that have another
home afterwards. A growth: the log of the parent times the share of its hashes that the child takes.
A shrink: the whole log of the retired partition, which is kept until retention removes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tidelog.partitioning.lineage import moves_of_keys, share_of


@dataclass(frozen=True, slots=True)
class MovedKeys:
    """Keys that go from one partition to another; shares of all hashes and of the source's."""

    source: int
    target: int
    share: Fraction
    share_of_source: Fraction
    size: int | None
    """Bytes of records of these keys now, by estimate; None: the size of the log is not known."""


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """Where a group stands in a partition, and what it has to read before the fence."""

    group: str
    position: int | None
    """The committed offset; None: the group has committed nothing."""
    end: int
    lag: int | None
    member: str | None


@dataclass(frozen=True, slots=True)
class Wait:
    """A partition whose records a group holds back until it has read the source."""

    partition: int
    source: int
    standing: GroupStanding


def moves_of(
    initial: int, before: int, after: int, sizes: Mapping[int, int]
) -> tuple[MovedKeys, ...]:
    """Return the keys that a resize moves; empty when the count is refused by its size."""
    if not 0 < initial <= min(before, after) or before == after:
        return ()
    moves = []
    for moves_of_key in moves_of_keys(initial, before, after):
        part = moves_of_key.share / share_of(moves_of_key.source, initial, before)
        size = sizes.get(moves_of_key.source)
        moves.append(
            MovedKeys(
                moves_of_key.source,
                moves_of_key.target,
                moves_of_key.share,
                part,
                None if size is None else int(size * part),
            )
        )
    return tuple(moves)


def total_share(moves: Sequence[MovedKeys]) -> Fraction:
    """Return the share of all keys that get another home."""
    return sum((move.share for move in moves), Fraction())


def total_size(moves: Sequence[MovedKeys]) -> int | None:
    """Return the bytes of all moves; None when one is not known."""
    sizes = [move.size for move in moves]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def waits_of(
    moves: Sequence[MovedKeys], standings: Mapping[int, Sequence[GroupStanding]]
) -> list[Wait]:
    """Return what each group would wait for, if the fence were written now.

    ``standings`` by partition. A group that has read a partition to its end waits for nothing.
    """
    return [
        Wait(move.target, move.source, standing)
        for move in moves
        for standing in standings.get(move.source, ())
        if standing.lag != 0
    ]


def percent(share: Fraction) -> str:
    """Return a share as people read it."""
    return f"{float(share) * 100:.4g} %"
