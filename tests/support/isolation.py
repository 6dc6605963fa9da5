"""Transactions in a partition that a broker hosts, and what readers of each isolation level get."""

from __future__ import annotations

from typing import Any

from tests.support.storage_logs import NOW_MS, batch
from tests.support.transactional_logs import batches_from, transactional
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import Producer
from tidelog.records.control_records import EndMarker, marker_batch, marker_in
from tidelog.storage.log.partition_log import PartitionLog

UNCOMMITTED, COMMITTED = 0, 1


class Transactions:
    """Appends to one partition, as its leader does it or as a follower of another one; each batch
    has a timestamp of its own, ``NOW_MS`` plus its offset."""

    def __init__(self, hosted: HostedPartition, size: int = 20) -> None:
        self.hosted = hosted
        self.size = size
        self._sequences: dict[int, int] = {}

    def plain(self, size: int | None = None) -> int:
        return self.put(self._batch(size))

    def data(self, producer_id: int, size: int | None = None) -> int:
        """Append a record of the producer's transaction, which begins with the first one."""
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        return self.put(transactional(self._batch(size, Producer(producer_id, 0, sequence))))

    def commit(self, producer_id: int) -> int:
        return self._end(producer_id, committed=True)

    def abort(self, producer_id: int) -> int:
        return self._end(producer_id, committed=False)

    def put(self, made: bytes) -> int:
        """Append a batch; where this broker leads alone or follows, it is committed at once."""
        hosted = self.hosted
        if hosted.is_leader:
            got = hosted.append(made, NOW_MS, from_client=False)
        else:
            log = hosted.log
            got = log.append_as_leader(made, log.latest_epoch, NOW_MS, from_client=False)
            hosted.replicated(len(made), log.end_offset)
        assert not isinstance(got, Rejected), got
        return got.first_offset

    def _batch(self, size: int | None, *producer: Producer) -> bytes:
        at = NOW_MS + self.hosted.end_offset
        options: Any = {"producer": producer[0]} if producer else {}
        return batch(1, timestamp=at, size=self.size if size is None else size, **options)

    def _end(self, producer_id: int, *, committed: bool) -> int:
        return self.put(
            marker_batch(
                EndMarker(committed, 0),
                producer_id=producer_id,
                producer_epoch=0,
                leader_epoch=0,
                timestamp_ms=NOW_MS + self.hosted.end_offset,
            )
        )


def aborted_in(part: Any) -> list[tuple[int, int]] | None:
    """Producer id and first offset of each aborted transaction of a partition's response."""
    found = part.aborted_transactions
    return None if found is None else [(one.producer_id, one.first_offset) for one in found]


def kept_by_client(part: Any) -> list[int]:
    """The offsets of the batches that a client of committed records keeps, by Kafka's rule."""
    starts = sorted(aborted_in(part) or (), key=lambda one: one[1])
    aborting: set[int] = set()
    kept = []
    for at, header in walk(part.records):
        while starts and starts[0][1] <= header.last_offset:
            aborting.add(starts.pop(0)[0])
        ended = marker_in(header, part.records[at : at + header.size])
        if header.control:
            if ended is not None and not ended.committed:
                aborting.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in aborting):
            kept.append(header.base_offset)
    return kept


def committed_in(log: PartitionLog, end: int) -> list[int]:
    """The offsets of all batches below ``end`` that are no marker and in no aborted or open
    transaction, as the batches of the log say it."""
    since: dict[int, list[int]] = {}
    kept: set[int] = set()
    for header, ended in batches_from(log):
        if ended is not None:
            batches = since.pop(header.producer_id, [])
            kept |= set(batches if ended.committed else ())
        elif header.transactional:
            since.setdefault(header.producer_id, []).append(header.base_offset)
        else:
            kept.add(header.base_offset)
    return sorted(offset for offset in kept if offset < end)
