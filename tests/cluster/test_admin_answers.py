"""The responses of a running node to stock admin clients, field by field, as Apache Kafka's.

The tests run against Apache Kafka too. What clients do with topics, groups and configurations is
in the other files; here is what only shows in a field of the answer.
"""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v10 import request as metadata_v10
from kio.schema.types import ProducerId
from kio.static.primitive import i8, i16, i32Timedelta

from tests.support import clients
from tests.support.processes import DEADLINE_S, wait_until
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


def test_the_operations_that_a_client_may_do(bootstrap: str, topic: str) -> None:
    """Without an authorizer all of each kind (KIP-430); none when the request asks for none."""
    admin = clients.admin(bootstrap)
    asked = {"include_authorized_operations": True}
    names = confluent_kafka.TopicCollection([topic])
    of_topic = admin.describe_topics(names, **asked)[topic].result(DEADLINE_S)
    assert set(of_topic.authorized_operations) == OF_TOPIC
    of_cluster = admin.describe_cluster(**asked).result(DEADLINE_S)
    assert set(of_cluster.authorized_operations) == OF_CLUSTER
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
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


def test_a_topic_id_in_a_version_that_cannot_use_it(wire: Wire, topic: str) -> None:
    """The field is there since v10, the use since v12 (KIP-516)."""

    def asked(name: str | None, topic_id: uuid.UUID) -> Any:
        return metadata_v10.MetadataRequest(
            topics=(metadata_v10.MetadataRequestTopic(name=name, topic_id=topic_id),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    for name, topic_id in (("", uuid.uuid4()), (topic, uuid.uuid4()), (None, uuid.UUID(int=0))):
        answer = wire.call(asked(name, topic_id))
        assert [(each.error_code, each.name) for each in answer.topics] == [
            (ErrorCode.invalid_request, name or "")
        ]


def test_a_producer_that_names_an_id_gets_one_of_its_own(wire: Wire, topic: str) -> None:
    """What it names may be another producer's, or another cluster's."""

    def asked(producer_id: int, epoch: int) -> tuple[int, int, int]:
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout=i32Timedelta.parse(datetime.timedelta(seconds=1)),
            producer_id=ProducerId(producer_id),
            producer_epoch=i16(epoch),
        )
        answer = wire.call(request)
        return int(answer.error_code), int(answer.producer_id), int(answer.producer_epoch)

    wait_until(lambda: asked(-1, -1)[0] == 0, DEADLINE_S, "ids are given out", pause_s=0.05)
    error, first, epoch = asked(-1, -1)
    assert (error, epoch) == (0, 0)
    for named, named_epoch in ((first, 0), (first, 7), (987_654_321, 3)):
        error, given, epoch = asked(named, named_epoch)
        assert (error, epoch) == (0, 0)
        assert given > first and given != named
    for named, named_epoch in ((first, -1), (-1, 3)):
        assert asked(named, named_epoch) == (ErrorCode.invalid_request, -1, -1)


def test_descriptions_of_the_cluster_by_kind_of_endpoint(wire: Wire) -> None:
    codes = {
        kind: wire.call(
            DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=i8(kind)
            )
        ).error_code
        for kind in (1, 2, 3)
    }
    assert codes == {
        1: ErrorCode.none,
        2: ErrorCode.mismatched_endpoint_type,
        3: ErrorCode.unsupported_endpoint_type,
    }


def test_configurations_of_remote_storage_are_taken_but_not_the_storage(bootstrap: str) -> None:
    """Tools that copy topics set what they found elsewhere, defaults too."""
    name = f"copied-{uuid.uuid4().hex[:8]}"
    found = {
        "local.retention.ms": "-2",
        "local.retention.bytes": "-2",
        "remote.storage.enable": "false",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
    }
    clients.create_topic(bootstrap, name, **found)
    resource = ConfigResource(ResourceType.TOPIC, name)
    admin = clients.admin(bootstrap)
    shown = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert {key: shown[key].value for key in found} == found
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        clients.create_topic(bootstrap, f"{name}-remote", **{"remote.storage.enable": "true"})
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG


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
