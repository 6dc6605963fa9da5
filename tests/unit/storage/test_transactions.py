"""Open transactions of a log and its last stable offset: rules, restarts, cuts, expiry (KIP-98)."""

from __future__ import annotations

import errno
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.compacting import COMPACT, clean, put
from tests.support.pieces import by_threads
from tests.support.storage_logs import NOW_MS, batch, new_log, records_of, reopen, resources
from tests.support.transactional_logs import end, marker, put_own, send, transactional
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import Work, finish
from tidelog.records.batch import Rejected, read_header, seal_batch
from tidelog.records.builder import Producer
from tidelog.storage.compaction.plan import cleanable
from tidelog.storage.log import producers as producers_module
from tidelog.storage.log.forgetting import forgotten_beyond
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import (
    NONE,
    RESUMES,
    ProducerState,
    encode,
)
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended
from tidelog.storage.log.stable import last_stable_offset
from tidelog.storage.log.transactions import EndedTransaction, OpenTransactions, last_stable

DAY_MS = 86_400_000


def raise_to_end(log: PartitionLog) -> int:
    """Let all of the log be committed; return the last stable offset."""
    log.raise_watermark(log.end_offset)
    return last_stable_offset(log)


# -- the rule


@pytest.mark.parametrize(
    ("steps", "watermark", "expected"),
    [
        ([], 50, 50),
        ([("begin", 10)], 50, 10),
        ([("begin", 10)], 5, 5),
        ([("begin", 10)], 10, 10),
        ([("begin", 10), ("end", 10, 20)], 20, 10),
        ([("begin", 10), ("end", 10, 20)], 21, 21),
        ([("begin", 10), ("begin", 12), ("end", 10, 20)], 50, 12),
        ([("begin", 10), ("begin", 12), ("end", 12, 20)], 50, 10),
        ([("begin", 10), ("begin", 12), ("end", 12, 20), ("end", 10, 30)], 30, 10),
        ([("begin", 10), ("begin", 12), ("end", 10, 20), ("end", 12, 30)], 30, 12),
        ([("begin", 10), ("begin", 12), ("end", 10, 20), ("end", 12, 30)], 20, 10),
        ([("begin", 10), ("begin", 12), ("end", 10, 20), ("end", 12, 30)], 31, 31),
    ],
)
def test_the_stable_offset_passes_a_transaction_when_its_marker_is_below_the_watermark(
    steps: list[tuple[str, ...]], watermark: int, expected: int
) -> None:
    transactions = OpenTransactions()
    for kind, *offsets in steps:
        getattr(transactions, kind)(*offsets, *[NOW_MS] * (kind == "end"))
    assert last_stable(transactions, log_start=0, high_watermark=watermark) == expected


def test_it_is_never_below_the_start_of_the_log() -> None:
    transactions = OpenTransactions([3])
    assert last_stable(transactions, log_start=7, high_watermark=9) == 7
    assert last_stable(transactions, log_start=9, high_watermark=9) == 9


def test_a_marker_names_what_is_open_after_it() -> None:
    transactions = OpenTransactions([30, 10, 20])
    assert len(transactions) == 3
    assert [
        transactions.end(first, at, NOW_MS) for first, at in ((20, 40), (10, 41), (30, 42))
    ] == [
        10,
        30,
        43,
    ]
    assert len(transactions) == 0


def test_a_transaction_that_stays_open_costs_neither_time_nor_memory_of_others() -> None:
    """One that is open for an hour beside very many that end."""

    def spent(count: int) -> float:
        transactions = OpenTransactions([0])
        began = time.process_time()
        for at in range(count):
            first = 1 + 2 * at
            transactions.begin(first)
            transactions.end(first, first + 1, NOW_MS)
            assert transactions.first_unstable(first + 2) == 0
        assert transactions.ended == []
        assert len(transactions.unstable) == 1
        return time.process_time() - began

    spent(1000)
    few, many = min(spent(2000) for _ in range(3)), min(spent(20_000) for _ in range(3))
    assert many < 10 * few * 4, "40 would be linear in what was before"


# -- in a log


