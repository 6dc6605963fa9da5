"""What a start keeps in memory of the transactions that it reads: counted, not measured."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.storage_logs import NOW_MS, new_log, reopen
from tests.support.transactional_logs import check_aborted, end, send, stable_by_batches
from tidelog.records.batch import NO_SEQUENCE
from tidelog.storage import names
from tidelog.storage.log import producers
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.stable import last_stable_offset
from tidelog.storage.log.transaction_events import TransactionEvents
from tidelog.storage.log.transactions import TransactionEvent

FEW, MANY = 30, 300
OPEN = 90
"""The producer whose transaction is open throughout."""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many transactions, or events of some, a state of producers keeps after each batch."""
    counts: list[int] = []
    plain = ProducerState.note

    def note(self: ProducerState, *batch: object) -> object:
        ended = plain(self, *batch)  # type: ignore[arg-type]
        counts.append(len(self.events or ()) + len(self.transactions.ended))
        return ended

    monkeypatch.setattr(ProducerState, "note", note)
    return counts


def filled(path: Path, transactions: int, whose: int = 3) -> PartitionLog:
    """A log with so many transactions of a few producers; the last markers are not committed."""
    path.mkdir()
    log = new_log(path)
    send(log, OPEN, 0)
    for number in range(transactions):
        send(log, number % whose, NO_SEQUENCE)
        end(log, number % whose, committed=number % 2 == 0)
    log.raise_watermark(log.end_offset - 2)
    log.sync()
    return log


def restarted(path: Path, log: PartitionLog, kept: list[int], recovery_point: int) -> int:
    """Start again after a kill, without snapshots; return the most that was kept."""
    for snapshot in Path(log.path).glob(f"*{names.SNAPSHOT}"):
        snapshot.unlink()
    stable = stable_by_batches(log)
    kept.clear()
    after = reopen(path, log.configs, ending=Ending(recovery_point, log.high_watermark))
    most = max(kept)
    assert last_stable_offset(after) == stable
    assert check_aborted(after, random.Random(1), ranges=5) > FEW // 3
    return most


@pytest.mark.parametrize("is_checked", [True, False])
def test_it_does_not_grow_with_the_transactions_that_have_ended(
    tmp_path: Path, kept: list[int], is_checked: bool
) -> None:
    """In what is checked, whose state follows, and in the headers that are read."""
    most = {}
    for count in (FEW, MANY):
        log = filled(tmp_path / str(count), count)
        recovery_point = 0 if is_checked else log.end_offset
        most[count] = restarted(tmp_path / str(count), log, kept, recovery_point)
    assert 0 < most[FEW] == most[MANY] <= 8


def test_it_does_not_grow_where_a_file_is_made_of_the_batches(
    tmp_path: Path, kept: list[int]
) -> None:
    most = {}
    for count in (FEW, MANY):
        log = filled(tmp_path / str(count), count)
        for check in Path(log.path).glob(f"*{names.ABORTED_CHECK}"):
            check.unlink()
        most[count] = restarted(tmp_path / str(count), log, kept, log.end_offset)
    assert 0 < most[FEW] == most[MANY] <= 8


def test_it_grows_with_the_markers_that_may_not_be_committed(
    tmp_path: Path, kept: list[int]
) -> None:
    log = filled(tmp_path / "t", FEW)
    log.high_watermark = 20
    assert restarted(tmp_path / "t", log, kept, 0) > FEW


@pytest.mark.parametrize("whose", [FEW, MANY])
def test_producers_that_are_forgotten_leave_no_event(
    tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch, whose: int
) -> None:
    """More producers than a log remembers: what is open is known all the same, and what is not."""
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 4)
    path = tmp_path / "t"
    path.mkdir()
    log = new_log(path)
    send(log, OPEN, 0)
    send(log, OPEN + 1, 0)
    log.roll(NOW_MS)
    log.sync()
    claimed = log.end_offset
    end(log, OPEN + 1, committed=False)  # of which only the snapshot has the beginning
    for number in range(whose):
        send(log, 1000 + number, 0)
        end(log, 1000 + number, committed=False)
    log.raise_watermark(log.end_offset)
    kept.clear()
    after = reopen(path, log.configs, ending=Ending(claimed, log.high_watermark))
    assert max(kept) <= 12
    assert last_stable_offset(after) == stable_by_batches(log) == 0
    assert len(after.producers.transactions) == 1
    assert check_aborted(after, random.Random(1)) == whose + 1
    assert after.producers.forgotten > 0


def test_what_is_kept_of_events() -> None:
    def marker(offset: int, epoch: int, *, committed: bool = True) -> TransactionEvent:
        return TransactionEvent(offset, 7, epoch, NOW_MS, 0, committed)

    events = TransactionEvents(10)
    begins = [TransactionEvent(offset, 7, 1, NOW_MS) for offset in (1, 4, 8, 12)]
    events.ended(marker(0, 3, committed=False), -1)
    events.begun(begins[0])
    events.ended(marker(2, 1), 1)
    assert list(events) == [marker(2, 3)], "the last marker, with the highest epoch"
    events.begun(begins[1])
    assert list(events) == [marker(2, 3), begins[1]], "what is open"
    events.ended(marker(6, 4), 4)
    events.begun(begins[2])
    events.ended(marker(11, 1), 8)
    events.begun(begins[3])
    assert list(events) == [marker(6, 4), begins[2], marker(11, 1), begins[3]]
    assert events.newest_abort == 0
    events.clear()
    assert (len(events), events.newest_abort) == (0, 0)
