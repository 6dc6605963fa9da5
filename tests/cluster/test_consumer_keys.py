"""The public consumer while topics grow and shrink: state per key goes where the keys go (KIP-253).

Each consumer counts the records of each key, writes the counts when its keys may go, and reads
them when keys come. A count that skips shows a record that passed an earlier one of its key, or
state that was read before it was written.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.support import clients
from tests.support.keyed_records import FAST, KEYS, numbers_of, opened, write
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.resizes import resize
from tests.support.target import TARGET
from tidelog import (
    Admin,
    ConfigResource,
    ConfigResourceType,
    Consumer,
    ConsumerRebalanceListener,
    PartitionKeyRebalanceListener,
    TopicPartition,
)
from tidelog.client.cluster import Cluster
from tidelog.client.producing.sender import RecordSender
from tidelog.errors import KafkaError

pytestmark = [
    pytest.mark.long(40),
    pytest.mark.skipif(TARGET != "tidelog", reason="Kafka's topics do not shrink"),
]

LIMIT_S = 5
"""Longer than a member needs to join and to fetch the first time."""


class Store:
    """What outlives consumers: the last number of each key, as it was written."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last: dict[str, int] = {}
        self.owners: dict[TopicPartition, str] = {}
        self.events: list[tuple[str, str, frozenset[TopicPartition]]] = []
        self.wrong: list[str] = []
        self.seen = 0


class Counting(PartitionKeyRebalanceListener):
    """The state of one consumer: the last number of each key that it has."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.state: dict[str, int] = {}
        self.open: set[TopicPartition] = set()
        self.in_poll = False

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        store = self.store
        with store.lock:
            if not self.in_poll:
                store.wrong.append(f"{self.name}: called outside of poll")
            if not set(partitions) <= self.open:
                store.wrong.append(f"{self.name}: {partitions} were not assigned: {self.open}")
            self.open -= set(partitions)
            store.events.append(("revoked", self.name, frozenset(partitions)))
            # Keys of all partitions: one that is written twice has the same number.
            for key, number in self.state.items():
                store.last[key] = max(number, store.last.get(key, -1))
            self.state.clear()

    def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        store = self.store
        with store.lock:
            if set(partitions) & self.open:
                store.wrong.append(f"{self.name}: {partitions} were assigned before")
            if generation < 0 or not member:
                store.wrong.append(f"{self.name}: generation {generation} of {member!r}")
            self.open |= set(partitions)
            store.events.append(("assigned", self.name, frozenset(partitions)))

    def on_partition_key_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Its session was over, as on a machine that gave it no processor for long."""
        self.open -= set(partitions)
        self.state.clear()

    def receive(self, record: Any) -> None:
        """Count a record; the first of a key looks up what is stored."""
        store, key, number = self.store, record.key.decode(), int(record.value)
        with store.lock:
            where = TopicPartition(record.topic, record.partition)
            if where not in self.open:
                store.wrong.append(f"{self.name}: {where} at {record.offset} is not assigned")
            last = self.state.get(key, store.last.get(key, -1))
            if number > last + 1:
                store.wrong.append(f"{self.name}: {key} goes from {last} to {number} in {where}")
            self.state[key] = max(number, last)
            store.seen += 1


class Running:
    """One consumer in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, store: Store, name: str, **options: Any) -> None:
        self.listener = Counting(store, name)
        self.consumer = Consumer(bootstrap_servers=bootstrap, **{**FAST, **options})
        self.consumer.subscribe([topic], partition_key_listener=self.listener)
        self.ending = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        listener = self.listener
        try:
            while not self.ending.is_set():
                listener.in_poll = True
                found = self.consumer.poll(100, max_records=7)
                listener.in_poll = False
                for records in found.values():
                    for record in records:
                        listener.receive(record)
            listener.in_poll = True
            self.consumer.close()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.ending.set()
        self.thread.join(DEADLINE_S)
        assert self.error is None, self.error


class Writing:
    """A producer that knows of resizes, in a thread: numbers of each key in turn."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent = 0
        self.ending = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._write(bootstrap, topic)))
        self.thread.start()

    async def _write(self, bootstrap: str, topic: str) -> None:
        async with Cluster(bootstrap) as cluster, RecordSender(cluster) as sender:
            number = 0
            while not self.ending.is_set():
                waits = []
                for key in KEYS:
                    sent = await sender.send(topic, str(number).encode(), key.encode())
                    waits.append(sent)
                await asyncio.gather(*waits)
                self.sent += len(waits)
                number += 1

    def end(self) -> None:
        self.ending.set()
        self.thread.join(DEADLINE_S)


