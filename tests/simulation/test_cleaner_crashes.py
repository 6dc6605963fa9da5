"""A crash in every disk operation of the cleaner's runs over a log with transactions (0123).

Three runs: one drops aborted records, one lets the time of their markers begin, one drops these.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.simulation.kernel import Crash, ProcessKilled
from tests.simulation.log_node import RECORDS, SMALL, Node, P, at_change
from tests.simulation.scenarios.log import COMPACT
from tests.support.storage_logs import removed_now
from tests.support.transactional_logs import (
    aborted_in_batches,
    check_aborted,
    committed_records,
    end,
    markers_in,
    put_own,
    send_keys,
    stable_by_batches,
)
from tidelog.model.work import finish
from tidelog.records.builder import NewRecord, build_batch
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.stable import last_stable_offset

TRANSACTIONAL = replace(
    SMALL,
    segment_bytes=1_000,
    cleanup_policy=COMPACT,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
    delete_retention_ms=1_000,
)
FILLER = b"filler"
RUNS = 3
PARTS = 8
"""The operations are shared out to so many tests."""

Newest = dict[bytes, tuple[int, bytes | None]]


def prepare(seed: int) -> tuple[Node, PartitionLog]:
    """A synced log of many segments; one transaction is open in nearly all of them."""
    node = Node(seed, TRANSACTIONAL)
    log = node.prepare()
    send_keys(log, 50, 0, ("k0", "aborted at the end"), ("only", "aborted"))
    for sequence in range(4):
        send_keys(log, 51, sequence, (f"k{sequence % 4}", f"aborted {sequence}"))
        send_keys(log, 52, sequence, (f"c{sequence % 3}", f"committed {sequence}"))
        end(log, 51, committed=False)
        end(log, 52)
        node.append(log, RECORDS + sequence)
    end(log, 50, committed=False)
    log.sync()
    log.high_watermark = log.end_offset
    checkpoint = finish(node.directory.checkpoint())
    assert checkpoint is not None
    checkpoint.run()
    node.directory.checkpointed(checkpoint)
    return node, log


def run_cleaner(node: Node, log: PartitionLog) -> None:
    """One run, ``delete.retention.ms`` after the last; several segments may become one."""
    log.configure(replace(TRANSACTIONAL, segment_bytes=4_000))
    node.clock.now_ms += 1_000
    put_own(log, build_batch([NewRecord(node.clock.now_ms, FILLER, b"x")]), node.clock.now_ms)
    log.roll(node.clock.now_ms)
    log.sync()
    log.high_watermark = log.end_offset
    plan = plan_compaction(log, node.clock.now_ms)
    assert plan is not None
    assert finish(applying(log, compact(node.view, plan), node.clock.now_ms)) is not None
    removed_now(node.directory)


def newest_of(log: PartitionLog) -> Newest:
    """What a fresh reader of committed records has for each key; it gets no other record."""
    records = committed_records(log)
    assert not [one for one in records if b"aborted" in (one.value or b"")]
    return {bytes(one.key or b""): (one.offset, one.value) for one in records if one.key != FILLER}


def check(log: PartitionLog, expected: Newest, where: str) -> None:
    assert log.damaged is None, f"{where}: {log.damaged}"
    log.high_watermark = log.end_offset
    assert newest_of(log) == expected, where
    assert last_stable_offset(log) == stable_by_batches(log) == log.end_offset, where
    check_aborted(log, random.Random(where), ranges=2)


def crash_once(kind: str, number: int) -> bool:
    """Crash in the disk operation with this number; False when all runs end before it."""
    node, log = prepare(number)
    expected = newest_of(log)
    node.disk.plan = at_change(number, Crash(kind, number % 2))
    crashed = True
    with suppress(ProcessKilled):
        for _ in range(RUNS):
            run_cleaner(node, log)
        crashed = False
        node.disk.lose_power() if kind == "power" else node.disk.kill(node.view)
    node.disk.plan = None
    node.boot += kind == "power"
    where = f"{kind} in operation {number}"
    log = node.open().logs[P]
    check(log, expected, where)
    run_cleaner(node, log)
    check(log, expected, f"{where}, and a run")
    return crashed


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("part", range(PARTS))
def test_after_a_crash_anywhere_no_aborted_record_is_read(kind: str, part: int) -> None:
    for number in range(1 + part, 1_000, PARTS):
        if not crash_once(kind, number):
            assert number > 50
            return
    raise AssertionError("the runs never ended")


def test_three_runs_leave_the_last_marker_of_each_producer_and_those_of_records() -> None:
    node, log = prepare(1)
    expected = newest_of(log)
    assert len(aborted_in_batches(log)) == 5
    assert len(markers_in(log)) == 9
    for number in range(RUNS):
        run_cleaner(node, log)
        check(log, expected, f"run {number}")
    assert aborted_in_batches(log) == []
    # Of the three newest values that were committed, and the last ones of 50 and 51.
    assert len(markers_in(log)) == 5
