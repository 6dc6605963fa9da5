"""Publishes the flights with a stock client, confluent-kafka.

Owns the topic and the producer's settings. The timestamps are of 2013: the topic keeps them for
ever, or retention would remove them as soon as it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from examples.flights.data import Message

_DEADLINE_S = 60.0
_REPORT_EVERY = 2000


def create_topic(bootstrap: str, topic: str, partitions: int, replicas: int = 1) -> None:
    """Create the topic. Raises KafkaException, also when it exists.

    With three replicas a flight is acknowledged once two of them have it.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"retention.ms": "-1", "min.insync.replicas": "2" if replicas > 2 else "1"}
    new = NewTopic(topic, partitions, replicas, config=config)
    admin.create_topics([new])[topic].result(_DEADLINE_S)


def publish(
    bootstrap: str, topic: str, messages: Iterable[Message], report: Callable[[int], None]
) -> int:
    """Send all messages and wait until they are acked; `report` gets how many are.

    Keyed messages go where Kafka's own partitioner puts them; the producer is idempotent, so that
    each is in the log once and in order. Raises KafkaException for the first that failed.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 200_000,
            # The demo itself reports a lost broker; the client copes and need not log it.
            "log_level": 2,
        }
    )
    acked, failed = 0, list[KafkaError]()

    def delivered(error: KafkaError | None, _: object) -> None:
        nonlocal acked
        if error is not None:
            failed.append(error)
            return
        acked += 1
        if acked % _REPORT_EVERY == 0:
            report(acked)

    for message in messages:
        while True:
            try:
                producer.produce(
                    topic,
                    message.value,
                    message.key,
                    timestamp=message.timestamp_ms,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                # The client's queue is full: room comes with the next answers.
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(_DEADLINE_S)
    if failed or left:
        raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
    report(acked)
    return acked
