"""Bad input gives Kafka's error code, loses nothing, and leaves everybody else well.

Every code here is the one Apache Kafka 4.3.0 answers: the tests run against it too.
"""

from __future__ import annotations

import asyncio
import datetime
import struct
import time
from collections.abc import Iterator

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.find_coordinator.v2.request import FindCoordinatorRequest
from kio.schema.heartbeat.v3.request import HeartbeatRequest
from kio.schema.init_producer_id.v1.request import InitProducerIdRequest
from kio.schema.list_offsets.v5.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_commit.v7.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.sync_group.v3.request import SyncGroupRequest
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tests.support import clients
from tests.support.clients import Record
from tests.support.hand_written_requests import closed_unanswered, coordinated, join
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.target import TARGET
from tests.support.wire import Wire, batch, produce_error

ONE_SECOND = i32Timedelta.parse(datetime.timedelta(seconds=1))
TEN_SECONDS = i32Timedelta.parse(datetime.timedelta(seconds=10))
CONTROL, TRANSACTIONAL, NO_SUCH_CODEC = 0x20, 0x10, 5


@pytest.mark.parametrize(
    ("name", "records", "expected"),
    [
        ("bad CRC", batch([b"x"], crc_error=1), {2}),
        ("magic 0", batch([b"x"], magic=0), {87}),
        ("magic 1", batch([b"x"], magic=1), {87}),
        ("magic 3", batch([b"x"], magic=3), {2, 87}),
        ("a client's control batch", batch([b"x"], attributes=CONTROL), {87}),
        ("count and last offset differ", batch([b"x"], count=2), {87}),
        ("no records in a batch", batch([], count=0), {2, 87}),
        ("two batches", batch([b"x"]) + batch([b"y"]), {87}),
        ("nothing", b"", {87}),
        ("a cut batch", batch([b"x"])[:-3], {2, 87}),
        ("too large", batch([b"x" * 1_200_000]), {10}),
        ("a codec that does not exist", batch([b"x"], attributes=NO_SUCH_CODEC), {-1, 2, 76, 87}),
        ("a producer without a sequence", batch([b"x"], producer=(1000, 0, -1)), {87}),
        (
            "a transactional batch",
            batch([b"x"], attributes=TRANSACTIONAL, producer=(1, 0, 0)),
            {48, 53, 87},
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_bad_batches_are_refused(
    wire: Wire, topic: str, name: str, records: bytes, expected: set[int], bootstrap: str
) -> None:
    assert produce_error(wire, topic, batch([b"before"])) == 0
    assert produce_error(wire, topic, records) in expected
    assert produce_error(wire, topic, batch([b"after"])) == 0
    got = clients.read_confluent(bootstrap, topic, 2)
    assert [record.value for record in got] == ["before", "after"]


def test_places_that_do_not_exist(wire: Wire, topic: str) -> None:
    good = batch([b"x"])
    assert produce_error(wire, "never-created", good) == 3
    assert produce_error(wire, "no/slash", good) in (3, 17)
    assert produce_error(wire, topic, good, partition=7) == 3
    assert produce_error(wire, topic, good, partition=-1) == 3
    assert produce_error(wire, topic, good, acks=7) == 21


def test_metadata_of_bad_names(wire: Wire) -> None:
    def error(name: str) -> int:
        asked = MetadataRequest(
            topics=(MetadataRequestTopic(name=name),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        return int(wire.call(asked).topics[0].error_code)

    assert error("never-created") == 3
    for name in ("no/slash", "x" * 250, "..", ""):
        assert error(name) == 17, name


def test_sequences_of_idempotent_producers(wire: Wire, topic: str) -> None:
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout=TEN_SECONDS)
    # 14: the node has no block of ids yet; every client tries again.
    wait_until(lambda: int(wire.call(asked).error_code) == 0, DEADLINE_S, "an id is given")
    answer = wire.call(asked)
    pid, epoch = answer.producer_id, answer.producer_epoch
    assert produce_error(wire, topic, batch([b"a", b"b"], producer=(pid, epoch, 0))) == 0
    assert produce_error(wire, topic, batch([b"c"], producer=(pid, epoch, 2))) == 0
    assert produce_error(wire, topic, batch([b"a", b"b"], producer=(pid, epoch, 0))) == 0
    assert produce_error(wire, topic, batch([b"e"], producer=(pid, epoch, 9))) == 45
    assert produce_error(wire, topic, batch([b"d"], producer=(pid, epoch + 1, 0))) == 0
    assert produce_error(wire, topic, batch([b"e"], producer=(pid, epoch, 3))) == 47


def fetch(wire: Wire, topic: str, offset: int, *, partition: int = 0, epoch: int = -1) -> object:
    asked = FetchPartition(
        partition=i32(partition),
        current_leader_epoch=i32(epoch),
        fetch_offset=i64(offset),
        partition_max_bytes=i32(1 << 20),
    )
    request = FetchRequest(
        max_wait=ONE_SECOND,
        min_bytes=i32(0),
        topics=(FetchTopic(topic=topic, partitions=(asked,)),),
        forgotten_topics_data=(),
    )
    return wire.call(request).responses[0].partitions[0]


def test_fetches_out_of_range(wire: Wire, topic: str) -> None:
    assert produce_error(wire, topic, batch([b"a", b"b", b"c"])) == 0
    assert int(fetch(wire, topic, 0).error_code) == 0
    assert int(fetch(wire, topic, 3).error_code) == 0
    for offset in (4, 10**12, -1):
        answer = fetch(wire, topic, offset)
        assert int(answer.error_code) == 1 and not answer.records, offset
    assert int(fetch(wire, "never-created", 0).error_code) == 3
    assert int(fetch(wire, topic, 0, partition=9).error_code) == 3


def test_leader_epochs_of_clients(wire: Wire, topic: str) -> None:
    """A client that knows a newer leader epoch waits; one that knows an older one asks again."""
    assert produce_error(wire, topic, batch([b"x"])) == 0
    assert int(fetch(wire, topic, 0, epoch=0).error_code) == 0
    assert int(fetch(wire, topic, 0, epoch=99).error_code) == int(ErrorCode.unknown_leader_epoch)


def test_fetch_sessions_that_do_not_exist(wire: Wire, topic: str) -> None:
    request = FetchRequest(
        max_wait=ONE_SECOND,
        min_bytes=i32(0),
        session_id=i32(123456),
        session_epoch=i32(5),
        topics=(),
        forgotten_topics_data=(),
    )
    answer = wire.call(request)
    assert int(answer.error_code) == int(ErrorCode.fetch_session_id_not_found)


def test_list_offsets_of_unknown_places(wire: Wire, topic: str) -> None:
    def error(name: str, partition: int, epoch: int = -1) -> int:
        asked = ListOffsetsPartition(
            partition_index=i32(partition), current_leader_epoch=i32(epoch), timestamp=i64(-1)
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=i8(0),
            topics=(ListOffsetsTopic(name=name, partitions=(asked,)),),
        )
        return int(wire.call(request).topics[0].partitions[0].error_code)

    assert error(topic, 0) == 0
    assert error(topic, 5) == 3
    assert error("never-created", 0) == 3
    assert error(topic, 0, epoch=50) == int(ErrorCode.unknown_leader_epoch)


def heartbeat(wire: Wire, group: str, generation: int, member: str) -> int:
    request = HeartbeatRequest(group_id=group, generation_id=i32(generation), member_id=member)
    return int(wire.call(request).error_code)


def commit(wire: Wire, group: str, topic: str, generation: int, member: str) -> int:
    part = OffsetCommitRequestPartition(
        partition_index=i32(0), committed_offset=i64(1), committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=i32(generation),
        member_id=member,
        topics=(OffsetCommitRequestTopic(name=topic, partitions=(part,)),),
    )
    return int(wire.call(request).topics[0].partitions[0].error_code)


def test_illegal_generations_and_unknown_members(wire: Wire, topic: str) -> None:
    group = f"group-{topic}"
    coordinated(wire, group)
    assert heartbeat(wire, group, 1, "stranger") == 25
    assert commit(wire, group, topic, 1, "stranger") in (22, 25)
    first = join(wire, group)
    assert int(first.error_code) == 79 and first.member_id, "a member id is required first"
    joined = join(wire, group, first.member_id)
    assert int(joined.error_code) == 0
    member, generation = joined.member_id, joined.generation_id
    synced = wire.call(
        SyncGroupRequest(group_id=group, generation_id=generation, member_id=member, assignments=())
    )
    assert int(synced.error_code) == 0
    assert heartbeat(wire, group, generation, member) == 0
    assert heartbeat(wire, group, generation + 1, member) == 22
    assert heartbeat(wire, group, generation - 1, member) == 22
    assert heartbeat(wire, group, generation, "stranger") == 25
    assert commit(wire, group, topic, generation + 1, member) == 22
    assert commit(wire, group, topic, generation, "stranger") == 25
    assert commit(wire, group, topic, -1, "") == 25, "only an empty group takes such commits"
    assert commit(wire, group, topic, generation, member) == 0
    assert int(join(wire, group, "stranger").error_code) == 25


def test_impossible_joins(wire: Wire, topic: str) -> None:
    coordinated(wire, f"group-{topic}")
    assert int(join(wire, "").error_code) == 24
    for session_ms in (1, 10**8):
        assert int(join(wire, f"group-{topic}", session_ms=session_ms).error_code) == 26


def test_metadata_of_offsets_is_bounded(bootstrap: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"group-{topic}"}
    )
    position = confluent_kafka.TopicPartition(topic, 0, 1, "m" * 5000)
    answer: list[confluent_kafka.TopicPartition] = []
    try:
        answer = consumer.commit(offsets=[position], asynchronous=False)
    except confluent_kafka.KafkaException as refused:
        assert refused.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    else:
        assert answer[0].error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    consumer.close()


@pytest.fixture(scope="module")
def below_1_6(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogNode]:
    """A node at the last level without transactions."""
    config = {"inter.broker.protocol.version": "1.5"}
    with TidelogNode(tmp_path_factory.mktemp("below") / "node", config) as started:
        yield started


@pytest.mark.skipif(TARGET == "kafka", reason="Apache Kafka has transactions")
def test_transactional_clients_are_refused_at_once_below_level_1_6(
    below_1_6: TidelogNode,
) -> None:
    bootstrap = below_1_6.bootstrap
    with Wire(below_1_6.port) as wire:
        answer = wire.call(FindCoordinatorRequest(key="tx", key_type=i8(1)))
    assert int(answer.error_code) == 31
    assert "transaction" in answer.error_message.lower() and " " in answer.error_message

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx"})
    begun = time.monotonic()
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.init_transactions(DEADLINE_S)
    error = refused.value.args[0]
    assert error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert "send without a transactional.id" in error.str()
    assert time.monotonic() - begun < 10


@pytest.mark.skipif(TARGET == "kafka", reason="Apache Kafka has transactions")
def test_transactional_clients_in_python_are_refused_at_once_below_level_1_6(
    below_1_6: TidelogNode,
) -> None:
    bootstrap = below_1_6.bootstrap
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id="tx-python")
    # Its error names the code alone, in a sentence of its own.
    with pytest.raises(kafka.errors.KafkaError, match="ClusterAuthorizationFailed"):
        producer.init_transactions()
    producer.close(timeout=1)

    async def start() -> None:
        transactional = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id="tx-aio"
        )
        try:
            await asyncio.wait_for(transactional.start(), DEADLINE_S)
        finally:
            await transactional.stop()

    with pytest.raises(aiokafka.errors.KafkaError, match="ClusterAuthorizationFailed"):
        asyncio.run(start())


def test_a_consumer_whose_data_is_gone(bootstrap: str, topic: str) -> None:
    """Records deleted under a consumer: an error or the reset it asked for, never silence."""
    clients.write_confluent(bootstrap, topic, [Record("k", str(n)) for n in range(10)], "none")
    admin = clients.admin(bootstrap)
    part = confluent_kafka.TopicPartition(topic, 0, 6)
    next(iter(admin.delete_records([part]).values())).result(DEADLINE_S)

    strict = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "error"}
    )
    strict.assign([confluent_kafka.TopicPartition(topic, 0, 2)])
    message = strict.poll(DEADLINE_S)
    assert message is not None and message.error().code() == KafkaError._AUTO_OFFSET_RESET
    strict.close()

    easy = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    easy.assign([kafka.TopicPartition(topic, 0)])
    easy.seek(kafka.TopicPartition(topic, 0), 2)
    assert next(iter(easy)).offset == 6
    easy.close()


