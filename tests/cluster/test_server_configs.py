"""What stands in a server's file governs it: limits, defaults of topics, rules of groups.

The rules themselves have their own tests; here each name is followed from the file to a client. One
node has them all, with values far from the defaults.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType
from kio.schema.errors import ErrorCode

from tests.support import clients
from tests.support.clients import Record
from tests.support.hand_written_requests import closed_unanswered, coordinated, join
from tests.support.log_files import batches
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import new_node
from tests.support.wire import Wire, batch, produce_error

CONFIG = {
    "socket.request.max.bytes": 200_000,
    "max.connections.per.ip": 40,
    "connections.max.idle.ms": 3000,
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "false",
    "num.partitions": 3,
    "message.max.bytes": 20_000,
    "compression.type": "gzip",
    "log.message.timestamp.type": "LogAppendTime",
    "log.retention.hours": 2,
    "log.retention.bytes": 123_456_789,
    "log.roll.hours": 3,
    "offset.metadata.max.bytes": 10,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.segment.bytes": 2_000_000,
    "group.max.session.timeout.ms": 20_000,
}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with new_node(tmp_path_factory.mktemp("tuned"), CONFIG) as started:
        yield started


def test_a_request_above_the_limit_ends_its_connection(tuned: Node) -> None:
    with Wire(tuned.port) as hostile:
        hostile.send_raw(struct.pack(">i", 200_001) + b"\0" * 1000)
        assert closed_unanswered(hostile)


def test_a_connection_too_many_is_closed_and_the_others_live(tuned: Node, topic_name: str) -> None:
    clients.create_topic(tuned.bootstrap, topic_name)
    with Wire(tuned.port) as first:
        crowd = [Wire(tuned.port) for _ in range(60)]
        try:
            # The last ones to come are turned away: each reads the end of its connection.
            crowd[-1].socket.settimeout(DEADLINE_S)
            assert crowd[-1].socket.recv(1) == b""
            assert produce_error(first, topic_name, batch([b"x"])) == 0
        finally:
            for each in crowd:
                each.close()

    def welcome() -> bool:
        try:
            with Wire(tuned.port) as again:
                return produce_error(again, topic_name, batch([b"x"])) == 0
        except ConnectionError:
            return False

    wait_until(welcome, DEADLINE_S, "there is room again", 0.1)


def test_an_idle_connection_is_closed(tuned: Node) -> None:
    with Wire(tuned.port) as idle:
        idle.socket.settimeout(DEADLINE_S)
        assert idle.socket.recv(1) == b""


def test_topics_are_neither_made_nor_deleted_by_accident(tuned: Node, topic_name: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": tuned.bootstrap, "topic.metadata.propagation.max.ms": 1000}
    )
    errors: list[KafkaError] = []
    producer.produce(topic_name, "x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    unknown = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert [error.code() in unknown for error in errors] == [True]
    clients.create_topic(tuned.bootstrap, topic_name)
    admin = clients.admin(tuned.bootstrap)
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics([topic_name])[topic_name].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_DELETION_DISABLED
    assert topic_name in admin.list_topics(timeout=DEADLINE_S).topics


def test_topics_take_the_servers_defaults(tuned: Node, topic_name: str) -> None:
    admin = clients.admin(tuned.bootstrap)
    admin.create_topics([NewTopic(topic_name, -1, -1)])[topic_name].result(DEADLINE_S)
    seen = admin.list_topics(topic_name, timeout=DEADLINE_S).topics[topic_name]
    assert len(seen.partitions) == 3
    (asked,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic_name)]).values()
    shown = {name: entry.value for name, entry in asked.result(DEADLINE_S).items()}
    assert {name: shown[name] for name in ("retention.ms", "retention.bytes", "segment.ms")} == {
        "retention.ms": "7200000",
        "retention.bytes": "123456789",
        "segment.ms": "10800000",
    }
    clients.write_confluent(tuned.bootstrap, topic_name, [Record("k", "tide " * 100)], "none")
    (stored,) = batches(tuned.log_folder(), topic_name)
    log_append_time = 0x08
    assert stored.compression == "gzip" and stored.attributes & log_append_time
    with Wire(tuned.port) as wire:
        assert produce_error(wire, topic_name, batch([b"x" * 25_000])) == 10


def test_groups_keep_to_the_servers_rules(tuned: Node, topic_name: str) -> None:
    clients.create_topic(tuned.bootstrap, topic_name)
    group = f"group-{topic_name}"
    with Wire(tuned.port) as wire:
        coordinated(wire, group)
        told = int(ErrorCode.member_id_required)

        def taken() -> bool:
            return int(join(wire, group, session_ms=20_000).error_code) == told

        # Apache Kafka's coordinator may still be loading.
        wait_until(taken, DEADLINE_S, "the longest session that is allowed is taken")
        refused = int(ErrorCode.invalid_session_timeout)
        assert int(join(wire, group, session_ms=20_001).error_code) == refused
    consumer = confluent_kafka.Consumer({"bootstrap.servers": tuned.bootstrap, "group.id": group})
    # librdkafka ends the text with a byte of its own.
    for metadata, code in (("012345678", None), ("0123456789", 12)):
        position = TopicPartition(topic_name, 0, 1, metadata)
        try:
            (answer,) = consumer.commit(offsets=[position], asynchronous=False)
            found = answer.error and answer.error.code()
        except KafkaException as refused:
            found = refused.args[0].code()
        assert found == code
    consumer.close()
    admin = clients.admin(tuned.bootstrap)
    offsets = "__consumer_offsets"
    assert len(admin.list_topics(offsets, timeout=DEADLINE_S).topics[offsets].partitions) == 2
    (asked,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, offsets)]).values()
    assert asked.result(DEADLINE_S)["segment.bytes"].value == "2000000"
