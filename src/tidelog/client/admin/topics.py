"""Topics: creating, growing and deleting them, and deleting records.

Owns these requests. Not listing and describing topics: see ``Cluster.describe``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.admin.sending import TIMEOUT_MS, send_admin, send_repeatedly
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, error_code
from tidelog.client.leaders import ask_leaders
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

VALIDATE_MS = 5_000
"""How long a broker may look for the controller where nothing is to be changed."""

BROKER_DEFAULT = -1
"""num_partitions and replication_factor: the broker's configured default."""

HIGH_WATERMARK = -1
"""Offset of delete_records: everything up to the high watermark."""

Outcome = Refused | None


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to be created; ``assignment`` (partition -> brokers) excludes the two counts."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)


async def create_topics(
    cluster: Cluster, topics: Sequence[TopicSpec], *, validate_only: bool = False
) -> dict[str, Outcome]:
    """Create topics; return each outcome by name.

    When the broker that was asked hangs another one is asked, too. A topic that exists then may
    have been created by the first request: the reason of its TOPIC_ALREADY_EXISTS says so.
    """
    create = messages.CreateTopicsRequest
    request = create(
        topics=[
            create.CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=[
                    create.CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
                    for index, ids in topic.assignment.items()
                ],
                configs=[
                    create.CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )
    answer, repeated = await send_repeatedly(cluster, request, lambda answer: answer.topics)
    outcomes = {item.name: _outcome(item, f"topic {item.name!r}") for item in answer.topics}
    return {name: _of_repeat(outcome, repeated) for name, outcome in outcomes.items()}


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, Outcome]:
    """Delete topics; return each outcome by name."""
    request = messages.DeleteTopicsRequest(
        topics=[messages.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=TIMEOUT_MS,
    )
    answer = await send_admin(cluster, request, lambda answer: answer.responses)
    return {item.name or "": _outcome(item, f"topic {item.name!r}") for item in answer.responses}


async def create_partitions(
    cluster: Cluster,
    counts: Mapping[str, int],
    *,
    assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
    validate_only: bool = False,
    force: bool = False,
) -> dict[str, Outcome]:
    """Change topics to these partition counts; return each outcome by name.

    ``force``: shrink although producers that send no counts may write, or the topic is compacted
    (KIP-253).
    """
    grow = messages.CreatePartitionsRequest
    chosen = assignments or {}
    request = grow(
        topics=[
            grow.CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if name not in chosen
                else [
                    grow.CreatePartitionsAssignment(broker_ids=list(brokers))
                    for brokers in chosen[name]
                ],
            )
            for name, count in counts.items()
        ],
        timeout_ms=VALIDATE_MS if validate_only else TIMEOUT_MS,
        force=force,
        validate_only=validate_only,
    )
    answer = await send_admin(
        cluster, request, lambda answer: answer.results, changes=not validate_only
    )
    cluster.forget()
    return {item.name: _outcome(item, f"topic {item.name!r}") for item in answer.results}


async def delete_records(
    cluster: Cluster,
    before: Mapping[TopicPartition, int],
    failed: dict[TopicPartition, ClientError] | None = None,
) -> dict[TopicPartition, int]:
    """Delete the records below these offsets; return the new low watermark of each partition.

    Raises Refused for the first partition that refuses (OFFSET_OUT_OF_RANGE, POLICY_VIOLATION).
    With ``failed`` it collects the errors, as ``ask_leaders`` does, and nothing is raised.
    """
    delete = messages.DeleteRecordsRequest

    async def ask(
        node_id: int, group: list[TopicPartition]
    ) -> dict[TopicPartition, int | ErrorCode]:
        topics = topics_field(
            group,
            delete.DeleteRecordsTopic,
            lambda tp: delete.DeleteRecordsPartition(tp.partition, before[tp]),
        )
        request = delete(topics=topics, timeout_ms=TIMEOUT_MS)
        answer: messages.DeleteRecordsResponse = await cluster.send(node_id, request)
        return {
            TopicPartition(topic.name, item.partition_index): error_code(item.error_code)
            if item.error_code
            else item.low_watermark
            for topic in answer.topics
            for item in topic.partitions
        }

    return await ask_leaders(cluster, before, ask, failed=failed)


def _outcome(item: Any, subject: str) -> Outcome:
    if not item.error_code:
        return None
    return Refused(item.error_code, subject, getattr(item, "error_message", None))


def _of_repeat(outcome: Outcome, repeated: str) -> Outcome:
    """Return an outcome after a repeat: the first request may have created the topic."""
    if not repeated or outcome is None or outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        return outcome
    why = f"{repeated}: the request was repeated, and the first one may have created the topic"
    return Refused(outcome.code, outcome.subject, why)