def test_a_marker_ends_what_its_producer_has_open_and_nothing_else(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert send(log, 7, 0) == 0
    send(log, 8, 0)
    log.append_as_leader(batch(1), 0, NOW_MS)
    assert raise_to_end(log) == 0
    assert [log.producers.entries[of].open_since for of in (7, 8)] == [0, 1]
    at = end(log, 7, coordinator_epoch=4)
    assert last_stable_offset(log) == 0, "its marker may still be cut"
    assert raise_to_end(log) == 1
    entry = log.producers.entries[7]
    assert (entry.open_since, entry.coordinator_epoch, entry.last_sequence) == (NONE, 4, 0)
    end(log, 7)  # again: nothing is open
    assert raise_to_end(log) == 1
    end(log, 8, committed=False)
    assert raise_to_end(log) == log.end_offset == at + 3


def test_what_a_marker_ended_says_up_to_where_all_is_decided() -> None:
    state = ProducerState()
    made = read_header(transactional(batch(1, producer=Producer(7, 0, 0))))
    for at, producer_id in ((10, 7), (12, 8)):
        state.note(made._replace(producer_id=producer_id), at, NOW_MS)
    ending = marker(7, 0, committed=False)
    ended = state.note(read_header(ending), 20, NOW_MS, ending)
    assert ended == EndedTransaction(7, 10, 20, 12, committed=False)
    ending = marker(8, 0, committed=True)
    ended = state.note(read_header(ending), 21, NOW_MS, ending)
    assert ended == EndedTransaction(8, 12, 21, 22, committed=True)
    assert state.note(read_header(ending), 22, NOW_MS, ending) is None


def test_the_epoch_of_a_marker_fences_its_producer(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 7, 0)
    end(log, 7, epoch=1, committed=False)
    assert (raise_to_end(log), log.producers.entries[7].epoch) == (2, 1)
    assert log.producers.entries[7].batches == []

    def judged(epoch: int, sequence: int) -> object:
        return log.producers.judge(read_header(batch(1, producer=Producer(7, epoch, sequence))))

    late = judged(0, 1)
    assert isinstance(late, Rejected) and late.error.name == "INVALID_PRODUCER_EPOCH"
    assert judged(1, 0) is None
    assert judged(1, 5) is RESUMES, "only its marker is known"


def test_a_late_marker_ends_the_transaction_and_keeps_the_newer_epoch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 7, 0, epoch=3)
    end(log, 7, epoch=2, committed=False)
    assert (raise_to_end(log), log.producers.entries[7].epoch) == (2, 3)
    assert log.producers.entries[7].last_sequence == 0


def test_a_newer_epoch_of_records_belongs_to_the_open_transaction(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 7, 0)
    send(log, 7, 0, epoch=1)
    assert raise_to_end(log) == 0
    end(log, 7, epoch=1)
    assert raise_to_end(log) == 3


def test_a_plain_batch_is_refused_while_a_transaction_of_its_producer_is_open(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)

    def judged(epoch: int, sequence: int, *, plain: bool = True) -> object:
        made = batch(1, producer=Producer(7, epoch, sequence))
        verdict = log.producers.judge(read_header(made if plain else transactional(made)))
        return verdict.error.name if isinstance(verdict, Rejected) else verdict

    first = batch(1, producer=Producer(7, 0, 0))
    assert isinstance(log.append_as_leader(first, 0, NOW_MS), Appended)
    send(log, 7, 1)
    assert judged(0, 2) == judged(1, 0) == "INVALID_TXN_STATE"
    assert judged(0, 2, plain=False) is judged(1, 0, plain=False) is None
    # What is wrong with its sequence or its epoch comes first, as in Kafka.
    assert judged(0, 3) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    again = log.append_as_leader(first, 0, NOW_MS)
    assert isinstance(again, Appended) and again.duplicate
    plain = batch(1, producer=Producer(7, 0, 2))
    for refused in (
        log.append_as_leader(plain, 0, NOW_MS),
        log.append_as_leader(plain, 0, NOW_MS, resumes=True),
        log.append_as_leader(plain + batch(1), 0, NOW_MS),
    ):
        assert isinstance(refused, Rejected) and refused.error.name == "INVALID_TXN_STATE"
    end(log, 7)
    assert isinstance(log.append_as_leader(plain, 0, NOW_MS), Appended)


