"""The topics of a producer as their metadata change: when they are checked, and what follows.

Owns the shell around ``turning``: it asks for newer metadata, keeps the deadlines of records that
are held, and lets ``delivery`` do what was decided. Not the decisions: see ``turning``. Not
batches and requests: see ``delivery``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, GaveUp, Refused
from tidelog.client.metadata import Topic
from tidelog.client.producing.ancestor_tombstones import AncestorTombstones
from tidelog.client.producing.delivery import BatchDelivery
from tidelog.client.producing.earliest_timer import EarliestTimer
from tidelog.client.producing.held_records import HeldRecord
from tidelog.client.producing.record_metadata import OpenOutcome
from tidelog.client.producing.send_queue import BatchResult, ProducerBatch, SendQueue, SendTally
from tidelog.client.producing.topic_epochs import TopicEpochs
from tidelog.client.producing.turning import (
    AskAgain,
    Decision,
    HeldFailed,
    Holds,
    Lost,
    Opened,
    TookBack,
    TopicTurning,
)
from tidelog.client.stamps import stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import NewRecord

TOMBSTONES = "tombstones"
"""The task that sends ancestor tombstones."""


class TopicFollower:
    """Follows the topics of one producer."""

    def __init__(
        self,
        cluster: Cluster,
        turning: TopicTurning,
        delivery: BatchDelivery,
        tombstones: AncestorTombstones,
    ) -> None:
        self.turning = turning
        self.timers: dict[str, EarliestTimer] = {}
        """When the first record that is held expires, by topic."""
        self._cluster = cluster
        self._delivery = delivery
        self._tombstones = tombstones

    # What records are hashed under

    def known(self, topic: str) -> TopicEpochs | None:
        """Return what records of a topic are hashed under, if its metadata are known."""
        view = self._cluster.view
        newest = view.topics.get(topic)
        if newest is None or newest.error:
            return None
        epochs = self.epochs_of(newest)
        epochs.view = view
        return epochs

    def epochs_of(self, topic: Topic) -> TopicEpochs:
        """Return what a record of a topic that is sent now is hashed under."""
        epochs = self.turning.epochs_of(topic)
        newest = self._cluster.view.topics.get(topic.name)
        if newest is not epochs.seen:
            self._check(epochs, newest)
        return epochs

    def append(
        self, epochs: TopicEpochs, partition: int, record: NewRecord, *, is_fixed: bool
    ) -> ProducerBatch:
        """Add a new record to the last batch of its partition, or to a new one."""
        batch, opened = self.turning.append(epochs, partition, record, is_fixed)
        if opened is not None:
            self._delivery.opened(opened.queue, opened.batch, opened.former)
        return batch

    def hold_new(
        self,
        epochs: TopicEpochs,
        record: NewRecord,
        size: int,
        partition: int | None = None,
        outcome: OpenOutcome | None = None,
        tally: SendTally | None = None,
        home: int | None = None,
    ) -> None:
        """Keep a record that is sent while its topic turns; ``home``: its partition, if known."""
        deadline = asyncio.get_running_loop().time() + self._delivery.timeout_s
        number = self._delivery.queues.next_number()
        held = HeldRecord(number, record, size, deadline, partition, outcome, tally)
        self.perform(self.turning.hold(epochs, held, home))

    # What the delivery asks for

    def check(self) -> None:
        """Follow what metadata say of the topics, before batches are sent."""
        for name, epochs in self.turning.topics.items():
            newest = self._cluster.view.topics.get(name)
            if epochs.is_turning or newest is not epochs.seen:
                self._check(epochs, newest)

    def took_back(self, queue: SendQueue, batch: ProducerBatch, result: BatchResult) -> bool:
        """Whether a batch was taken back, because its leader refused it after a resize."""
        newest = self._cluster.view.topics.get(queue.partition.topic)
        decisions = self.turning.refused(queue, batch, result, newest)
        if decisions is None:
            return False
        self.perform(decisions)
        return True

    def acknowledged(self, queue: SendQueue, batch: ProducerBatch) -> None:
        """Let ancestor tombstones follow a batch of a partition that was born in a growth."""
        topic = self.turning.topics[queue.partition.topic].seen
        if batch.stamp is None or queue.partition.partition < topic.initial_partition_count:
            return
        if self._tombstones.note(queue.partition, batch.stamp, batch.encode()):
            self._delivery.work.run(TOMBSTONES, self._tombstones.send)

    def failed(self, error: ClientError) -> None:
        """Fail every record that is held."""
        self.perform(self.turning.failed(error))

    def hold_before(self, number: tuple[int, ...]) -> bool:
        """Whether a record before a place in the order of ``send`` is held."""
        return self.turning.holds_before(number)

    # Decisions

    def _check(self, epochs: TopicEpochs, newest: Topic | None) -> None:
        self.perform(self.turning.saw(epochs, newest, self._delivery.identity))

    def perform(self, decisions: Iterable[Decision]) -> None:
        """Do what was decided, in this order; nothing here decides again."""
        for decision in decisions:
            match decision:
                case Opened(queue, batch, former, deadline):
                    self._delivery.opened(queue, batch, former, deadline)
                case TookBack(batch, records):
                    self._delivery.took_back(batch, records)
                case Lost(batch):
                    self._delivery.finish(batch)
                case HeldFailed(held, error):
                    self._fail(held, error)
                case Holds(topic, until):
                    self._expire_at(topic, until)
                case AskAgain(topic):
                    self._delivery.work.run(("resized", topic), partial(self._ask_again, topic))

    async def _ask_again(self, topic: str) -> None:
        """Ask the broker that refused a batch for metadata: it knows the newer resize epoch."""
        epochs = self.turning.topics[topic]
        await self._cluster.describe([topic], first=epochs.refused_by)
        newest = self._cluster.view.topics.get(topic)
        if newest is None or epochs.awaits(stamp_of(newest)):
            raise Refused(ErrorCode.INVALID_PARTITION_METADATA, f"topic {topic!r}")

    def _expire_at(self, topic: str, until: float | None) -> None:
        timer = self.timers.get(topic)
        if until is None:
            if timer is not None:
                timer.stop()
            return
        if timer is None:
            timer = self.timers[topic] = EarliestTimer(partial(self._expire, topic))
        timer.set(until)

    def _expire(self, topic: str) -> None:
        epochs = self.turning.topics[topic]
        late, next_deadline = self.turning.expired(epochs, asyncio.get_running_loop().time())
        lasted_ms = round(self._delivery.timeout_s * 1000)
        text = f"{topic}: not delivered within {lasted_ms} ms, while it was resized"
        self._fail(late, GaveUp(self._delivery.work.because(text)))
        if next_deadline is not None:
            self.timers[topic].set(next_deadline)

    def _fail(self, records: Sequence[HeldRecord], error: ClientError) -> None:
        self._delivery.figures.records_failed += len(records)
        for record in records:
            record.fail(error)
        if records:
            self._delivery.lost(error)
        self._delivery.free(sum(record.size for record in records))
