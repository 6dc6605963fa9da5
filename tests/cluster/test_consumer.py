"""The public consumers against a real node, of tidelog or Apache Kafka: every method, bad input."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from math import inf
from typing import Any

import confluent_kafka
import pytest

import tidelog.aio
from tests.support import clients
from tests.support.processes import DEADLINE_S, wait_until
from tidelog import (
    Consumer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    OffsetAndMetadata,
    PartitionKeyRebalanceListener,
    TopicPartition,
)
from tidelog.errors import (
    CommitFailedError,
    KafkaConfigurationError,
    KafkaError,
    NoBrokersAvailable,
    RecordUnreadableError,
    WakeupError,
)

RECORDS = 60
PARTITIONS = 4
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> str:
    """A topic of four partitions with fifteen records in each, a second apart."""
    clients.create_topic(bootstrap, topic_name, PARTITIONS, retention_ms=-1)
    fill(bootstrap, topic_name)
    return topic_name


def fill(bootstrap: str, topic: str, first: int = 0, count: int = RECORDS) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    )
    for number in range(first, first + count):
        producer.produce(
            topic,
            str(number),
            partition=number % PARTITIONS,
            timestamp=FIRST_MS + 1_000 * number,
            headers=[("n", str(number))],
        )
    assert producer.flush(DEADLINE_S) == 0


@pytest.fixture
def opened(bootstrap: str) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers that end with the test."""
    made: list[Consumer] = []

    def make(*topics: str, **options: Any) -> Consumer:
        options = {
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 200,
            "enable_auto_commit": False,
            **options,
        }
        made.append(Consumer(*topics, bootstrap_servers=bootstrap, **options))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def numbers(records: Collection[ConsumerRecord]) -> list[int]:
    return [int(record.value) for record in records]


def read(consumers: Collection[Consumer], count: int) -> dict[Consumer, list[int]]:
    """Poll these consumers in turn until they have so many records together."""
    got: dict[Consumer, list[int]] = {each: [] for each in consumers}

    def step() -> bool:
        for each in consumers:
            for records in each.poll(50, max_records=7).values():
                got[each] += numbers(records)
        return sum(map(len, got.values())) >= count

    wait_until(step, DEADLINE_S, lambda: f"{got}", pause_s=0)
    return got


def poll_until(consumers: Collection[Consumer], condition: Callable[[], bool]) -> None:
    def step() -> bool:
        for each in consumers:
            each.poll(20)
        return condition()

    what = lambda: f"{[each.assignment() for each in consumers]}"  # noqa: E731
    wait_until(step, DEADLINE_S, what, pause_s=0)


def parts(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes or range(PARTITIONS)]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_and_hand_over(
    opened: Callable[..., Consumer], bootstrap: str, topic: str, strategy: str
) -> None:
    options = {"group_id": f"g-{topic}", "partition_assignment_strategy": [strategy]}
    first = opened(topic, **options)
    assert sorted(read([first], RECORDS)[first]) == list(range(RECORDS))
    first.commit()
    second = opened(topic, **options)
    both = [first, second]
    poll_until(both, lambda: len(first.assignment()) == len(second.assignment()) == 2)
    assert first.assignment() | second.assignment() == set(parts(topic))
    fill(bootstrap, topic, RECORDS)
    got = read(both, RECORDS)
    assert sorted(got[first] + got[second]) == list(range(RECORDS, 2 * RECORDS))
    for each in both:
        each.commit()
    first.close()
    poll_until([second], lambda: second.assignment() == set(parts(topic)))
    assert [second.committed(each) for each in parts(topic)] == [30] * PARTITIONS


