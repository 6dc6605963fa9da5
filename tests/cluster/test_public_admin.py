"""Each method of the public admin clients against a running server, blocking and asyncio.

Runs against Apache Kafka too (`TIDELOG_TEST_TARGET=kafka`), where no topic shrinks.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import tidelog
import tidelog.aio
from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.target import TARGET
from tidelog import (
    ConfigResource,
    ConfigResourceType,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)
from tidelog.errors import (
    ElectionNotNeededError,
    GroupIdNotFoundError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    KafkaConfigurationError,
    NoBrokersAvailable,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tidelog.model.admin_requests import AlterOperation, ElectionType


@pytest.fixture
def admin(bootstrap: str) -> Any:
    with tidelog.Admin(bootstrap_servers=bootstrap) as found:
        yield found


def write(bootstrap: str, topic: str, count: int) -> None:
    with tidelog.Producer(bootstrap_servers=bootstrap) as producer:
        futures = [
            producer.send(topic, b"%d" % n, partition=0, timestamp_ms=1000 * n)
            for n in range(count)
        ]
        for future in futures:
            future.get(DEADLINE_S)


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type[Any]) -> dict[str, inspect.Signature]:
        return {
            name: inspect.signature(each)
            for name, each in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") and name != "start"
        }

    assert methods(tidelog.Admin).keys() == methods(tidelog.aio.Admin).keys()


def test_topics_are_created_listed_described_and_deleted(admin: Any, topic_name: str) -> None:
    with_options, plain = f"{topic_name}-1", f"{topic_name}-2"
    assigned = f"{topic_name}-3"
    node = admin.describe_cluster().brokers[0].node_id
    wanted = [NewTopic(topic_name, 2, 1, topic_configs={"retention.ms": "60000"}), plain]
    assert admin.create_topics(wanted, validate_only=True) == {topic_name: None, plain: None}
    assert topic_name not in admin.list_topics()
    admin.create_topics(wanted)
    admin.create_topics({with_options: {"num_partitions": 3, "replication_factor": 1}})
    admin.create_topics([NewTopic(assigned, replica_assignments={0: [node]})])
    created = {topic_name, plain, with_options, assigned}
    wait_until(lambda: created <= set(admin.list_topics()), DEADLINE_S, "the topics are listed")
    found = {topic.name: topic for topic in admin.describe_topics(sorted(created))}
    assert len(found[topic_name].partitions) == 2
    assert found[topic_name].count == 2
    assert len(found[with_options].partitions) == 3
    assert found[assigned].partitions[0].replicas == (node,)
    assert created <= {topic.name for topic in admin.describe_topics()}
    with pytest.raises(TopicAlreadyExistsError, match=topic_name):
        admin.create_topics([topic_name])
    outcome = admin.create_topics([topic_name], raise_errors=False)[topic_name]
    assert isinstance(outcome, TopicAlreadyExistsError)
    with pytest.raises(KafkaConfigurationError, match="unknown options"):
        admin.create_topics({"x": {"partitions": 1}})
    admin.delete_topics(sorted(created))
    wait_until(lambda: not created & set(admin.list_topics()), DEADLINE_S, "the topics are gone")
    with pytest.raises(UnknownTopicOrPartitionError, match=topic_name):
        admin.describe_topics([topic_name])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic_name])


def test_partition_counts_go_up(admin: Any, topic_name: str) -> None:
    admin.create_topics([NewTopic(topic_name, 1, 1)])
    admin.create_partitions({topic_name: NewPartitions(2)})
    admin.create_partitions({topic_name: 3}, validate_only=True)
    admin.set_partition_count(topic_name, 4)
    assert admin.describe_topics([topic_name])[0].count == 4
    with pytest.raises(InvalidPartitionsError):
        admin.set_partition_count(topic_name, 4)


def test_partition_counts_go_down_where_topics_are_ordered(admin: Any, topic_name: str) -> None:
    admin.create_topics([NewTopic(topic_name, 2, 1)])
    admin.set_partition_count(topic_name, 5)
    if TARGET == "kafka":
        with pytest.raises(InvalidPartitionsError):
            admin.set_partition_count(topic_name, 3)
        return
    admin.set_partition_count(topic_name, 3, force=True)
    found = admin.describe_topics([topic_name])[0]
    assert (found.count, found.resize_epoch, len(found.partitions)) == (3, 2, 5)
    with pytest.raises(InvalidPartitionsError, match="2"):
        admin.set_partition_count(topic_name, 1, force=True)


def test_offsets_and_records(admin: Any, bootstrap: str, topic_name: str) -> None:
    admin.create_topics([NewTopic(topic_name, 1, 1)])
    write(bootstrap, topic_name, 10)
    where = TopicPartition(topic_name, 0)
    for spec, offset in (
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 10),
        (OffsetSpec.MAX_TIMESTAMP, 9),
        (4500, 5),
        (99_000, -1),
    ):
        assert admin.list_offsets({where: spec})[where].offset == offset
    assert admin.list_partition_offsets({where: 4000})[where].timestamp == 4000
    assert admin.delete_records({where: 4}) == {where: 4}
    assert admin.list_offsets({where: OffsetSpec.EARLIEST})[where].offset == 4
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_offsets({TopicPartition(topic_name, 7): OffsetSpec.LATEST}, timeout_ms=30_000)


def test_brokers_moves_and_elections(admin: Any, topic_name: str) -> None:
    cluster = admin.describe_cluster()
    node = cluster.brokers[0].node_id
    assert cluster.controller_id == node
    admin.create_topics([NewTopic(topic_name, 1, 1)])
    where = TopicPartition(topic_name, 0)
    wait_until(
        lambda: admin.describe_topics([topic_name])[0].partitions[0].leader == node,
        DEADLINE_S,
        "a leader",
    )
    paths = admin.describe_log_dirs()[node]
    assert any(where in path.replicas for path in paths)
    assert admin.describe_log_dirs([node]).keys() == {node}
    assert admin.alter_partition_reassignments({where: [node]}) == {where: None}
    wait_until(
        lambda: not admin.list_partition_reassignments([where]), DEADLINE_S, "the move is over"
    )
    assert admin.list_partition_reassignments({topic_name: [0]}) == {}
    outcome = admin.alter_partition_reassignments({where: [99]}, raise_errors=False)[where]
    assert "99" in str(outcome)
    elected = admin.elect_leaders(ElectionType.PREFERRED, [where])
    assert isinstance(elected[where], ElectionNotNeededError)
    admin.elect_leaders(0)


def test_configurations(admin: Any, topic_name: str) -> None:
    admin.create_topics([NewTopic(topic_name, 1, 1)])
    topic = ConfigResource(ConfigResourceType.TOPIC, topic_name)

    def value(name: str) -> Any:
        return admin.describe_configs([topic])[topic][name].value

    def alter(configs: dict[str, Any], **options: Any) -> None:
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic_name, configs)], **options
        )

    alter({"retention.ms": 1234, "cleanup.policy": "compact"}, validate_only=True)
    assert value("cleanup.policy") == "delete"
    alter({"retention.ms": 1234, "preallocate": False})
    wait_until(lambda: value("retention.ms") == "1234", DEADLINE_S, "the configuration is seen")
    alter({"cleanup.policy": (AlterOperation.APPEND, "compact"), "retention.ms": None})
    wait_until(
        lambda: value("cleanup.policy") == "delete,compact", DEADLINE_S, "the configuration is seen"
    )
    assert value("retention.ms") == "604800000"
    admin.incremental_alter_configs(
        [
            ConfigResource(
                ConfigResourceType.TOPIC,
                topic_name,
                {"cleanup.policy": (AlterOperation.SUBTRACT, "delete")},
            )
        ]
    )
    wait_until(
        lambda: value("cleanup.policy") == "compact", DEADLINE_S, "the configuration is seen"
    )
    some = ConfigResource(ConfigResourceType.TOPIC, topic_name, ["retention.ms"])
    assert admin.describe_configs([some])[some].keys() == {"retention.ms"}
    node = admin.describe_cluster().brokers[0].node_id
    broker = ConfigResource(ConfigResourceType.BROKER, str(node))
    assert "log.retention.ms" in admin.describe_configs([broker])[broker]
    with pytest.raises(InvalidConfigurationError):
        alter({"retention.ms": "soon"})
    with pytest.raises(KafkaConfigurationError, match="must be a mapping"):
        admin.alter_configs([some])


def test_groups_and_their_offsets(admin: Any, bootstrap: str, topic_name: str) -> None:
    admin.create_topics([NewTopic(topic_name, 2, 1)])
    write(bootstrap, topic_name, 3)
    first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    group = f"group-of-{topic_name}"
    admin.alter_group_offsets(group, {first: 2, second: 0})
    assert {where: at.offset for where, at in admin.list_group_offsets(group).items()} == {
        first: 2,
        second: 0,
    }
    assert admin.list_consumer_group_offsets(group, [first]).keys() == {first}
    assert group in {each.group_id for each in admin.list_consumer_groups()}
    assert group in {each.group_id for each in admin.list_groups(states_filter=["Empty"])}
    described = admin.describe_consumer_groups([group])[group]
    assert (described.state, described.members) == ("Empty", ())
    assert admin.delete_group_offsets(group, [second]) == {second: None}
    assert admin.list_group_offsets(group).keys() == {first}
    assert admin.delete_consumer_groups([group]) == {group: None}
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_groups([group])
    assert isinstance(admin.delete_groups([group], raise_errors=False)[group], GroupIdNotFoundError)


def test_the_asyncio_client_and_a_cluster_that_is_not_there(
    bootstrap: str, topic_name: str
) -> None:
    async def work() -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with tidelog.aio.Admin(bootstrap_servers=bootstrap, client_id="me") as admin:
                await admin.create_topics([topic_name])
                assert topic_name in await admin.list_topics()
            nobody = f"127.0.0.1:{free_ports(1)[0]}"
            away = tidelog.aio.Admin(bootstrap_servers=nobody, default_api_timeout_ms=200)
            with pytest.raises(NoBrokersAvailable):
                await away.start()

    asyncio.run(work())
    with pytest.raises(KafkaConfigurationError, match="did you mean client_id"):
        tidelog.Admin(clientid="x")
