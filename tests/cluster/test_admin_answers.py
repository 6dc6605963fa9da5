"""What stock admin clients are told of a running node, field by field, as Apache Kafka tells it.

The tests run against Apache Kafka too. What clients do with topics, groups and configurations is
in the other files; here is what only shows in a field of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AclOperation
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.static.primitive import i8
from tests.support import clients
from tests.support.node import Node
from tests.support.processes import DEADLINE_S
from tests.support.wire import Wire

TOPIC = 2
NOT_ASKED = -(2**31)
OF_TOPIC = {
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
}
OF_GROUP = {
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
}
OF_CLUSTER = {
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
}


@pytest.fixture
def wire(node: Node) -> Iterator[Wire]:
    with Wire(node.port) as connection:
        yield connection


@pytest.fixture
def topic(bootstrap: str, topic_name: str) -> str:
    clients.create_topic(bootstrap, topic_name, retention_ms=-1)
    return topic_name


def test_the_operations_that_a_client_may_do(bootstrap: str, topic: str) -> None:
    """Without an authorizer all there are, of each kind (KIP-430); none told where none asked."""
    admin = clients.admin(bootstrap)
    asked = {"include_authorized_operations": True}
    names = confluent_kafka.TopicCollection([topic])
    of_topic = admin.describe_topics(names, **asked)[topic].result(DEADLINE_S)
    assert set(of_topic.authorized_operations) == OF_TOPIC
    of_cluster = admin.describe_cluster(**asked).result(DEADLINE_S)
    assert set(of_cluster.authorized_operations) == OF_CLUSTER
    of_group = admin.describe_consumer_groups([topic], **asked)[topic].result(DEADLINE_S)
    assert set(of_group.authorized_operations) == OF_GROUP
    assert not admin.describe_topics(names)[topic].result(DEADLINE_S).authorized_operations
    assert not admin.describe_cluster().result(DEADLINE_S).authorized_operations


def test_the_operations_of_a_metadata_request(wire: Wire, topic: str) -> None:
    def answered(cluster: bool, topics: bool) -> tuple[int, int]:
        asked = MetadataRequest(
            topics=(MetadataRequestTopic(name=topic),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=cluster,
            include_topic_authorized_operations=topics,
        )
        answer = wire.call(asked)
        return answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations

    def bits(operations: set[AclOperation]) -> int:
        return sum(1 << operation.value for operation in operations)

    assert answered(False, False) == (NOT_ASKED, NOT_ASKED)
    assert answered(False, True) == (NOT_ASKED, bits(OF_TOPIC))
    assert answered(True, False) == (bits(OF_CLUSTER), NOT_ASKED)


@pytest.mark.parametrize("keys", [None, (), ("retention.ms", "there-is-none")])
def test_no_names_of_configurations_are_all_names(
    wire: Wire, topic: str, keys: tuple[str, ...] | None
) -> None:
    resource = DescribeConfigsResource(
        resource_type=i8(TOPIC), resource_name=topic, configuration_keys=keys
    )
    asked = DescribeConfigsRequest(
        resources=(resource,), include_synonyms=False, include_documentation=False
    )
    found = {each.name for each in wire.call(asked).results[0].configs}
    if keys:
        assert found == {"retention.ms"}
    else:
        assert {"retention.ms", "cleanup.policy", "segment.bytes"} <= found
