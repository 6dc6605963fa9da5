"""The state of a partition's idempotent producers, and the rules of their sequences.

Owns the last five batches of each producer and their snapshot format. Pure. Not the files: see
`snapshots`. Entries that were copied for a snapshot no longer change, so that a thread can encode
them while appends continue; an entry of a snapshot is decoded when its producer sends again.

| the batch's first sequence                              | result                           |
|---------------------------------------------------------|----------------------------------|
| one of the last five batches, same epoch                | duplicate, its first offset      |
| epoch older than the producer's                         | INVALID_PRODUCER_EPOCH           |
| newer epoch, sequence 0                                 | appended                         |
| newer epoch, other sequence                             | OUT_OF_ORDER_SEQUENCE_NUMBER     |
| producer unknown, sequence 0                            | appended                         |
| producer unknown (expired, or its records are gone),    | ``RESUMES``: the caller decides  |
| other sequence                                          | whether it may be the first      |
| last sequence + 1 (0 after 2^31 - 1)                    | appended                         |
| anything else                                           | OUT_OF_ORDER_SEQUENCE_NUMBER     |
| plain, while a transaction of the producer is open      | INVALID_TXN_STATE, as the last   |

Source: KIP-98, KIP-360, as Apache Kafka's present leader applies them (UNKNOWN_PRODUCER_ID is no
longer given), but for ``RESUMES``, which Kafka appends: `broker.partitions.resuming_producers`.
Snapshot: Kafka's version 1; a producer has one entry per remembered batch there,
oldest first (Kafka writes one, and reads ours: its last entry wins), so that a retry of an older
batch is answered rightly after a restart too. All entries of a producer name its open transaction.

| a batch of a transaction (KIP-98, 0118)     | what follows                                   |
|---------------------------------------------|------------------------------------------------|
| records, none of the producer's is open     | a transaction is open from its first offset on |
| without records: the cleaner emptied it     | nothing: what it belonged to is decided        |
| a marker                                    | the open one ends; a newer epoch is taken over |
| a control batch without a marker            | nothing                                        |
| records of an older epoch, on a follower    | as above; the epoch that is known stays (0118) |

A producer with an open transaction is not forgotten, by time or for a limit.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import (
    CONTROL_BIT,
    MAX_INT32,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    HeaderFields,
    Rejected,
)
from tidelog.records.control_records import marker_in
from tidelog.records.crc import crc32c
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.log.joining import NONE, why_not_plain
from tidelog.storage.log.transaction_events import TransactionEvents
from tidelog.storage.log.transactions import EndedTransaction, OpenTransactions, TransactionEvent

BATCHES_REMEMBERED = 5
"""A client may have five requests in flight (``max.in.flight.requests.per.connection``)."""

MAX_PRODUCERS = 100_000
"""Limit for one partition: 50 MB with one batch each, 155 MB with five. Each start of a producer
adds one until it expires."""

MAX_PRODUCERS_OF_ALL = 300_000
"""Limit for all replicas of a process together: 150 to 465 MB."""

SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_pack = _ENTRY.pack
"""Producer, epoch, last sequence and offset, offset delta, time, coordinator epoch and first offset
of its transaction (both -1: none)."""
_WHOSE = struct.Struct(">qh16xqiq")
_as_known = tuple.__new__

_OF_TRANSACTION = TRANSACTIONAL_BIT | CONTROL_BIT

MOST_PASSED_OVER = 100
"""So many producers with open transactions are passed over in one search for the longest idle."""

RESUMES = Rejected(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "its producer is unknown, and goes on with its sequence"
)
"""Refused for now, with nothing done: an older batch may be on its way."""


class KnownBatch(NamedTuple):
    """One batch of a producer. ``appended_ms`` is when this log took it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    appended_ms: int