@pytest.mark.parametrize(
    "frame",
    [
        # TLS begins so. What HTTP gets: tests/component/network/test_other_protocols.py
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 0),
        struct.pack(">ihhi", 8, 9999, 0, 1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, 0, -1, 1, -1),
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
        struct.pack(">ihhih", 10, 3, 1, 1, 500),
        b"\x00",
        b"\xff" * 64,
    ],
    ids=lambda frame: frame[:14].hex(),
)
def test_hostile_frames_end_only_their_connection(node: Node, frame: bytes, bootstrap: str) -> None:
    with Wire(node.port) as bystander, Wire(node.port) as hostile:
        hostile.send_raw(frame)
        assert closed_unanswered(hostile)
        asked = FindCoordinatorRequest(key="well", key_type=i8(0))
        assert int(bystander.call(asked).error_code) in (0, 15)
    assert node.program.exit_status() is None


def test_api_versions_of_the_future(wire: Wire) -> None:
    """Answered with a v0 body, error 35, and the list: franz-go asks like this first."""
    body = struct.pack(">hhih", 18, 99, 77, 1) + b"x\0" + b"\x02a\x02b\0"
    wire.send_raw(struct.pack(">i", len(body)) + body)
    answer = wire.receive_raw()
    correlation_id, error, count = struct.unpack_from(">ihi", answer)
    assert (correlation_id, error) == (77, 35) and count > 0
    assert len(answer) == 10 + 6 * count


