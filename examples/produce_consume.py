"""Writes ten records with a stock client, aiokafka, and reads them back in the order of each key.

Run a server first (`tidelog up`), then: python examples/produce_consume.py 127.0.0.1:9092
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

RECORDS = 10


async def main(bootstrap: str) -> None:
    """Write, read, print."""
    # A topic that does not exist is created by the first record (auto.create.topics.enable).
    topic = f"example-{uuid.uuid4().hex[:8]}"
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        for number in range(RECORDS):
            key = b"even" if number % 2 == 0 else b"odd"
            written = await producer.send_and_wait(topic, b"%d" % number, key=key)
            print(f"wrote {number} to partition {written.partition} at offset {written.offset}")
    finally:
        await producer.stop()

    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        for _ in range(RECORDS):
            record = await consumer.getone()
            print(f"read {record.value.decode()} of key {record.key.decode()}")
    finally:
        await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"))
