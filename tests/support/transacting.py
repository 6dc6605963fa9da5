"""Transactions of librdkafka on a cluster of real processes, and readers of what is committed.

Owns no judgement of one test.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tidelog.client import offsets
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.group_reader import GroupReader


class Seen(NamedTuple):
    """A record that a reader has received."""

    partition: int
    offset: int
    value: str


class Writer:
    """A transactional producer that waits for each of its records."""

    def __init__(self, cluster: TidelogCluster, transactional_id: str, topic: str) -> None:
        self._topic = topic
        self._made = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "topic.metadata.refresh.interval.ms": 200,
                "log_level": 0,
            }
        )
        self._made.init_transactions(DEADLINE_S)

    def write(
        self, values: Iterable[str], partitions: Iterable[int], topic: str | None = None
    ) -> dict[int, int]:
        """Write each value to each partition in the open transaction, of its topic or another one;
        return the last offset in each."""
        last: dict[int, int] = {}

        def noted(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            where, offset = message.partition(), message.offset()
            assert where is not None and offset is not None
            last[where] = max(offset, last.get(where, offset))

        places = list(partitions)
        for value in values:
            for partition in places:
                self._produce(topic or self._topic, value.encode(), partition, noted)
        assert self._made.flush(DEADLINE_S) == 0
        return last

    def _produce(
        self,
        topic: str,
        value: bytes,
        partition: int,
        noted: Callable[[KafkaError | None, Message], None],
    ) -> None:
        def is_taken() -> bool:
            try:
                self._made.produce(topic, value, partition=partition, on_delivery=noted)
            except KafkaException as error:
                # Its metadata are of before a growth.
                assert error.args[0].code() == KafkaError._UNKNOWN_PARTITION, error
                self._made.poll(0)
                return False
            return True

        wait_until(is_taken, DEADLINE_S, f"the producer knows partition {partition}", 0.02)

    def begin(self) -> None:
        """Begin a transaction."""
        self._made.begin_transaction()

    def commit(self) -> None:
        """Commit the open transaction."""
        self._made.commit_transaction(DEADLINE_S)

    def refusal(self, value: str, partition: int) -> int:
        """Run a transaction of one record that is to be refused; return the error, or 0."""
        try:
            self.begin()
            self._made.produce(self._topic, value.encode(), partition=partition)
            self.commit()
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    def abort(self) -> None:
        """Abort the open transaction."""
        self._made.abort_transaction(DEADLINE_S)


def write_plain(cluster: TidelogCluster, topic: str, value: str, *partitions: int) -> None:
    """Write a record to each of these partitions, outside of transactions."""
    made = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
    for partition in partitions:
        made.produce(topic, value.encode(), partition=partition)
    assert made.flush(DEADLINE_S) == 0


def ends(bootstrap: str, topic: str, isolation: IsolationLevel) -> dict[int, int]:
    """Where each partition of a topic ends for readers of an isolation level."""
    client = admin(bootstrap)
    count = len(client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
    asked = {TopicPartition(topic, each): OffsetSpec.latest() for each in range(count)}
    listed = client.list_offsets(asked, isolation_level=isolation, request_timeout=DEADLINE_S)
    return {each.partition: listed[each].result(DEADLINE_S).offset for each in asked}


def until_nothing_is_open(cluster: TidelogCluster, topic: str) -> None:
    """Wait until the last stable offset is the high watermark in all partitions of a topic."""

    def is_stable() -> bool:
        both = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        stable, last = (ends(cluster.bootstrap, topic, each) for each in both)
        return stable == last

    wait_until(is_stable, DEADLINE_S, f"nothing is open in {topic}", 0.1)


class CommittedMember:
    """A member of a group, aware of resizes, that reads committed transactions only: in a thread
    of its own, as the product's consumer does, and commits as it goes."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.seen: list[Seen] = []
        self.last_error: ClientError | None = None
        self._bootstrap, self._group, self._topic = bootstrap, group, topic
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_all, daemon=True)

    def __enter__(self) -> CommittedMember:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join(DEADLINE_S)

    def values(self) -> list[tuple[int, str]]:
        """Partition and value of each record, in the order of delivery."""
        return [(each.partition, each.value) for each in list(self.seen)]

    def until(self, condition: Callable[[], bool], said: str) -> None:
        """Wait for a condition on what was received."""

        def is_so() -> bool:
            assert self._failure is None, self._failure
            return condition()

        wait_until(is_so, DEADLINE_S, lambda: f"{said}: {self.values()} {self.last_error}", 0.02)

    def until_has(self, count: int) -> None:
        """Wait until so many records were received."""
        self.until(lambda: len(self.seen) >= count, f"{count} records are received")

    def _run_all(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:  # the test says it
            self._failure = failure

    async def _run(self) -> None:
        async with (
            Cluster(self._bootstrap) as cluster,
            GroupReader(
                cluster,
                self._group,
                [self._topic],
                reset=OffsetReset.EARLIEST,
                isolation=offsets.IsolationLevel.READ_COMMITTED,
                auto_commit_ms=200,
                heartbeat_interval_ms=500,
                partition_check_ms=500,
            ) as reader,
        ):
            while not self._ended:
                try:
                    fetched = await reader.poll(50)
                except ClientError as error:
                    # The next poll tries again.
                    self.last_error = error
                    continue
                self.seen += [
                    Seen(piece.partition.partition, row.offset, bytes(row.value or b"").decode())
                    for piece in fetched
                    for row in piece.rows()
                ]