class ProducerEntry:
    """One producer's epoch and its last batches, oldest first."""

    __slots__ = (
        "_batches",
        "_stored",
        "coordinator_epoch",
        "epoch",
        "last_marker",
        "last_ms",
        "moment",
        "open_since",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int,
        batches: list[KnownBatch] | None,
        last_ms: int,
        moment: int = 0,
        stored: bytes = b"",
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_ms = last_ms
        self.moment = moment
        """The moment of ``ProducerState`` that made it: an entry of an earlier one may be
        copied."""
        self._batches = batches
        self._stored = stored
        """The batches as a snapshot has them, until they are decoded."""
        self.coordinator_epoch = NONE
        """Of the last marker."""
        self.last_marker = NONE
        """The offset of the last marker since the log was opened: snapshots have none."""
        self.open_since = NONE
        """The first offset of its open transaction."""

    @property
    def batches(self) -> list[KnownBatch]:
        batches = self._batches
        if batches is None:
            batches = self._batches = _known_batches(self._stored, self.epoch)
        return batches

    @property
    def last_sequence(self) -> int:
        batches = self.batches
        return batches[-1].last_sequence if batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        batches = self.batches
        return batches[-1].last_offset if batches else -1

    def encoded(self) -> bytes:
        """Return its entries in a snapshot."""
        batches = self._batches
        if batches is None:
            return self._stored
        producer_id, epoch = self.producer_id, self.epoch
        end = self.coordinator_epoch, self.open_since
        if not batches:
            return _pack(producer_id, epoch, NO_SEQUENCE, -1, 0, self.last_ms, *end)
        return b"".join(
            [
                _pack(producer_id, epoch, sequence, last, last - first, appended_ms, *end)
                for _, sequence, first, last, appended_ms in batches
            ]
        )

    def changed(self, moment: int, epoch: int, at_ms: int) -> ProducerEntry:
        """Return an entry that may be changed at ``moment``: itself, or a copy. A newer epoch has
        no batches."""
        batches = self.batches
        if epoch == self.epoch and moment == self.moment:
            self.last_ms = at_ms
            return self
        batches = batches.copy() if epoch == self.epoch else []
        entry = ProducerEntry(self.producer_id, epoch, batches, at_ms, moment)
        entry.coordinator_epoch, entry.open_since = self.coordinator_epoch, self.open_since
        entry.last_marker = self.last_marker
        return entry


class ProducerState:
    """All producers of one partition, ``limit`` at most: one more, and the one that has been idle
    for the longest is forgotten, of those that have no transaction open.

    Memory grows with the producers seen within the expiry, up to the limit.
    """

    __slots__ = ("_moment", "entries", "events", "forgotten", "limit", "transactions")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = MAX_PRODUCERS if limit is None else limit
        self.entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        """By producer id, the longest idle first."""
        self.forgotten = 0
        """How many producers were forgotten for the limit."""
        self.transactions = OpenTransactions()
        self.events: TransactionEvents | None = None
        """What ``note`` finds of transactions, for ``follow``; None where nothing follows."""
        self._moment = 0

    def judge(self, header: HeaderFields) -> KnownBatch | Rejected | None:
        """Judge a client's batch: a duplicate (which one), refused, or to be appended (None)."""
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, first, _ = header
        entry = self.entries.get(producer_id)
        if entry is None:
            # Whether it begins, or leaves a gap, is not known here: only a retry proves it (0100).
            return RESUMES if first > 0 else None
        if epoch == entry.epoch:
            batches = entry._batches or entry.batches
            last = batches[-1].last_sequence if batches else NO_SEQUENCE
            if first == last + 1 or (first == 0 and last == MAX_INT32):
                return None if entry.open_since == NONE else why_not_plain(entry, attributes)
            last = NO_SEQUENCE if first < 0 else (first + delta) & MAX_INT32
            for batch in batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
            if not batches and first > 0:
                return why_not_plain(entry, attributes) or RESUMES  # only a marker is known
            return Rejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {first} after {entry.last_sequence}",
            )
        if epoch < entry.epoch:
            return Rejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {entry.epoch}, not {epoch}",
            )
        if first != 0:
            return Rejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins epoch {epoch} with sequence {first}",
            )
        return why_not_plain(entry, attributes)

    def note(
        self, header: HeaderFields, first_offset: int, appended_ms: int, batch: Buffer = b""
    ) -> EndedTransaction | None:
        """Remember a batch that was appended at ``first_offset``; return what its marker ended.

        ``batch``: its bytes, for which only a control batch is asked.
        """
        # Not by the properties of a header: a start after a crash notes millions.
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, first, count = header
        if attributes & _OF_TRANSACTION:
            if attributes & CONTROL_BIT:
                return self._note_control(header, first_offset, appended_ms, batch)
            plain = _as_known(BatchHeader, header)._replace(attributes=0)
            self.note(plain, first_offset, appended_ms)
            if count:
                self._carry_out(TransactionEvent(first_offset, producer_id, epoch, appended_ms))
            return None
        last = NO_SEQUENCE if first < 0 else (first + delta) & MAX_INT32
        batch_of = _as_known(
            KnownBatch, (first, last, first_offset, first_offset + delta, appended_ms)
        )
        entries = self.entries
        entry = entries.get(producer_id)
        if entry is None:
            self._make_room()
            entry = ProducerEntry(producer_id, epoch, [batch_of], appended_ms, self._moment)
            entries[producer_id] = entry
        elif epoch < entry.epoch:
            # Its leader did not know the newer epoch: it must not end what that one fences.
            return None
        elif entry.epoch != epoch:
            entry = entry.changed(self._moment, epoch, appended_ms)
            entry.batches.append(batch_of)
            entries[producer_id] = entry
        else:
            batches = entry._batches or entry.batches
            if entry.moment != self._moment:
                # A thread may be encoding the former one.
                entry = entries[producer_id] = entry.changed(self._moment, epoch, appended_ms)
                batches = entry.batches
            batches.append(batch_of)
            entry.last_ms = appended_ms
            if len(batches) > BATCHES_REMEMBERED:
                del batches[0]
        entries.move_to_end(producer_id)
        return None

    def _note_control(
        self, header: HeaderFields, offset: int, appended_ms: int, batch: Buffer
    ) -> EndedTransaction | None:
        marker = marker_in(_as_known(BatchHeader, header), batch)
        if marker is None:
            return None
        end = marker.coordinator_epoch, marker.committed
        return self._carry_out(TransactionEvent(offset, header[9], header[10], appended_ms, *end))

    def _carry_out(self, event: TransactionEvent) -> EndedTransaction | None:
        """Let a transaction begin or end; one that is open does not begin again."""
        entry = self.entries.get(event.producer_id)
        if entry is None:
            self._make_room()
            entry = ProducerEntry(event.producer_id, event.epoch, [], event.at_ms)
        if event.marker_epoch is None:
            if entry.open_since == NONE:
                entry = self._changed(entry, entry.epoch, entry.last_ms)
                entry.open_since = event.offset
                self.transactions.begin(event.offset)
                if self.events is not None:
                    self.events.begun(event)
            return None
        if self.events is not None:
            self.events.ended(event, entry.open_since)
            self.transactions.first_unstable(self.events.high_watermark)
        entry = self._changed(entry, max(entry.epoch, event.epoch), event.at_ms)
        self.entries.move_to_end(event.producer_id)
        entry.coordinator_epoch, entry.last_marker = event.marker_epoch, event.offset
        first, entry.open_since = entry.open_since, NONE
        if first == NONE:
            return None
        stable = self.transactions.end(first, event.offset, event.at_ms)
        return EndedTransaction(event.producer_id, first, event.offset, stable, event.committed)

    def _changed(self, entry: ProducerEntry, epoch: int, at_ms: int) -> ProducerEntry:
        entry = entry.changed(self._moment, epoch, at_ms)
        self.entries[entry.producer_id] = entry
        return entry

    def _make_room(self) -> None:
        """Let there be room for one more producer, if need be by forgetting others."""
        while len(self.entries) >= self.limit and self.forget_longest_idle():
            pass

    def follow(self, later: ProducerState, from_offset: int) -> None:
        """Add the batches of ``later`` from an offset on, as if they were noted here.

        ``later`` was noted separately, with its ``events``, and has forgotten no producer.
        """
        for producer_id, entry in later.entries.items():
            batches = [batch for batch in entry.batches if batch.first_offset >= from_offset]
            former = self.entries.get(producer_id)
            if not batches or (former is not None and former.epoch > entry.epoch):
                continue
            self.entries.pop(producer_id, None)
            if former is not None and former.epoch == entry.epoch:
                batches = [*former.batches, *batches][-BATCHES_REMEMBERED:]
            elif former is None:
                self._make_room()
            followed = ProducerEntry(producer_id, entry.epoch, batches, entry.last_ms, self._moment)
            if former is not None:
                followed.coordinator_epoch = former.coordinator_epoch
                followed.open_since = former.open_since
            self.entries[producer_id] = followed
        for event in later.events or ():
            if event.offset >= from_offset:
                self._carry_out(event)

    def copy_of(self, producer_ids: set[int]) -> ProducerState:
        """Return a copy with these producers, to judge several batches in sequence."""
        copy = ProducerState()
        copy._moment = -1  # so that nothing of this one is changed
        for producer_id in producer_ids & self.entries.keys():
            copy.entries[producer_id] = self.entries[producer_id]
        return copy

    def expire(self, before_ms: int, at_most: int = MAX_PRODUCERS) -> int:
        """Forget producers silent since ``before_ms``, the longest idle first; return how many.

        Grows with their number.
        """
        count = 0
        while count < at_most:
            longest_idle = self._longest_idle()
            if longest_idle is None or longest_idle.last_ms > before_ms:
                break
            self.entries.popitem(last=False)
            count += 1
        return count

    def discard(self) -> bool:
        """Discard one producer of a state that is of use no longer; False when there is none."""
        if self.entries:
            self.entries.popitem()
        return bool(self.entries)

    @property
    def idle_since_ms(self) -> int | None:
        """When the producer that may be forgotten next sent its last batch; None without one."""
        longest_idle = self._longest_idle()
        return None if longest_idle is None else longest_idle.last_ms

    def forget_longest_idle(self) -> bool:
        """Forget one producer, for a limit; False when none may be."""
        if self._longest_idle() is None:
            return False
        self.entries.popitem(last=False)
        self.forgotten += 1
        if self.events is not None:
            self.events.clear()  # nothing follows a state that does not know all
        return True

    def _longest_idle(self) -> ProducerEntry | None:
        """Return the producer at the head, after those with open transactions went to the end.

        None without another, or when too many were passed over: the next call goes on.
        """
        entries = self.entries
        for _ in range(min(len(entries), MOST_PASSED_OVER)):
            head = next(iter(entries.values()))
            if head.open_since == NONE:
                return head
            # It is not forgotten before its marker, which lets it begin to be idle.
            entries.move_to_end(head.producer_id)
        return None

    def copied(self) -> list[ProducerEntry]:
        """Return all entries, in no order: 0.5 ms for 100,000 producers.

        ``encode`` makes it a snapshot, in any thread.
        """
        # From here on a change makes a new entry: a thread encodes these.
        self._moment += 1
        # By the plain dictionary: an OrderedDict's own values() follow its order, ten times slower.
        return list(dict.values(self.entries))

    @classmethod
    def decode(cls, content: bytes) -> ProducerState:
        """Return the state in a snapshot; DamagedFile for a torn or foreign one."""
        if len(content) < _SNAPSHOT_HEAD.size + _COUNT.size:
            raise DamagedFile("a producer snapshot is cut short")
        version, crc = _SNAPSHOT_HEAD.unpack_from(content)
        body = memoryview(content)[_SNAPSHOT_HEAD.size :]
        if version != SNAPSHOT_VERSION or crc32c(body) != crc:
            raise DamagedFile("a producer snapshot with a wrong version or CRC")
        (count,) = _COUNT.unpack_from(body)
        if len(body) != _COUNT.size + count * _ENTRY.size:
            raise DamagedFile("a producer snapshot of a wrong length")
        entries = _decoded(content[_SNAPSHOT_HEAD.size + _COUNT.size :])
        state = cls()
        surplus = max(0, len(entries) - state.limit)
        kept = [entry for entry in entries[:surplus] if entry.open_since != NONE]
        state.forgotten = surplus - len(kept)
        recent = kept + entries[surplus:]
        state.entries = OrderedDict((entry.producer_id, entry) for entry in recent)
        state.transactions = OpenTransactions(
            entry.open_since for entry in recent if entry.open_since != NONE
        )
        return state


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of a snapshot file."""
    encoded = b"".join([entry.encoded() for entry in entries])
    body = _COUNT.pack(len(encoded) // _ENTRY.size) + encoded
    return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def _decoded(content: bytes) -> list[ProducerEntry]:
    """Return the producers of a snapshot's entries, the longest idle first.

    Their batches stay as they are: about 1 µs for each producer.
    """
    entries: dict[int, ProducerEntry] = {}
    size = _ENTRY.size
    position = 0
    for producer_id, epoch, appended_ms, coordinator_epoch, open_since in _WHOSE.iter_unpack(
        content
    ):
        stored = content[position : position + size]
        position += size
        entry = entries.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id, epoch, None, appended_ms, 0, stored)
            entries[producer_id] = entry
        else:
            entry.epoch = epoch
            entry.last_ms = max(entry.last_ms, appended_ms)
            entry._stored += stored
        if coordinator_epoch != NONE or open_since != NONE or entry.coordinator_epoch != NONE:
            entry.coordinator_epoch, entry.open_since = coordinator_epoch, open_since
    return sorted(entries.values(), key=attrgetter("last_ms"))


def _known_batches(stored: bytes, epoch: int) -> list[KnownBatch]:
    batches = []
    for _, of_epoch, last, last_offset, delta, appended_ms, _, _ in _ENTRY.iter_unpack(stored):
        if of_epoch == epoch and last != NO_SEQUENCE:
            first = (last - delta) & MAX_INT32
            batches.append(KnownBatch(first, last, last_offset - delta, last_offset, appended_ms))
    return batches[-BATCHES_REMEMBERED:]
