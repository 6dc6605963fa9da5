"""Batches of transactions and their markers, put into a log as its own server does."""

from __future__ import annotations

from tests.support.storage_logs import NOW_MS, batch
from tidelog.records.batch import TRANSACTIONAL_BIT, Rejected, read_header, seal_batch, walk
from tidelog.records.builder import Producer
from tidelog.records.control_records import EndMarker, marker_batch, marker_in
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended


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


def stable_by_batches(log: PartitionLog) -> int:
    """The last stable offset as all batches of a log say that has lost none."""
    since: dict[int, int] = {}
    unstable = []
    position = log.start_offset
    while position < log.end_offset:
        data = log.read(position, 1 << 20)
        assert not isinstance(data, Rejected), data
        for at, header in walk(data):
            position = header.next_offset
            found = marker_in(header, data[at : at + header.size])
            if found is not None and header.producer_id in since:
                first = since.pop(header.producer_id)
                if header.base_offset >= log.high_watermark:
                    unstable.append(first)
            elif header.transactional and not header.control:
                since.setdefault(header.producer_id, header.base_offset)
    return min([log.high_watermark, *unstable, *since.values()])
