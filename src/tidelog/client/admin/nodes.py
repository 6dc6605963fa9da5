"""Describing the cluster and its nodes: brokers, controller, log directories, condition.

Owns DescribeCluster, DescribeLogDirs and DescribeCondition as a client asks them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.metadata import Broker
from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages


@dataclass(frozen=True, slots=True)
class DescribedCluster:
    """The cluster as DescribeCluster shows it."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class LogDir:
    """One log directory of a broker: sizes in bytes, -1 from brokers that do not tell."""

    path: str
    error: Refused | None
    replicas: dict[TopicPartition, int]
    total_bytes: int
    usable_bytes: int


async def describe_cluster(cluster: Cluster) -> DescribedCluster:
    """Return brokers and controller. Raises Refused."""
    request = messages.DescribeClusterRequest()
    answer: messages.DescribeClusterResponse = await cluster.retry(
        lambda: cluster.send_to_any(request)
    )
    if answer.error_code:
        raise Refused(answer.error_code, "the cluster", answer.error_message)
    brokers = tuple(
        Broker(item.broker_id, item.host, item.port, item.rack)
        for item in sorted(answer.brokers, key=lambda item: item.broker_id)
    )
    return DescribedCluster(answer.cluster_id, answer.controller_id, brokers)


async def describe_log_dirs(cluster: Cluster, node_id: int) -> list[LogDir]:
    """Return a broker's log directories with the replicas in them. Raises Refused."""
    request = messages.DescribeLogDirsRequest(topics=None)
    answer: messages.DescribeLogDirsResponse = await cluster.retry(
        lambda: cluster.send(node_id, request)
    )
    if answer.error_code:
        raise Refused(answer.error_code, f"the log directories of broker {node_id}")
    return [
        LogDir(
            path=item.log_dir,
            error=Refused(item.error_code, item.log_dir) if item.error_code else None,
            replicas={
                TopicPartition(topic.name, found.partition_index): found.partition_size
                for topic in item.topics
                for found in topic.partitions
            },
            total_bytes=item.total_bytes,
            usable_bytes=item.usable_bytes,
        )
        for item in answer.results
    ]


async def describe_condition(cluster: Cluster) -> dict[str, Any] | None:
    """Return what the active controller says of the cluster; None where that is not served.

    ``problems`` is a list of {"what", "advice"}. Raises Refused, ClientError for no JSON.
    """
    connection = await cluster.any_connection()
    if not connection.speaks(ApiKey.DESCRIBE_CONDITION):
        return None
    answer: messages.DescribeConditionResponse = await connection.send(
        messages.DescribeConditionRequest(subjects=[])
    )
    if answer.error_code:
        raise Refused(answer.error_code, "the cluster's condition", answer.error_message)
    try:
        condition: dict[str, Any] = json.loads(answer.condition)
    except ValueError:
        raise ClientError("the cluster's condition was answered in no JSON") from None
    return condition
