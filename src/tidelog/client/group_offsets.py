"""The committed offsets of groups: reading, writing, as a member or from outside.

Owns OffsetFetch and OffsetCommit as a client asks them; being a member is ``group_member``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.client.cluster import COORDINATOR_PURPOSE, Cluster
from tidelog.client.coordinators import ask_coordinator
from tidelog.client.errors import Refused
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

NO_OFFSET = -1


class Position(NamedTuple):
    """A committed position: the next offset to read, the epoch of the record before, a note."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Membership(NamedTuple):
    """Who commits. The defaults are for one who is no member (generation -1)."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


async def commit_offsets(
    cluster: Cluster,
    group: str,
    positions: Mapping[TopicPartition, Position],
    membership: Membership = Membership(),  # noqa: B008
    *,
    timeout_ms: int | None = None,
    purpose: str = COORDINATOR_PURPOSE,
) -> None:
    """Commit positions of a group, all in one request.

    From outside a group this is allowed only while it has no members. Raises Refused with the
    first partition's error (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS …).
    """
    commit = messages.OffsetCommitRequest
    request = commit(
        group_id=group,
        generation_id_or_member_epoch=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=topics_field(
            positions,
            commit.OffsetCommitRequestTopic,
            lambda where: commit.OffsetCommitRequestPartition(
                partition_index=where.partition,
                committed_offset=positions[where].offset,
                committed_leader_epoch=positions[where].leader_epoch,
                committed_metadata=positions[where].metadata,
            ),
        ),
    )
    await ask_coordinator(
        cluster, group, request, _first_commit_error, timeout_ms=timeout_ms, purpose=purpose
    )


def _first_commit_error(answer: messages.OffsetCommitResponse) -> int:
    codes = (item.error_code for topic in answer.topics for item in topic.partitions)
    return next((code for code in codes if code), 0)


async def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, Position]:
    """Return the committed positions of a group: of these partitions, or of all it has.

    Partitions without one are left out; an unknown group has none. Raises Refused.
    """
    fetch = messages.OffsetFetchRequest
    asked_of_one = asked_of_several = None
    if partitions is not None:
        named = list(partitions)
        asked_of_one = topics_field(
            named, fetch.OffsetFetchRequestTopic, lambda where: where.partition
        )
        asked_of_several = topics_field(
            named, fetch.OffsetFetchRequestTopics, lambda where: where.partition
        )
    # Up to version 7 a request asks of one group, later ones of several; without topics for all.
    request = fetch(
        group_id=group,
        topics=asked_of_one,
        groups=[fetch.OffsetFetchRequestGroup(group_id=group, topics=asked_of_several)],
        require_stable=require_stable,
    )
    answer = await ask_coordinator(cluster, group, request, _fetch_error, timeout_ms=timeout_ms)
    found: dict[TopicPartition, Position] = {}
    for topic in answer.groups[0].topics if answer.groups else answer.topics:
        for item in topic.partitions:
            where = TopicPartition(topic.name, item.partition_index)
            if item.error_code:
                raise Refused(item.error_code, f"group {group!r}, {where}")
            if item.committed_offset != NO_OFFSET:
                found[where] = Position(
                    item.committed_offset, item.committed_leader_epoch, item.metadata or ""
                )
    return found


def _fetch_error(answer: Any) -> int:
    if answer.error_code:
        return int(answer.error_code)
    for group in answer.groups:
        if group.error_code:
            return int(group.error_code)
    topics = answer.groups[0].topics if answer.groups else answer.topics
    codes = (item.error_code for topic in topics for item in topic.partitions)
    return next((int(code) for code in codes if code), 0)
