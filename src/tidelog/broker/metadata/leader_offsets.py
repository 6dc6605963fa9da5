"""ListOffsets requests of this broker to the leaders of other brokers, as a client of theirs.

Owns the requests and what is taken from their responses. Not which partitions are asked for: see
``coordinator.group_lag`` (their ends), ``coordinator.first_offsets`` and
``partitions.older_values`` (their starts). Network errors are not raised: a partition without an
offset in time is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.metadata.other_brokers import OtherBrokers

LATEST, EARLIEST = -1, -2

ASKED_AT_ONCE = 1_000
"""Partitions of one ListOffsets: fewer than any broker takes."""

VERSION = 7
"""Version of the requests: every broker of a cluster supports it."""

ANY_EPOCH = -1


async def ask_leader(
    others: OtherBrokers,
    leader: int,
    purpose: str,
    wanted: list[TopicPartition],
    timestamp: int,
    epoch_of: Callable[[TopicPartition], int] = lambda _: ANY_EPOCH,
) -> dict[TopicPartition, int]:
    """Ask one broker for the offsets of partitions that it leads, each in its leader epoch."""
    offsets: dict[TopicPartition, int] = {}
    for answer in await _asked(others, leader, purpose, wanted, timestamp, epoch_of):
        offsets.update(_offsets(answer))
    return offsets


async def refused_by(
    others: OtherBrokers,
    leader: int,
    purpose: str,
    wanted: list[TopicPartition],
    epoch_of: Callable[[TopicPartition], int],
) -> set[TopicPartition]:
    """Return the partitions that a broker says it does not lead in these leader epochs."""
    return {
        TopicPartition(topic.name, part.partition_index)
        for answer in await _asked(others, leader, purpose, wanted, EARLIEST, epoch_of)
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code
    }


async def _asked(
    others: OtherBrokers,
    leader: int,
    purpose: str,
    wanted: list[TopicPartition],
    timestamp: int,
    epoch_of: Callable[[TopicPartition], int],
) -> list[Any]:
    parts = (wanted[i : i + ASKED_AT_ONCE] for i in range(0, len(wanted), ASKED_AT_ONCE))
    requests = (_request(part, timestamp, epoch_of) for part in parts)
    return await others.ask(leader, purpose, ApiKey.LIST_OFFSETS, VERSION, requests)


def _request(
    wanted: Iterable[TopicPartition], timestamp: int, epoch_of: Callable[[TopicPartition], int]
) -> messages.ListOffsetsRequest:
    ask_for = messages.ListOffsetsRequest
    topics = topics_field(
        wanted,
        ask_for.ListOffsetsTopic,
        lambda tp: ask_for.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=epoch_of(tp),
            timestamp=timestamp,
        ),
    )
    return ask_for(replica_id=-1, topics=topics)


def _offsets(answer: messages.ListOffsetsResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): part.offset
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code and part.offset >= 0
    }
