"""Look-ups of fences and seals: where resizes stand in the logs (KIP-253, DescribeFences).

Owns the client's request 10004. What follows from fences: see ``partitioning.gates``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, error_code
from tidelog.client.leaders import ask_leaders
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.partitioning.gates import Fence
from tidelog.protocol import messages

SEAL = 1
"""The kind of a fence that ends a retired partition."""


class DescribedFence(NamedTuple):
    """One fence or seal below the high watermark."""

    fence: Fence
    undeleted_count: int
    is_seal: bool


FenceList = tuple[DescribedFence, ...]


class DescribedFences(NamedTuple):
    """The fences of a partition by ascending resize epoch, as the leader of an epoch knows them."""

    leader_epoch: int
    fences: FenceList


class FormerIncarnation(NamedTuple):
    """A removed partition: a reader at or past ``data_end`` has lost nothing of it."""

    partition_epoch: int
    data_end: int
    final_offset: int
    resize_epoch: int


async def describe_fences(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    *,
    timeout_ms: int | None = None,
    failed: dict[TopicPartition, ClientError] | None = None,
) -> dict[TopicPartition, DescribedFences]:
    """Look up the fences of partitions at their leaders.

    A partition whose leader is not known, or changes meanwhile, is asked for again. Raises Refused;
    with ``failed`` it collects the errors of partitions instead.
    """

    async def ask(
        node_id: int, group: list[TopicPartition]
    ) -> dict[TopicPartition, DescribedFences | ErrorCode]:
        request = messages.DescribeFencesRequest
        topics = topics_field(
            group, request.Topic, lambda tp: request.Partition(partition=tp.partition)
        )
        answer: messages.DescribeFencesResponse = await cluster.send(
            node_id, request(topics=topics)
        )
        return {
            TopicPartition(topic.topic, item.partition): error_code(item.error_code)
            if item.error_code
            else DescribedFences(item.leader_epoch, tuple(map(_fence, item.fences)))
            for topic in answer.topics
            for item in topic.partitions
        }

    return await ask_leaders(cluster, places, ask, timeout_ms=timeout_ms, failed=failed)


async def describe_former(
    cluster: Cluster, topics: Iterable[str], *, timeout_ms: int | None = None
) -> dict[TopicPartition, FormerIncarnation]:
    """Look up the removed partitions of topics: the newest incarnation of each, which ended.

    Raises ClientError when the controller does not respond.
    """
    request = messages.DescribeFencesRequest
    # A broker that does not reach the controller says so of a partition, and has no other place.
    asked = request(
        include_former=True,
        topics=[request.Topic(name, partitions=[request.Partition(0)]) for name in topics],
    )

    async def attempt() -> messages.DescribeFencesResponse:
        answer: messages.DescribeFencesResponse = await cluster.send_to_controller(
            asked, changes=False
        )
        for topic in answer.topics:
            if any(one.error_code == ErrorCode.REQUEST_TIMED_OUT for one in topic.partitions):
                raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"removed partitions of {topic.topic}")
        return answer

    answer = await cluster.retry(attempt, timeout_ms)
    return {
        TopicPartition(topic.topic, one.partition): FormerIncarnation(
            one.partition_epoch, one.data_end_offset, one.final_offset, one.resize_epoch
        )
        for topic in answer.topics
        for one in topic.former
    }


def is_complete(fences: FenceList, resize_epoch: int) -> bool:
    """Whether a response has the fence of a topic's resize epoch; a retired partition has none."""
    return bool(fences) and (fences[-1].is_seal or fences[-1].fence.resize_epoch >= resize_epoch)


def counts_of(partitions: Iterable[FenceList]) -> dict[int, int]:
    """Return the count of each resize epoch that some partition has a fence of."""
    return {
        fence.fence.resize_epoch: fence.undeleted_count for fences in partitions for fence in fences
    }


def _fence(described: messages.DescribeFencesResponse.Fence) -> DescribedFence:
    fence = Fence(described.resize_epoch, described.offset, described.data_end_offset)
    return DescribedFence(fence, described.undeleted_partition_count, described.kind == SEAL)
