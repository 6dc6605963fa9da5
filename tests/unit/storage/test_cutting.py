"""What may happen to a log between the pieces of a cut or of retention, and what may not."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.pieces import by_threads
from tests.support.storage_logs import (
    BOOT,
    NOW_MS,
    PARTITION,
    FaultyDisk,
    batch,
    new_log,
    open_as_a_server,
    records_of,
    reopen,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, read_header
from tidelog.records.builder import Producer
from tidelog.storage import names
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended

SMALL = TopicConfigs(segment_bytes=800)


def filled(tmp_path: Path, disk: FaultyDisk | None = None) -> PartitionLog:
    """Forty batches in segments of eight, synced and committed."""
    log = new_log(tmp_path, SMALL, resources(disk))
    for sequence in range(40):
        assert appended(log, sequence)
    log.sync()
    log.high_watermark = log.end_offset
    assert len(log.segments) == 5
    return log


def appended(log: PartitionLog, sequence: int) -> bool:
    made = batch(1, producer=Producer(7, 0, sequence))
    return isinstance(log.append_as_leader(made, 0, NOW_MS, resumes=True), Appended)


@pytest.mark.parametrize("offset", [0, 13, 37])
@pytest.mark.parametrize("work", ["truncation", "restart"])
def test_nothing_comes_between_the_pieces_of_a_cut(tmp_path: Path, work: str, offset: int) -> None:
    log = filled(tmp_path)
    late = log.unsynced()
    before, turns = list(log.segments), 0

    def others() -> None:
        nonlocal turns
        turns += 1
        assert log.change is LogChange.CUT
        refused = log.append_as_leader(batch(), 0, NOW_MS)
        assert isinstance(refused, Rejected) and refused.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert isinstance(log.append_as_follower(batch(), NOW_MS), Rejected)
        assert isinstance(finish(log.truncation(3, NOW_MS)), Rejected)
        assert isinstance(finish(log.restart(3, NOW_MS)), Rejected)
        assert log.unsynced() is None
        assert finish(log.housekeeping(NOW_MS)) is None
        assert plan_compaction(log, NOW_MS) is None
        if late is not None:
            log.synced(late)
        # A checkpoint of now must hold whatever a crash finds.
        assert log.synced_end_offset <= log.end_offset
        assert log.start_offset <= before[0].base_offset or log.start_offset <= offset
        # What stays is read on.
        stays = min(log.high_watermark, log.end_offset)
        if log.start_offset < stays:
            found = log.read(log.start_offset, 1_000_000, stays)
            assert not isinstance(found, Rejected) and len(found)

    done = by_threads(getattr(log, work)(offset, NOW_MS), others)
    assert done is None and turns >= 4 and log.change is None
    assert log.end_offset == offset
    kept = [] if work == "restart" else list(range(offset))
    assert [record.offset for record in records_of(log)] == kept
    assert log.generation == 1
    assert appended(log, len(kept))
    log.sync()
    log.high_watermark = end = log.end_offset
    log.resources.files.close()
    found = reopen(tmp_path, SMALL, ending=Ending(end, end, log.start_offset))
    assert found.damaged is None
    assert [record.offset for record in records_of(found)] == [*kept, offset]
    assert found.producers.entries[7].last_sequence == len(kept)


@pytest.mark.parametrize("offset", [13, 40, 1_000])
def test_a_log_that_restarts_at_an_offset_is_committed_from_that_offset(
    tmp_path: Path, offset: int
) -> None:
    log = filled(tmp_path)
    assert finish(log.restart(offset, NOW_MS)) is None
    found = (log.start_offset, log.high_watermark, log.end_offset)
    assert found == (offset, offset, offset), "the watermark is never below the start"


@pytest.mark.parametrize("work", ["truncation", "restart"])
def test_a_kill_after_a_cut_below_the_log_start_loses_nothing_that_came_since(
    tmp_path: Path, work: str
) -> None:
    """An unclean leader may lack what was deleted elsewhere. A checkpoint of the former start would
    have the next start give up a log that ends below it."""
    log = filled(tmp_path)
    assert log.advance_start(20) is None
    assert log.resources.before_cut is not None
    finish(log.resources.before_cut())
    assert by_threads(getattr(log, work)(10, NOW_MS)) is None
    for sequence in range(10, 13):
        assert appended(log, sequence)
    (tmp_path / names.LIFE).write_text(f"boot.id={BOOT}\nlog.durability=replicated\n")
    found = open_as_a_server(tmp_path).logs[PARTITION]
    assert found.damaged is None
    assert (found.start_offset, found.end_offset) == (log.start_offset, 13)
    assert len(records_of(found)) == 13 - found.start_offset


def test_what_is_appended_beside_retention_stays(tmp_path: Path) -> None:
    """Everything is old when retention looks, and a leader goes on meanwhile."""
    log = filled(tmp_path)
    log.configure(replace(SMALL, retention_ms=1))
    log.producer_expiration_ms = 10**10
    sequence = 40

    def others() -> None:
        nonlocal sequence
        made = batch(1, timestamp=NOW_MS + 10**9, producer=Producer(7, 0, sequence))
        assert isinstance(log.append_as_leader(made, 0, NOW_MS + 10**9), Appended)
        sequence += 1
        pending = log.unsynced()
        if pending is not None:
            pending.run()
            log.synced(pending)
        assert isinstance(finish(log.truncation(3, NOW_MS)), Rejected), "one change at a time"
        assert finish(log.housekeeping(NOW_MS + 10**9)) is None

    said = by_threads(log.housekeeping(NOW_MS + 10**9), others)
    assert said is not None and "5 segments" in said
    assert log.start_offset == 40 and log.end_offset == sequence > 43
    assert [record.offset for record in records_of(log)] == list(range(40, sequence))
    log.sync()
    log.high_watermark = log.end_offset
    log.resources.files.close()
    found = reopen(tmp_path, SMALL, ending=Ending(sequence, sequence, 40))
    assert found.damaged is None and found.end_offset == sequence
    assert found.producers.entries[7].last_sequence == sequence - 1


def test_uncommitted_records_that_come_while_all_is_to_go_do_not_go(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    assert appended(log, 0)
    log.high_watermark = 1
    log.configure(replace(SMALL, retention_ms=1))
    assert log.dirty.names_unsynced, "a roll would sync: a thread does it before"
    turns = 0

    def others() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            assert appended(log, 1)

    assert by_threads(log.housekeeping(NOW_MS + 10**9), others) is None
    assert turns and (log.start_offset, log.end_offset, log.high_watermark) == (0, 2, 1)
    assert [record.offset for record in records_of(log)] == [0, 1]


@pytest.mark.parametrize("work", ["truncation", "restart"])
def test_a_cut_that_was_begun_and_fails_is_final(tmp_path: Path, work: str) -> None:
    disk = FaultyDisk()
    log = filled(tmp_path, disk)

    def others() -> None:
        # The claims are lowered; what follows is the cut itself.
        if log.end_offset == 13:
            disk.rename = refuse  # type: ignore[method-assign]

    def refuse(_source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "a fault of the test", target)

    refused = by_threads(getattr(log, work)(13, NOW_MS), others)
    assert isinstance(refused, Rejected) and log.resources.failed is not None
    assert "was not finished" in log.resources.failed
    assert log.change is None


@pytest.mark.parametrize("work", ["truncation", "restart", "housekeeping"])
def test_many_producers_are_given_up_in_turns(tmp_path: Path, work: str) -> None:
    log = filled(tmp_path)
    header = read_header(batch(1, producer=Producer(0, 0, 0)))
    for number in range(200):
        log.producers.note(header._replace(producer_id=number), 0, NOW_MS)
    state, counts = log.producers, [len(log.producers.entries)]
    given = (NOW_MS + 10**9,) if work == "housekeeping" else (13, NOW_MS)
    by_threads(getattr(log, work)(*given), lambda: counts.append(len(state.entries)))
    counts.append(len(state.entries))
    assert counts[-1] == 0
    assert max(a - b for a, b in pairwise(counts)) == 1
    assert log.change is None
