"""A real run with stock clients on one topic, which grows or not, and its history.

Owns the run: two producers, one of which learns of new partitions late; a slow group; a group with
`auto.offset.reset=latest` that commits, is away for a while, and comes back. Without fences there
are no cuts: the former home of a key gets the benefit of the doubt, and takes it to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.order.history import Delivery, History, Outcome, Registration, Resize, Send, Stored
from tests.support.clients import admin, failure_of
from tests.support.processes import DEADLINE_S, wait_until

TOPIC = "growing"
KEYS = 40
BEFORE, AFTER = 1_000, 1_000
"""Records of both producers before the growth, and after it."""
SOON_MS, LATE_MS = 100, 600_000
"""How often a client asks for metadata."""


@dataclass
class _Writer:
    bootstrap: str
    name: str
    refresh_ms: int
    first_uid: int
    sends: list[Send] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 0,
                "topic.metadata.refresh.interval.ms": self.refresh_ms,
            }
        )

    def write(self, key: str) -> None:
        """Send one record, and wait for its acknowledgement."""
        number = self.numbers.get(key, 0)
        self.numbers[key] = number + 1
        uid, sent_at = self.first_uid + len(self.sends), time.monotonic()

        def answered(
            error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
        ) -> None:
            assert error is None, error
            self.sends.append(
                Send(
                    uid,
                    key,
                    self.name,
                    number,
                    -1,
                    sent_at,
                    Outcome.OK,
                    time.monotonic(),
                    message.partition(),
                    message.offset(),
                )
            )

        self._producer.produce(TOPIC, str(uid), key, on_delivery=answered)
        assert self._producer.flush(DEADLINE_S) == 0

    def partitions(self) -> int:
        """Return how many partitions the producer's next refresh would show."""
        return len(self._producer.list_topics(TOPIC, DEADLINE_S).topics[TOPIC].partitions)


class _Reader:
    def __init__(self, bootstrap: str, group: str, reset: str, refresh_ms: int) -> None:
        self.group = group
        self.deliveries: list[Delivery] = []
        self.assigned: set[int] = set()
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": reset,
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": refresh_ms,
                "partition.assignment.strategy": "range",
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self._on_assign)

    def _on_assign(self, _: object, partitions: list[TopicPartition]) -> None:
        self.assigned = {each.partition for each in partitions}

    def read(self, until: Callable[[], bool], what: str) -> None:
        """Deliver records until a condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not until():
            assert time.monotonic() < deadline, what
            message = self.consumer.poll(0.05)
            if message is None:
                continue
            assert failure_of(message) is None, message.error()
            if message.error() is not None:
                continue
            begun_at = time.monotonic()
            self.deliveries.append(
                Delivery(
                    self.group,
                    self.group,
                    message.partition(),
                    message.offset(),
                    int(message.value()),
                    begun_at,
                    time.monotonic(),
                )
            )

    def has_read(self, ends: dict[int, int]) -> bool:
        """Whether each of these partitions has been read to its end."""
        places = [TopicPartition(TOPIC, partition) for partition in ends]
        found = self.consumer.position(places)
        return all(place.offset >= ends[place.partition] for place in found)


def run(bootstrap: str, before: int, after: int) -> History:
    """Write, grow from ``before`` to ``after`` partitions (or not: the same number), read."""
    client = admin(bootstrap)
    client.create_topics([NewTopic(TOPIC, before, 1)])[TOPIC].result(DEADLINE_S)
    history = History(before)
    early = _Writer(bootstrap, "early", SOON_MS, 0)
    late = _Writer(bootstrap, "late", LATE_MS, 1_000_000)
    slow = _Reader(bootstrap, "slow", "earliest", SOON_MS)
    history.events.append(Registration("slow", time.monotonic()))
    for number in range(BEFORE // 2):
        for writer in (early, late):
            writer.write(f"k{number % KEYS}")
    slow.read(lambda: len(slow.deliveries) >= BEFORE // 10, "the slow group reads")
    committed = _commit_the_end(bootstrap, "newest", before)
    history.events.append(Registration("newest", time.monotonic(), committed))
    if after > before:
        slow.consumer.pause(slow.consumer.assignment())
        client.create_partitions([NewPartitions(TOPIC, after)])[TOPIC].result(DEADLINE_S)
        history.events.append(Resize(1, after, time.monotonic()))
        wait_until(lambda: early.partitions() == after, DEADLINE_S, "the new partitions are known")
    for number in range(AFTER // 2):
        for writer in (early, late):
            writer.write(f"k{number % KEYS}")
    if after > before:
        slow.read(lambda: len(slow.assigned) == after, "the slow group has the new partitions")
        slow.consumer.resume(slow.consumer.assignment())
    sends = [*early.sends, *late.sends]
    ends: dict[int, int] = {}
    for send in sends:
        ends[send.partition] = max(ends.get(send.partition, 0), send.offset + 1)
    slow.read(lambda: slow.has_read(ends), "the slow group reads all")
    newest = _Reader(bootstrap, "newest", "latest", SOON_MS)
    known = {partition: end for partition, end in ends.items() if partition < before}
    newest.read(lambda: newest.has_read(known), "the other group reads all")
    history.events += sends
    for reader in (slow, newest):
        history.events += reader.deliveries
        reader.consumer.close()
    history.events += [Stored(send.partition, send.offset, send.uid) for send in sends]
    for resize in history.of(Resize):
        # The former home takes a key to its end, the new one from its beginning.
        new = range(history.initial_count, resize.count)
        resize.cuts.update(ends | dict.fromkeys(new, 0))
    return history


def _commit_the_end(bootstrap: str, group: str, partitions: int) -> dict[int, int]:
    """Let a member of a group commit the end of each partition, and leave."""
    reader = _Reader(bootstrap, group, "latest", LATE_MS)
    reader.read(lambda: len(reader.assigned) == partitions, f"{group} joins")
    places = [TopicPartition(TOPIC, index) for index in range(partitions)]
    for place in places:
        place.offset = reader.consumer.get_watermark_offsets(place, DEADLINE_S)[1]
    reader.consumer.commit(offsets=places, asynchronous=False)
    reader.consumer.close()
    return {place.partition: place.offset for place in places}
