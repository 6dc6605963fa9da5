"""Questions of OffsetFetch that metadata cannot answer: to leaders and to the controller.

Owns these questions and their bounds. Not which of them a response needs: see ``groups.births``.

- Where does the log of a partition start? Its leader knows, in the leader epoch of our metadata: an
  earlier leader would not know what retention has removed since.
- Does a partition exist that this broker does not know? The controller knows it before any broker
  does: DescribeTopicPartitions in an Envelope, for one partition. A client learns of a partition
  from some broker, so when the controller does not know it, it does not exist; when it does, this
  broker's metadata is late. (As sound as this broker's own lead: both end with its session.)
- Is a retired partition still the one that this broker's metadata show? It may have been removed
  and made again, and what the group committed lies before the log of the next incarnation. Its
  leader refuses the leader epoch of the metadata then: the next incarnation has a higher one. A
  leader that does not respond holds up no group.

A question without a response within ``WAIT_MS`` has no result, and the group's client tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.broker.control_plane.controller_search import ControllerUnreachable
from tidelog.broker.control_plane.envelopes import ForwardingRefused
from tidelog.broker.metadata.leader_offsets import EARLIEST, ask_leader, refused_by
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.requester import THIS_PROCESS
from tidelog.protocol import codec, messages

if TYPE_CHECKING:
    from tidelog.broker.control_plane.session import ControllerSession
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.other_brokers import OtherBrokers
    from tidelog.broker.partitions.registry import Partitions

logger = logging.getLogger(__name__)

WAIT_MS = 3_000
"""Longest wait for all questions of one OffsetFetch."""

ASKING_AT_ONCE = 8
"""Requests whose questions are asked at a time; the others wait."""

MOST_TOPICS = 100
"""Topics of one request for which the controller is asked; the client tries again for others."""


def _places() -> asyncio.Semaphore:
    return asyncio.Semaphore(ASKING_AT_ONCE)


@dataclass(frozen=True, slots=True)
class FirstOffsets:
    """The questions of one broker. ``ask`` is called on its loop."""

    partitions: Partitions
    metadata: MetadataCache
    others: OtherBrokers
    session: ControllerSession
    _asking: asyncio.Semaphore = field(default_factory=_places)

    async def ask(
        self, starts: Collection[TopicPartition], unknown: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, bool]]:
        """Return the log starts of ``starts`` and whether each of ``unknown`` exists, as far as
        they are known in time."""
        found: dict[TopicPartition, int] = {}
        exists: dict[TopicPartition, bool] = {}
        try:
            async with asyncio.timeout(WAIT_MS / 1000), self._asking:
                await asyncio.gather(
                    self._ask_leaders(starts, found), self._ask_controller(unknown, exists)
                )
        except TimeoutError:
            logger.info("the first offsets of a group are not known in %(ms)d ms", {"ms": WAIT_MS})
        return found, exists

    async def exist(self, unknown: Collection[TopicPartition]) -> dict[TopicPartition, bool]:
        """Return whether each of these partitions exists, as far as the controller says it in
        time."""
        _, exists = await self.ask((), unknown)
        return exists

    async def _ask_leaders(
        self, wanted: Collection[TopicPartition], found: dict[TopicPartition, int]
    ) -> None:
        by_leader: dict[int, list[TopicPartition]] = {}
        for where in wanted:
            hosted = self.partitions.get(*where)
            known = self.metadata.partition(*where)
            if hosted is not None and hosted.is_leader:
                found[where] = hosted.start_offset
            elif known is not None and known.leader >= 0:
                by_leader.setdefault(known.leader, []).append(where)
        asked = (
            ask_leader(self.others, leader, "first-offsets", part, EARLIEST, self._epoch_of)
            for leader, part in by_leader.items()
        )
        for theirs in await asyncio.gather(*asked):
            found.update(theirs)

    async def replaced(self, wanted: Collection[TopicPartition]) -> bool:
        """Return whether a leader says that one of these partitions is not as the metadata show."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for where in wanted:
            known, hosted = self.metadata.partition(*where), self.partitions.get(*where)
            if known is None:
                return True
            if hosted is not None and hosted.is_leader:
                if known.leader_epoch < hosted.leader_epoch:
                    return True
            elif known.leader >= 0:
                by_leader.setdefault(known.leader, []).append(where)
        asked = (
            refused_by(self.others, leader, "retired-partitions", part, self._epoch_of)
            for leader, part in by_leader.items()
        )
        try:
            async with asyncio.timeout(WAIT_MS / 1000), self._asking:
                return any(await asyncio.gather(*asked))
        except TimeoutError:
            return False

    def _epoch_of(self, where: TopicPartition) -> int:
        known = self.metadata.partition(*where)
        return -1 if known is None else known.leader_epoch

    async def _ask_controller(
        self, wanted: Collection[TopicPartition], exists: dict[TopicPartition, bool]
    ) -> None:
        """Ask for the lowest unknown partition of each topic: without it there is none above."""
        lowest: dict[str, int] = {}
        for where in wanted:
            lowest[where.topic] = min(where.partition, lowest.get(where.topic, where.partition))
        answers: dict[str, bool] = {}
        for topic, partition in list(lowest.items())[:MOST_TOPICS]:
            known = await self._is_known(topic, partition)
            if known is None:
                break
            answers[topic] = known
        exists.update({at: answers[at.topic] for at in wanted if at.topic in answers})

    async def _is_known(self, topic: str, partition: int) -> bool | None:
        """Whether the controller knows a partition; None without its response."""
        request = messages.DescribeTopicPartitionsRequest
        asked = request(
            topics=[request.TopicRequest(topic)],
            response_partition_limit=1,
            cursor=request.Cursor(topic, partition),
        )
        api = ApiKey.DESCRIBE_TOPIC_PARTITIONS
        inner = b"".join(codec.encode_request(api, 0, 0, None, asked))[4:]
        try:
            answer = await self.session.forward(inner, THIS_PROCESS, WAIT_MS)
            _, response = codec.decode_response(api, 0, memoryview(answer))
        except (ControllerUnreachable, ForwardingRefused, ClientError, codec.DecodeError) as error:
            logger.info(
                "the controller was not asked for %(topic)s: %(error)s",
                {"topic": topic, "error": error},
            )
            return None
        for each in response.topics:
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            if each.error_code == ErrorCode.NONE:
                return bool(each.partitions)
        return None
