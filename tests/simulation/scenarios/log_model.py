"""What the log scenario remembers about each partition and producer, beside the product.

Owns the books: what was appended where, what a sync has claimed, what a producer still has to send
again. Calls nothing of the product but the batch builder, and a log for its leader epochs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.simulation.history import EpochAnswer, History, Outcome, Recovery, Write
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.storage.log.partition_log import PartitionLog

REMEMBERED = 5
"""Batches of a producer that may be sent again, as many as may be in flight."""


@dataclass
class Batch:
    """One batch of one producer. ``offset`` is -1 until an append has returned."""

    writes: list[Write]
    content: bytes
    offset: int = -1
    acked: bool = False


@dataclass
class ModelProducer:
    """An idempotent producer of one partition."""

    producer_id: int
    name: str
    sequence: int = 0
    number: int = 0
    outbox: list[Batch] = field(default_factory=list)
    """Not acked yet, in order: sent again after a refusal or a restart."""
    answered: list[Batch] = field(default_factory=list)

    @property
    def next_to_append(self) -> Batch | None:
        """The first batch that no append of this life has taken."""
        return next((batch for batch in self.outbox if batch.offset < 0), None)

    def acked(self, batch: Batch) -> None:
        """A batch is answered: it may still be sent once more by a confused network."""
        self.outbox.remove(batch)
        self.answered = [*self.answered, batch][-REMEMBERED:]

    def forget_offsets(self) -> None:
        """A restart or a truncation: what was not acked must be sent again."""
        for batch in self.outbox:
            batch.offset = -1


@dataclass
class ModelPartition:
    """One partition: everything ever appended, and what was promised about it."""

    partition: TopicPartition
    configs: TopicConfigs
    producers: list[ModelProducer]
    records: dict[int, bytes] = field(default_factory=dict)
    end: int = 0
    start: int = 0
    """Deleted on purpose below this."""
    claimed: int = 0
    """Everything below was in the log when a sync of it returned."""
    in_doubt: list[bytes] = field(default_factory=list)
    """Values of the append that is under way."""
    removing: bool = False
    """Retention, DeleteRecords or compaction is under way."""
    readable: int = 0
    """The high watermark that readers went by."""
    cutting: int | None = None
    """A truncation to this offset is under way: records above may be there or not."""
    keys: dict[int, bytes | None] = field(default_factory=dict)
    ever: dict[int, bytes] = field(default_factory=dict)
    """Offset to value, also of what was compacted away: until a sync it may come back."""
    first_of: dict[int, int] = field(default_factory=dict)
    """Offset to the first offset of its batch."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, the log's end when it began), both rising."""

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    def appended(self, batch: Batch, first_offset: int) -> None:
        """An append has returned."""
        batch.offset = first_offset
        self.in_doubt = []
        if first_offset < self.start:
            return  # a duplicate of what was deleted since
        for place, write in enumerate(batch.writes):
            self.records[first_offset + place] = write.value
            self.keys[first_offset + place] = write.key
            self.ever[first_offset + place] = write.value
            self.first_of[first_offset + place] = first_offset
        self.end = max(self.end, first_offset + len(batch.writes))
        self.in_doubt = []

    def boundaries(self, start: int, end: int) -> list[int]:
        """Return the batch boundaries from start to end, both included if they are some."""
        firsts = {first for first in self.first_of.values() if start <= first <= end}
        return sorted({*firsts, *({self.end} if start <= self.end <= end else ())})

    def cut(self, end: int) -> None:
        """The log ends earlier now: after a crash, or by truncation."""
        self.records = {at: value for at, value in self.records.items() if at < end}
        self.first_of = {at: first for at, first in self.first_of.items() if at < end}
        # One without records makes way for the next one there.
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < end]
        self.end = end
        self.claimed = min(self.claimed, end)
        self.readable = min(self.readable, end)

    def led(self, epoch: int, end: int) -> None:
        """A leader epoch is about to begin at the log's end, if it has not begun yet."""
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs = [(one, start) for one, start in self.epochs if start < end]
            self.epochs.append((epoch, end))

    def ask_epochs(self, history: History, log: PartitionLog) -> None:
        """Ask a log where its epochs ended, as a follower of each does."""
        for asked, began in self.epochs:
            epoch, said = log.end_offset_for_epoch(asked)
            lowest = log.start_offset
            if epoch < 0:
                # A start forgets an epoch that got no records.
                epoch, lowest = asked, max(lowest, began)
            ended = min((at for one, at in self.epochs if one > epoch), default=log.end_offset)
            kept = max((at + 1 for at in self.records if lowest <= at < ended), default=-1)
            history.epochs.append(
                EpochAnswer(self.name, epoch, said, ended, kept, log.start_offset)
            )

    def _forgive_compaction(self, after: dict[int, bytes]) -> None:
        """Forget records that are gone and have a newer one of their key."""
        newest: dict[bytes | None, int] = {}
        self.in_doubt += [value for at, value in self.ever.items() if after.get(at) == value]
        for offset in after:
            key = self.keys.get(offset)
            newest[key] = max(newest.get(key, -1), offset)
        for offset in [offset for offset in self.records if offset not in after]:
            if newest.get(self.keys[offset], -1) > offset:
                del self.records[offset]

    def recovered(self, history: History, kind: str, start: int, after: dict[int, bytes]) -> None:
        """Write down a recovery, then believe the log."""
        deleted_on_purpose = max(self.start, start) if self.removing else self.start
        cut = self.end if self.cutting is None else self.cutting
        if self.configs.compacted:
            self._forgive_compaction(after)
        before = {at: value for at, value in self.records.items() if deleted_on_purpose <= at < cut}
        self.in_doubt += [value for at, value in self.records.items() if at >= cut]
        history.recoveries.append(
            Recovery(
                self.name,
                kind,
                before,
                {at: value for at, value in after.items() if at >= deleted_on_purpose},
                min(self.claimed, cut),
                frozenset(self.in_doubt),
                deleted_on_purpose,
            )
        )
        self.start = deleted_on_purpose
        self.removing = False
        self.cutting = None
        self.in_doubt = []


def new_batch(
    rng: random.Random,
    history: History,
    model: ModelPartition,
    producer: ModelProducer,
    now_ms: int,
) -> Batch:
    """Let a producer make its next batch; it stands in its outbox until it is acked."""
    writes, records = [], []
    for _ in range(rng.randint(1, 3)):
        value = f"{model.name}/{producer.name}/{producer.number}/".encode()
        value += b"x" * rng.choice((0, 5, 100, 400))
        # Most keys come again soon; of the others, compaction keeps the newest value only.
        key = b"k%d" % (rng.randrange(4) if rng.random() < 0.7 else rng.randrange(4, 60))
        writes.append(history.send(model.name, producer.name, producer.number, value, key=key))
        records.append(NewRecord(now_ms, key, value))
        producer.number += 1
    content = build_batch(
        records,
        codec=rng.choice((0, 0, 1, 4)),
        producer=Producer(producer.producer_id, 0, producer.sequence),
    )
    batch = Batch(writes, content)
    producer.sequence += len(writes)
    producer.outbox.append(batch)
    return batch


def give_up(history: History, models: list[ModelPartition]) -> None:
    """The run is over: what is not acked stays undetermined."""
    for model in models:
        for producer in model.producers:
            for batch in producer.outbox:
                for write in batch.writes:
                    history.end(write, Outcome.UNDETERMINED)
