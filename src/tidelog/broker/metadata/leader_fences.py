"""DescribeFences requests of this broker to the leaders of other brokers, as a client of theirs.

Owns the requests and what is taken from their responses. Not which partitions are asked for: see
``coordinator.group_lag`` and ``partitions.older_values``. Network errors are not raised: a
partition without fences in time is absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.metadata.other_brokers import OtherBrokers

ASKED_AT_ONCE = 1_000
"""Partitions of one DescribeFences: fewer than any broker takes."""

VERSION = 0


class FencePlace(NamedTuple):
    """Where a fence or seal of a resize epoch stands in a log."""

    resize_epoch: int
    offset: int


async def ask_for_fences(
    others: OtherBrokers, leader: int, purpose: str, wanted: list[TopicPartition]
) -> dict[TopicPartition, list[FencePlace]]:
    """Ask one broker for the fences and seals of partitions that it leads."""
    parts = (wanted[i : i + ASKED_AT_ONCE] for i in range(0, len(wanted), ASKED_AT_ONCE))
    answers = await others.ask(
        leader, purpose, ApiKey.DESCRIBE_FENCES, VERSION, map(_request, parts)
    )
    return {
        TopicPartition(topic.topic, part.partition): [
            FencePlace(fence.resize_epoch, fence.offset) for fence in part.fences
        ]
        for answer in answers
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code
    }


def _request(wanted: Iterable[TopicPartition]) -> messages.DescribeFencesRequest:
    request = messages.DescribeFencesRequest
    topics = topics_field(
        wanted, request.Topic, lambda tp: request.Partition(partition=tp.partition)
    )
    return request(topics=topics)
