"""The next steps of a copy of a log's segments: a pure rule.

Owns which bytes are copied next. Not the copying: see `mirror`. The first row that fits decides:

| segment | step |
|---|---|
| was copied, and the log has it no longer | ``RemoveSegment`` |
| more of it was copied than there is: it was cut or replaced | ``Copy`` from its first byte |
| the same, and it is empty | ``RemoveSegment`` |
| less of it was copied than there is | ``Copy``, at most so many bytes |
| all was copied, the log has closed it, its indexes were not copied | ``Close`` |

The oldest segment comes first, so that a copy always ends at one offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MOST_STEPS = 64
"""Steps in one trip of a thread: a log of many small segments is copied in few trips."""


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of the log as it is now."""

    base_offset: int
    size: int
    is_closed: bool = True


@dataclass(slots=True)
class Copied:
    """How much of a segment was copied or compared; ``is_closed``: its indexes, too, durably."""

    size: int = 0
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class RemoveSegment:
    """Remove the files of a segment from the copy."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy whole batches from ``position`` on, to ``end`` at most: one at least, even if it is
    longer. ``size``: where the segment ends."""

    base_offset: int
    position: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class Close:
    """Cut the file to ``size``, copy the indexes, make all durable."""

    base_offset: int
    size: int


Step = RemoveSegment | Copy | Close


def next_steps(
    parts: Iterable[Part], copied: Mapping[int, Copied], most_bytes: int, most: int = MOST_STEPS
) -> list[Step]:
    """Return the next steps, of at most ``most_bytes``; none when all is copied. O(segments)."""
    listed = list(parts)
    bases = {part.base_offset for part in listed}
    steps: list[Step] = [RemoveSegment(base) for base in sorted(copied) if base not in bases]
    left = most_bytes
    for part in listed:
        if left <= 0 or len(steps) >= most:
            break
        have = copied.get(part.base_offset, Copied())
        position = have.size if have.size <= part.size else 0
        if have.size > part.size == 0:
            steps.append(RemoveSegment(part.base_offset))
            have = Copied()
        if position < part.size:
            end = min(part.size, position + left)
            steps.append(Copy(part.base_offset, position, end, part.size))
            left -= end - position
            if end < part.size:
                break
        elif part.is_closed and have.is_closed:
            continue
        if part.is_closed:
            steps.append(Close(part.base_offset, part.size))
    return steps


def bytes_left(parts: Iterable[Part], copied: Mapping[int, Copied]) -> int:
    """Return how many bytes are not copied yet. O(segments)."""
    return sum(
        part.size - (copy.size if (copy := copied.get(part.base_offset)) else 0) for part in parts
    )
