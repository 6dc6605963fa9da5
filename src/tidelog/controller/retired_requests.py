"""Requests to leaders and coordinators about retired partitions, and what their answers say. Pure.

Owns the content. When they are sent: see ``retired``; what follows: see ``decisions.removal``.

The controller asks as a client does, without counts: the leader epoch in its requests shows the
incarnation too, for each incarnation of a partition begins above the leader epochs of the former.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.removal import UNKNOWN, Held, retired_from_the_top
from tidelog.groups.consumer_protocol import assigned_partitions, entries_in, subscribed_topics
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages
from tidelog.protocol.record_fields import Malformed
from tidelog.records.control_records import ChangeKind

EARLIEST, LATEST = -2, -1
READ_COMMITTED = 1
NO_REPLICA = -1
"""The replica id of a request that is no follower's."""

MOST_ENTRIES_READ = 200_000
"""Most topics in the subscriptions and assignments of one response that are read: some 0.1 s."""


class Retired(NamedTuple):
    """A retired partition, its leader epoch, and the resize epoch of its retirement."""

    where: TopicPartition
    leader_epoch: int
    retirement_epoch: int


class Committed(NamedTuple):
    """What groups have committed, by topic and group: offsets by partition, and when all of them
    have expired (time of day in ms; UNKNOWN while members keep them, and from older brokers)."""

    offsets: dict[str, dict[str, dict[int, int]]]
    expiries: dict[str, dict[str, int]]


def by_leader(cluster: ClusterState, names: Iterable[str]) -> dict[int, list[Retired]]:
    """Return the retired partitions of topics by the broker that leads them."""
    of_leaders: dict[int, list[Retired]] = {}
    for name in names:
        for index in retired_from_the_top(cluster, name) if name in cluster.topics else ():
            tp = TopicPartition(name, index)
            state, node = cluster.states.get(tp), cluster.partition_nodes[tp]
            if state is not None and state.leader != NO_LEADER:
                one = Retired(tp, state.leader_epoch, node.retirement_epoch)
                of_leaders.setdefault(state.leader, []).append(one)
    return of_leaders


def describe_fences(asked: Sequence[Retired]) -> messages.DescribeFencesRequest:
    """Ask for the fences and seals of partitions."""
    request = messages.DescribeFencesRequest
    return request(
        topics=topics_field(
            (one.where for one in asked),
            request.Topic,
            lambda tp: request.Partition(tp.partition),
        )
    )


def closing(wanted: Collection[TopicPartition]) -> messages.DescribeFencesRequest:
    """Ask a leader to close partitions for markers, and where their logs end."""
    request = messages.DescribeFencesRequest
    return request(
        topics=topics_field(
            wanted, request.Topic, lambda tp: request.Partition(tp.partition, closes=True)
        )
    )


def closed(
    wanted: Mapping[TopicPartition, Held], answer: messages.DescribeFencesResponse
) -> dict[TopicPartition, Held]:
    """Return what a leader holds of the partitions that it has closed, in the same leader epoch."""
    return {
        tp: replace(wanted[tp], log_end=one.closed_end, stable_end=one.closed_end, is_closed=True)
        for topic in answer.topics
        for one in topic.partitions
        for tp in [TopicPartition(topic.topic, one.partition)]
        if tp in wanted
        and not one.error_code
        and one.closed_end >= 0
        and one.leader_epoch == wanted[tp].leader_epoch
    }


def list_offsets(asked: Sequence[Retired], timestamp: int) -> messages.ListOffsetsRequest:
    """Ask for the log starts (EARLIEST), or the last stable offsets (LATEST)."""
    request = messages.ListOffsetsRequest
    epochs = {one.where: one.leader_epoch for one in asked}
    return request(
        replica_id=NO_REPLICA,
        isolation_level=READ_COMMITTED,
        topics=topics_field(
            epochs,
            request.ListOffsetsTopic,
            lambda tp: request.ListOffsetsPartition(tp.partition, epochs[tp], timestamp),
        ),
    )


def log_ends(asked: Sequence[Retired]) -> messages.OffsetForLeaderEpochRequest:
    """Ask where the logs end: the present leader epoch ends there (ListOffsets has no such)."""
    request = messages.OffsetForLeaderEpochRequest
    epochs = {one.where: one.leader_epoch for one in asked}
    return request(
        replica_id=NO_REPLICA,
        topics=topics_field(
            epochs,
            request.OffsetForLeaderTopic,
            lambda tp: request.OffsetForLeaderPartition(tp.partition, epochs[tp], epochs[tp]),
        ),
    )


def held(
    asked: Sequence[Retired],
    leader: int,
    fences: messages.DescribeFencesResponse,
    starts: messages.ListOffsetsResponse,
    stable_ends: messages.ListOffsetsResponse,
    ends: messages.OffsetForLeaderEpochResponse,
) -> dict[TopicPartition, Held]:
    """Return what a leader holds of each partition that it answered without an error."""
    data_ends = dict(_data_ends(asked, fences))
    log_starts, stable, log_end = _offsets(starts), _offsets(stable_ends), dict(_log_ends(ends))
    return {
        tp: Held(
            leader,
            epoch,
            log_starts[tp],
            stable[tp],
            log_end[tp, epoch],
            data_ends.get(tp, UNKNOWN),
        )
        for tp, epoch, _ in asked
        if tp in log_starts and tp in stable and (tp, epoch) in log_end
    }