class Noting(ConsumerRebalanceListener):
    """Notes what it is called with; commits what goes away."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.calls: list[tuple[str, set[TopicPartition]]] = []

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.calls.append(("revoked", set(revoked)))
        self.consumer.commit()

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.calls.append(("assigned", set(assigned)))

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.calls.append(("lost", set(lost)))


class NotingKeys(PartitionKeyRebalanceListener):
    """Notes what it is called with beside a listener of partitions."""

    def __init__(self, noting: Noting) -> None:
        self.calls = noting.calls

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        self.calls.append(("flush", set(partitions)))

    def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        self.calls.append(("load", set(partitions)))

    def on_partition_key_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(("forget", set(partitions)))


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_listeners_learn_what_comes_and_goes(
    opened: Callable[..., Consumer], topic: str, strategy: str
) -> None:
    options = {"group_id": f"g-{topic}", "partition_assignment_strategy": strategy}
    first, second = opened(**options), opened(**options)
    of_first, of_second = Noting(first), Noting(second)
    first.subscribe([topic], listener=of_first)
    read([first], RECORDS)
    second.subscribe([topic], listener=of_second)
    poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
    everything, kept = set(parts(topic)), first.assignment()
    if strategy == "range":
        assert of_first.calls == [
            ("assigned", everything),
            ("revoked", everything),
            ("assigned", kept),
        ]
    else:
        revoked = [each for what, each in of_first.calls if what == "revoked"]
        assert revoked == [everything - kept]
    # What the first one had processed was committed in its callback.
    assert read([second], 0)[second] == []
    second.close()
    assert of_second.calls[-1] == ("revoked", everything - kept)


def test_positions_are_after_what_was_returned(opened: Callable[..., Consumer], topic: str) -> None:
    consumer = opened(topic, group_id=f"g-{topic}", max_poll_records=4)
    found: dict[TopicPartition, list[ConsumerRecord]] = {}
    while not found:
        found = consumer.poll(1_000)
    ((where, records),) = found.items()
    assert len(records) == 4 and consumer.position(where) == 4
    consumer.commit()
    assert consumer.committed(where) == 4
    record = records[0]
    assert (record.topic, record.partition, record.offset) == (topic, where.partition, 0)
    assert record.timestamp == FIRST_MS + 1_000 * int(record.value)
    assert record.headers == (("n", record.value),)
    consumer.commit({where: OffsetAndMetadata(2, "note")})
    assert consumer.committed(where, metadata=True) == OffsetAndMetadata(2, "note")


def test_commits_aside_call_back_in_poll(opened: Callable[..., Consumer], topic: str) -> None:
    consumer = opened(topic, group_id=f"g-{topic}")
    read([consumer], RECORDS)
    ended: list[tuple[Any, Any, int]] = []
    consumer.commit_async(
        callback=lambda offsets, error: ended.append((offsets, error, threading.get_ident()))
    )
    poll_until([consumer], lambda: bool(ended))
    offsets, error, thread = ended[0]
    assert error is None and thread == threading.get_ident()
    assert {where: each.offset for where, each in offsets.items()} == dict.fromkeys(
        parts(topic), 15
    )
    assert consumer.committed(parts(topic)[0]) == 15


def test_automatic_commits_have_what_was_processed(
    opened: Callable[..., Consumer], bootstrap: str, topic: str
) -> None:
    options = {"group_id": f"g-{topic}", "enable_auto_commit": True}
    first = opened(topic, auto_commit_interval_ms=50, **options)
    read([first], RECORDS)
    wait_until(
        lambda: first.poll(10) == {} and first.committed(parts(topic)[0]) == 15,
        DEADLINE_S,
        "commit",
    )
    first.close()
    second = opened(topic, auto_commit_interval_ms=60_000, **options)
    poll_until([second], lambda: second.assignment() == set(parts(topic)))
    fill(bootstrap, topic, RECORDS)
    assert sorted(read([second], RECORDS)[second]) == list(range(RECORDS, 2 * RECORDS))
    second.close()
    third = opened(group_id=f"g-{topic}")
    assert third.committed(parts(topic)[3]) == 30


def test_assigned_partitions_are_read_from_where_one_seeks(
    opened: Callable[..., Consumer], topic: str
) -> None:
    consumer = opened()
    one, two = parts(topic, 1, 2)
    consumer.assign([one, two])
    consumer.seek(one, 13)
    consumer.seek_to_end(two)
    assert consumer.position(two) == 15
    assert numbers(read_all(consumer, 2)) == [53, 57]
    consumer.seek_to_beginning(two)
    assert consumer.position(two) == 0
    consumer.pause(two)
    assert consumer.paused() == {two}
    consumer.seek(one, 14)
    assert numbers(read_all(consumer, 1)) == [57]
    assert consumer.poll(300) == {}
    consumer.resume(two)
    assert len(read_all(consumer, 15)) == 15
    consumer.assign([two])
    assert consumer.assignment() == {two} or consumer.poll(100) == {}
    assert consumer.position(two) == 15
    with pytest.raises(KafkaError, match="not assigned"):
        consumer.seek(one, 0)
    with pytest.raises(KafkaError, match="group_id"):
        consumer.commit()


def read_all(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    got: list[ConsumerRecord] = []

    def step() -> bool:
        for records in consumer.poll(100).values():
            got.extend(records)
        return len(got) >= count

    wait_until(step, DEADLINE_S, lambda: f"{got}", pause_s=0)
    return got


def test_iterating_ends_after_the_timeout(opened: Callable[..., Consumer], topic: str) -> None:
    consumer = opened(topic, consumer_timeout_ms=700, value_deserializer=int)
    assert sorted(record.value for record in consumer) == list(range(RECORDS))
    assert next(consumer, None) is None


def test_iterating_waits_for_ever_with_the_default_of_kafka_python(
    opened: Callable[..., Consumer], topic: str
) -> None:
    consumer = opened(topic, consumer_timeout_ms=inf)
    assert len(list(islice(consumer, RECORDS))) == RECORDS


def test_topics_and_offsets(opened: Callable[..., Consumer], topic: str) -> None:
    consumer = opened()
    assert topic in consumer.topics()
    assert consumer.partitions_for_topic(topic) == set(range(PARTITIONS))
    assert consumer.partitions_for_topic("nowhere") is None
    assert consumer.beginning_offsets(parts(topic)) == dict.fromkeys(parts(topic), 0)
    assert consumer.end_offsets(parts(topic)) == dict.fromkeys(parts(topic), 15)
    zero, one = parts(topic, 0, 1)
    found = consumer.offsets_for_times({zero: FIRST_MS + 4_500, one: FIRST_MS + 10**9})
    assert found[zero] is not None and found[one] is None
    assert (found[zero].offset, found[zero].timestamp) == (2, FIRST_MS + 8_000)
    assert consumer.bootstrap_connected()


def test_a_pattern_finds_topics_that_come_later(
    opened: Callable[..., Consumer], bootstrap: str, topic: str
) -> None:
    consumer = opened(group_id=f"g-{topic}", metadata_max_age_ms=200)
    consumer.subscribe(pattern=f"{topic}.*")
    read([consumer], RECORDS)
    assert consumer.subscription() == {topic}
    clients.create_topic(bootstrap, f"{topic}-later", 1)
    poll_until([consumer], lambda: len(consumer.assignment()) == PARTITIONS + 1)
    assert consumer.subscription() == {topic, f"{topic}-later"}


def test_another_subscription_replaces_the_first(
    opened: Callable[..., Consumer], bootstrap: str, topic: str
) -> None:
    clients.create_topic(bootstrap, f"{topic}-2", 1)
    consumer = opened(topic, group_id=f"g-{topic}")
    poll_until([consumer], lambda: len(consumer.assignment()) == PARTITIONS)
    consumer.subscribe([f"{topic}-2"])
    poll_until([consumer], lambda: consumer.assignment() == {TopicPartition(f"{topic}-2", 0)})
    consumer.unsubscribe()
    assert consumer.subscription() == set() and consumer.assignment() == set()
    with pytest.raises(KafkaError, match="not subscribed"):
        consumer.poll(10)
    consumer.assign(parts(topic, 0))
    read([consumer], 15)
    with pytest.raises(KafkaError, match="unsubscribe first"):
        consumer.subscribe([topic])


def test_a_static_member_comes_back_without_a_rebalance(
    opened: Callable[..., Consumer], topic: str
) -> None:
    group = f"g-{topic}"
    first = opened(topic, group_id=group, group_instance_id="one")
    second = opened(topic, group_id=group, group_instance_id="two")
    both = [first, second]
    poll_until(both, lambda: len(first.assignment()) == len(second.assignment()) == 2)
    before = second.assignment()
    rebalances = first.metrics()["consumer-metrics"]["rebalance-total"]
    second.close()
    again = opened(topic, group_id=group, group_instance_id="two")
    poll_until([first, again], lambda: len(again.assignment()) == 2)
    assert again.assignment() == before
    assert first.metrics()["consumer-metrics"]["rebalance-total"] == rebalances


def test_a_member_that_does_not_poll_loses_its_partitions(
    opened: Callable[..., Consumer], topic: str
) -> None:
    options = {"group_id": f"g-{topic}", "session_timeout_ms": 30_000}
    slow = opened(max_poll_interval_ms=1_500, **options)
    of_slow = Noting(slow)
    slow.subscribe([topic], listener=of_slow, partition_key_listener=NotingKeys(of_slow))
    read([slow], RECORDS)
    before = len(of_slow.calls)
    other = opened(topic, **options)
    poll_until([other], lambda: len(other.assignment()) == PARTITIONS)
    with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
        slow.commit()
    poll_until([slow, other], lambda: len(slow.assignment()) == len(other.assignment()) == 2)
    # Its state of keys is void: it writes nothing.
    assert of_slow.calls[before : before + 2] == [
        ("forget", set(parts(topic))),
        ("lost", set(parts(topic))),
    ]
    assert of_slow.calls[before + 2][0] == "assigned"


def test_wakeup_ends_a_poll_that_waits(opened: Callable[..., Consumer], topic: str) -> None:
    consumer = opened()
    consumer.assign(parts(topic, 0))
    read([consumer], 15)
    threading.Timer(0.3, consumer.wakeup).start()
    began = time.monotonic()
    with pytest.raises(WakeupError):
        consumer.poll(60_000)
    assert time.monotonic() - began < 30
    assert consumer.poll(10) == {}


def test_an_unreadable_record_is_named_and_passed(
    opened: Callable[..., Consumer], topic: str
) -> None:
    def odd(value: bytes) -> int:
        if int(value) == 8:
            raise ValueError("eight")
        return int(value)

    consumer = opened(value_deserializer=odd)
    where = TopicPartition(topic, 0)
    consumer.assign([where])
    assert [each.value for each in read_all(consumer, 2)] == [0, 4]
    with pytest.raises(RecordUnreadableError, match=r"at offset 2.*eight"):
        consumer.poll(1_000)
    consumer.seek(where, 3)
    assert [each.value for each in read_all(consumer, 12)][:2] == [12, 16]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"auto_offset_reset": "sometimes"}, "auto_offset_reset must be one of"),
        ({"partition_assignment_strategy": ["fair"]}, "partition_assignment_strategy"),
        ({"isolation_level": "all"}, "isolation_level"),
        ({"heartbeat_interval_ms": 50_000}, "less than session_timeout_ms"),
        ({"group_instance_id": "one"}, "needs a group_id"),
        ({"max_poll_records": 0}, "max_poll_records"),
    ],
)
def test_wrong_settings_are_named(bootstrap: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Consumer(bootstrap_servers=bootstrap, **options)
    with pytest.raises(KafkaConfigurationError, match="has no setting 'no_such_setting'"):
        Consumer(bootstrap_servers=bootstrap, no_such_setting=1)


def test_no_reset_policy_says_which_partition_has_no_position(
    opened: Callable[..., Consumer], topic: str
) -> None:
    consumer = opened(topic, group_id=f"g-{topic}", auto_offset_reset="none")
    with pytest.raises(KafkaError, match="no committed offset"):
        while True:
            consumer.poll(100)


def test_an_unreachable_cluster_is_said(bootstrap: str) -> None:
    with pytest.raises(NoBrokersAvailable):
        Consumer(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=200)


def test_asyncio_iterates_and_gets(bootstrap: str, topic: str) -> None:
    async def story() -> None:
        options: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": f"g-{topic}",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with asyncio.timeout(DEADLINE_S):
            async with tidelog.aio.Consumer(topic, **options) as consumer:
                got = []
                async for record in consumer:
                    got.append(int(record.value))
                    if len(got) == 50:
                        break
                await consumer.commit()
                one = await consumer.getone()
                got.append(int(one.value))
                await (await consumer.commit_async())
                assert await consumer.committed(TopicPartition(topic, one.partition)) == (
                    one.offset + 1
                )
            second = tidelog.aio.Consumer(topic, **options)
            await second.start()
            while len(got) < RECORDS:
                for records in (await second.getmany(timeout_ms=100)).values():
                    got += numbers(records)
            assert sorted(got) == list(range(RECORDS))
            where = TopicPartition(topic, 2)
            await second.seek_to_beginning(where)
            assert (await second.getone(where)).offset == 0
            await second.seek_to_end()
            waits = asyncio.create_task(second.poll(60_000))
            await asyncio.sleep(0)
            with pytest.raises(KafkaError, match="another task"):
                await second.poll(10)
            waits.cancel()
            await asyncio.wait([waits])
            await second.stop()
            with pytest.raises(KafkaError, match="closed"):
                await second.poll(10)

    asyncio.run(story())
