"""Drives a table of groups that transactions write to: a log with producers and markers.

Owns what `group_driver` has not: the log in the form of its batches, and the events of
transactions. ``expected`` says what the groups must have by the log alone, without the rules.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from tests.support.group_driver import GROUP, Driver
from tidelog.groups.events import CommitInTransaction, EndTransaction, MarkerResult
from tidelog.groups.offset_columns import columns_of, one_by_one
from tidelog.groups.records import NO_TOPIC_ID, CommittedOffset, OffsetRecord, decode, encode
from tidelog.groups.table import GroupTable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.control_records import EndMarker

NO_PRODUCER = -1
Positions = dict[tuple[str, TopicPartition], tuple[int, str]]
"""Offset and metadata by group and partition."""


class Entry(NamedTuple):
    """A record of the log, or a marker."""

    key: bytes = b""
    value: bytes | None = None
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    marker: EndMarker | None = None

    @property
    def place(self) -> tuple[str, TopicPartition] | None:
        """The group and the partition of an offset or its tombstone."""
        return None if self.marker is not None else _place(self.key)


@dataclass
class TransactionDriver(Driver):
    """See the module."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.journal: list[Entry] = []

    def commit(self, count: int = 1_000_000) -> None:
        while self.in_flight and count > 0:
            count -= 1
            write = self.in_flight.popleft()
            part = write.transaction
            self.journal += (Entry(*encode(record)) for record in one_by_one(write.records))
            if part is not None:
                producer = part.producer_id, part.producer_epoch
                for record in one_by_one(part.records):
                    self.journal.append(Entry(*encode(record), *producer))
                if part.marker is not None:
                    self.journal.append(Entry(b"", None, *producer, part.marker))
            self.perform(self.table.stored(write, self.now))

    def reloaded(self) -> TransactionDriver:
        """A second coordinator that reads the committed log."""
        other = TransactionDriver(self.settings, self.seed + 1, self.hold, topics=self.topics)
        other.now, other.journal = self.now, list(self.journal)
        for key, value, producer_id, epoch, marker in self.journal:
            if marker is not None:
                other.table.replay_marker(producer_id, epoch, marker, other.now)
            elif producer_id == NO_PRODUCER:
                other.table.replay(key, value, other.now)
            else:
                other.table.replay_in_transaction(producer_id, epoch, key, value, other.now)
        other.serve()
        return other

    def commit_in_transaction(
        self,
        offsets: dict[tuple[str, int], int],
        producer: tuple[int, int] = (1, 0),
        member_id: str = "",
        generation: int = -1,
        *,
        instance_id: str | None = None,
        metadata: str = "",
        group_id: str = GROUP,
        topic_id: UUID = NO_TOPIC_ID,
    ) -> int:
        """Send a TxnOffsetCommit; ``producer`` is its id and epoch."""
        pending_response = self.pending_response()
        values = columns_of(
            (TopicPartition(*at), CommittedOffset(offset, 7, metadata, topic_id=topic_id))
            for at, offset in offsets.items()
        )
        event = CommitInTransaction(
            pending_response, *producer, member_id, instance_id, generation, values, "/127.0.0.1"
        )
        self.send(event, group_id)
        return pending_response

    def late(self, error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> None:
        """The oldest write in flight is not committed in time."""
        self.perform(self.table.delayed(self.in_flight[0], error, self.now))

    def end(
        self, producer: tuple[int, int] = (1, 0), *, committed: bool = True, coordinator: int = 0
    ) -> int:
        """Send a marker."""
        pending_response = self.pending_response()
        event = EndTransaction(pending_response, *producer, committed, coordinator)
        self.perform(self.table.end_transaction(event, self.now))
        return pending_response

    def ended(self, pending_response: int) -> ErrorCode:
        result = self.answers[pending_response]
        assert isinstance(result, MarkerResult)
        return result.error

    @property
    def markers(self) -> list[EndMarker]:
        """The markers in the log."""
        return [entry.marker for entry in self.journal if entry.marker is not None]

    def committed(self) -> Positions:
        """The offsets of all groups that count, of groups that are being removed too."""
        return {
            (group_id, TopicPartition(topic, partition)): (value.offset, value.metadata)
            for group_id in self.table
            if (group := self.table.get(group_id)) is not None
            for topic, partitions in group.offsets.items()
            for partition, value in partitions.items()
        }

    def pending(self) -> dict[int, Positions]:
        """The pending offsets of all groups by producer id."""
        return pending_of(self.table)


def pending_of(table: GroupTable) -> dict[int, Positions]:
    """Return the pending offsets of all groups by producer id."""
    by_producer: dict[int, Positions] = {}
    for group_id in table:
        group = table.get(group_id)
        pending = None if group is None else group.flying.pending
        for producer_id, topics in ({} if pending is None else pending.of_producers()).items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    at = group_id, TopicPartition(topic, partition)
                    by_producer.setdefault(producer_id, {})[at] = value.offset, value.metadata
    return by_producer


def expected(journal: Sequence[Entry]) -> tuple[Positions, dict[int, Positions]]:
    """Return what the groups have by their log: the last record of a partition that counts, and
    the offsets of open transactions that are later than that."""
    verdicts: dict[int, bool] = {}
    last: dict[tuple[str, TopicPartition], int] = {}
    waiting: list[tuple[int, Entry]] = []
    for at, entry in reversed(list(enumerate(journal))):
        if entry.marker is not None:
            verdicts[entry.producer_id] = entry.marker.committed
            continue
        place = entry.place
        if place is None:
            continue
        counts = entry.producer_id == NO_PRODUCER or verdicts.get(entry.producer_id)
        if counts:
            last.setdefault(place, at)
        elif entry.producer_id not in verdicts:
            waiting.append((at, entry))
    pending: dict[int, Positions] = {}
    for at, entry in waiting:
        place = entry.place
        assert place is not None
        if last.get(place, -1) < at:
            pending.setdefault(entry.producer_id, {}).setdefault(place, _position(entry))
    return {
        place: _position(journal[at]) for place, at in last.items() if journal[at].value is not None
    }, pending


def compacted(journal: Sequence[Entry], rng: random.Random) -> list[Entry]:
    """Return the log after a cleaning that stops before the first record of an open transaction.

    Aborted records go, of the others the last with each key stays; a tombstone may go, and a marker
    once no record of its transaction is left.
    """
    ends: dict[int, tuple[int, bool]] = {}
    verdicts: dict[int, tuple[int, bool] | None] = {}
    for at, entry in reversed(list(enumerate(journal))):
        if entry.marker is not None:
            ends[entry.producer_id] = at, entry.marker.committed
        elif entry.producer_id != NO_PRODUCER:
            verdicts[at] = ends.get(entry.producer_id)
    stable = min((at for at, verdict in verdicts.items() if verdict is None), default=len(journal))
    last: dict[bytes, int] = {}
    for at, entry in enumerate(journal[:stable]):
        verdict = verdicts.get(at)
        if entry.marker is None and (verdict is None or verdict[1]):
            last[entry.key] = at
    kept = {at for at in last.values() if journal[at].value is not None or rng.random() < 0.5}
    needed = {verdict[0] for at in kept if (verdict := verdicts.get(at)) is not None}
    # An open transaction is not clean: its own former markers may go, the data after them stays.
    return [
        entry
        for at, entry in enumerate(journal)
        if at >= stable
        or at in kept
        or (entry.marker is not None and (at in needed or rng.random() < 0.5))
    ]


@lru_cache(1_000)
def _place(key: bytes) -> tuple[str, TopicPartition] | None:
    record = decode(key, None)
    if not isinstance(record, OffsetRecord):
        return None
    return record.group_id, TopicPartition(record.topic, record.partition)


def _position(entry: Entry) -> tuple[int, str]:
    record = decode(entry.key, entry.value)
    assert isinstance(record, OffsetRecord) and record.value is not None
    return record.value.offset, record.value.metadata
