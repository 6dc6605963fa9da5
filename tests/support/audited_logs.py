"""Logs of an audited topic in memory, as their leaders would send them, and an audit of them."""

from __future__ import annotations

from uuid import UUID

from tidelog.cli.auditing.facts import AuditedTopic
from tidelog.cli.auditing.judging import TopicJudge
from tidelog.cli.auditing.reading import ChangesMeanwhile
from tidelog.cli.auditing.snapshot import audited_of
from tidelog.client.fences import DescribedFence, FenceList
from tidelog.client.fetching.batches import Fetched, whole_batches
from tidelog.client.metadata import Partition, Topic
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import Fence
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    seal_batch,
)
from tidelog.records.builder import NO_PRODUCER, NewRecord, Producer, build_batch
from tidelog.records.control_records import (
    ABORT,
    ChangeKind,
    FenceRecord,
    change_batch,
    control_key,
)
from tidelog.records.record import encode_record

INITIAL = 2
NONE = ChangesMeanwhile()


def key_of(home: int, count: int, before: int | None = None, at: int = 2) -> bytes:
    """A key that lies in a partition at a count, and in another one at the count ``at``."""
    keys = (b"k%d" % number for number in range(10_000))
    return next(
        key
        for key in keys
        if partition_of(hash_of_key(key), INITIAL, count) == home
        and (before is None or partition_of(hash_of_key(key), INITIAL, at) == before)
    )


STAYS = key_of(0, 4, before=0)
MOVES = key_of(2, 4, before=0)
"""At home in partition 0 of two partitions, and in 2 of four."""


class Log:
    """The log of one partition, as its leader would send it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.bytes = b""
        self.end = 0
        self.fences: list[DescribedFence] = []
        self.aborted: list[tuple[int, int]] = []

    def add(
        self,
        key: bytes | None,
        *,
        time_ms: int = 1000,
        producer: Producer = NO_PRODUCER,
        value: bytes | None = b"v",
        bits: int = 0,
        offset: int | None = None,
    ) -> None:
        at = self.end if offset is None else offset
        made = build_batch([NewRecord(time_ms, key, value)], base_offset=at, producer=producer)
        header = read_header(made)
        attributes = header.attributes | bits
        self.bytes += seal_batch(header._replace(attributes=attributes), made[HEADER_SIZE:])
        self.end = max(self.end, at + 1)

    def add_all(self, *keys: bytes | None, producer: Producer = NO_PRODUCER) -> None:
        """Several records in one batch."""
        records = [NewRecord(1000, key, b"v") for key in keys]
        self.bytes += build_batch(records, base_offset=self.end, producer=producer)
        self.end += len(keys)

    def fence(self, epoch: int, count: int, *, seal: bool = False, named: bool = True) -> None:
        kind = ChangeKind.SEAL if seal else ChangeKind.FENCE
        made = change_batch(FenceRecord(kind, epoch, count), leader_epoch=0, timestamp_ms=1)
        self.bytes += seal_batch(
            read_header(made)._replace(base_offset=self.end), made[HEADER_SIZE:]
        )
        if named:
            self.fences.append(DescribedFence(Fence(epoch, self.end, self.end), count, seal))
        self.end += 1

    def abort(self, producer_id: int, first: int) -> None:
        record = encode_record(0, 0, control_key(ABORT), b"\0" * 6)
        bits = CONTROL_BIT | TRANSACTIONAL_BIT
        header = BatchHeader(self.end, 0, 0, 2, 0, bits, 0, 1, 1, producer_id, 0, -1, 1)
        self.bytes += seal_batch(header, record)
        self.aborted.append((producer_id, first))
        self.end += 1

    def fetched(self, begin: int = 0) -> Fetched:
        view, next_offset, _ = whole_batches(memoryview(self.bytes), 0)
        where = TopicPartition("t", self.index)
        return Fetched(where, begin, next_offset, view, self.end, self.end, 0, self.aborted)


def topic_of(
    *logs: Log,
    births: dict[int, int] | None = None,
    epoch: int = 0,
    retired: dict[int, int] | None = None,
    bounds: dict[int, tuple[int, int]] | None = None,
    is_counted: bool = True,
) -> AuditedTopic:
    """What metadata and leaders say of a topic with these logs.

    ``bounds``: the log ends of some, where they are not those of the whole log; not
    ``is_counted``: by brokers that say no counts and epochs.
    """
    listed = {
        log.index: Partition(
            log.index, 1, 0, (1,), (1,), (),
            partition_epoch=log.index, birth_epoch=(births or {}).get(log.index, 0),
            retirement_epoch=(retired or {}).get(log.index, -1),
        )
        for log in logs
    }  # fmt: skip
    counts = (INITIAL, len(logs) - len(retired or ()), epoch, 9)
    topic = Topic("t", UUID(int=7), False, listed, 0, *(counts if is_counted else (-1,) * 4))
    fences: dict[int, FenceList] = {log.index: tuple(log.fences) for log in logs}
    ends = {log.index: (0, log.end) for log in logs}
    return audited_of(topic, ends | (bounds or {}), fences)


def judged(
    audited: AuditedTopic,
    *logs: Log,
    most: int = 100,
    by_time: bool = True,
    by_order: bool = True,
    field: str | None = None,
) -> TopicJudge:
    """Read all logs, phase by phase."""
    judge = TopicJudge(audited, most, by_time=by_time, by_order=by_order, field=field)
    for phase in audited.phases():
        for log in logs:
            if log.index in phase:
                judge.take(log.fetched(phase[log.index].begin), phase[log.index])
    return judge


def two() -> tuple[Log, Log]:
    return Log(0), Log(1)


def grown() -> tuple[Log, Log, Log, Log]:
    """A topic of two partitions that has just grown to four."""
    logs = Log(0), Log(1), Log(2), Log(3)
    logs[0].add(STAYS)
    logs[0].add(MOVES)
    for log in logs:
        log.fence(1, 4)
    return logs


BORN = {2: 1, 3: 1}
"""The births of ``grown``."""
