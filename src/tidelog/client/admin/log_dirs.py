"""Log directories of replicas: moving them between the directories of their brokers (KIP-113).

Owns the client's AlterReplicaLogDirs. Where replicas are: see ``nodes.describe_log_dirs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages


class Replica(NamedTuple):
    """The replica of a partition on a broker; as text as Kafka's tools write it."""

    where: TopicPartition
    broker: int

    def __str__(self) -> str:
        return f"{self.where}-{self.broker}"


async def alter_log_dirs(
    cluster: Cluster, broker: int, wanted: Mapping[TopicPartition, str]
) -> dict[TopicPartition, Refused | None]:
    """Move replicas of one broker to these log directories; return each outcome.

    A replica that is not there yet is REPLICA_NOT_AVAILABLE: the broker creates it in that
    directory.
    """
    alter = messages.AlterReplicaLogDirsRequest
    by_path: dict[str, list[TopicPartition]] = {}
    for tp, path in sorted(wanted.items()):
        by_path.setdefault(path, []).append(tp)
    request = alter(
        dirs=[
            alter.AlterReplicaLogDir(
                path=path,
                topics=topics_field(places, alter.AlterReplicaLogDirTopic, lambda tp: tp.partition),
            )
            for path, places in by_path.items()
        ]
    )
    answer: messages.AlterReplicaLogDirsResponse = await cluster.retry(
        lambda: cluster.send(broker, request)
    )
    return {
        tp: Refused(item.error_code, f"replica {Replica(tp, broker)}") if item.error_code else None
        for topic in answer.results
        for item in topic.partitions
        for tp in (TopicPartition(topic.topic_name, item.partition_index),)
    }
