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

Source: KIP-98, KIP-360, as Apache Kafka's present leader applies them (UNKNOWN_PRODUCER_ID is no
longer given), but for ``RESUMES``, which Kafka appends: `broker.partitions.resuming_producers`.
Snapshot: Kafka's version 1; a producer has one entry per remembered batch there,
oldest first (Kafka writes one, and reads ours: its last entry wins), so that a retry of an older
batch is answered rightly after a restart too.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.records.batch import CONTROL_BIT, MAX_INT32, NO_SEQUENCE, HeaderFields, Rejected
from tidelog.records.crc import crc32c
from tidelog.storage.checkpoints import DamagedFile

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
_WHOSE = struct.Struct(">qh16xq12x")
_as_known = tuple.__new__

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

    __slots__ = ("_batches", "_stored", "epoch", "last_ms", "moment", "producer_id")

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
        return b"".join(
            [
                _pack(producer_id, epoch, sequence, last, last - first, appended_ms, -1, -1)
                for _, sequence, first, last, appended_ms in batches
            ]
        )


class ProducerState:
    """All producers of one partition, ``limit`` at most: one more, and the one that has been idle
    for the longest is forgotten (no transaction is ever open below level 2).

    Memory grows with the producers seen within the expiry, up to the limit.
    """

    __slots__ = ("_moment", "entries", "forgotten", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = MAX_PRODUCERS if limit is None else limit
        self.entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        """By producer id, the longest idle first."""
        self.forgotten = 0
        """How many producers were forgotten for the limit."""
        self._moment = 0

    def judge(self, header: HeaderFields) -> KnownBatch | Rejected | None:
        """Judge a client's batch: a duplicate (which one), refused, or to be appended (None)."""
        _, _, _, _, _, _, delta, _, _, producer_id, epoch, first, _ = header
        entry = self.entries.get(producer_id)
        if entry is None:
            # Whether it begins, or leaves a gap, is not known here: only a retry proves it (0100).
            return RESUMES if first > 0 else None
        if epoch == entry.epoch:
            batches = entry._batches or entry.batches
            last = batches[-1].last_sequence if batches else NO_SEQUENCE
            if first == last + 1 or (first == 0 and last == MAX_INT32):
                return None
            last = NO_SEQUENCE if first < 0 else (first + delta) & MAX_INT32
            for batch in batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
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
        return None

    def note(self, header: HeaderFields, first_offset: int, appended_ms: int) -> None:
        """Remember a batch that was appended at ``first_offset``."""
        # Not by the properties of a header: a start after a crash notes millions.
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, first, _ = header
        if attributes & CONTROL_BIT:
            return
        last = NO_SEQUENCE if first < 0 else (first + delta) & MAX_INT32
        batch = _as_known(
            KnownBatch, (first, last, first_offset, first_offset + delta, appended_ms)
        )
        entries = self.entries
        entry = entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            if entry is None and len(entries) >= self.limit:
                self.forget_longest_idle()
            entry = ProducerEntry(producer_id, epoch, [batch], appended_ms, self._moment)
            entries[producer_id] = entry
        else:
            batches = entry._batches or entry.batches
            if entry.moment != self._moment:
                # A thread may be encoding the former one.
                batches = batches.copy()
                entry = ProducerEntry(producer_id, epoch, batches, appended_ms, self._moment)
                entries[producer_id] = entry
            batches.append(batch)
            entry.last_ms = appended_ms
            if len(batches) > BATCHES_REMEMBERED:
                del batches[0]
        entries.move_to_end(producer_id)

    def follow(self, later: ProducerState, from_offset: int) -> None:
        """Add the batches of ``later`` from an offset on, as if they were noted here.

        ``later`` was noted separately.
        """
        self.forgotten += later.forgotten
        for producer_id, entry in later.entries.items():
            batches = [batch for batch in entry.batches if batch.first_offset >= from_offset]
            if not batches:
                continue
            former = self.entries.pop(producer_id, None)
            if former is not None and former.epoch == entry.epoch:
                batches = [*former.batches, *batches][-BATCHES_REMEMBERED:]
            elif former is None and len(self.entries) >= self.limit:
                self.forget_longest_idle()
            self.entries[producer_id] = ProducerEntry(
                producer_id, entry.epoch, batches, entry.last_ms, self._moment
            )

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
        while self.entries and count < at_most:
            longest_idle = next(iter(self.entries.values()))
            if longest_idle.last_ms > before_ms:
                break
            self.entries.popitem(last=False)
            count += 1
        return count

    @property
    def idle_since_ms(self) -> int:
        """When the longest idle producer sent its last batch; there is one."""
        return next(iter(self.entries.values())).last_ms

    def forget_longest_idle(self) -> None:
        """Forget one producer, for a limit; there is one."""
        self.entries.popitem(last=False)
        self.forgotten += 1

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
        if len(entries) > state.limit:
            state.forgotten = len(entries) - state.limit
        recent = entries[state.forgotten :]
        state.entries = OrderedDict((entry.producer_id, entry) for entry in recent)
        return state


def forgotten_beyond(limit: int, states: Sequence[ProducerState]) -> Work[None]:
    """Forget the longest idle producers of all states until these have ``limit`` together.

    In turns; grows with the states, and with what is forgotten.
    """
    surplus = sum(len(state.entries) for state in states) - limit
    if surplus <= 0:
        return
    heap = [(state.idle_since_ms, place) for place, state in enumerate(states) if state.entries]
    heapify(heap)
    for _ in range(surplus):
        yield None
        # Meanwhile it may have sent again, or have been forgotten.
        while heap and not _is_at_head(states[heap[0][1]], heap[0][0]):
            _next_of(states, heap)
        if not heap:
            return
        states[heap[0][1]].forget_longest_idle()
        _next_of(states, heap)


def _is_at_head(state: ProducerState, idle_since_ms: int) -> bool:
    return bool(state.entries) and state.idle_since_ms == idle_since_ms


def _next_of(states: Sequence[ProducerState], heap: list[tuple[int, int]]) -> None:
    """Sort the state at the head again, by its present longest idle producer."""
    place = heap[0][1]
    if states[place].entries:
        heapreplace(heap, (states[place].idle_since_ms, place))
    else:
        heappop(heap)


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
    for producer_id, epoch, appended_ms in _WHOSE.iter_unpack(content):
        stored = content[position : position + size]
        position += size
        entry = entries.get(producer_id)
        if entry is None:
            entries[producer_id] = ProducerEntry(producer_id, epoch, None, appended_ms, 0, stored)
        else:
            entry.epoch = epoch
            entry.last_ms = max(entry.last_ms, appended_ms)
            entry._stored += stored
    return sorted(entries.values(), key=attrgetter("last_ms"))


def _known_batches(stored: bytes, epoch: int) -> list[KnownBatch]:
    batches = []
    for _, of_epoch, last, last_offset, delta, appended_ms, _, _ in _ENTRY.iter_unpack(stored):
        if of_epoch == epoch and last != NO_SEQUENCE:
            first = (last - delta) & MAX_INT32
            batches.append(KnownBatch(first, last, last_offset - delta, last_offset, appended_ms))
    return batches[-BATCHES_REMEMBERED:]
