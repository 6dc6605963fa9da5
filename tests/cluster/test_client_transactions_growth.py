"""Transactions of the public producer while their topic grows and shrinks: all of it or nothing.

A batch that is refused by its count is hashed again within its transaction, and its new home is
added before it is sent there (KIP-253, KIP-98). A server of tidelog, which offers transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import Node
from tests.support.processes import DEADLINE_S
from tests.support.transaction_nodes import transaction_node
from tidelog.aio import Admin, Consumer, NewTopic, Producer

pytestmark = pytest.mark.long(40)

GROWTHS = (4, 8, 16)
COUNTS = (*GROWTHS, 6, 2)
KEYS = 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with transaction_node("tidelog", tmp_path / "node") as started:
        yield started


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_each_transaction_is_whole_through_growths_and_shrinks(
    node: Node, topic_name: str, policy: str
) -> None:
    """Transactions are open in each resize; every third is aborted."""
    committed: list[tuple[bytes, int]] = []

    async def resize(admin: Admin, ended: asyncio.Event) -> None:
        for count in COUNTS if policy == "delete" else GROWTHS:
            await admin.set_partition_count(topic_name, count)
        ended.set()

    async def write(producer: Producer, ended: asyncio.Event) -> None:
        number = 0
        rehashed = 0.0
        after = 0
        await producer.init_transactions()
        while after < 3:
            after += ended.is_set()
            await producer.begin_transaction()
            mine = []
            for each in range(KEYS):
                key = b"k%d" % each
                await producer.send(topic_name, b"%d" % number, key)
                mine.append((key, number))
                number += 1
                if each % 10 == 0:
                    # Other tasks run: the count may change within the transaction.
                    await asyncio.sleep(0)
            if number // KEYS % 3:
                await producer.commit_transaction()
                committed.extend(mine)
            else:
                await producer.abort_transaction()
            rehashed = producer.metrics()["producer-metrics"]["record-rehash-total"]
        assert rehashed, "no batch was hashed again"

    async def run() -> None:
        async with (
            asyncio.timeout(4 * DEADLINE_S),
            Admin(bootstrap_servers=node.bootstrap) as admin,
            Producer(
                bootstrap_servers=node.bootstrap, transactional_id=topic_name, linger_ms=1
            ) as producer,
            Consumer(
                topic_name,
                bootstrap_servers=node.bootstrap,
                group_id=topic_name,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
            ) as consumer,
        ):
            configs = {"cleanup.policy": policy}
            await admin.create_topics([NewTopic(topic_name, 2, 1, topic_configs=configs)])
            ended = asyncio.Event()
            writing = asyncio.create_task(write(producer, ended))
            await resize(admin, ended)
            await writing
            read: list[tuple[bytes, int]] = []
            while len(read) < len(committed):
                for records in (await consumer.poll(500)).values():
                    read += [(record.key, int(record.value)) for record in records]
            assert sorted(read) == sorted(committed)
            for key in {key for key, _ in committed}:
                of_key = [number for each, number in read if each == key]
                assert of_key == sorted(of_key), "the records of a key are out of order"

    asyncio.run(run())
