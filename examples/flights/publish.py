"""Publishes the flights with tidelog's client, which keeps the order of keys over resizes.

Owns the topic and the producer's settings; a stock client creates the topic. The timestamps are of
2013: the topic keeps them for ever, or retention would remove them as soon as it looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from confluent_kafka.admin import AdminClient, NewTopic
from examples.flights.data import Message

from tidelog import RecordMetadata
from tidelog.aio import Producer

_DEADLINE_S = 60.0
_PAUSE_S = 0.005


def create_topic(bootstrap: str, topic: str, partitions: int, replicas: int = 1) -> None:
    """Create the topic. Raises KafkaException, also when it exists.

    With three replicas a flight is acknowledged once two of them have it.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"retention.ms": "-1", "min.insync.replicas": "2" if replicas > 2 else "1"}
    new = NewTopic(topic, partitions, replicas, config=config)
    admin.create_topics([new])[topic].result(_DEADLINE_S)


def publish(
    bootstrap: str,
    topic: str,
    messages: Iterable[Message | None],
    acknowledged: Callable[[int], None],
) -> int:
    """Send all messages and wait until they are acked; `acknowledged` gets how many are.

    A None among the messages is a pause of some milliseconds. Keyed messages keep their order while
    the topic grows and shrinks; the producer is idempotent, so that each is in the log once. Raises
    what the first one failed with.
    """
    return asyncio.run(_publish(bootstrap, topic, messages, acknowledged))


async def _publish(
    bootstrap: str,
    topic: str,
    messages: Iterable[Message | None],
    acknowledged: Callable[[int], None],
) -> int:
    acked, failed = 0, list[BaseException]()

    def delivered(outcome: asyncio.Future[RecordMetadata]) -> None:
        nonlocal acked
        if (error := outcome.exception()) is not None:
            failed.append(error)
            return
        acked += 1
        acknowledged(acked)

    producer = Producer(
        bootstrap_servers=bootstrap, linger_ms=20, compression_type="lz4", batch_size=128 * 1024
    )
    async with producer:
        for message in messages:
            if failed:
                break
            if message is None:
                await asyncio.sleep(_PAUSE_S)
                continue
            outcome = await producer.send(
                topic, message.value, message.key, timestamp_ms=message.timestamp_ms
            )
            outcome.add_done_callback(delivered)
    if failed:
        raise failed[0]
    return acked
