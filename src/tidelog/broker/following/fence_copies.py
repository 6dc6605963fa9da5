"""The leader's fences, for followers whose logs begin again above some of them (KIP-253).

Owns the question, DescribeFences on the follower's connection to its leader. Not which responses
let a log begin again: see ``follower_log.begins_again``. Not the log: see ``storage.log.cutting``.

A log that begins at the leader's log start has no batch of a fence below it. Without these fences
the replica would, once it leads, write a fence of its resize epoch a second time. All of them are
below the leader's log start, so they are committed, and the leader answers them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidelog.broker.following.follower_log import begins_again
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.control_records import ChangeKind
from tidelog.replication.resize_rules import ABSENT
from tidelog.storage.log.fences import FenceEntry, Fences

if TYPE_CHECKING:
    from tidelog.broker.following.fetch_requests import FollowedPartitions
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.client.connecting.connection import ClientConnection

logger = logging.getLogger(__name__)

DESCRIBE_FENCES_VERSION = 0
AT_ONCE = 500
"""Partitions of one request."""


def beginning_again(
    partitions: FollowedPartitions, response: messages.FetchResponse
) -> Iterator[HostedPartition]:
    """Yield the resized partitions whose logs begin again with a response."""
    for topic in response.responses:
        for part in topic.partitions:
            if not (part.error_code or part.diverging_epoch or part.records):
                continue
            followed = partitions.asked(TopicPartition(topic.topic, part.partition_index))
            if followed is not None and begins_again(followed.hosted, part):
                yield followed.hosted


async def leaders_fences(
    connection: ClientConnection, wanted: Iterable[HostedPartition], timeout_ms: int
) -> dict[TopicPartition, Fences]:
    """Return the fences that a leader has of the partitions that it leads in the epoch known here.

    A partition that is not in the result is asked for again with its next fetch.
    """
    partitions = list(wanted)
    fences: dict[TopicPartition, Fences] = {}
    try:
        for first in range(0, len(partitions), AT_ONCE):
            some = partitions[first : first + AT_ONCE]
            response = await connection.send(_request(some), DESCRIBE_FENCES_VERSION, timeout_ms)
            epochs = {hosted.key: hosted.leader_epoch for hosted in some}
            for topic in response.topics:
                for part in topic.partitions:
                    key = TopicPartition(topic.topic, part.partition)
                    if part.error_code == ErrorCode.NONE and part.leader_epoch == epochs.get(key):
                        fences[key] = _fences(part)
    except (ClientError, ValueError) as error:
        logger.info("fences of %d partitions are not known yet: %s", len(partitions), error)
    return fences


def _request(partitions: Iterable[HostedPartition]) -> messages.DescribeFencesRequest:
    request = messages.DescribeFencesRequest
    topics = []
    for hosted in partitions:
        # With its incarnation: the leader of another one under that name must not answer.
        state, epoch = hosted.state, hosted.partition_epoch
        numbers = (ABSENT, ABSENT) if epoch < 0 else (state.undeleted_count, state.resize_epoch)
        topics.append(
            request.Topic(hosted.topic, [request.Partition(hosted.partition, epoch)], *numbers)
        )
    return request(topics=topics)


def _fences(part: Any) -> Fences:
    """Return the fences of a response; ValueError for a kind that is none."""
    return Fences(
        tuple(
            FenceEntry(
                fence.resize_epoch,
                fence.undeleted_partition_count,
                ChangeKind(fence.kind),
                fence.offset,
                fence.data_end_offset,
            )
            for fence in part.fences
        )
    )
