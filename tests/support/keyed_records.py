"""Records of a dozen keys, and public consumers that read them soon: for tests of resizes.

Owns what such tests share. Not the state per key: see ``tests/cluster/test_consumer_keys.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog import Consumer
from tidelog.client.cluster import Cluster
from tidelog.client.producing.sender import RecordSender

KEYS = [f"k{number}" for number in range(12)]
FAST = {
    "heartbeat_interval_ms": 100,
    "auto_commit_interval_ms": 300,
    "auto_offset_reset": "earliest",
}


def write(bootstrap: str, topic: str, number: int) -> None:
    """Write one record of each key."""

    async def send() -> None:
        async with Cluster(bootstrap) as cluster, RecordSender(cluster) as sender:
            for key in KEYS:
                await (await sender.send(topic, str(number).encode(), key.encode()))

    asyncio.run(send())


def opened(bootstrap: str, topic: str, listener: Any, **options: Any) -> Consumer:
    options = {**FAST, "group_id": f"g-{topic}", **options}
    consumer = Consumer(bootstrap_servers=bootstrap, **options)
    consumer.subscribe([topic], partition_key_listener=listener)
    return consumer


def numbers_of(found: Any, partition: int) -> list[int]:
    return [
        int(record.value)
        for where, records in found.items()
        for record in records
        if where.partition == partition
    ]
