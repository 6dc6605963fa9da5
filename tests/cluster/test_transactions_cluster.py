"""Transactions of stock clients on three real brokers, while brokers die and come back (KIP-98).

At level 1.6, which has them. One cluster for all tests, which leave all brokers running and in
sync. A silent broker counts as dead after 3 s instead of 6.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from tests.support import java
from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET
from tidelog.groups.placement import partition_for
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

PARTITIONS = 4
SESSION_MS = 3000
STATE_PARTITIONS = 4
SOURCE = Path(__file__).with_name("Transactions.java")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    config = {
        "broker.session.timeout.ms": SESSION_MS,
        "transaction.state.log.num.partitions": STATE_PARTITIONS,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.min.isr": 2,
    }
    with TidelogCluster(tmp_path_factory.mktemp("transactions"), config=config) as started:
        yield started


@pytest.fixture
def topic(cluster: TidelogCluster, topic_name: str) -> str:
    cluster.create_topic(topic_name, PARTITIONS, min_insync_replicas=2)
    return topic_name


def producer(cluster: TidelogCluster, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    made.init_transactions(DEADLINE_S)
    return made


def write(made: Producer, topic: str, values: list[str]) -> None:
    for number, value in enumerate(values):
        made.produce(topic, value.encode(), partition=number % PARTITIONS)


def ends(bootstrap: str, topic: str, isolation: IsolationLevel) -> dict[int, int]:
    client = admin(bootstrap)
    count = len(client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
    asked = {TopicPartition(topic, each): OffsetSpec.latest() for each in range(count)}
    found = client.list_offsets(asked, isolation_level=isolation, request_timeout=DEADLINE_S)
    return {each.partition: found[each].result(DEADLINE_S).offset for each in asked}


def until_nothing_is_open(cluster: TidelogCluster, *topics: str) -> None:
    """Wait until the last stable offset is the high watermark everywhere."""
    for topic in topics:

        def is_stable(topic: str = topic) -> bool:
            both = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            stable, last = (ends(cluster.bootstrap, topic, each) for each in both)
            return stable == last

        wait_until(is_stable, DEADLINE_S, f"nothing is open in {topic}", 0.1)


def read(
    cluster: TidelogCluster, topic: str, isolation: str = "read_committed"
) -> dict[int, list[str]]:
    """All records of a topic by partition, up to its present end for this isolation level."""
    level = getattr(IsolationLevel, isolation.upper())
    until = ends(cluster.bootstrap, topic, level)
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(topic, each, 0) for each in until])
    values: dict[int, list[str]] = {each: [] for each in until}
    left = {each for each, end in until.items() if end}

    def is_read() -> bool:
        for message in reader.consume(1_000, 0.2):
            partition = message.partition()
            error = message.error()
            if error is None:
                values[partition].append(message.value().decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                # Also in the midst of a log, while a new leader has not caught up.
                if message.offset() >= until[partition]:
                    left.discard(partition)
            else:
                assert error.retriable(), error
        return not left

    wait_until(is_read, DEADLINE_S, f"{topic} is read to {until}", 0)
    reader.close()
    return values


def together(values: dict[int, list[str]]) -> list[str]:
    return sorted(value for of_partition in values.values() for value in of_partition)


def test_a_commit_is_seen_whole_and_an_abort_only_where_it_is_asked_for(
    cluster: TidelogCluster, topic: str
) -> None:
    made = producer(cluster, topic)
    expected = []
    for number in range(6):
        made.begin_transaction()
        values = [f"{number}-{each}" for each in range(8)]
        write(made, topic, values)
        if number % 3 == 1:
            made.flush(DEADLINE_S)
            made.abort_transaction(DEADLINE_S)
        else:
            made.commit_transaction(DEADLINE_S)
            expected += values
    made.begin_transaction()
    write(made, topic, [f"open-{each}" for each in range(8)])
    assert made.flush(DEADLINE_S) == 0
    # Its first batches were taken once the markers of the transaction before were written.
    assert together(read(cluster, topic)) == sorted(expected)
    made.abort_transaction(DEADLINE_S)
    until_nothing_is_open(cluster, topic)
    assert together(read(cluster, topic)) == sorted(expected)
    everything = together(read(cluster, topic, "read_uncommitted"))
    assert len(everything) == 7 * 8 and set(everything) > set(expected)


def test_the_second_producer_of_an_id_fences_the_first(cluster: TidelogCluster, topic: str) -> None:
    first = producer(cluster, topic)
    first.begin_transaction()
    write(first, topic, ["former"] * 8)
    assert first.flush(DEADLINE_S) == 0
    second = producer(cluster, topic)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].fatal()
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    second.begin_transaction()
    write(second, topic, ["later"] * 8)
    second.commit_transaction(DEADLINE_S)
    until_nothing_is_open(cluster, topic)
    assert together(read(cluster, topic)) == ["later"] * 8
    # A fenced one can no longer end what its successor has open.
    second.begin_transaction()
    write(second, topic, ["last"] * 8)
    assert second.flush(DEADLINE_S) == 0
    with pytest.raises(KafkaException):
        first.abort_transaction(DEADLINE_S)
    second.commit_transaction(DEADLINE_S)
    until_nothing_is_open(cluster, topic)
    assert together(read(cluster, topic)) == ["last"] * 8 + ["later"] * 8


def test_offsets_of_a_group_count_once_their_transaction_commits(
    cluster: TidelogCluster, topic: str
) -> None:
    made = producer(cluster, topic)
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    member = Consumer(settings)
    made.begin_transaction()
    write(made, topic, [str(each) for each in range(8)])
    made.commit_transaction(DEADLINE_S)
    member.subscribe([topic])
    consumed: list[object] = []

    def has_all() -> bool:
        consumed.extend(each for each in member.consume(8, 0.2) if each.error() is None)
        return len(consumed) == 8

    wait_until(has_all, DEADLINE_S, "the member has all records", 0)
    positions = member.position(member.assignment())
    for end in (made.abort_transaction, made.commit_transaction):
        made.begin_transaction()
        made.send_offsets_to_transaction(positions, member.consumer_group_metadata(), DEADLINE_S)
        end(DEADLINE_S)
        # With ``require_stable`` the answer waits for the marker.
        committed = sorted(member.committed(positions, DEADLINE_S), key=lambda each: each.partition)
        offsets = [each.offset for each in committed]
        if end == made.abort_transaction:
            assert all(each < 0 for each in offsets), offsets
    assert offsets == [each.offset for each in sorted(positions, key=lambda x: x.partition)]
    member.close()
    until_nothing_is_open(cluster, topic, OFFSETS_TOPIC)


@dataclass
class Writer:
    """A thread with transactions one after another; each third one is aborted."""

    cluster: TidelogCluster
    topic: str
    committed: list[str] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    number: int = 0
    failure: BaseException | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Writer:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive()

    def until(self, more: int) -> None:
        """Wait for more transactions to commit."""
        wanted = len(self.committed) + more * 8

        def is_there() -> bool:
            assert self.failure is None, self.failure
            return len(self.committed) >= wanted

        wait_until(is_there, DEADLINE_S, f"{more} more transactions have committed", 0.02)

    def _run(self) -> None:
        try:
            made = producer(self.cluster, self.topic)
            while not self._stopped.is_set():
                self.number += 1
                self._one(made, [f"{self.number:06}-{each}" for each in range(8)])
        except BaseException as failure:  # the test says it
            self.failure = failure

    def _one(self, made: Producer, values: list[str]) -> None:
        made.begin_transaction()
        try:
            write(made, self.topic, values)
            if self.number % 3:
                persevering(made.commit_transaction)
                self.committed += values
                return
            made.flush(DEADLINE_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        persevering(made.abort_transaction)
        self.aborted.update(values)


def persevering(end: object) -> None:
    """End a transaction; librdkafka wants a call again after an error that it calls retriable."""
    for _ in range(20):
        try:
            end(DEADLINE_S)  # type: ignore[operator]
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
    raise AssertionError("the transaction does not end")


def test_each_record_counts_once_through_kills_of_brokers(
    cluster: TidelogCluster, topic: str
) -> None:
    state = partition_for(topic, STATE_PARTITIONS)
    with Writer(cluster, topic) as writer:
        writer.until(3)
        for led in ((TRANSACTIONS_TOPIC, state), (topic, 1)):
            victim = cluster.brokers[cluster.leader(*led)]
            victim.kill()
            writer.until(3)
            victim.start()
            for each in (TRANSACTIONS_TOPIC, topic):
                cluster.until_in_sync(each, 3)
        writer.until(1)
        for node in cluster.brokers.values():
            node.kill()
        for node in cluster.brokers.values():
            node.start()
        writer.until(3)
    assert writer.failure is None, writer.failure
    for each in (TRANSACTIONS_TOPIC, topic):
        cluster.until_in_sync(each, 3)
    until_nothing_is_open(cluster, topic)
    values = read(cluster, topic)
    assert together(values) == sorted(writer.committed)
    for of_partition in values.values():
        assert of_partition == sorted(of_partition)
    everything = together(read(cluster, topic, "read_uncommitted"))
    assert set(everything) <= set(writer.committed) | writer.aborted
    print(f"{writer.number} transactions, {len(writer.aborted) // 8} aborted")


def test_transactions_of_aiokafka(cluster: TidelogCluster, topic: str) -> None:
    async def run() -> None:
        made = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=topic
        )
        await made.start()
        for number in range(6):
            await made.begin_transaction()
            sent = [
                await made.send(topic, f"{number}".encode(), partition=each % PARTITIONS)
                for each in range(8)
            ]
            await asyncio.gather(*sent)
            if number % 2:
                await made.abort_transaction()
            else:
                await made.commit_transaction()
        await made.stop()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    until_nothing_is_open(cluster, topic)
    assert together(read(cluster, topic)) == ["0"] * 8 + ["2"] * 8 + ["4"] * 8
    assert len(together(read(cluster, topic, "read_uncommitted"))) == 6 * 8


@pytest.mark.java
def test_transactions_of_java(cluster: TidelogCluster, topic: str) -> None:
    why = java.missing()
    if why is not None:
        pytest.skip(why)
    count = 8
    # A program of one source file: its path takes the place of the class's name.
    words = (str(SOURCE), cluster.bootstrap, topic, topic, str(count))
    done = java.run_java(*words).check()
    ended = ["aborted" if each % 3 == 1 else "committed" for each in range(count)]
    expected = [f"{verdict} {number}" for number, verdict in enumerate(ended)]
    assert done.out.splitlines() == [*expected, "ProducerFencedException"], done
    until_nothing_is_open(cluster, topic, OFFSETS_TOPIC)
    committed = [str(number) for number, verdict in enumerate(ended) if verdict == "committed"]
    values = [*committed, "last"]
    assert read(cluster, topic) == {
        each: [x for x in values for _ in range(2)] for each in range(4)
    }
    everything = together(read(cluster, topic, "read_uncommitted"))
    assert len(everything) == 8 * (count + 2)
    asked = [ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0)])]
    client = admin(cluster.bootstrap)
    listed = client.list_consumer_group_offsets(asked, require_stable=True)
    (position,) = listed[topic].result(DEADLINE_S).topic_partitions
    assert position.offset == int(committed[-1])


def test_an_abandoned_transaction_ends_though_its_coordinator_died(
    cluster: TidelogCluster, topic: str
) -> None:
    made = producer(cluster, topic, timeout_ms=2_000)
    made.begin_transaction()
    write(made, topic, ["abandoned"] * 8)
    assert made.flush(DEADLINE_S) == 0
    state = partition_for(topic, STATE_PARTITIONS)
    victim = cluster.brokers[cluster.leader(TRANSACTIONS_TOPIC, state)]
    victim.kill()
    victim.start()
    for each in (TRANSACTIONS_TOPIC, topic):
        cluster.until_in_sync(each, 3)
    until_nothing_is_open(cluster, topic)
    with pytest.raises(KafkaException) as refused:
        persevering(made.commit_transaction)
    assert refused.value.args[0].fatal()
    assert together(read(cluster, topic)) == []
