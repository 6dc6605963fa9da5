"""Producing and reading with stock clients: idempotence, positions, timestamps, admin calls."""

from __future__ import annotations

import asyncio
import time

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from tests.support import clients
from tests.support.clients import Record
from tests.support.log_files import batches
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until

FIRST_MS = 1_700_000_000_000


def values(bootstrap: str, topic: str, count: int) -> list[str | None]:
    return [record.value for record in clients.read_confluent(bootstrap, topic, count)]


def test_a_refused_batch_names_the_records_that_are_to_blame(
    bootstrap: str, topic_name: str
) -> None:
    """KIP-467: the application learns which of its records can be sent again."""
    clients.create_topic(bootstrap, topic_name, cleanup_policy="compact")
    # They are to be one batch, however long it takes to say them: a flush waits for no linger.
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 60_000})
    codes: dict[str, int | None] = {}

    def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
        codes[message.value().decode()] = None if error is None else error.code()

    for value, key in (("a", "k"), ("b", None), ("c", "k"), ("d", None)):
        producer.produce(topic_name, value, key, partition=0, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    bystander, guilty = KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.INVALID_RECORD
    assert codes == {"a": bystander, "b": guilty, "c": bystander, "d": guilty}


def test_idempotent_producers_keep_order_with_five_in_flight(bootstrap: str, topic: str) -> None:
    """Small batches, so that five requests really are in flight; two librdkafka, one Java-like."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "max.in.flight.requests.per.connection": 5,
        }
    )
    offsets: list[int] = []
    for number in range(500):
        producer.produce(
            topic, str(number), partition=0, on_delivery=lambda e, m: offsets.append(m.offset())
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert offsets == list(range(500))
    assert values(bootstrap, topic, 500) == [str(number) for number in range(500)]


def test_kafka_python_idempotent_by_default(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, batch_size=64
    )
    sent = [producer.send(topic, str(n).encode(), partition=0) for n in range(200)]
    assert [future.get(DEADLINE_S).offset for future in sent] == list(range(200))
    producer.close()
    assert values(bootstrap, topic, 200) == [str(number) for number in range(200)]


def test_aiokafka_idempotent(bootstrap: str, topic: str) -> None:
    async def run() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=128
        )
        async with producer:
            sent = [await producer.send(topic, str(n).encode(), partition=0) for n in range(200)]
            return [(await future).offset for future in sent]

    assert asyncio.run(run()) == list(range(200))
    assert values(bootstrap, topic, 200) == [str(number) for number in range(200)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acks(bootstrap: str, topic: str, acks: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": acks})
    for number in range(50):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(DEADLINE_S) == 0
    assert values(bootstrap, topic, 50) == [str(number) for number in range(50)]


def test_tombstones_empty_values_and_odd_headers(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, None, "gone", headers=[("twice", b"1"), ("twice", b"2"), ("no", None)])
    producer.produce(topic, b"", b"")
    producer.produce(topic, bytes(range(256)), b"\x00\xff")
    assert producer.flush(DEADLINE_S) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    got: list[confluent_kafka.Message] = []
    wait_until(
        lambda: got.extend(consumer.consume(3, 0.5)) or len(got) == 3, DEADLINE_S, "all are read"
    )
    consumer.close()
    assert [(m.key(), m.value()) for m in got] == [
        (b"gone", None),
        (b"", b""),
        (b"\x00\xff", bytes(range(256))),
    ]
    assert got[0].headers() == [("twice", b"1"), ("twice", b"2"), ("no", None)]


def test_positions_by_time(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(20):
        producer.produce(topic, str(number), partition=0, timestamp=FIRST_MS + 1000 * number)
        producer.flush(DEADLINE_S)
    wanted = {
        FIRST_MS - 5: 0,
        FIRST_MS: 0,
        FIRST_MS + 1: 1,
        FIRST_MS + 7000: 7,
        FIRST_MS + 19_000: 19,
    }
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    for timestamp_ms, offset in wanted.items():
        answer = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], DEADLINE_S)
        assert answer[0].offset == offset, timestamp_ms
    later = TopicPartition(topic, 0, FIRST_MS + 10**9)
    after = consumer.offsets_for_times([later], DEADLINE_S)[0].offset
    assert after == confluent_kafka.OFFSET_END
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S) == (0, 20)
    consumer.close()

    python = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    part = kafka.TopicPartition(topic, 0)
    found = python.offsets_for_times({part: FIRST_MS + 6500})[part]
    assert (found.offset, found.timestamp) == (7, FIRST_MS + 7000)
    assert python.end_offsets([part]) == {part: 20}
    assert python.beginning_offsets([part]) == {part: 0}
    python.assign([part])
    python.seek(part, 15)
    assert next(iter(python)).value == b"15"
    python.close()


def test_log_append_time(bootstrap: str, topic_name: str) -> None:
    clients.create_topic(bootstrap, topic_name, message_timestamp_type="LogAppendTime")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    seen: list[tuple[int, int]] = []
    begun_ms = int(time.time() * 1000)
    producer.produce(
        topic_name, "x", timestamp=FIRST_MS, on_delivery=lambda e, m: seen.append(m.timestamp())
    )
    assert producer.flush(DEADLINE_S) == 0
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic_name, 0)])
    message = next(iter(consumer))
    consumer.close()
    assert message.timestamp_type == 1
    assert begun_ms - 1000 <= message.timestamp <= time.time() * 1000 + 1000
    assert seen == [(confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, message.timestamp)]


def test_the_topic_recompresses(bootstrap: str, topic_name: str, node: Node) -> None:
    """`compression.type` of the topic wins over the producer's."""
    clients.create_topic(bootstrap, topic_name, compression_type="zstd")
    records = [Record("k", "tide " * 100)] * 20
    for compression in ("none", "gzip", "zstd"):
        clients.write_confluent(bootstrap, topic_name, records, compression)
    assert clients.read_kafka_python(bootstrap, topic_name, 60) == records * 3
    written = batches(node.log_folder(), topic_name)
    assert {batch.compression for batch in written} == {"zstd"}


def test_a_consumer_that_waits_gets_a_record_at_once(bootstrap: str, topic: str) -> None:
    """A long poll ends with the first record, not with its time."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "fetch.wait.max.ms": 20_000}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(1.0) is None, "the fetch now waits at the broker"
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    producer.produce(topic, "now", partition=0)
    begun = time.monotonic()
    message = consumer.poll(15)
    assert message is not None and message.value() == b"now"
    assert time.monotonic() - begun < 5
    assert producer.flush(DEADLINE_S) == 0
    consumer.close()


def test_admin_calls_of_librdkafka(bootstrap: str, topic: str) -> None:
    admin = clients.admin(bootstrap)
    clients.write_confluent(bootstrap, topic, [Record("k", str(n)) for n in range(10)], "none")
    part = TopicPartition(topic, 0)
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 10)):
        assert admin.list_offsets({part: spec})[part].result(DEADLINE_S).offset == offset
    kept = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(kept.values())).result(DEADLINE_S).low_watermark == 4
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    described = admin.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(
        DEADLINE_S
    )
    assert len(described.partitions) == 3 and str(described.topic_id)
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert [each.id for each in cluster.nodes] == [1] and cluster.controller.id == 1

    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "5000000", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    found = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
    entry = next(iter(found.values())).result(DEADLINE_S)["retention.ms"]
    assert entry.value == "5000000" and not entry.is_default
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    wait_until(
        lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, DEADLINE_S, "it is gone"
    )


def test_admin_calls_of_kafka_python(bootstrap: str, topic_name: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({topic_name: {"num_partitions": 2, "replication_factor": 1}})
    wait_until(lambda: topic_name in admin.list_topics(), DEADLINE_S, "it is listed")
    found = admin.describe_topics([topic_name])
    assert len(found[0]["partitions"]) == 2
    assert admin.describe_cluster()["cluster_id"]
    assert admin.list_groups() is not None
    admin.delete_topics([topic_name])
    wait_until(lambda: topic_name not in admin.list_topics(), DEADLINE_S, "it is gone")
    admin.close()


def test_a_topic_is_created_by_its_first_record(bootstrap: str, topic_name: str) -> None:
    clients.write_aiokafka(bootstrap, topic_name, [Record("k", "first")], "none")
    assert values(bootstrap, topic_name, 1) == ["first"]


def test_a_topic_created_again_is_empty(bootstrap: str, topic: str) -> None:
    admin = clients.admin(bootstrap)
    clients.write_confluent(bootstrap, topic, [Record("k", "old")], "none")
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    wait_until(
        lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, DEADLINE_S, "it is gone"
    )
    clients.create_topic(bootstrap, topic)
    clients.write_kafka_python(bootstrap, topic, [Record("k", "new")], "none")
    assert values(bootstrap, topic, 1) == ["new"]


def test_a_topic_of_many_partitions(bootstrap: str, topic_name: str) -> None:
    clients.create_topic(bootstrap, topic_name, 200)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(1000):
        producer.produce(topic_name, str(number), partition=number % 200)
    assert producer.flush(DEADLINE_S) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic_name, number, 0) for number in range(200)])
    got: list[int] = []
    wait_until(
        lambda: got.extend(int(m.value()) for m in consumer.consume(500, 0.5)) or len(got) == 1000,
        DEADLINE_S,
        "all are read",
    )
    consumer.close()
    assert sorted(got) == list(range(1000))
