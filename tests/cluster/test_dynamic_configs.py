"""A topic's configuration that is changed on a running node takes effect with the answer.

The node's own intervals are long, except the cleaner's pause: what happens here does so because of
the change, not because an interval passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from tests.support import clients
from tests.support.clients import Record
from tests.support.log_files import batches, segments
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET

CLEANER_PAUSE_MS = 100
HOUR_MS = 3_600_000

Alter = Callable[..., None]


@pytest.fixture(scope="module")
def cleaning_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose cleaner looks often, and whose retention looks hardly ever by itself."""
    from tests.support.target import new_node

    config = {
        "log.cleaner.backoff.ms": CLEANER_PAUSE_MS,
        "log.cleaner.min.cleanable.ratio": 0.0001,
        # Kafka looks at retention by the clock alone.
        "log.retention.check.interval.ms": 500 if TARGET == "kafka" else HOUR_MS,
        "log.initial.task.delay.ms": 500,
    }
    with new_node(tmp_path_factory.mktemp("cleaning"), config) as started:
        yield started


@pytest.fixture
def alter(cleaning_node: Node, topic_name: str) -> Alter:
    """`alter(retention_ms=5)` sets configurations of the topic and returns with the answer."""
    admin = clients.admin(cleaning_node.bootstrap)

    def change(**config: object) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic_name)
        for name, value in config.items():
            entry = ConfigEntry(
                name.replace("_", "."),
                str(value),
                incremental_operation=AlterConfigOpType.SET,
            )
            resource.add_incremental_config(entry)
        admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    return change