def test_a_plain_batch_is_refused_also_where_its_sequence_is_not_known(tmp_path: Path) -> None:
    """A late batch of an older epoch has opened the transaction: a follower may have that."""
    log = new_log(tmp_path)
    end(log, 7, epoch=1)
    send(log, 7, 0, epoch=0)
    plain = batch(1, producer=Producer(7, 1, 5))
    refused = log.append_as_leader(plain, 0, NOW_MS, resumes=True)
    assert isinstance(refused, Rejected) and refused.error.name == "INVALID_TXN_STATE"


def test_an_empty_batch_opens_nothing(tmp_path: Path) -> None:
    """The cleaner left it, and may have removed the marker since."""
    log = new_log(tmp_path)
    made = read_header(transactional(batch(1, producer=Producer(7, 0, 0))))
    put_own(log, seal_batch(made._replace(record_count=0), b""))
    assert raise_to_end(log) == 1
    assert log.producers.entries[7].last_sequence == 0
    assert read_back(tmp_path, log) == 1


@pytest.mark.parametrize("work", ["truncation", "restart"])
def test_a_cut_below_the_watermark_lets_no_reader_past_what_it_opens_again(
    tmp_path: Path, work: str
) -> None:
    log = new_log(tmp_path)
    put_own(log, batch(1))
    send(log, 7, 0)
    end(log, 7)
    assert raise_to_end(log) == 3, "what has ended is forgotten"
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((log.high_watermark, last_stable_offset(log)))

    assert by_threads(getattr(log, work)(2, NOW_MS), look) is None
    assert {stable for high_watermark, stable in seen if high_watermark < 3} == {0}
    expected = 1 if work == "truncation" else 2
    assert last_stable_offset(log) == expected


def test_a_cut_above_the_watermark_leaves_the_stable_offset_as_it_is(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 7, 0)
    end(log, 7)
    assert raise_to_end(log) == 2
    put_own(log, batch(3))
    seen: set[int] = set()
    assert by_threads(log.truncation(2, NOW_MS), lambda: seen.add(last_stable_offset(log))) is None
    assert seen == {2} and last_stable_offset(log) == 2


def test_a_cut_that_did_not_begin_leaves_the_stable_offset_as_it_is(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 7, 0)
    end(log, 7)
    assert raise_to_end(log) == 2

    def fails() -> Work[None]:
        yield None
        raise OSError(errno.ENOSPC, "no space left")

    log.resources.before_cut = fails
    assert isinstance(finish(log.truncation(1, NOW_MS)), Rejected)
    assert last_stable_offset(log) == 2


