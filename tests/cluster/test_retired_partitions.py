"""Retired partitions on real processes: readable until they are empty, then removed; the next ones
of their numbers go on at their offsets (KIP-253; promises 3 and 10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support.clients import admin, failure_of
from tests.support.cluster import TidelogCluster
from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.resizes import resize
from tests.support.target import TARGET
from tidelog.client.cluster import Cluster
from tidelog.client.fences import describe_fences
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

TOPIC = "t"
FEW, MANY = 2, 4
RETIRED = range(FEW, MANY)
RECORDS = 50


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {
        "inter.broker.protocol.version": "1.5",
        "auto.create.topics.enable": "false",
        "retired.check.interval.ms": "200",
        "retired.purge.delay.ms": "0",
    }
    with TidelogCluster(tmp_path, config=config) as started:
        yield started


def idempotent(cluster: TidelogCluster) -> confluent_kafka.Producer:
    """A producer that looks at no metadata unless a leader refuses it."""
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": RECORDS // 5,
            "topic.metadata.refresh.interval.ms": -1,
        }
    )


def write(
    cluster: TidelogCluster, partition: int, producer: confluent_kafka.Producer | None = None
) -> list[int]:
    """Write records to one partition, by a producer of its own if none is given; return their
    offsets."""
    offsets: list[int] = []

    def noted(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    if producer is None:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=partition, on_delivery=noted)
    assert producer.flush(DEADLINE_S) == 0
    return offsets


def read(cluster: TidelogCluster, partition: int, group: str) -> list[int]:
    """Read all data of a partition and commit; return the offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition)])
    offsets: list[int] = []
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "the end of the partition"
        error = failure_of(message)
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            break
        if message.error() is None:
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)
    if offsets:
        at = confluent_kafka.TopicPartition(TOPIC, partition, offsets[-1] + 1)
        consumer.commit(offsets=[at], asynchronous=False)
    consumer.close()
    return offsets


def until_listed(cluster: TidelogCluster, count: int) -> None:
    def is_listed() -> bool:
        return all(
            sorted(cluster.partitions(TOPIC, ask=broker)) == list(range(count))
            for broker in cluster.brokers
        )

    wait_until(is_listed, DEADLINE_S, f"every broker lists {count} partitions")


def folders(cluster: TidelogCluster) -> set[str]:
    """The partitions that have a directory on some broker."""
    found = {
        path.name
        for node in cluster.brokers.values()
        for path in node.log_folder().iterdir()
        if path.name.startswith(f"{TOPIC}-")
    }
    return {name for name in found if "." not in name}


def last_sequences(cluster: TidelogCluster, partition: int) -> list[int]:
    """The last sequence of each idempotent producer that the partition's leader knows."""
    asked = messages.DescribeProducersRequest
    request = asked([asked.TopicRequest(TOPIC, [partition])])
    leader = cluster.brokers[cluster.leader(TOPIC, partition)]

    async def main() -> list[int]:
        peer = await Peer.connect(leader.port)
        (found,) = (await peer.ask(request, 0)).topics[0].partitions
        peer.writer.close()
        return [each.last_sequence for each in found.active_producers]

    return asyncio.run(main())


def data_ends(cluster: TidelogCluster) -> dict[int, int]:
    """Where the data of each retired partition ends: before its newest fence or seal."""

    async def main() -> dict[int, int]:
        async with Cluster(cluster.bootstrap) as client:
            asked = [TopicPartition(TOPIC, index) for index in RETIRED]
            found = await describe_fences(client, asked)
            return {where.partition: found[where].fences[-1].fence.data_end for where in asked}

    return asyncio.run(main())


def test_empty_ones_go_and_the_next_ones_go_on_at_their_offsets(cluster: TidelogCluster) -> None:
    """A producer of all lives goes on in each with its sequence: its partition does not know it."""
    cluster.create_topic(TOPIC, FEW)
    last = dict.fromkeys(RETIRED, -1)
    old = idempotent(cluster)
    for life in range(2):
        resize(cluster.bootstrap, TOPIC, MANY)
        until_listed(cluster, MANY)
        for index in RETIRED:
            offsets = write(cluster, index, old)
            assert last_sequences(cluster, index) == [(life + 1) * RECORDS - 1]
            assert min(offsets) > last[index], (life, index)
            last[index] = max(offsets)
        resize(cluster.bootstrap, TOPIC, FEW)
        # They have data: they stay listed and readable, and take no records.
        assert sorted(cluster.partitions(TOPIC)) == list(range(MANY))
        for index in RETIRED:
            offsets = read(cluster, index, f"reader-{life}")
            assert len(offsets) == RECORDS and offsets[-1] == last[index]
        ends = data_ends(cluster)
        client = admin(cluster.bootstrap)
        emptied = [confluent_kafka.TopicPartition(TOPIC, x, ends[x]) for x in RETIRED]
        for result in client.delete_records(emptied).values():
            try:
                result.result(DEADLINE_S)
            except confluent_kafka.KafkaException as error:
                # The empty partition was removed before every follower had said that it is empty,
                # which the response awaits. If nothing was deleted, it stays listed below.
                removed = confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION
                assert error.args[0].code() == removed, error
        until_listed(cluster, FEW)
        wait_until(
            lambda: folders(cluster) == {f"{TOPIC}-{x}" for x in range(FEW)},
            DEADLINE_S,
            "every broker has stopped its replicas of the retired partitions",
        )


def test_drained_ones_are_purged_when_every_group_has_read_them(cluster: TidelogCluster) -> None:
    cluster.create_topic(TOPIC, FEW, retired_purge="drained")
    write(cluster, 0)
    resize(cluster.bootstrap, TOPIC, MANY)
    until_listed(cluster, MANY)
    written = {index: write(cluster, index) for index in RETIRED}
    for group in ("fast", "slow"):
        read(cluster, 0, group)
    resize(cluster.bootstrap, TOPIC, FEW)
    for index in RETIRED:
        read(cluster, index, "fast")
    # The other group has committed offsets of the topic, and none past their data.
    assert sorted(cluster.partitions(TOPIC)) == list(range(MANY))
    assert read(cluster, MANY - 1, "slow")[-1] == written[MANY - 1][-1]
    until_listed(cluster, MANY - 1)
    assert read(cluster, FEW, "slow")[-1] == written[FEW][-1]
    until_listed(cluster, FEW)
