"""Tasks of removed partitions: what follows their data is neither read nor lost."""

from __future__ import annotations

import pytest

from tidelog.client.fences import FormerIncarnation
from tidelog.pipeline.errors import DataLost
from tidelog.pipeline.options import Mode, SourceOptions, parse
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.planning.snapshot import FormerEnd, PartitionSnapshot, Snapshot
from tidelog.pipeline.schema import LOST_TO
from tidelog.pipeline.tasks import _lose_removed, make_tasks

GONE, THERE = Pid("t", 1, "id"), Pid("t", 0, "id")
FORMER = FormerIncarnation(1, 8, 9, 2)


def options(**more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", **more}
    return parse(given, Mode.STREAM)


def test_the_seal_of_a_removed_partition_is_no_loss() -> None:
    strict = options()
    assert list(_lose_removed(strict, FORMER, OffsetRange(GONE, 8, 9))) == []
    with pytest.raises(DataLost, match="its data ended at 8"):
        list(_lose_removed(strict, FORMER, OffsetRange(GONE, 7, 9)))


@pytest.mark.parametrize(("end", "lost_to"), [(9, 8), (6, 6)])
def test_a_marker_of_a_removed_partition_ends_with_its_data_or_its_range(
    end: int, lost_to: int
) -> None:
    lax = options(failOnDataLoss="false", columns=f"topic,partition,offset,value,{LOST_TO}")
    (batch,) = _lose_removed(lax, FORMER, OffsetRange(GONE, 3, end))
    (row,) = batch.to_pylist()
    assert (row["offset"], row[LOST_TO]) == (3, lost_to)


def test_no_task_reads_what_follows_the_data_of_a_removed_partition() -> None:
    snapshot = Snapshot(
        {"t": "id"}, {THERE: PartitionSnapshot(0, 5)}, former={GONE: FormerEnd(8, 9, 2)}
    )
    end = Positions({THERE: 5, GONE: 9}, {"t": "id"})
    ranges = [OffsetRange(THERE, 0, 5), OffsetRange(GONE, 8, 9)]
    tasks = make_tasks(options(), ranges, end, snapshot)
    assert [(task.range.pid, task.range.start, task.range.end) for task in tasks] == [(THERE, 0, 5)]
