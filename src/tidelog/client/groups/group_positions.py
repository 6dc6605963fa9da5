"""Positions of a group's members: reporting one's own, asking for those of others (KIP-253).

Owns the client's ConsumerGroupPosition (10001). Not which positions gates need: see ``gating``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import ask_coordinator
from tidelog.client.groups.committed_offsets import Membership
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.partitioning.gates import GroupPosition
from tidelog.protocol import messages


async def exchange_positions(
    cluster: Cluster,
    group: str,
    membership: Membership,
    report: Mapping[TopicPartition, int],
    wanted: Iterable[TopicPartition],
) -> dict[TopicPartition, GroupPosition]:
    """Report positions as a member, and return the known ones of the wanted partitions.

    One that is unknown is omitted: its owner has not reported in this generation. Raises Refused
    for the membership (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID …), ConnectionLost when no broker
    responds.
    """
    ask_for = messages.ConsumerGroupPositionRequest
    named = [*report, *(tp for tp in wanted if tp not in report)]
    topics = topics_field(
        named,
        ask_for.Topic,
        lambda tp: ask_for.Partition(tp.partition, tp not in report, report.get(tp, -1)),
    )
    request = ask_for(group, membership.generation, membership.member_id, topics)
    answer: messages.ConsumerGroupPositionResponse = await ask_coordinator(
        cluster, group, request, lambda answer: int(answer.error_code)
    )
    return {
        TopicPartition(topic.topic, item.partition): GroupPosition(item.position, item.from_commit)
        for topic in answer.topics
        for item in topic.partitions
        if item.position >= 0
    }
