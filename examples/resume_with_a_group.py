"""Reads a topic in two halves as one consumer group: the second reader goes on where the first was.

Run a server first (`tidelog up`), then: python examples/resume_with_a_group.py 127.0.0.1:9092
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

HALF = 5


async def read(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    """Read ``count`` records as a member of ``group`` and commit each one after reading it."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=1,
    )
    await consumer.start()
    try:
        found = []
        for _ in range(count):
            record = await consumer.getone()
            found.append(int(record.value))
            await consumer.commit()
        return found
    finally:
        await consumer.stop()


async def main(bootstrap: str) -> None:
    """Write ten numbers, read five, stop, read the other five."""
    topic = group = f"example-{uuid.uuid4().hex[:8]}"
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for number in range(2 * HALF):
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
    finally:
        await producer.stop()
    print(f"the first reader read {await read(bootstrap, topic, group, HALF)}")
    print(f"the second reader read {await read(bootstrap, topic, group, HALF)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"))
