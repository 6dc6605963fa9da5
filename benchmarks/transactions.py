"""What does a transaction cost: its rate, the time of a commit, and the CPU of the broker?

One transactional producer (librdkafka) writes to 4 partitions and commits, transaction after
transaction; another row has the offsets of its input in each transaction (KIP-447), as an
application that reads, works and writes does.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support import clients
from tests.support.processes import wait_until

from benchmarks.clusters import ClusterTarget, create
from benchmarks.measuring import Metric
from benchmarks.nodes import Target

PARTITIONS = 4
VALUE = bytes(100)
WAIT_S = 60.0
FIRST = 20
"""Transactions that do not count: connections, the producer's id."""


class Transactions:
    """Transactions a second, the commit's 99th percentile, CPU of the servers for each."""

    cold = False

    def __init__(self, records: int, count: int, *, offsets: bool = False, where: str = "") -> None:
        kind = ", offsets" if offsets else ""
        self.title = f"{where}transactions of {records} records{kind}"
        self.metrics = (
            Metric(f"{self.title}: rate", "per s", "more", goal=2.0),
            Metric(f"{self.title}: p99 of a commit", "ms", "less"),
            Metric(f"{self.title}: CPU of the servers", "ms each", "less"),
        )
        self._records = records
        self._count = count
        self._has_offsets = offsets

    def measure(self, target: Target | ClusterTarget, quick: bool) -> list[float]:
        count = max(30, self._count // 4) if quick else self._count
        with _topic(target) as topic:
            producer = Producer(
                {
                    "bootstrap.servers": target.bootstrap,
                    "transactional.id": topic,
                    "linger.ms": 0,
                    "acks": "all",
                }
            )
            producer.init_transactions(WAIT_S)
            consumer = self._member(target.bootstrap, topic) if self._has_offsets else None
            for _ in range(FIRST):
                self._transaction(producer, topic, consumer)
            cpu_s, begun = target.cpu_s(), time.perf_counter()
            commits = sorted(self._transaction(producer, topic, consumer) for _ in range(count))
            took_s = time.perf_counter() - begun
            cpu_s = target.cpu_s() - cpu_s
            if consumer is not None:
                consumer.close()
        return [count / took_s, commits[count * 99 // 100] * 1000, cpu_s / count * 1000]

    def _transaction(self, producer: Producer, topic: str, consumer: Consumer | None) -> float:
        """Run one; return the seconds of its commit."""
        producer.begin_transaction()
        for number in range(self._records):
            producer.produce(topic, VALUE, partition=number % PARTITIONS)
            producer.poll(0)
        if consumer is not None:
            ends = [TopicPartition(topic, each, 1) for each in range(PARTITIONS)]
            producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), WAIT_S)
        producer.flush(WAIT_S)
        begun = time.perf_counter()
        producer.commit_transaction(WAIT_S)
        return time.perf_counter() - begun

    @staticmethod
    def _member(bootstrap: str, topic: str) -> Consumer:
        """Return a member of a group that has the topic."""
        member = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
        member.subscribe([topic])

        def has_all() -> bool:
            member.poll(0.1)
            return len(member.assignment()) == PARTITIONS

        wait_until(has_all, WAIT_S, "the member has its partitions")
        return member


@contextlib.contextmanager
def _topic(target: Any) -> Iterator[str]:
    """A fresh topic of some partitions, deleted afterwards."""
    if isinstance(target, ClusterTarget):
        with target.name_of_topic() as name:
            create(clients.admin(target.bootstrap), name, PARTITIONS)
            wait_until(lambda: target.in_sync(name, PARTITIONS), 120, f"{name} is in sync")
            yield name
        return
    name = f"transactions-{uuid.uuid4()}"
    clients.create_topic(target.bootstrap, name, PARTITIONS)
    yield name
    admin = clients.admin(target.bootstrap)
    admin.delete_topics([name])[name].result(WAIT_S)


ROWS = (
    Transactions(1, 800),
    Transactions(10, 600),
    Transactions(1_000, 100),
    Transactions(10, 500, offsets=True),
)
CLUSTER_ROWS = (
    Transactions(1, 500, where="three nodes: "),
    Transactions(10, 400, where="three nodes: "),
)
