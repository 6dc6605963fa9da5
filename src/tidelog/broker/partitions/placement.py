"""Which log directory takes a new replica: a pure rule.

| directories, in this order | among them |
|---|---|
| with room | the one with the fewest replicas |
| with less than ``FULL_SHARE`` of their disk free | the one with the most room |
| that refused the last new replica for want of room, and have no more of it since | the same |

A full one is only the last choice: its disk may take a few files for an empty replica yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FULL_SHARE = 0.03
"""Of a disk; from there on `tidelog doctor` says that it is full."""


@dataclass(frozen=True, slots=True)
class DirectorySpace:
    """What is known of one directory. ``refused_at``: the bytes that were free when it refused a
    new replica for want of room, None if it did not, or has taken one since."""

    replicas: int
    free_bytes: int
    total_bytes: int
    refused_at: int | None = None


def choices(rooms: Iterable[DirectorySpace]) -> list[int]:
    """Return the directories, by their places in ``rooms``, in the order in which to try them.

    O(n log n) for n directories, of which a broker has a few.
    """
    ranks = [(*_rank(room), at) for at, room in enumerate(rooms)]
    return [at for *_, at in sorted(ranks)]


def _rank(room: DirectorySpace) -> tuple[int, int]:
    if room.refused_at is not None and room.free_bytes <= room.refused_at:
        return 2, -room.free_bytes
    if room.free_bytes < FULL_SHARE * room.total_bytes:
        return 1, -room.free_bytes
    return 0, room.replicas
