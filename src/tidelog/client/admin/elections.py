"""Elections on request: preferred, or unclean when no replica in sync is alive.

Owns the client's ElectLeaders (KIP-183, KIP-460).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.client.admin.sending import TIMEOUT_MS, send_admin
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.model.admin_requests import ElectionType
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages


async def elect_leaders(
    cluster: Cluster, kind: ElectionType, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, Refused | None]:
    """Elect leaders of these partitions, or (None) of all; return the outcome of each.

    ELECTION_NOT_NEEDED is returned as a refusal; with None such partitions are omitted. Raises
    Refused when the whole request was refused.
    """
    elect = messages.ElectLeadersRequest
    asked = None
    if partitions is not None:
        asked = topics_field(partitions, elect.TopicPartitions, lambda tp: tp.partition)
    request = elect(election_type=kind, topic_partitions=asked, timeout_ms=TIMEOUT_MS)
    answer: messages.ElectLeadersResponse = await send_admin(
        cluster, request, lambda answer: [answer]
    )
    if answer.error_code:
        raise Refused(answer.error_code, "the election")
    cluster.forget()
    return {
        tp: Refused(item.error_code, str(tp), item.error_message) if item.error_code else None
        for topic in answer.replica_election_results
        for item in topic.partition_result
        for tp in (TopicPartition(topic.topic, item.partition_id),)
    }
