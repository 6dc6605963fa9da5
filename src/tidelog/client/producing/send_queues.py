"""The send queues of one producer: one for each incarnation of a partition that is written.

Owns which queues there are, and the count that numbers their batches in the order of ``send``.
Without a connection or a clock. Not the rules of one queue: see ``send_queue``. Not which of them
takes a record: see ``turning``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from tidelog.client.errors import ClientError
from tidelog.client.producing.send_queue import SendQueue
from tidelog.client.producing.settings import ALL, SendSettings
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import FastBuilder, Producer
from tidelog.records.compression import CODEC_NAMES


class SendQueues:
    """The queues of one producer. Raises ClientError for settings that contradict each other."""

    def __init__(self, settings: SendSettings) -> None:
        if settings.idempotent and settings.acks != ALL:
            raise ClientError("an idempotent producer needs acks=all")
        if settings.transactional_id is not None and not settings.idempotent:
            raise ClientError("transactions need an idempotent producer")
        if settings.compression not in CODEC_NAMES:
            raise ClientError(
                f"compression {settings.compression!r} is unknown: "
                f"use one of {', '.join(CODEC_NAMES)}"
            )
        self._settings = settings
        self._new_builder = partial(
            FastBuilder,
            codec=CODEC_NAMES[settings.compression],
            is_transactional=settings.transactional_id is not None,
        )
        self._queues: dict[tuple[TopicPartition, int], SendQueue] = {}
        """By partition and its epoch, -1 for a topic that is not ordered."""
        self._numbers = itertools.count(1)

    def next_number(self) -> tuple[int, ...]:
        """Return the next place in the order of ``send``."""
        return (next(self._numbers),)

    def get(
        self, partition: TopicPartition, partition_epoch: int, former: Producer | None = None
    ) -> SendQueue:
        """Return the queue of one incarnation of a partition, a new one if it has none.

        ``former``: an identity that a new one must not use, see ``turning``.
        """
        key = (partition, partition_epoch)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = SendQueue(
                partition,
                self._settings.max_in_flight,
                idempotent=self._settings.idempotent,
                batch_bytes=self._settings.batch_bytes,
                new_builder=self._new_builder,
                partition_epoch=partition_epoch,
                numbers=self._numbers,
                retries=self._settings.retries,
                former=former,
            )
        return queue

    def renew(self) -> None:
        """Let every queue, which must be empty, begin at sequence 0 in the next identity."""
        for queue in self:
            queue.broken = True

    def drop(self, queue: SendQueue) -> None:
        """Forget a queue, which must be empty."""
        del self._queues[queue.partition, queue.partition_epoch]

    def __iter__(self) -> Iterator[SendQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def of_topic(self, topic: str) -> list[SendQueue]:
        """Return the queues of a topic, of whatever incarnation."""
        return [queue for queue in self if queue.partition.topic == topic]

    def have_before(self, number: tuple[int, ...]) -> bool:
        """Whether a batch before a place in the order of ``send`` has no outcome."""
        return any(queue.has_before(number) for queue in self)
