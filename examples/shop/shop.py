"""A small application to be tested: it publishes orders and keeps the total of each customer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

TIMEOUT_S = 60


def publish(servers: str, topic: str, orders: Iterable[tuple[str, int]]) -> None:
    """Send orders, each a customer and an amount; raise unless all were acknowledged."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for customer, amount in orders:
        producer.produce(topic, key=customer, value=str(amount), on_delivery=delivered)
    if producer.flush(TIMEOUT_S) or failed:
        raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))


class Totals:
    """The total of each customer, read as a member of a group."""

    def __init__(self, servers: str, topic: str, group: str = "totals") -> None:
        self.of: dict[str, int] = defaultdict(int)
        self.orders = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._consumer.subscribe([topic])

    def read(self, orders: int) -> None:
        """Read until so many orders were read in all; raise when none arrives for a minute."""
        while self.orders < orders:
            message = self._consumer.poll(TIMEOUT_S)
            if message is None:
                raise TimeoutError(f"read {self.orders} of {orders} orders")
            if message.error():
                raise KafkaException(message.error())
            self.of[message.key().decode()] += int(message.value())
            self.orders += 1

    def __enter__(self) -> Totals:
        return self

    def __exit__(self, *_: object) -> None:
        """Commit and leave the group."""
        self._consumer.close()
