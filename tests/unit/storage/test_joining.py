"""Whether a batch goes on with its producer's open transaction, and which marker was the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.storage_logs import new_log, reopen
from tests.support.transactional_logs import marker, put_own, send
from tidelog.storage.log.joining import NONE, is_open, last_marker
from tidelog.storage.log.partition_log import PartitionLog

Step = tuple[str, int, int]
"""What is appended: data or a marker; its epoch, and for data its first sequence."""


def put(log: PartitionLog, steps: list[Step], producer_id: int = 7) -> None:
    for kind, epoch, sequence in steps:
        if kind == "data":
            send(log, producer_id, sequence, epoch=epoch)
        else:
            put_own(log, marker(producer_id, epoch, committed=kind == "commit"))


@pytest.mark.parametrize(
    ("steps", "open_epoch", "marker_at"),
    [
        ([], None, NONE),
        ([("data", 0, 0)], 0, NONE),
        ([("data", 0, 0), ("data", 0, 1)], 0, NONE),
        ([("data", 0, 0), ("commit", 0, 0)], None, 1),
        ([("data", 0, 0), ("abort", 0, 0)], None, 1),
        ([("data", 0, 0), ("commit", 0, 0), ("data", 0, 1)], 0, 1),
        # A marker fences, or ends what has nothing here: it counts all the same.
        ([("abort", 3, 0)], None, 0),
        ([("data", 0, 0), ("abort", 1, 0)], None, 1),
        ([("commit", 0, 0), ("abort", 1, 0)], None, 1),
        # The marker of an older epoch is late: what is open is not that of the newer epoch.
        ([("data", 0, 0), ("data", 1, 0)], 1, NONE),
        # A leader that did not know the newer epoch took a batch of the older one.
        ([("abort", 3, 0), ("data", 2, 0)], None, 0),
        ([("abort", 3, 0), ("data", 2, 0), ("data", 3, 0)], 3, 0),
    ],
)
def test_what_a_batch_goes_on_with(
    tmp_path: Path, steps: list[Step], open_epoch: int | None, marker_at: int
) -> None:
    log = new_log(tmp_path)
    put(log, steps)
    entry = log.producers.entries.get(7)
    assert [epoch for epoch in range(-1, 5) if is_open(entry, epoch)] == (
        [] if open_epoch is None else [open_epoch]
    )
    assert last_marker(entry) == marker_at


def test_a_newer_epoch_and_a_snapshot_keep_the_last_marker(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, [("data", 0, 0), ("commit", 0, 0)])
    log.roll(0)  # a thread may be encoding the entry of before now
    put(log, [("data", 0, 1), ("data", 1, 0)])
    assert last_marker(log.producers.entries[7]) == 1


def test_a_start_knows_no_marker_and_goes_on_with_what_is_open(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, [("data", 0, 0), ("commit", 0, 0), ("data", 0, 1)])
    log.roll(0)
    log.close()
    again = reopen(tmp_path)
    entry = again.producers.entries[7]
    assert is_open(entry, 0) and not is_open(entry, 1)
    assert last_marker(entry) == NONE
