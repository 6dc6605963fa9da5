"""The public producers write a topic that grows and shrinks, and the order checker judges them.

One producer for asyncio and one that blocks; the product's group members read what they write.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import pytest

import tidelog
from tests.order.aware_run import RealRun
from tests.order.checks import violations_in
from tests.order.history import Outcome, Send
from tests.order.public_writers import BlockingWriter, PublicWriter
from tests.order.reference import Reference
from tests.order.timeline import report
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET
from tidelog.client.cluster import Cluster
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.offsets import LATEST, list_offsets
from tidelog.errors import UnknownTopicOrPartitionError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import CONTROL_BIT
from tidelog.records.control_records import AncestorTombstone, decode_change
from tidelog.records.reader import read_batch

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

TOPIC = "breathing"
INITIAL = 4

CONFIG = {
    "offsets.topic.num.partitions": 1,
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": 3_000,
    "group.initial.rebalance.delay.ms": 100,
    "retired.check.interval.ms": 500,
    "retired.purge.delay.ms": 0,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    with TidelogCluster(tmp_path_factory.mktemp("resizes"), config=CONFIG) as started:
        yield started


async def course(cluster: TidelogCluster, seed: int) -> RealRun:
    """Grow and shrink under load: undisturbed, then while a leader dies."""
    run = RealRun(cluster.bootstrap, TOPIC, INITIAL, seed, (PublicWriter, BlockingWriter))
    run.start()
    try:
        await run.until(lambda: len(run.history.of(Send)) > 50, lambda: "the writers write")
        for count in (8, 5):
            await run.resize(count)
            await run.pause(0.5)
        leader = cluster.brokers[cluster.leader(TOPIC, 0)]
        shrinking = asyncio.create_task(run.resize(4))
        await run.pause(random.uniform(0, 0.3))
        await asyncio.to_thread(leader.kill)
        await asyncio.to_thread(leader.start)
        await shrinking
        await run.pause(0.5)
        await run.finish()
        return run
    finally:
        await run.close()


def test_keys_keep_their_order_through_the_public_producers(cluster: TidelogCluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    cluster.create_topic(TOPIC, INITIAL, 3, retired_purge="drained", segment_bytes=20_000)
    run = asyncio.run(course(cluster, seed))
    reference = Reference(run.history)
    found = violations_in(reference)
    sends = run.history.of(Send)
    print(Counter(send.outcome for send in sends))
    assert not found, report(reference, found, seed)
    for writer in ("w1", "w2"):
        assert sum(s.writer == writer and s.outcome is Outcome.OK for s in sends) > 100


def test_a_producer_may_close_while_its_topic_is_resized(cluster: TidelogCluster) -> None:
    topic = "closing"
    cluster.create_topic(topic, 2, 3)
    with tidelog.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for count in (4, 3):
            producer = tidelog.Producer(
                bootstrap_servers=cluster.bootstrap, linger_ms=3_600_000, batch_size=200
            )
            futures = [producer.send(topic, b"%d" % n, b"k%d" % (n % 9)) for n in range(500)]
            # The view of the producer is of before: what it still has is refused and hashed again.
            admin.set_partition_count(topic, count, force=True)
            futures += [producer.send(topic, b"%d" % n, b"k%d" % (n % 9)) for n in range(500)]
            producer.close(timeout=DEADLINE_S)
            assert all(future.succeeded() for future in futures)
            newest = {future.get().partition for future in futures[-50:]}
            assert newest <= set(range(count))


def test_a_topic_that_is_deleted_while_a_producer_writes(cluster: TidelogCluster) -> None:
    topic = "deleted"
    cluster.create_topic(topic, 2, 3)
    with (
        tidelog.Admin(bootstrap_servers=cluster.bootstrap) as admin,
        tidelog.Producer(
            bootstrap_servers=cluster.bootstrap,
            allow_auto_create_topics=False,
            request_timeout_ms=2_000,
            delivery_timeout_ms=3_000,
            max_block_ms=2_000,
        ) as producer,
    ):
        producer.send(topic, b"x", b"k").get(DEADLINE_S)
        admin.delete_topics([topic])
        error = producer.send(topic, b"y", b"k").exception(DEADLINE_S)
        assert error is not None
        print(error)
        # Another topic is not held up, and the topic's next life is written like any other.
        cluster.create_topic("other", 1, 3)
        producer.send("other", b"x").get(DEADLINE_S)
        cluster.create_topic(topic, 3, 3)

        def written() -> bool:
            try:
                return producer.send(topic, b"z", b"k").get(DEADLINE_S).offset >= 0
            except UnknownTopicOrPartitionError:
                return False

        assert any(written() for _ in range(20))


def test_the_older_homes_of_compacted_keys_get_a_tombstone_once(cluster: TidelogCluster) -> None:
    topic, keys = "compacted", [b"k%d" % n for n in range(40)]
    cluster.create_topic(topic, 2, 3, cleanup_policy="compact")
    cluster.create_topic("plain", 2, 3)

    def ends(of: str) -> list[int]:
        where = {TopicPartition(of, index): tidelog.OffsetSpec.LATEST for index in (0, 1)}
        return [each.offset for each in admin.list_offsets(where).values()]

    with (
        tidelog.Admin(bootstrap_servers=cluster.bootstrap) as admin,
        tidelog.Producer(bootstrap_servers=cluster.bootstrap) as producer,
    ):
        for of in (topic, "plain"):
            for key in keys:
                producer.send(of, b"old", key)
            producer.flush(DEADLINE_S)
            admin.set_partition_count(of, 4)
        fenced = {of: ends(of) for of in (topic, "plain")}
        places = []
        for _ in range(2):
            # Metadata of before: the first refused batch brings the new ones.
            sent = [producer.send(of, b"new", key) for of in (topic, "plain") for key in keys]
            places = [future.get(DEADLINE_S).topic_partition for future in sent]
        stayed = Counter(where for where in places if where.partition < 2)
        moved = Counter(
            TopicPartition(topic, where.partition - 2)
            for where in places
            if where.topic == topic and where.partition >= 2
        )
        assert sum(moved.values()) > 5

        def expected(of: str) -> list[int]:
            homes = [TopicPartition(of, index) for index in (0, 1)]
            return [
                end + 2 * stayed[home] + moved[home]
                for end, home in zip(fenced[of], homes, strict=True)
            ]

        wait_until(lambda: ends(topic) == expected(topic), DEADLINE_S, lambda: str(ends(topic)))
        assert ends("plain") == expected("plain")
    found = read_controls(cluster, topic, moved)
    assert found == {key for key, where in zip(keys, places, strict=False) if where.partition >= 2}


def read_values(cluster: TidelogCluster, where: TopicPartition) -> list[bytes | None]:
    """The values of the records in a partition."""

    async def read() -> list[bytes | None]:
        found: list[bytes | None] = []
        async with Cluster(cluster.bootstrap) as client:
            ends = await list_offsets(client, {where: LATEST})
            fetcher = Fetcher(client)
            fetcher.assign({where: 0}, {where: ends[where].offset})
            while not fetcher.finished():
                for piece in await fetcher.poll(1000):
                    found += [row.value for row in piece.rows()]
            await fetcher.close()
        return found

    return asyncio.run(read())


def read_controls(
    cluster: TidelogCluster, topic: str, homes: Iterable[TopicPartition]
) -> set[bytes]:
    """The keys of the ancestor tombstones in some partitions."""

    async def read() -> set[bytes]:
        found: set[bytes] = set()
        async with Cluster(cluster.bootstrap) as client:
            ends = await list_offsets(client, dict.fromkeys(homes, LATEST))
            fetcher = Fetcher(client)
            fetcher.assign(dict.fromkeys(homes, 0), {at: end.offset for at, end in ends.items()})
            while not fetcher.finished():
                for piece in await fetcher.poll(1000):
                    for header, batch in piece.all_batches():
                        if header.attributes & CONTROL_BIT:
                            changes = (decode_change(each.value) for each in read_batch(batch))
                            found |= {
                                each.key for each in changes if isinstance(each, AncestorTombstone)
                            }
            await fetcher.close()
        return found

    return asyncio.run(read())


def test_a_topic_that_becomes_ordered_and_unordered_goes_on_in_its_logs(
    cluster: TidelogCluster,
) -> None:
    topic = "unordered"
    cluster.create_topic(topic, 3, 3, enable_ordered_delivery="false")
    with (
        tidelog.Admin(bootstrap_servers=cluster.bootstrap) as admin,
        tidelog.Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=20) as producer,
    ):
        assert admin.describe_topics([topic])[0].resize_epoch == -1
        found = [producer.send(topic, b"0", b"k").get(DEADLINE_S)]

        def follows(value: bool) -> bool:
            # One record in each batch: the brokers remember the sequence numbers of five.
            found.append(producer.send(topic, b"%d" % len(found), b"k").get(DEADLINE_S))
            return producer._inner._cluster.view.topics[topic].is_ordered is value

        for value in (True, False, True):
            setting = {"enable.ordered.delivery": value}
            kind = tidelog.ConfigResourceType.TOPIC
            admin.alter_configs([tidelog.ConfigResource(kind, topic, setting)])
            wait_until(partial(follows, value), DEADLINE_S, "the producer sees the change")
            for _ in range(10):
                follows(value)
        assert {each.partition for each in found} == {found[0].partition}
        offsets = [each.offset for each in found]
        assert offsets == sorted(set(offsets))
    values = read_values(cluster, found[0].topic_partition)
    assert values == [b"%d" % number for number in range(len(found))]
