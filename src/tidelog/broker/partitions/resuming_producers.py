"""Producers that go on with their sequence in a partition that does not know them (KIP-98).

Owns which of their batches may be the first, the notes that this needs, and their limit. Not the
sequences of known producers: see `storage.log.producers`.

A partition does not know a producer whose first batch it gets, that was silent for too long, or
that knew a former incarnation of the partition or of its topic. Such a batch, with a sequence above
0, may come before an older one that this broker or another has refused or not answered. If it was
taken, the producer would take the older one for stored (librdkafka), or lose it for good.

| the batch of an unknown producer                          | result                              |
|-----------------------------------------------------------|-------------------------------------|
| begins with sequence 0                                    | appended: the log does not ask here |
| the first one that begins above 0                         | refused, to be sent again; noted    |
| begins at the lowest sequence that was refused, or below  | appended                            |
| begins above it                                           | refused, to be sent again           |
| begins above it, ``GIVEN_UP_MS`` after the note           | refused, to be sent again; noted    |

The retry is the proof: a producer whose batch was refused for now sends nothing new before all its
batches in flight have an outcome, wherever they are, and then the lowest one first (decision 0100).
A note is of one leadership without a break: another leader may have refused older batches since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import HEADER_SIZE, MAX_INT32, Buffer, Rejected, read_header
from tidelog.storage.log.producers import RESUMES
from tidelog.storage.log.results import Appended

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.runtime.clock import Clock

MOST_NOTED = 50_000
"""Most notes of a broker, 15 MB. A producer whose note went is refused once more: the broker cannot
refuse so many batches within the pause of a retry."""

GIVEN_UP_MS = 120_000
"""Kafka's default of ``delivery.timeout.ms``: then no producer sends the lower batch again."""

Resumed = tuple[TopicPartition, UUID, int, int, int]
"""The partition, its topic's id, its leadership's first epoch, the producer's id and epoch."""


def is_at_or_below(sequence: int, other: int) -> bool:
    """Return whether a sequence is not after another; after the greatest comes 0."""
    return (other - sequence) & MAX_INT32 <= MAX_INT32 // 2


class ResumingProducers:
    """The notes of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notes: OrderedDict[Resumed, tuple[int, int]] = OrderedDict()
        """The lowest sequence refused, and when it was noted; the oldest note first."""

    def __len__(self) -> int:
        return len(self._notes)

    def may_begin(self, resumed: Resumed, sequence: int) -> bool:
        """Return whether a batch may be a producer's first; otherwise it is noted as refused."""
        now_ms = self._clock.monotonic_ms()
        note = self._notes.get(resumed)
        if note is not None:
            lowest, noted_ms = note
            if is_at_or_below(sequence, lowest):
                return True
            if now_ms - noted_ms < GIVEN_UP_MS:
                return False
        self._notes[resumed] = sequence, now_ms
        self._notes.move_to_end(resumed)
        if len(self._notes) > MOST_NOTED:
            self._notes.popitem(last=False)
        return False

    def refused(self, resumed: Resumed, sequence: int, *, final: bool) -> None:
        """Note that a batch of a producer with a note was refused, for whatever reason."""
        note = self._notes.get(resumed)
        if note is None:
            return
        if final:
            self.forget(resumed)  # its producer does not send it again: the next one may be first
        elif is_at_or_below(sequence, note[0]):
            self._notes[resumed] = sequence, note[1]

    def forget(self, resumed: Resumed) -> None:
        """Forget a producer that the partition knows now."""
        self._notes.pop(resumed, None)

    # -- for a partition's appends

    def append(
        self,
        partition: HostedPartition,
        records: Buffer,
        append: Callable[[], Appended | Rejected],
    ) -> Appended | Rejected:
        """Append a batch that its partition refused with ``RESUMES``, if it may be the first of its
        producer. ``append`` appends it as such."""
        header = read_header(records)
        resumed = _resumed(partition, header.producer_id, header.producer_epoch)
        if not self.may_begin(resumed, header.base_sequence):
            sentence = (
                f"{partition.key} does not know producer {header.producer_id}, which goes on with "
                f"sequence {header.base_sequence}: send it again, after all before it"
            )
            return Rejected(RESUMES.error, sentence)
        result = append()
        if isinstance(result, Appended):
            self.forget(resumed)
        return result

    def note_refusal(self, partition: HostedPartition, records: Buffer, error: ErrorCode) -> None:
        """Note a client's batch that a leader refused, if its producer has a note."""
        if not self._notes or len(records) < HEADER_SIZE:
            return
        header = read_header(records)
        if header.producer_id >= 0:
            resumed = _resumed(partition, header.producer_id, header.producer_epoch)
            self.refused(resumed, header.base_sequence, final=not error.retriable)


def _resumed(partition: HostedPartition, producer_id: int, producer_epoch: int) -> Resumed:
    leadership = partition.leadership
    since = -1 if leadership is None else leadership.since
    return partition.key, partition.topic_id, since, producer_id, producer_epoch