@pytest.fixture
def write(cleaning_node: Node, topic_name: str) -> Callable[..., KafkaError | None]:
    """`write(value, key)` sends one record as a batch of its own; the error it was answered."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cleaning_node.bootstrap})

    def send(value: str | None, key: str | None = "k", **more: object) -> KafkaError | None:
        answers: list[KafkaError | None] = []
        producer.produce(
            topic_name,
            value,
            key,
            partition=0,
            on_delivery=lambda error, _: answers.append(error),
            **more,
        )
        assert producer.flush(DEADLINE_S) == 0
        return answers[0]

    return send


Write = Callable[..., KafkaError | None]


def log_start(node: Node, topic: str) -> int:
    part = TopicPartition(topic, 0)
    # Kept until the answer is there: librdkafka's admin client takes its questions along.
    admin = clients.admin(node.bootstrap)
    offset: int = admin.list_offsets({part: OffsetSpec.earliest()})[part].result(DEADLINE_S).offset
    return offset


def contents(node: Node, topic: str) -> list[Record]:
    """Every record that can be read now."""
    part = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest")
    consumer.assign([part])
    end = consumer.end_offsets([part])[part]
    found = []
    while consumer.position(part) < end:
        for message in consumer.poll(1000).get(part, []):
            texts = (message.key, message.value)
            found.append(Record(*(None if text is None else text.decode() for text in texts)))
    consumer.close()
    return found


@pytest.mark.skipif(TARGET == "kafka", reason="its brokers apply a change after the response")
def test_what_is_accepted_and_how_it_is_stored(
    cleaning_node: Node, topic_name: str, alter: Alter, write: Write
) -> None:
    """max.message.bytes, compression.type, message.timestamp.type."""
    clients.create_topic(cleaning_node.bootstrap, topic_name)
    assert write("x" * 5000) is None
    alter(max_message_bytes=2000)
    refused = write("x" * 5000)
    assert refused is not None and refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    alter(max_message_bytes=100_000, compression_type="zstd")
    assert write("x" * 5000) is None
    alter(compression_type="producer", message_timestamp_type="LogAppendTime")
    assert write("x", timestamp=1000) is None
    stored = batches(cleaning_node.log_folder(), topic_name)
    assert [batch.compression for batch in stored] == ["none", "zstd", "none"]
    log_append_time = 0x08
    assert [bool(batch.attributes & log_append_time) for batch in stored] == [False, False, True]


def test_when_segments_end(
    cleaning_node: Node, topic_name: str, alter: Alter, write: Write
) -> None:
    """segment.bytes, segment.ms."""
    clients.create_topic(cleaning_node.bootstrap, topic_name, retention_ms=-1)

    def count() -> int:
        return len(segments(cleaning_node.log_folder(), topic_name))

    for second in range(4):
        assert write("x" * 600, timestamp=1_000_000 + second * 1000) is None
    assert count() == 1
    # Kafka 4.1 and later refuse less than a mebibyte; its segment.ms shows the same.
    if TARGET != "kafka":
        alter(segment_bytes=1000)
        assert write("x" * 600, timestamp=1_004_000) is None
        assert count() == 2
        alter(segment_bytes=1 << 20)
    before = count()
    alter(segment_ms=500)
    assert write("x", timestamp=1_010_000) is None
    assert count() == before + 1
    alter(segment_ms=HOUR_MS)
    assert write("x", timestamp=1_020_000) is None
    assert count() == before + 1


def many_segments(topic: str, node: Node, alter: Alter, write: Write, **config: object) -> None:
    """Ten records, each in a segment of its own."""
    clients.create_topic(node.bootstrap, topic, segment_ms=500, **config)
    for second in range(10):
        assert write(f"v{second}", f"k{second % 2}", timestamp=1_000_000 + second * 1000) is None
    assert len(segments(node.log_folder(), topic)) == 10


def test_what_is_removed_by_time_and_size(
    cleaning_node: Node, topic_name: str, alter: Alter, write: Write
) -> None:
    """retention.bytes, retention.ms."""
    many_segments(topic_name, cleaning_node, alter, write, retention_ms=-1)
    assert log_start(cleaning_node, topic_name) == 0
    alter(retention_bytes=300)
    wait_until(lambda: log_start(cleaning_node, topic_name) > 0, DEADLINE_S, "some are removed")
    assert log_start(cleaning_node, topic_name) < 10
    alter(retention_ms=1)
    wait_until(lambda: log_start(cleaning_node, topic_name) == 10, DEADLINE_S, "all are removed")


def test_what_is_compacted(
    cleaning_node: Node, topic_name: str, alter: Alter, write: Write
) -> None:
    """cleanup.policy, min.compaction.lag.ms, delete.retention.ms."""
    node = cleaning_node
    many_segments(topic_name, node, alter, write, retention_ms=-1, min_compaction_lag_ms=2**62)
    assert len(contents(node, topic_name)) == 10
    alter(cleanup_policy="compact")
    refused = write("no key", None)
    assert refused is not None and refused.code() == KafkaError.INVALID_RECORD
    assert len(contents(node, topic_name)) == 10, "everything is too young to be compacted"
    alter(min_compaction_lag_ms=0)
    # The last segment is in use: what is in it is neither cleaned nor known to the cleaner.
    newest = [Record("k1", "v7"), Record("k0", "v8"), Record("k1", "v9")]
    wait_until(
        lambda: contents(node, topic_name) == newest, DEADLINE_S, "the newest of each key stay"
    )
    # A tombstone outlives its key's older values, and goes when it may.
    assert write(None, "k0", timestamp=1_020_000) is None
    assert write("end", "end", timestamp=1_030_000) is None
    kept = [Record("k1", "v9"), Record("k0", None), Record("end", "end")]
    wait_until(lambda: contents(node, topic_name) == kept, DEADLINE_S, "the tombstone stands")
    alter(delete_retention_ms=0)
    assert write(None, "k1", timestamp=1_040_000) is None

    times_ms = iter(range(1_050_000, 10**9, 10_000))

    def more_dirt() -> set[str]:
        assert write("end", "end", timestamp=next(times_ms)) is None
        return {str(record.key) for record in contents(node, topic_name) if record.value is None}

    wait_until(lambda: "k1" not in more_dirt(), DEADLINE_S, "a tombstone goes at once", 0.2)
    assert Record("k1", "v9") not in contents(node, topic_name)


@pytest.mark.skipif(TARGET == "kafka", reason="a configuration of tidelog's")
def test_what_has_no_effect_yet_says_so(cleaning_node: Node, topic_name: str, alter: Alter) -> None:
    """enable.ordered.delivery: stored, shown, and marked."""
    clients.create_topic(cleaning_node.bootstrap, topic_name)
    admin = kafka.KafkaAdminClient(bootstrap_servers=cleaning_node.bootstrap)

    def shown() -> tuple[str, str]:
        resource = kafka.admin.ConfigResource("TOPIC", topic_name)
        found = admin.describe_configs([resource], include_synonyms=True, config_filter="all")
        entry = found["topic"][topic_name]["enable.ordered.delivery"]
        return entry["value"], entry["config_source"]

    assert shown()[0] == "true"
    alter(enable_ordered_delivery="false")
    assert shown()[0] == "false"
    admin.close()
