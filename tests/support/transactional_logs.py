"""Batches of transactions and their markers, put into a log as its own server does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.storage_logs import NOW_MS, PARTITION, batch
from tidelog.client.fetching.batches import Fetched, whole_batches
from tidelog.records.batch import (
    TRANSACTIONAL_BIT,
    BatchHeader,
    Rejected,
    read_header,
    seal_batch,
    walk,
)
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import EndMarker, marker_batch, marker_in
from tidelog.records.record import Record
from tidelog.storage.log.aborted_reading import aborted_between
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.log.stable import last_stable_offset


def transactional(made: bytes) -> bytes:
    """The batch as one of a transaction."""
    header = read_header(made)
    return seal_batch(header._replace(attributes=header.attributes | TRANSACTIONAL_BIT), made[61:])


def marker(producer_id: int, epoch: int, *, committed: bool, coordinator_epoch: int = 0) -> bytes:
    return marker_batch(
        EndMarker(committed, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=epoch,
        leader_epoch=0,
        timestamp_ms=NOW_MS,
    )


def put_own(log: PartitionLog, made: bytes, now_ms: int = NOW_MS) -> int:
    """Append what no client may send; return its first offset."""
    got = log.append_as_leader(made, log.latest_epoch, now_ms, from_client=False)
    assert isinstance(got, Appended), got
    return got.first_offset


def send(
    log: PartitionLog, producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1
) -> int:
    """Append a batch of a transaction; return its first offset."""
    made = batch(count, producer=Producer(producer_id, epoch, sequence))
    return put_own(log, transactional(made))


def send_keys(
    log: PartitionLog,
    producer_id: int,
    sequence: int,
    *pairs: tuple[str, str | None],
    epoch: int = 0,
    now_ms: int = NOW_MS,
) -> int:
    """Append a batch of a transaction with these keys and values; return its first offset."""
    made = batch_of_keys(producer_id, sequence, *pairs, epoch=epoch, now_ms=now_ms)
    return put_own(log, made, now_ms)


def batch_of_keys(
    producer_id: int,
    sequence: int,
    *pairs: tuple[str, str | None],
    epoch: int = 0,
    now_ms: int = NOW_MS,
) -> bytes:
    """Return a batch of a transaction with these keys and values."""
    records = [
        NewRecord(now_ms, key.encode(), None if value is None else value.encode())
        for key, value in pairs
    ]
    return transactional(build_batch(records, producer=Producer(producer_id, epoch, sequence)))


def end(
    log: PartitionLog,
    producer_id: int,
    *,
    epoch: int = 0,
    committed: bool = True,
    coordinator_epoch: int = 0,
) -> int:
    """Append a marker; return its offset."""
    return put_own(
        log,
        marker(producer_id, epoch, committed=committed, coordinator_epoch=coordinator_epoch),
    )


def batches_from(
    log: PartitionLog, begin: int | None = None
) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    """The batches of a log from an offset, or its start, and what each says that is a marker."""
    position = log.start_offset if begin is None else begin
    while position < log.end_offset:
        data = log.read(position, 1 << 20)
        assert not isinstance(data, Rejected), data
        for at, header in walk(data):
            position = header.next_offset
            yield header, marker_in(header, data[at : at + header.size])


def stable_by_batches(log: PartitionLog) -> int:
    """The last stable offset as all batches of a log say that has lost none."""
    since: dict[int, int] = {}
    unstable = []
    for header, found in batches_from(log):
        if found is not None and header.producer_id in since:
            first = since.pop(header.producer_id)
            if header.base_offset >= log.high_watermark:
                unstable.append(first)
        elif header.transactional and not header.control and header.record_count:
            since.setdefault(header.producer_id, header.base_offset)
    return min([log.high_watermark, *unstable, *since.values()])


def committed_records(log: PartitionLog, begin: int | None = None) -> list[Record]:
    """What a reader of committed records gets from an offset on, in a few fetches."""
    found: list[Record] = []
    position, stable = log.start_offset if begin is None else begin, last_stable_offset(log)
    while position < stable:
        data = log.read(position, 700, stable)
        assert not isinstance(data, Rejected), data
        records, after, epoch = whole_batches(memoryview(data), position)
        assert after > position, f"nothing at {position}, the stable offset is {stable}"
        aborted = aborted_between(log, position, after)
        assert aborted.end == after
        fetched = Fetched(
            PARTITION,
            position,
            after,
            records,
            log.high_watermark,
            stable,
            log.start_offset,
            [(one.producer_id, one.first_offset) for one in aborted.transactions],
            epoch,
        )
        found += fetched.rows()
        position = after
    return found


class Aborted(NamedTuple):
    """An aborted transaction, as the batches have it."""

    producer_id: int
    first_offset: int
    marker: int


def aborted_in_batches(log: PartitionLog, *, begin: int | None = None) -> list[Aborted]:
    """All aborted transactions of which records are left, by their markers."""
    since: dict[int, int] = {}
    found = []
    for header, ended in batches_from(log, begin):
        if ended is not None:
            first = since.pop(header.producer_id, None)
            if first is not None and not ended.committed:
                found.append(Aborted(header.producer_id, first, header.base_offset))
        elif header.transactional and not header.control and header.record_count:
            since.setdefault(header.producer_id, header.base_offset)
    return found


def check_aborted(log: PartitionLog, source: random.Random, *, ranges: int = 20) -> int:
    """Ask for ranges of offsets; the answers are those of the batches. Return how many there were.

    What began below the log's start may be known or not: a reader gets none of its records.
    Likewise what compaction has taken.
    """
    every = aborted_in_batches(log)
    compacted = log.configs.compacted
    for number in range(ranges):
        begin = source.randrange(log.start_offset, log.end_offset + 1) if number else 0
        limit = source.randrange(begin, log.end_offset + 1) if number else log.end_offset
        found = aborted_between(log, max(begin, log.start_offset), limit).transactions
        got = {(one.producer_id, one.last_offset): one.first_offset for one in found}
        assert len(got) == len(found), found
        assert [one.last_offset for one in found] == sorted(one.last_offset for one in found)
        for one in every:
            if one.first_offset < limit and one.marker >= max(begin, log.start_offset):
                first = got.pop((one.producer_id, one.marker), None)
                assert first is not None, f"{one} is missing from {begin} to {limit}: {found}"
                is_less = first < (one.first_offset if compacted else log.start_offset)
                assert first == one.first_offset or is_less, (one, first)
        more = {at: first for at, first in got.items() if first >= log.start_offset}
        assert compacted or not more, f"{more} from {begin} to {limit} is in no batch"
    return len(every)


def markers_in(log: PartitionLog) -> set[int]:
    """The offsets of all markers."""
    return {header.base_offset for header, ended in batches_from(log) if ended is not None}
