"""Stock consumers of a group, in a thread each: what they received of a topic that is resized.

Owns librdkafka and kafka-python as readers that commit now and then. No assertions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import confluent_kafka
import kafka

METADATA_MS = 500
COMMIT_MS = 300


class StockMember:
    """One consumer; ``values`` has what it received, each partition in order."""

    def __init__(self, bootstrap: str, topic: str, reset: str) -> None:
        self.topic = topic
        self.values: list[tuple[int, int, bytes]] = []
        """(partition, offset, value) in the order of delivery."""
        self.has_joined = threading.Event()
        self.error: Exception | None = None
        self._bootstrap = bootstrap
        self._reset = reset
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    @property
    def group(self) -> str:
        """The name of its group: one for each kind and reset."""
        return f"{type(self).__name__}-{self._reset}"

    def start(self) -> None:
        """Join the group; ``has_joined`` is set when it has committed where it begins."""
        self._thread.start()

    def end(self) -> None:
        """Leave the group."""
        self._ending.set()
        self._thread.join(30)

    def _guarded(self) -> None:
        try:
            self._run(self._ending.is_set)
        except Exception as error:  # The test's thread raises it.
            self.error = error

    def _run(self, is_over: Callable[[], bool]) -> None:
        """Read until it is over. Each kind of client has its own."""


class LibrdkafkaMember(StockMember):
    """librdkafka."""

    def _run(self, is_over: Callable[[], bool]) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self.group,
                "auto.offset.reset": self._reset,
                "auto.commit.interval.ms": COMMIT_MS,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": "range",
                # librdkafka 2.16 may stop for ever in a re-bootstrap: docs/operating/clients.md.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic], on_assign=self._on_assign)
        try:
            while not is_over():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    place = (message.partition(), message.offset())
                    self.values.append((*place, message.value()))
        finally:
            consumer.close()

    def _on_assign(
        self, consumer: confluent_kafka.Consumer, places: list[confluent_kafka.TopicPartition]
    ) -> None:
        """Begin at the reset and commit it: librdkafka would look it up some time later."""
        if self.has_joined.is_set() or not places:
            return
        for place in places:
            low, high = consumer.get_watermark_offsets(place, 10)
            place.offset = low if self._reset == "earliest" else high
        consumer.assign(places)
        consumer.commit(offsets=places, asynchronous=False)
        self.has_joined.set()


class KafkaPythonMember(StockMember):
    """kafka-python."""

    def _run(self, is_over: Callable[[], bool]) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self._bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset=self._reset,
            # Its own commit before a rebalance repeats UNKNOWN_TOPIC_OR_PARTITION for a minute
            # where a retired partition was removed meanwhile.
            enable_auto_commit=False,
            metadata_max_age_ms=METADATA_MS,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            partition_assignment_strategy=[
                kafka.coordinator.assignors.range.RangePartitionAssignor
            ],
        )
        committed_at = time.monotonic()
        try:
            while not is_over():
                # Long enough to join in one call: docs/operating/clients.md.
                found = consumer.poll(timeout_ms=5_000)
                for messages in found.values():
                    self.values += [(one.partition, one.offset, one.value) for one in messages]
                if time.monotonic() - committed_at > COMMIT_MS / 1000:
                    committed_at = time.monotonic()
                    consumer.commit_async()
                if not self.has_joined.is_set() and consumer.assignment():
                    for place in consumer.assignment():
                        consumer.position(place)
                    consumer.commit()
                    self.has_joined.set()
        finally:
            consumer.close()
