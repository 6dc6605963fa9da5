"""Committed offsets of groups: reading them, and committing as a member or as a tool.

Owns the client's OffsetFetch and OffsetCommit. Not membership: see ``group_member``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.client.cluster import COORDINATOR_PURPOSE, Cluster
from tidelog.client.coordinators import ask_coordinator
from tidelog.client.errors import Refused, error_code
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

NO_OFFSET = -1


class PartitionsRefused(Refused):
    """Some partitions were refused; the others succeeded.

    ``errors`` has the error of each refused partition; code and text are those of the first.
    """

    def __init__(self, group: str, errors: Mapping[TopicPartition, Refused]) -> None:
        tp, first = next(iter(errors.items()))
        more = f" (and {len(errors) - 1} more partitions)" if len(errors) > 1 else ""
        super().__init__(first.code, f"group {group!r}, {tp}{more}", first.reason)
        self.errors = dict(errors)


class CommitRefused(PartitionsRefused):
    """The positions of ``errors`` were not committed; those of other partitions were."""


class Position(NamedTuple):
    """A committed position: the next offset to read, the epoch of the record before, a note."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Membership(NamedTuple):
    """The committing member. The defaults mean a client that is not a member (generation -1)."""

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

    A client that is not a member may commit only while the group has no members. Partitions with a
    retriable error are retried alone until ``timeout_ms``; a topic that the coordinator does not
    know counts as deleted. Raises Refused for an error of all partitions (UNKNOWN_MEMBER_ID,
    ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS …), CommitRefused with the error of each partition,
    ConnectionLost when no broker responds.
    """
    left = dict(positions)
    refused: dict[TopicPartition, Refused] = {}

    def error_of(answer: messages.OffsetCommitResponse) -> int:
        of_group = 0
        for topic in answer.topics:
            for item in topic.partitions:
                tp, code = TopicPartition(topic.name, item.partition_index), item.error_code
                if code and code not in _OF_PARTITION:
                    of_group = int(code)
                    continue
                left.pop(tp, None)
                if code:
                    refused[tp] = Refused(code, str(tp))
        return of_group

    await ask_coordinator(
        cluster,
        group,
        lambda: _commit_request(group, left, membership),
        error_of,
        timeout_ms=timeout_ms,
        purpose=purpose,
    )
    if refused:
        raise CommitRefused(group, refused)


_OF_PARTITION = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Errors that concern a partition; a coordinator repeats any other error for each partition."""


def _commit_request(
    group: str, positions: Mapping[TopicPartition, Position], membership: Membership
) -> messages.OffsetCommitRequest:
    commit = messages.OffsetCommitRequest
    return commit(
        group_id=group,
        generation_id_or_member_epoch=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=topics_field(
            positions,
            lambda name, parts: commit.OffsetCommitRequestTopic(name, partitions=parts),
            lambda tp: commit.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=positions[tp].offset,
                committed_leader_epoch=positions[tp].leader_epoch,
                committed_metadata=positions[tp].metadata,
            ),
        ),
    )


async def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, Position]:
    """Return the committed positions of a group: of these partitions, or all of them.

    Partitions without one are omitted; an unknown group has none. Raises Refused.
    """
    positions, refused = await look_up_committed(
        cluster, group, partitions, require_stable=require_stable, timeout_ms=timeout_ms
    )
    if refused:
        raise PartitionsRefused(group, refused)
    return positions


async def look_up_committed(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout_ms: int | None = None,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, Refused]]:
    """Return positions as ``committed_offsets``, and the partitions with a final error.

    Raises Refused for an error of the group, or of partitions that still fail at the deadline.
    """
    fetch = messages.OffsetFetchRequest
    asked_of_one = asked_of_several = None
    if partitions is not None:
        named = list(partitions)
        asked_of_one = topics_field(named, fetch.OffsetFetchRequestTopic, lambda tp: tp.partition)
        asked_of_several = topics_field(
            named,
            lambda name, indexes: fetch.OffsetFetchRequestTopics(name, partition_indexes=indexes),
            lambda tp: tp.partition,
        )
    # Up to version 7 a request has one group, later several; without topics it means all.
    request = fetch(
        group_id=group,
        topics=asked_of_one,
        groups=[fetch.OffsetFetchRequestGroup(group_id=group, topics=asked_of_several)],
        require_stable=require_stable,
    )
    answer = await ask_coordinator(cluster, group, request, _fetch_error, timeout_ms=timeout_ms)
    positions: dict[TopicPartition, Position] = {}
    refused: dict[TopicPartition, Refused] = {}
    for topic in answer.groups[0].topics if answer.groups else answer.topics:
        for item in topic.partitions:
            tp = TopicPartition(topic.name, item.partition_index)
            if item.error_code:
                refused[tp] = Refused(item.error_code, str(tp))
            elif item.committed_offset != NO_OFFSET:
                positions[tp] = Position(
                    item.committed_offset, item.committed_leader_epoch, item.metadata or ""
                )
    return positions, refused


def _fetch_error(answer: Any) -> int:
    if answer.error_code:
        return int(answer.error_code)
    for group in answer.groups:
        if group.error_code:
            return int(group.error_code)
    topics = answer.groups[0].topics if answer.groups else answer.topics
    codes = {item.error_code for topic in topics for item in topic.partitions}
    return next((int(code) for code in sorted(codes) if code and error_code(code).retriable), 0)