@pytest.mark.parametrize(
    ("work", "opens"),
    [("truncation", "pin"), ("truncation", "pin_directory"), ("restart", "pin_directory")],
)
def test_a_cut_that_was_refused_holds_no_one_back_until_it_is_tried_again(
    tmp_path: Path, work: str, opens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lack of descriptors after the claims were lowered, and before anything was cut."""
    log = new_log(tmp_path, COMPACT)
    put(log, ("k", "v"))
    send(log, 7, 0)
    end(log, 7)
    log.roll(NOW_MS)
    put(log, ("k", "w"))
    log.sync()
    assert raise_to_end(log) == 4
    before = cleanable(log, NOW_MS), log.synced_end_offset, log.start_offset
    refused: list[str] = []
    files = log.resources.files
    opened = getattr(files, opens)

    def none_left(path: str) -> object:
        if opens == "pin" and not path.endswith(".log"):
            return opened(path)
        refused.append(path)
        raise OSError(errno.EMFILE, "a fault of the test", path)

    with monkeypatch.context() as patched:
        patched.setattr(files, opens, none_left)
        got = finish(getattr(log, work)(2, NOW_MS))
    assert isinstance(got, Rejected) and refused and log.failed is None
    assert (log.high_watermark, last_stable_offset(log)) == (4, 4)
    assert (cleanable(log, NOW_MS), log.synced_end_offset, log.start_offset) == before

    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((log.high_watermark, last_stable_offset(log)))

    assert by_threads(getattr(log, work)(2, NOW_MS), look) is None
    below = {stable for high_watermark, stable in seen if high_watermark < 4}
    assert below == {0}, "the second one holds readers back as a first one does"
    assert last_stable_offset(log) == (1 if work == "truncation" else 2)


def read_back(path: Path, log: PartitionLog, *, clean: bool = False, committed: int = -1) -> int:
    """Start again after a stop or a kill; return the last stable offset."""
    high_watermark = log.high_watermark if committed < 0 else committed
    recovery_point = 0
    if clean:
        assert log.close()
        recovery_point = log.end_offset
    ending = Ending(recovery_point, high_watermark, log.start_offset, clean=clean)
    after = reopen(path, log.configs, ending=ending)
    assert after.damaged is None
    return last_stable_offset(after)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("rolls", [True, False])
def test_a_start_knows_what_is_open(tmp_path: Path, is_clean: bool, rolls: bool) -> None:
    log = new_log(tmp_path)
    end(log, 5)  # in a partition without records of the transaction
    send(log, 7, 0, count=2)
    send(log, 8, 0)
    if rolls:
        log.roll(NOW_MS)
        log.sync()
    end(log, 8)
    send(log, 8, 1)
    assert raise_to_end(log) == 1
    assert read_back(tmp_path, log, clean=is_clean) == 1


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    ("committed", "expected"), [(1, 0), (2, 2), (3, 3), (4, 3), (5, 5), (6, 5), (7, 7)]
)
def test_a_start_asks_of_each_marker_whether_it_is_below_the_watermark(
    tmp_path: Path, is_clean: bool, committed: int, expected: int
) -> None:
    """The snapshot of a clean stop has no transaction that has ended."""
    log = new_log(tmp_path)
    send(log, 9, 0)
    log.roll(NOW_MS)
    log.sync()
    log.close()
    log = reopen(tmp_path, ending=Ending(1, 1, 0, clean=True))
    end(log, 9)
    put_own(log, batch(1))
    send(log, 7, 0)
    log.raise_watermark(1)
    assert last_stable_offset(log) == 0
    end(log, 7)
    send(log, 8, 0)
    log.roll(NOW_MS)
    end(log, 8)
    # Producer 9 has 0 and its marker 1, producer 7 has 3 and 4, producer 8 has 5 and 6.
    assert read_back(tmp_path, log, clean=is_clean, committed=committed) == expected


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    state = ProducerState(limit=3)
    plain = read_header(batch(1, producer=Producer(0, 0, 0)))
    opening = read_header(transactional(batch(1, producer=Producer(0, 0, 0))))
    state.note(opening._replace(producer_id=1), 0, NOW_MS)
    for at, producer_id in enumerate((2, 3, 4, 5), 1):
        state.note(plain._replace(producer_id=producer_id), at, NOW_MS + at)
    assert (set(state.entries), state.forgotten) == ({1, 4, 5}, 2)
    assert state.expire(NOW_MS + DAY_MS) == 2
    assert state.expire(NOW_MS + DAY_MS, 1) == 0
    assert list(state.entries) == [1]
    assert list(forgotten_beyond(0, [state])) == [None]
    assert (list(state.entries), state.idle_since_ms) == ([1], None)
    ending = marker(1, 0, committed=True)
    state.note(read_header(ending), 9, NOW_MS + 9, ending)
    assert state.idle_since_ms == NOW_MS + 9, "it begins to be idle with the marker"
    assert state.expire(NOW_MS + 9) == 1
    assert not state.entries


def test_a_search_passes_over_so_many_open_ones_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers_module, "MOST_PASSED_OVER", 4)
    state = ProducerState()
    plain = read_header(batch(1, producer=Producer(0, 0, 0)))
    opening = read_header(transactional(batch(1, producer=Producer(0, 0, 0))))
    for producer_id in range(10):
        state.note(opening._replace(producer_id=producer_id), producer_id, NOW_MS)
    state.note(plain._replace(producer_id=10), 10, NOW_MS)
    assert [state.forget_longest_idle() for _ in range(3)] == [False, False, True]
    assert (len(state.entries), 10 in state.entries) == (10, False)


def test_a_snapshot_of_too_many_producers_keeps_those_with_open_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = ProducerState()
    plain = read_header(batch(1, producer=Producer(0, 0, 0)))
    opening = read_header(transactional(batch(1, producer=Producer(0, 0, 0))))
    state.note(opening._replace(producer_id=0), 0, NOW_MS)
    for producer_id in range(1, 10):
        state.note(plain._replace(producer_id=producer_id), producer_id, NOW_MS + producer_id)
    monkeypatch.setattr(producers_module, "MAX_PRODUCERS", 4)
    found = ProducerState.decode(encode(state.copied()))
    assert (list(found.entries), found.forgotten) == ([0, 6, 7, 8, 9], 5)
    assert found.transactions.first_unstable(99) == 0


def test_a_snapshot_says_what_a_marker_has_left() -> None:
    state = ProducerState()
    opening = read_header(transactional(batch(1, producer=Producer(7, 0, 0))))
    state.note(opening, 3, NOW_MS)
    content = encode(state.copied())
    ending = marker(7, 1, committed=True, coordinator_epoch=12)
    state.note(read_header(ending), 4, NOW_MS + 1, ending)
    assert encode(state.copied()) != content
    former, after = (
        ProducerState.decode(each).entries[7] for each in (content, encode(state.copied()))
    )
    assert (former.open_since, former.coordinator_epoch, former.epoch) == (3, NONE, 0)
    assert (after.open_since, after.coordinator_epoch, after.epoch) == (NONE, 12, 1)
    assert (former.last_sequence, after.batches, after.last_ms) == (0, [], NOW_MS + 1)


def test_entries_that_a_thread_encodes_do_not_change_with_a_marker() -> None:
    state = ProducerState()
    opening = read_header(transactional(batch(1, producer=Producer(7, 0, 0))))
    state.note(opening, 3, NOW_MS)
    copied = state.copied()
    before = encode(copied)
    ending = marker(7, 0, committed=True)
    state.note(read_header(ending), 4, NOW_MS, ending)
    state.note(opening._replace(base_sequence=1), 5, NOW_MS)
    assert encode(copied) == before
    assert state.entries[7].open_since == 5


def test_the_cleaner_stops_at_the_stable_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(40):
        put(log, ("a", f"x{number}" * 4))
    first = send(log, 7, 0)
    for number in range(40):
        put(log, ("b", f"x{number}" * 4))
    log.sync()
    assert cleanable(log, NOW_MS)[-1].next_offset <= first
    clean(log)
    assert len(records_of(log)) > 40
    end(log, 7)
    raise_to_end(log)
    log.roll(NOW_MS)
    clean(log)
    assert len(records_of(log)) < 15


def test_deleting_records_ends_no_transaction_and_holds_no_one_back(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfigs(segment_bytes=300))
    send(log, 7, 0)
    for _ in range(9):
        put_own(log, batch(2))
    raise_to_end(log)
    assert log.advance_start(12) is None
    finish(log.housekeeping(NOW_MS + DAY_MS))
    assert log.segments[0].base_offset > 0, "the record is gone"
    assert last_stable_offset(log) == 12
    log.sync()
    assert read_back(tmp_path, log) == 12
    after = reopen(tmp_path, log.configs, ending=Ending(0, log.high_watermark, 12))
    assert after.producers.entries[7].open_since == 0
    end(after, 7)
    assert raise_to_end(after) == after.end_offset


# -- a model


@dataclass
class Model:
    """All that was appended, in order: the transactions are looked for in it from the start."""

    batches: list[tuple[int, int, str]] = field(default_factory=list)
    """(offset, producer, kind), of one offset each."""

    def stable(self, start: int, high_watermark: int, first_of_all: int = 0) -> int:
        """``first_of_all``: records below are gone, and do not count."""
        since: dict[int, int] = {}
        unstable = []
        for offset, producer_id, kind in self.batches:
            if kind == "records" and offset >= first_of_all:
                since.setdefault(producer_id, offset)
            elif kind == "marker" and producer_id in since:
                first = since.pop(producer_id)
                if offset >= high_watermark:
                    unstable.append(first)
        first = min([*unstable, *since.values()], default=high_watermark)
        return min(max(first, start), high_watermark)


class Machine:
    """One log that leads or follows, its model, and the random steps."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.configs = TopicConfigs(
            segment_bytes=self.random.choice([400, 1500]), retention_ms=-1, file_delete_delay_ms=0
        )
        self.model = Model()
        self.shared = resources()
        self.log = new_log(path, self.configs, self.shared)
        self.sequences = {1: 0, 2: 0, 3: 0}
        self.synced = 0

    def append(self) -> None:
        producer_id = self.random.choice([-1, 1, 2, 3])
        kind = "plain"
        if producer_id < 0:
            made = batch(1)
        elif self.random.random() < 0.4:
            kind, made = "marker", marker(producer_id, 0, committed=self.random.random() < 0.5)
        else:
            made = batch(1, producer=Producer(producer_id, 0, self.sequences[producer_id]))
            self.sequences[producer_id] += 1
            if producer_id < 3:
                kind, made = "records", transactional(made)
        if self.random.random() < 0.5:
            self.model.batches.append((put_own(self.log, made), producer_id, kind))
            return
        offset = self.log.end_offset
        header = read_header(made)
        sent = seal_batch(header._replace(base_offset=offset, leader_epoch=0), made[61:])
        assert not isinstance(self.log.append_as_follower(sent, NOW_MS), Rejected)
        self.model.batches.append((offset, producer_id, kind))

    def commit(self) -> None:
        self.log.raise_watermark(self.random.randint(self.log.high_watermark, self.log.end_offset))

    def roll(self) -> None:
        self.log.roll(NOW_MS)

    def sync(self) -> None:
        pending = self.log.unsynced(closed_only=self.random.random() < 0.5)
        if pending is not None:
            pending.run()
            self.log.synced(pending)
        self.synced = self.log.synced_end_offset

    def stop(self) -> None:
        assert self.log.close()
        self.synced = self.log.end_offset
        self.open(clean=True)

    def crash(self) -> None:
        self.shared.files.close()
        self.open(clean=False)

    def open(self, *, clean: bool) -> None:
        # The checkpoint of the watermark may be older.
        committed = self.log.high_watermark
        if self.random.random() < 0.5:
            committed = self.random.randint(self.log.start_offset, committed)
        ending = Ending(self.synced, committed, self.log.start_offset, clean=clean)
        self.shared = resources()
        self.log = reopen(self.path, self.configs, self.shared, ending=ending)
        assert self.log.damaged is None, self.log.damaged

    def truncate(self) -> None:
        offset = self.random.randint(
            max(self.log.high_watermark, self.log.end_offset - 12), self.log.end_offset
        )
        assert finish(self.log.truncation(offset, NOW_MS)) is None
        end_offset = self.log.end_offset
        self.model.batches = [each for each in self.model.batches if each[0] < end_offset]
        self.synced = min(self.synced, end_offset)
        for producer_id in self.sequences:
            entry = self.log.producers.entries.get(producer_id)
            self.sequences[producer_id] = entry.last_sequence + 1 if entry else 0

    def restart(self) -> None:
        """Begin again higher up, as a follower whose leader has removed what it lacks."""
        offset = self.log.end_offset + self.random.randrange(5)
        assert finish(self.log.restart(offset, NOW_MS)) is None
        self.model.batches = []
        self.synced = offset
        self.sequences = dict.fromkeys(self.sequences, 0)

    def delete_records(self) -> None:
        offset = self.random.randint(self.log.start_offset, self.log.high_watermark)
        assert self.log.advance_start(offset) is None
        finish(self.log.housekeeping(NOW_MS + DAY_MS))
        self.sync()

    def check(self) -> None:
        log = self.log
        start, high_watermark = log.start_offset, log.high_watermark
        least = self.model.stable(start, high_watermark)
        # A start finds at least what DeleteRecords has left of a transaction.
        most = self.model.stable(start, high_watermark, log.segments[0].base_offset)
        assert least <= last_stable_offset(log) <= most


STEPS = [
    (14, Machine.append),
    (4, Machine.commit),
    (1, Machine.roll),
    (1, Machine.sync),
    (0.7, Machine.stop),
    (0.7, Machine.crash),
    (1, Machine.truncate),
    (0.1, Machine.restart),
    (0.4, Machine.delete_records),
]


@pytest.mark.parametrize("seed", range(60))
def test_random_work_on_a_log_with_transactions(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    machine = Machine(seed, tmp_path)
    weights = [weight for weight, _ in STEPS]
    for _ in range(200):
        step = machine.random.choices(STEPS, weights)[0][1]
        step(machine)
        machine.check()
