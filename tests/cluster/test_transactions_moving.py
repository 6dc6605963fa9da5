"""Transactions that are open while their topic grows and shrinks, and while partitions and their
coordinator move: on three real brokers (KIP-98, KIP-253, KIP-455; promises 3, 7 and 10)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.reassigning import alter, create_on, until_exact
from tests.support.resizes import resize
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tests.support.transacting import (
    CommittedMember,
    Writer,
    until_nothing_is_open,
    write_plain,
)
from tidelog.model.topics import TRANSACTIONS_TOPIC

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

FEW, MANY = 2, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    config = {
        # A producer that still asks after a deleted topic would create it again, as with Kafka.
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 2,
        "transaction.state.log.min.isr": 1,
        "log.segment.delete.delay.ms": 100,
        "group.initial.rebalance.delay.ms": 100,
        "retired.check.interval.ms": 200,
        "retired.purge.delay.ms": 0,
    }
    with TidelogCluster(tmp_path_factory.mktemp("moving"), config=config) as made:
        yield made


def until_listed(cluster: TidelogCluster, topic: str, count: int) -> None:
    def is_listed() -> bool:
        return all(
            sorted(cluster.partitions(topic, ask=broker)) == list(range(count))
            for broker in cluster.brokers
        )

    wait_until(is_listed, DEADLINE_S, f"every broker lists {count} partitions")


def waiting_lines(cluster: TidelogCluster, topic: str) -> list[str]:
    """What `topics --describe` says of groups that wait."""
    options = ("--describe", "--topic", topic, "--bootstrap-server", cluster.bootstrap)
    done = run_tidelog("topics", *options)
    assert done.returncode == 0, done
    return [line for line in done.stdout.splitlines() if line.startswith("Group ")]


def commit(cluster: TidelogCluster, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets of a group without members."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": group}
    consumer = Consumer(settings)
    places = [TopicPartition(topic, *each) for each in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def delete_all(cluster: TidelogCluster, topic: str, partition: int) -> None:
    """Delete all records of a partition, the control records too."""
    place = TopicPartition(topic, partition, OFFSET_END)
    client = admin(cluster.bootstrap)
    (deleted,) = client.delete_records([place]).values()
    deleted.result(DEADLINE_S)


def pass_a_check(cluster: TidelogCluster, topic: str) -> None:
    """Return when the controller has checked all retired partitions, and removed those of a topic
    that has never had data."""
    other = f"{topic}-other"
    cluster.create_topic(other, FEW, 1)
    resize(cluster.bootstrap, other, MANY)
    resize(cluster.bootstrap, other, FEW)
    until_listed(cluster, other, FEW)


def test_gates_and_removals_wait_for_open_transactions(
    cluster: TidelogCluster, topic_name: str
) -> None:
    topic = topic_name
    cluster.create_topic(topic, FEW, retired_purge="drained", min_insync_replicas=2)
    first, second = (Writer(cluster, f"{topic}-{x}", topic) for x in ("first", "second"))
    first.begin()
    first.write(["a"], (0, 1))
    first.commit()
    # The data before the fences ends with an aborted record and its marker.
    first.begin()
    first.write(["aborted"], (0, 1))
    first.abort()
    second.begin()
    second.write(["b"], (0,))
    resize(cluster.bootstrap, topic, MANY)
    until_listed(cluster, topic, MANY)
    write_plain(cluster, topic, "c", *range(MANY))
    with CommittedMember(cluster.bootstrap, topic, topic) as member:
        member.until_has(4)
        # Partition 2 waits for 0, whose transaction was open at the fence; 3 does not wait for 1.
        assert sorted(member.values()) == [(0, "a"), (1, "a"), (1, "c"), (3, "c")]
        (line,) = waiting_lines(cluster, topic)
        assert "partition 2 waits for partition 0" in line
        assert f"transactional id {topic}-second (producer" in line
        second.write(["b"], (0,))
        second.commit()
        member.until_has(8)
        order = member.values()[4:]
        assert [x for x in order if x[0] == 0] == [(0, "b"), (0, "c"), (0, "b")]
        assert order.index((2, "c")) > order.index((0, "b")), order

        # A group that commits its last record never commits past what is aborted below.
        read = {seen.partition: seen.offset + 1 for seen in member.seen}
        commit(cluster, f"{topic}-stock", topic, {x: read[x] for x in range(MANY)})
        second.begin()
        second.write(["d", "e"], (1, 2, 3))
        resize(cluster.bootstrap, topic, FEW)
        write_plain(cluster, topic, "f", 0, 1)
        # No record of it is left in 3, and it is open there all the same.
        delete_all(cluster, topic, 3)
        pass_a_check(cluster, topic)
        assert sorted(cluster.partitions(topic)) == list(range(MANY))
        assert len(member.values()) == 8
        second.abort()
        member.until_has(10)
        assert sorted(member.values()[8:]) == [(0, "f"), (1, "f")]
        until_listed(cluster, topic, FEW)
    until_nothing_is_open(cluster, topic)
    before = {seen.partition: seen.offset for seen in member.seen}
    resize(cluster.bootstrap, topic, MANY)
    until_listed(cluster, topic, MANY)
    second.begin()
    last = second.write(["g"], range(MANY))
    second.commit()
    # After what was aborted: two records, the seal and the marker; then the fence of the birth.
    assert all(last[x] >= before[x] + 6 for x in (2, 3)), (last, before)
    until_nothing_is_open(cluster, topic)


def test_what_is_open_moves_with_partitions_and_coordinator(
    cluster: TidelogCluster, topic_name: str
) -> None:
    topic = topic_name
    create_on(cluster, topic, {0: (1, 2), 1: (2, 3)}, {"segment.bytes": "2000"})
    writer, other = (Writer(cluster, f"{topic}-{x}", topic) for x in ("moved", "other"))
    other.begin()
    other.write(["aborted"], (0, 1))
    writer.begin()
    # Some segments: what is open comes from a snapshot, too.
    writer.write([f"a{x:03}" for x in range(60)], (0, 1))
    state = tuple(cluster.partitions(TRANSACTIONS_TOPIC)[0].replicas)
    absent = next(x for x in cluster.brokers if x not in state)
    moved = {0: (3,), 1: (1,)}
    alter(cluster, topic, moved)
    alter(cluster, TRANSACTIONS_TOPIC, {0: (absent,)})
    until_exact(cluster, topic, moved)
    until_exact(cluster, TRANSACTIONS_TOPIC, {0: (absent,)})
    with CommittedMember(cluster.bootstrap, topic, topic) as member:
        writer.write(["b"], (0, 1))
        other.abort()
        writer.commit()
        member.until_has(2 * 61)
        for partition in (0, 1):
            values = [value for where, value in member.values() if where == partition]
            assert values == [*(f"a{x:03}" for x in range(60)), "b"]
    until_nothing_is_open(cluster, topic)
    # The next transaction begins at once with the moved coordinator.
    writer.begin()
    writer.write(["c"], (0, 1))
    writer.commit()
    until_nothing_is_open(cluster, topic)


def test_a_stock_member_that_commits_its_last_record_shuts_no_gate_for_ever(
    cluster: TidelogCluster, topic_name: str
) -> None:
    """It is given nothing of what was aborted after that record, and commits nothing there."""
    topic = topic_name
    cluster.create_topic(topic, 1)
    writer = Writer(cluster, topic, topic)
    writer.begin()
    writer.write(["a"], (0,))
    writer.commit()
    writer.begin()
    writer.write(["aborted"], (0,))
    writer.abort()
    resize(cluster.bootstrap, topic, 2)
    until_listed(cluster, topic, 2)
    # Range gives the first partition to the first member by its id, which begins with this name.
    stock = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": "a",
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "log_level": 0,
        }
    )
    stock.subscribe([topic])
    read = []

    def has_read_all() -> bool:
        message = stock.poll(0.02)
        if message is not None and message.error() is None:
            read.append((message.partition(), message.offset()))
            stock.commit(message, asynchronous=False)
        return bool(read)

    wait_until(has_read_all, DEADLINE_S, "the stock member has read what is committed", 0)
    with CommittedMember(cluster.bootstrap, topic, topic) as member:

        def shares() -> bool:
            stock.poll(0.02)
            return [each.partition for each in stock.assignment()] == [0]

        wait_until(shares, DEADLINE_S, "the other member has the child", 0)
        write_plain(cluster, topic, "b", 1)

        def delivers() -> bool:
            stock.poll(0.02)
            return member.values() == [(1, "b")]

        wait_until(delivers, DEADLINE_S, lambda: f"the child is read: {member.values()}", 0)
    assert read == [(0, 0)]
    committed = stock.committed([TopicPartition(topic, 0)], DEADLINE_S)
    assert [each.offset for each in committed] == [1]
    stock.close()


def test_a_transaction_ends_although_a_topic_of_it_is_deleted(
    cluster: TidelogCluster, topic_name: str
) -> None:
    """Its marker has nothing to end there, nor in the next topic of that name."""
    topic, gone = topic_name, f"{topic_name}-gone"
    for name in (topic, gone):
        cluster.create_topic(name, 1)
    writer = Writer(cluster, topic, topic)
    writer.begin()
    writer.write(["a"], (0,))
    writer.write(["a"], (0,), gone)
    client = admin(cluster.bootstrap)
    client.delete_topics([gone])[gone].result(DEADLINE_S)
    writer.commit()
    cluster.create_topic(gone, 1)
    writer.begin()
    writer.write(["b"], (0,))
    writer.write(["b"], (0,), gone)
    writer.commit()
    with CommittedMember(cluster.bootstrap, topic, topic) as member:
        member.until_has(2)
        assert member.values() == [(0, "a"), (0, "b")]
    for name in (topic, gone):
        until_nothing_is_open(cluster, name)
