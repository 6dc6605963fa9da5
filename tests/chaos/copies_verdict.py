"""What is right of a topic that was copied in transactions. Pure.

Owns the rules; how records are copied: see `copies_run.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Copied:
    """A record of the target as a reader of committed records got it, in the reader's order."""

    partition: int
    offset: int
    key: bytes
    number: int


def violations(
    sent: Mapping[int, bytes], acked: Collection[int], copied: Sequence[Copied]
) -> list[str]:
    """Return what is wrong: a record that lacks, is there twice, is out of order, or was not sent.

    ``sent``: the key of each number. A reader may get a record again; it has one place then. Where
    a record was not acknowledged, its order is not judged. O(records).
    """
    places: dict[int, set[tuple[int, int]]] = {}
    last: dict[bytes, int] = {}
    found = []
    for each in copied:
        if sent.get(each.number) != each.key:
            found.append(f"{each} was never sent")
        its = places.setdefault(each.number, set())
        is_first = not its
        its.add((each.partition, each.offset))
        if is_first and each.number in acked:
            if each.number < last.get(each.key, -1):
                found.append(f"{each} came after number {last[each.key]}")
            last[each.key] = max(each.number, last.get(each.key, -1))
    found += [f"number {x} was acknowledged and is not copied" for x in acked if x not in places]
    found += [f"number {x} is there at {sorted(y)}" for x, y in places.items() if len(y) > 1]
    return found
