"""Cuts a micro-batch into tasks: ranges of offsets of one partition each.

Owns minPartitions and maxRecordsPerPartition; without them a range is one task, whose rows are in
the order of the log. Cut ranges give that up between tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidelog.pipeline.planning.positions import Pid, Positions


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    pid: Pid
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges_between(
    start: Positions, end: Positions, first_offset: Callable[[Pid], int]
) -> list[OffsetRange]:
    """What lies between two positions; empty ranges are left out.

    A partition that the start does not name is read from where its life began: `first_offset`,
    which is asked for such partitions only.
    """
    found = []
    for pid in sorted(end.at):
        begin = start.at[pid] if pid in start.at else first_offset(pid)
        if end.at[pid] > begin:
            found.append(OffsetRange(pid, begin, end.at[pid]))
    return found


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """The ranges of the tasks: none longer than `max_records`, about `min_partitions` of them."""
    cut = list(ranges)
    if max_records is not None:
        cut = [part for each in cut for part in _pieces(each, -(-each.size // max_records))]
    if min_partitions is not None and len(cut) < min_partitions:
        total = sum(each.size for each in cut)
        cut = [
            part
            for each in cut
            for part in _pieces(each, max(1, round(min_partitions * each.size / total)))
        ]
    return cut


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = max(1, min(count, whole.size))
    bounds = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [OffsetRange(whole.pid, low, high) for low, high in pairwise(bounds)]