def test_too_large_a_message_by_a_stock_client(bootstrap: str, topic_name: str) -> None:
    clients.create_topic(bootstrap, topic_name, max_message_bytes=2000)
    errors: list[KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "batch.size": 1})
    for value in ("small", "x" * 5000, "small again"):
        producer.produce(topic_name, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
    assert [error and error.code() for error in errors] == [
        None,
        KafkaError.MSG_SIZE_TOO_LARGE,
        None,
    ]
    got = clients.read_confluent(bootstrap, topic_name, 2)
    assert [record.value for record in got] == ["small", "small again"]


def test_records_without_a_key_in_a_compacted_topic(
    wire: Wire, bootstrap: str, topic_name: str
) -> None:
    clients.create_topic(bootstrap, topic_name, cleanup_policy="compact")
    assert produce_error(wire, topic_name, batch([b"x"], keys=[b"k"])) == 0
    assert produce_error(wire, topic_name, batch([b"x"])) == 87


def test_a_timestamp_far_in_the_future(wire: Wire, bootstrap: str, topic_name: str) -> None:
    clients.create_topic(bootstrap, topic_name, message_timestamp_after_max_ms=1000)
    now_ms = int(time.time() * 1000)
    assert produce_error(wire, topic_name, batch([b"x"], timestamp_ms=now_ms)) == 0
    assert produce_error(wire, topic_name, batch([b"x"], timestamp_ms=now_ms + 10**7)) == 32
