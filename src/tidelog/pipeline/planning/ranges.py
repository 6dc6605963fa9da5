"""The split of a micro-batch into tasks: ranges of offsets of one partition each.

Owns minPartitions and maxRecordsPerPartition; without them a range is one task, whose rows are in
the order of the log. Split ranges have no order between tasks. Offsets below the log start are
clipped first: a lost range of a million offsets is one loss, not a thousand tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.planning.losses import past_former
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import FormerEnd


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
    """The ranges between two positions, without empty ones.

    A partition that is not in the start begins where the end says (`new`). The end of a batch that
    was planned in version 1 does not say it: then `first_offset` is called. Raises PipelineError
    for offsets that do not belong together.
    """
    start = start.with_ids(end.topic_ids)
    ranges = []
    for pid in sorted(end.at):
        if pid in start.at:
            begin = start.at[pid]
        elif end.new is None:
            begin = first_offset(pid)
        elif pid in end.new:
            begin = end.new[pid]
        else:
            raise PipelineError(
                f"the checkpoint does not say where {pid} begins: its offsets do not belong"
                " together"
            )
        if end.at[pid] > begin:
            ranges.append(OffsetRange(pid, begin, end.at[pid]))
    return ranges


def without_former_tails(
    ranges: Sequence[OffsetRange], former: Mapping[Pid, FormerEnd]
) -> list[OffsetRange]:
    """The ranges without what lies between the data and the end of a removed partition.

    No record was there, so nothing of it is lost.
    """
    kept = []
    for span in ranges:
        start = past_former(span.start, former.get(span.pid))
        if start < span.end:
            kept.append(OffsetRange(span.pid, start, span.end))
    return kept


def clip(
    ranges: Sequence[OffsetRange], log_starts: Mapping[Pid, int]
) -> tuple[list[OffsetRange], dict[Pid, OffsetRange]]:
    """The parts of ranges that the log still has, and by partition the parts below its start."""
    kept, lost = [], {}
    for span in ranges:
        low = min(max(span.start, log_starts.get(span.pid, span.start)), span.end)
        if low > span.start:
            lost[span.pid] = OffsetRange(span.pid, span.start, low)
        kept.append(OffsetRange(span.pid, low, span.end))
    return kept, lost


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """The ranges of the tasks: none longer than `max_records`, about `min_partitions` of them."""
    cut = list(ranges)
    if max_records is not None:
        cut = [part for whole in cut for part in _pieces(whole, -(-whole.size // max_records))]
    if min_partitions is not None and len(cut) < min_partitions:
        total = max(1, sum(whole.size for whole in cut))
        cut = [
            part
            for whole in cut
            for part in _pieces(whole, max(1, round(min_partitions * whole.size / total)))
        ]
    return cut


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = max(1, min(count, whole.size))
    bounds = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [OffsetRange(whole.pid, low, high) for low, high in pairwise(bounds)]
