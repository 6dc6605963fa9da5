"""The committed offsets of groups: reading, writing, as a member or from outside.

Owns OffsetFetch and OffsetCommit as a client asks them; being a member is ``group_member``.
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
    """Something was refused of some partitions; the others were done.

    ``errors`` has each partition's refusal; code and text are those of the first.
    """

    def __init__(self, group: str, errors: Mapping[TopicPartition, Refused]) -> None:
        where, first = next(iter(errors.items()))
        more = f" (and {len(errors) - 1} more partitions)" if len(errors) > 1 else ""
        super().__init__(first.code, f"group {group!r}, {where}{more}")
        self.errors = dict(errors)


class CommitRefused(PartitionsRefused):
    """The positions of ``errors`` were not committed; those of other partitions were."""


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

    From outside a group this is allowed only while it has no members. What may succeed later is
    tried again for its partitions alone, until ``timeout_ms`` are over; a topic that the
    coordinator does not know counts as gone. Raises Refused for an error that all partitions have
    (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS …), CommitRefused with the errors
    of each partition, ConnectionLost when nobody answers.
    """
    left = dict(positions)
    refused: dict[TopicPartition, Refused] = {}

    def error_of(answer: messages.OffsetCommitResponse) -> int:
        of_group = 0
        for topic in answer.topics:
            for item in topic.partitions:
                where, code = TopicPartition(topic.name, item.partition_index), item.error_code
                if code and code not in _OF_PARTITION:
                    of_group = int(code)
                    continue
                left.pop(where, None)
                if code:
                    refused[where] = Refused(code, str(where))
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
"""What a coordinator says of a partition; all else it says of the group, of each partition."""


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
            commit.OffsetCommitRequestTopic,
            lambda where: commit.OffsetCommitRequestPartition(
                partition_index=where.partition,
                committed_offset=positions[where].offset,
                committed_leader_epoch=positions[where].leader_epoch,
                committed_metadata=positions[where].metadata,
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
    """Return the committed positions of a group: of these partitions, or of all it has.

    Partitions without one are left out; an unknown group has none. Raises Refused.
    """
    found, refused = await look_up_committed(
        cluster, group, partitions, require_stable=require_stable, timeout_ms=timeout_ms
    )
    if refused:
        raise PartitionsRefused(group, refused)
    return found


async def look_up_committed(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout_ms: int | None = None,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, Refused]]:
    """Return positions as ``committed_offsets``, and beside them what was refused for good.

    Raises Refused for what is said of the group, or of partitions that did not settle in time.
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
    refused: dict[TopicPartition, Refused] = {}
    for topic in answer.groups[0].topics if answer.groups else answer.topics:
        for item in topic.partitions:
            where = TopicPartition(topic.name, item.partition_index)
            if item.error_code:
                refused[where] = Refused(item.error_code, str(where))
            elif item.committed_offset != NO_OFFSET:
                found[where] = Position(
                    item.committed_offset, item.committed_leader_epoch, item.metadata or ""
                )
    return found, refused


def _fetch_error(answer: Any) -> int:
    if answer.error_code:
        return int(answer.error_code)
    for group in answer.groups:
        if group.error_code:
            return int(group.error_code)
    topics = answer.groups[0].topics if answer.groups else answer.topics
    codes = {item.error_code for topic in topics for item in topic.partitions}
    return next((int(code) for code in sorted(codes) if code and error_code(code).retriable), 0)
