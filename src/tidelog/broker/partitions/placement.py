"""Placement of a new replica in a log directory: a pure rule.

Owns the order in which the directories are tried. Not the creation: see ``new_replicas``.

| directories, in this order | among them |
|---|---|
| with free space | the one with the most free bytes |
| with as many, to ``STEP_SHARE`` of a disk | the one with the fewest replicas |
| with less than ``FULL_SHARE`` of their disk free | the one with the most free bytes |
| that refused the last new replica as full, without more free bytes since | the same |

A full directory is only the last choice: its disk may still hold the few files of an empty replica.
Cordoned directories (KIP-1066) are left out while another one is in service. If all that are in
service are cordoned, they are used: the controller decided on this broker before it saw that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STEP_SHARE = 0.01
"""Disks whose free bytes differ by less count as equal: new replicas are empty, so that a small
difference would send all of a large topic to one directory."""

FULL_SHARE = 0.03
"""Share of a disk; with less free space `tidelog doctor` reports it as full."""


@dataclass(frozen=True, slots=True)
class DirectorySpace:
    """Replicas and free space of one directory. ``refused_at``: the free bytes when it refused a
    new replica as full; None if it did not, or has taken one since."""

    replicas: int
    free_bytes: int
    total_bytes: int
    refused_at: int | None = None
    is_cordoned: bool = False


def choices(spaces: Iterable[DirectorySpace]) -> list[int]:
    """Return the directories, as indexes of ``spaces``, in the order in which to try them.

    O(n log n) for n directories, of which a broker has a few.
    """
    given = list(spaces)
    largest = max((space.total_bytes for space in given), default=0)
    step_bytes = max(1.0, STEP_SHARE * largest)
    is_any_open = not all(space.is_cordoned for space in given)
    ranks = [
        (*_rank(space, step_bytes), place)
        for place, space in enumerate(given)
        if not (is_any_open and space.is_cordoned)
    ]
    return [place for *_, place in sorted(ranks)]


def _rank(space: DirectorySpace, step_bytes: float) -> tuple[int, int, int]:
    if space.refused_at is not None and space.free_bytes <= space.refused_at:
        return 2, -space.free_bytes, 0
    if space.free_bytes < FULL_SHARE * space.total_bytes:
        return 1, -space.free_bytes, 0
    return 0, -int(space.free_bytes / step_bytes), space.replicas