def _data_ends(
    asked: Sequence[Retired], answer: messages.DescribeFencesResponse
) -> Iterator[tuple[TopicPartition, int]]:
    wanted = {one.where: one for one in asked}
    for topic in answer.topics:
        for partition in topic.partitions:
            one = wanted.get(TopicPartition(topic.topic, partition.partition))
            if one is None or partition.error_code or partition.leader_epoch != one.leader_epoch:
                continue
            for fence in partition.fences:
                # A seal of an earlier retirement was undone: data may have come after it.
                is_its = fence.resize_epoch == one.retirement_epoch
                if is_its and fence.kind == ChangeKind.SEAL:
                    yield one.where, fence.data_end_offset


def _offsets(answer: messages.ListOffsetsResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in answer.topics
        for partition in topic.partitions
        if not partition.error_code and partition.offset >= 0
    }


def _log_ends(
    answer: messages.OffsetForLeaderEpochResponse,
) -> Iterator[tuple[tuple[TopicPartition, int], int]]:
    for topic in answer.topics:
        for partition in topic.partitions:
            if not partition.error_code and partition.end_offset >= 0:
                tp = TopicPartition(topic.topic, partition.partition)
                yield (tp, partition.leader_epoch), partition.end_offset


def delete_records(
    wanted: Mapping[TopicPartition, int], timeout_ms: int
) -> messages.DeleteRecordsRequest:
    """Ask a leader to raise its log starts to the ends of the data."""
    request = messages.DeleteRecordsRequest
    return request(
        topics=topics_field(
            wanted,
            request.DeleteRecordsTopic,
            lambda tp: request.DeleteRecordsPartition(tp.partition, wanted[tp]),
        ),
        timeout_ms=timeout_ms,
    )


def offset_fetch(groups: Sequence[str]) -> messages.OffsetFetchRequest:
    """Ask for all that groups have committed: offsets that expired are not among it."""
    request = messages.OffsetFetchRequest
    asked = [request.OffsetFetchRequestGroup(group, topics=None) for group in groups]
    return request(groups=asked, include_expiry=True)


def take_commits(
    answer: messages.OffsetFetchResponse, names: Container[str], committed: Committed
) -> int:
    """Add committed offsets of topics to ``committed``; return the first error.

    A group that has none of a topic is no live group of it.
    """
    for group in answer.groups:
        if group.error_code:
            return int(group.error_code)
        for topic in group.topics:
            if topic.name not in names:
                continue
            offsets = {
                partition.partition_index: partition.committed_offset
                for partition in topic.partitions
                if partition.committed_offset >= 0
            }
            error = next((x.error_code for x in topic.partitions if x.error_code), 0)
            if error:
                return int(error)
            if offsets:
                of_topic = committed.offsets.setdefault(topic.name, {})
                of_topic.setdefault(group.group_id, {}).update(offsets)
                _take_expiry(committed, topic, group.group_id)
    return 0


def _take_expiry(
    committed: Committed, topic: messages.OffsetFetchResponse.OffsetFetchResponseTopics, group: str
) -> None:
    """Note when the last offset of a group in a topic expires; UNKNOWN if one does not now."""
    times = [
        partition.expires_ms for partition in topic.partitions if partition.committed_offset >= 0
    ]
    earlier = committed.expiries.setdefault(topic.name, {}).get(group)
    times += [] if earlier is None else [earlier]
    committed.expiries[topic.name][group] = UNKNOWN if UNKNOWN in times else max(times)


def describe_groups(groups: Sequence[str]) -> messages.DescribeGroupsRequest:
    """Ask for the members of groups."""
    return messages.DescribeGroupsRequest(groups=list(groups))


def take_readers(
    answer: messages.DescribeGroupsResponse,
    names: Collection[str],
    offsets: dict[str, dict[str, dict[int, int]]],
) -> int:
    """Add the groups whose members read topics, where they have no commits; return the first error.

    A member that has just joined has no assignment yet, and says in no response what it subscribes
    to: it may read any topic. So may all members after ``MOST_ENTRIES_READ``.
    """
    left = MOST_ENTRIES_READ
    for group in answer.groups:
        if group.error_code:
            return int(group.error_code)
        for member in group.members:
            subscription = bytes(member.member_metadata)
            assignment = bytes(member.member_assignment)
            left -= entries_in(subscription) + entries_in(assignment)
            read = None if left < 0 else _topics_read(subscription, assignment)
            for name in names:
                if read is None or name in read:
                    offsets.setdefault(name, {}).setdefault(group.group_id, {})
    return 0


def _topics_read(subscription: bytes, assignment: bytes) -> frozenset[str] | None:
    """Return the topics that a member reads or is to read, None if it does not say."""
    if not subscription and not assignment:
        return None
    subscribed = subscribed_topics(subscription) if subscription else frozenset()
    if subscribed is None:
        return None
    try:
        return subscribed.union(topic for topic, _ in assigned_partitions(assignment))
    except Malformed:
        return None