@pytest.fixture
def store() -> Iterator[Store]:
    yield Store()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_counts_of_keys_go_on_through_resizes_and_rebalances(
    bootstrap: str, topic_name: str, store: Store, strategy: str
) -> None:
    topic = topic_name
    clients.create_topic(bootstrap, topic, 2, retired_purge="drained")
    options = {"group_id": f"g-{topic}", "partition_assignment_strategy": [strategy]}
    running = [Running(bootstrap, topic, store, name, **options) for name in ("a", "b")]
    writing = Writing(bootstrap, topic)
    try:
        wait_until(lambda: store.seen > 100, DEADLINE_S, lambda: f"{store.events} {store.wrong}")
        for count in (4, 8):
            resize(bootstrap, topic, count)
            before = store.seen
            wait_until(
                lambda before=before: store.seen > before + 500,
                DEADLINE_S,
                lambda: f"{store.seen} {store.events[-9:]} {store.wrong}",
            )
        running.append(Running(bootstrap, topic, store, "c", **options))
        resize(bootstrap, topic, 3)
        before = store.seen
        wait_until(lambda: store.seen > before + 500, DEADLINE_S, lambda: f"{store.events[-9:]}")
        running.pop(0).end()
        writing.end()
        wait_until(
            lambda: store.seen >= writing.sent,
            DEADLINE_S,
            lambda: (
                f"{store.seen} of {writing.sent}; {store.events[-9:]} {store.wrong} "
                f"{[each.error for each in running]}"
                f"{[each.consumer.metrics() for each in running]}"
            ),
        )
    finally:
        writing.end()
        for each in running:
            each.end()
    assert not store.wrong, store.wrong[:5]
    assert set(store.last.values()) == {writing.sent // len(KEYS) - 1}


def test_iterating_over_a_resized_topic_ends_after_the_timeout_and_no_earlier(
    bootstrap: str, topic_name: str
) -> None:
    """A fetch that brings fences alone ends a wait, and no record has come then."""
    clients.create_topic(bootstrap, topic_name, 2)
    resize(bootstrap, topic_name, 4)
    with Consumer(
        topic_name,
        bootstrap_servers=bootstrap,
        group_id=f"g-{topic_name}",
        consumer_timeout_ms=LIMIT_S * 1000,
        **FAST,
    ) as consumer:
        began = time.monotonic()
        assert next(iter(consumer), None) is None
        assert time.monotonic() - began >= LIMIT_S


def test_a_seek_into_a_partition_with_a_shut_gate_waits_and_says_so(
    bootstrap: str, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients.create_topic(bootstrap, topic_name, 1)
    write(bootstrap, topic_name, 0)
    resize(bootstrap, topic_name, 2)
    write(bootstrap, topic_name, 1)
    consumer = opened(bootstrap, topic_name, None)
    parent, child = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)

    class Pausing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
            consumer.pause(parent)

    consumer.subscribe([topic_name], listener=Pausing())

    def waits() -> bool:
        assert consumer.poll(50) == {}
        return f"{parent} at 0 of" in consumer.waiting().get(child, "")

    wait_until(waits, DEADLINE_S, lambda: f"{consumer.waiting()}", pause_s=0)
    consumer.seek(child, 1)
    assert f"nothing is delivered from offset 1 until its gate opens: {child} waits" in caplog.text
    assert consumer.poll(500) == {}
    consumer.resume(parent)
    got: list[int] = []

    def step() -> bool:
        got.extend(numbers_of(consumer.poll(50), 1))
        return bool(got)

    wait_until(step, DEADLINE_S, lambda: f"{consumer.waiting()}", pause_s=0)
    assert set(got) == {1} and consumer.waiting() == {}
    consumer.close()


def test_a_deleted_topic_leaves_the_assignment(bootstrap: str, topic_name: str) -> None:
    clients.create_topic(bootstrap, topic_name, 2)
    write(bootstrap, topic_name, 0)
    consumer = opened(
        bootstrap, topic_name, PartitionKeyRebalanceListener(), metadata_max_age_ms=200
    )
    seen = 0

    def reads() -> bool:
        nonlocal seen
        seen += sum(map(len, consumer.poll(50).values()))
        return seen == len(KEYS)

    wait_until(reads, DEADLINE_S, lambda: f"{seen}", pause_s=0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic_name])[topic_name].result(DEADLINE_S)

    def is_gone() -> bool:
        with contextlib.suppress(KafkaError):
            consumer.poll(50)
        return not consumer.assignment()

    wait_until(is_gone, DEADLINE_S, lambda: f"{consumer.assignment()}", pause_s=0)
    with contextlib.suppress(KafkaError):
        consumer.close()


def test_a_consumer_joins_again_when_its_topic_becomes_ordered(
    bootstrap: str, topic_name: str
) -> None:
    clients.create_topic(bootstrap, topic_name, 1, enable_ordered_delivery="false")
    write(bootstrap, topic_name, 0)
    consumer = opened(bootstrap, topic_name, None, metadata_max_age_ms=200)
    got: list[int] = []

    def reads(count: int) -> None:
        wait_until(
            lambda: got.extend(numbers_of(consumer.poll(50), 0)) or len(got) >= count,
            DEADLINE_S,
            lambda: f"{got}",
            pause_s=0,
        )

    def rebalances() -> float:
        consumer.poll(50)
        return consumer.metrics()["consumer-metrics"]["rebalance-total"]

    reads(len(KEYS))
    assert rebalances() == 1
    setting = {"enable.ordered.delivery": True}
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic_name, setting)])
    # Only a generation that knows the epochs has gates for what the next resizes bring.
    wait_until(lambda: rebalances() >= 2, DEADLINE_S, lambda: f"{rebalances()}", pause_s=0)
    write(bootstrap, topic_name, 1)
    reads(2 * len(KEYS))
    # Metadata may show the setting a moment before the resize epoch that comes with it.
    assert rebalances() <= 3
    consumer.close()
