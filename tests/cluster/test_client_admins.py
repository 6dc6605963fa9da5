"""The admin clients of kafka-python and aiokafka: what they can ask for, asked for.

librdkafka's is in `test_client_produce_fetch.py`, Java's are the tools. aiokafka speaks the oldest
versions of all (AlterConfigs, DescribeGroups v0-3, OffsetFetch v1-3); kafka-python the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiokafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from aiokafka.errors import for_code
from kafka import errors
from kafka.admin import AlterConfigOp, ConfigResource, OffsetSpec, OffsetTimestamp
from kafka.structs import OffsetAndMetadata

from tests.support import clients
from tests.support.clients import Record
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.target import TARGET

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def admin(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    made = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield made
    made.close()


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> str:
    """Two partitions, ten records in the first, a second apart."""
    clients.create_topic(bootstrap, topic_name, 2, retention_ms=-1)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(10):
        producer.send(
            topic_name, str(number).encode(), partition=0, timestamp_ms=FIRST_MS + 1000 * number
        )
    producer.flush()
    producer.close()
    return topic_name


def configs_of(admin: kafka.KafkaAdminClient, topic: str) -> dict[str, str]:
    """What was set for the topic."""
    found = admin.describe_configs([ConfigResource("TOPIC", topic)])["topic"][topic]
    own = "DYNAMIC_TOPIC_CONFIG"
    return {name: each["value"] for name, each in found.items() if each["config_source"] == own}


def test_kafka_python_changes_configurations(admin: kafka.KafkaAdminClient, topic: str) -> None:
    """Both requests: the one that replaces all, and the one that changes what it names."""

    def change(*, incremental: bool, **configs: Any) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        admin.alter_configs([ConfigResource("TOPIC", topic, named)], incremental=incremental)

    change(incremental=True, segment_bytes="2000000", cleanup_policy="compact")
    change(incremental=True, cleanup_policy=(AlterConfigOp.APPEND, "delete"))
    kept = {"retention.ms": "-1", "segment.bytes": "2000000"}
    assert configs_of(admin, topic) == {**kept, "cleanup.policy": "compact,delete"}
    change(incremental=True, cleanup_policy=(AlterConfigOp.SUBTRACT, "compact"))
    assert configs_of(admin, topic) == {**kept, "cleanup.policy": "delete"}
    change(incremental=True, cleanup_policy=(AlterConfigOp.DELETE, None))
    assert configs_of(admin, topic) == kept
    change(incremental=False, max_message_bytes="3000")
    assert configs_of(admin, topic)["max.message.bytes"] == "3000"
    admin.reset_configs([ConfigResource("TOPIC", topic, ["max.message.bytes"])])
    assert "max.message.bytes" not in configs_of(admin, topic)


def test_kafka_python_lists_what_has_configurations(
    admin: kafka.KafkaAdminClient, topic: str
) -> None:
    assert topic in admin.list_config_resources(["TOPIC"])["topic"]
    assert admin.list_config_resources(["BROKER"]) == {"broker": ["1"]}
    everything = admin.list_config_resources()
    assert topic in everything["topic"] and everything["broker"] == ["1"]
    assert not admin.list_config_resources(["CLIENT_METRICS"])


def test_kafka_python_looks_at_logs(admin: kafka.KafkaAdminClient, topic: str) -> None:
    part, empty = kafka.TopicPartition(topic, 0), kafka.TopicPartition(topic, 1)

    def offset(spec: Any, where: kafka.TopicPartition = part) -> int:
        found: int = admin.list_partition_offsets({where: spec})[where].offset
        return found

    assert (offset(OffsetSpec.EARLIEST), offset(OffsetSpec.LATEST)) == (0, 10)
    assert offset(OffsetSpec.MAX_TIMESTAMP) == 9
    assert offset(OffsetTimestamp(FIRST_MS + 2500)) == 3
    assert offset(OffsetTimestamp(FIRST_MS + 10**7)) == -1
    assert offset(OffsetSpec.LATEST, empty) == 0
    admin.delete_records({part: 4})
    assert offset(OffsetSpec.EARLIEST) == 4
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({part: 11})
    admin.create_partitions({topic: 3})
    wait_until(
        lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 3, DEADLINE_S, "it grew"
    )
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions({topic: 1})  # below its initial count


def test_kafka_python_moves_the_offsets_of_a_group(
    admin: kafka.KafkaAdminClient, topic: str
) -> None:
    group, part = f"group-{topic}", kafka.TopicPartition(topic, 0)

    def altered() -> bool:
        # It does not ask again for a coordinator that has to be made first.
        try:
            answer = admin.alter_group_offsets(group, {part: OffsetAndMetadata(7, "note", -1)})
        except errors.CoordinatorNotAvailableError:
            return False
        return bool(answer == {part: errors.NoError})

    wait_until(altered, DEADLINE_S, "the offset is there", 0.1)

    def committed() -> OffsetAndMetadata | None:
        found: OffsetAndMetadata | None = admin.list_group_offsets({group: None})[group].get(part)
        return found

    found = committed()
    assert found is not None and (found.offset, found.metadata) == (7, "note")
    admin.reset_group_offsets(group, {part: OffsetTimestamp(FIRST_MS + 2500)})
    found = committed()
    assert found is not None and found.offset == 3
    assert admin.delete_group_offsets(group, [part]) == {part: errors.NoError}
    found = committed()
    assert found is None or found.offset == -1
    admin.alter_group_offsets(group, {part: OffsetAndMetadata(1, "", -1)})
    assert group in {each["group_id"] for each in admin.list_groups()}
    assert admin.describe_groups([group])[group]["group_state"] == "Empty"
    admin.delete_groups([group])
    assert group not in {each["group_id"] for each in admin.list_groups()}


def test_kafka_python_removes_a_member(
    admin: kafka.KafkaAdminClient, topic: str, bootstrap: str
) -> None:
    group = f"group-{topic}"
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    wait_until(lambda: bool(consumer.poll(500)), DEADLINE_S, "the member reads", 0.01)
    described = admin.describe_groups([group])[group]
    assert described["group_state"] == "Stable"
    (member,) = described["members"]
    gone = kafka.admin.MemberToRemove(member_id=member["member_id"], reason="out")
    (answer,) = admin.remove_group_members(group, [gone]).values()
    assert answer is errors.NoError
    stranger = kafka.admin.MemberToRemove(member_id="stranger")
    (answer,) = admin.remove_group_members(group, [stranger]).values()
    assert answer is errors.UnknownMemberIdError
    consumer.close()


def test_kafka_python_asks_what_is_off_or_has_nothing(
    admin: kafka.KafkaAdminClient, topic: str
) -> None:
    part = kafka.TopicPartition(topic, 0)
    assert admin.describe_user_scram_credentials() == {}
    assert [each for found in admin.list_transactions().values() for each in found] == []
    (known,) = admin.describe_producers([part])[part].active_producers
    assert known.last_sequence == 9, "that of the ten records"
    if TARGET != "kafka":
        # kafka-python takes a field for granted that the response has since version 2.
        with pytest.raises(KeyError, match="error_message"):
            admin.describe_metadata_quorum()
    assert admin.describe_topics([topic])[0]["error_code"] == 0, "the connection is still good"


def test_aiokafka_admin(bootstrap: str, topic_name: str, node: Node) -> None:
    asyncio.run(aiokafka_admin(bootstrap, topic_name))


async def aiokafka_admin(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await topics_of_aiokafka(admin, topic)
        await records_of_aiokafka(admin, bootstrap, topic)
        await groups_of_aiokafka(admin, bootstrap, topic)
        deleted = await admin.delete_topics([topic])
        assert [each[1] for each in deleted.topic_error_codes] == [0]
    finally:
        await admin.close()


async def topics_of_aiokafka(admin: AIOKafkaAdminClient, topic: str) -> None:
    for code in (0, 36):
        made = await admin.create_topics(
            [AioNewTopic(topic, 2, 1, topic_configs={"retention.ms": "-1"})]
        )
        assert [each[1] for each in made.topic_errors] == [code], for_code(code)
    refused = await admin.create_topics([AioNewTopic("no/slash", 1, 1)])
    assert refused.topic_errors[0][1] == 17
    await admin.create_partitions({topic: AioNewPartitions(3)})
    assert topic in await admin.list_topics()
    (found,) = await admin.describe_topics([topic])
    assert len(found["partitions"]) == 3
    cluster = await admin.describe_cluster()
    assert [each["node_id"] for each in cluster["brokers"]] == [1]

    async def value(name: str) -> str:
        wanted = AioConfigResource(AioResourceType.TOPIC, topic, {name: None})
        (answer,) = await admin.describe_configs([wanted], include_synonyms=True)
        ((_, _, _, _, entries),) = answer.resources
        text: str = entries[0][1]
        return text

    assert await value("retention.ms") == "-1"
    # The request that replaces all: what it does not name goes back to its default.
    change = AioConfigResource(AioResourceType.TOPIC, topic, {"max.message.bytes": "5000"})
    (answer,) = await admin.alter_configs([change])
    assert answer.resources[0][0] == 0
    assert (await value("max.message.bytes"), await value("retention.ms")) == ("5000", "604800000")
    broker = AioConfigResource(AioResourceType.BROKER, "1", {"num.partitions": None})
    (answer,) = await admin.describe_configs([broker])
    assert answer.resources[0][0] == 0 and answer.resources[0][4][0][1] == "1"


async def records_of_aiokafka(admin: AIOKafkaAdminClient, bootstrap: str, topic: str) -> None:
    clients_records = [Record("k", str(number)) for number in range(6)]
    await asyncio.to_thread(clients.write_confluent, bootstrap, topic, clients_records, "none")
    part = aiokafka.TopicPartition(topic, 0)
    assert await admin.delete_records({part: RecordsToDelete(before_offset=2)}) == {part: 2}


async def groups_of_aiokafka(admin: AIOKafkaAdminClient, bootstrap: str, topic: str) -> None:
    group, part = f"group-{topic}", aiokafka.TopicPartition(topic, 0)
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        first = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
        assert first.offset == 2
        await consumer.commit({part: 3})
        (described,) = await admin.describe_consumer_groups([group])
        assert described.groups[0][2] == "Stable" and len(described.groups[0][5]) == 1
        assert (group, "consumer") in await admin.list_consumer_groups()
    finally:
        await consumer.stop()
    for partitions in (None, [part]):
        offsets = await admin.list_consumer_group_offsets(group, partitions=partitions)
        assert offsets[part].offset == 3
