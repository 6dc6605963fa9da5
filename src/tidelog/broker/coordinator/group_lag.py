"""How far groups are behind: the positions of the groups that are coordinated here, and the ends of
what they read.

Owns what ``/metrics`` shows of groups, and the questions to other leaders for it. A look is made
when somebody asks, in turns of the loop, and holds for ``LOOK_AGAIN_S``; leaders are asked for the
ends after the positions were seen, so that a lag is never too small, and at least 0.

| what | limit |
|---|---|
| groups and positions of one look; the others are counted | ``MOST_GROUPS``, ``MOST_POSITIONS`` |
| the id of a group that is shown: a client chooses it | ``LONGEST_ID`` |
| the time that other leaders have to answer; what is not known then has no lag | ``ANSWER_MS`` |
| the wait of a scrape, which then shows the look before | ``WAIT_S`` |
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.client.connection import connect
from tidelog.client.errors import ClientError
from tidelog.groups.group import GroupState
from tidelog.groups.offsets import fetch_offsets
from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages
from tidelog.runtime.tasks import call_off
from tidelog.runtime.turns import TURN_MS, Turn

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.groups.group import Group

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
MOST_GROUPS = MOST_POSITIONS = 20_000
LONGEST_ID = 249
"""Characters, as of a topic's name. An id may have 32 kB, and stands in up to four lines for each
position of its group; two that were cut could be the same, and a scraper refuses such a page."""

ANSWER_MS = 1_000
WAIT_S = 1.5
AT_ONCE = 500
"""Positions that are gone through between two looks at the clock."""

ASKED_AT_ONCE = 1_000
"""Partitions of one ListOffsets: fewer than any broker takes."""

LATEST = -1
ENDS_VERSION = 7
"""Of the ListOffsets that other leaders are asked with: all brokers of a cluster have it."""


Position = tuple[str, TopicPartition, int]
"""Group, partition and committed offset."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at a time of the loop."""

    at: float
    members: dict[str, int] = field(default_factory=dict)
    """Of each group."""
    positions: list[Position] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """High watermarks; what nobody could tell is missing."""
    left_out: int = 0
    """Positions that are not among these."""
    groups_left_out: int = 0


NOTHING = Look(float("-inf"))


class GroupLag:
    """The looks of one broker. Made on its loop; ``seen`` is called by other threads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._last = NOTHING
        self._looking: asyncio.Task[Look] | None = None
        self._loops_thread = threading.get_ident()

    def seen(self) -> Look:
        """Return a look that is not older than ``LOOK_AGAIN_S``, or the last one when none was
        made in ``WAIT_S``, or by the loop's own thread. Blocks.
        """
        if threading.get_ident() == self._loops_thread:
            return self._last
        try:
            asked = asyncio.run_coroutine_threadsafe(self.look(), self._broker.loop)
        except RuntimeError:
            return self._last  # the loop has ended
        try:
            return asked.result(WAIT_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            pass
        except Exception:
            logger.exception("the groups could not be looked at")
        return self._last

    async def look(self) -> Look:
        """Look, or wait for the look that is being made. Raises nothing that the network does."""
        if self._broker.loop.time() - self._last.at < LOOK_AGAIN_S:
            return self._last
        if self._looking is None:
            self._looking = self._broker.loop.create_task(self._look(), name="group-lag")
            self._looking.add_done_callback(self._looked)
        return await asyncio.shield(self._looking)

    async def close(self) -> None:
        """End a look that is being made."""
        if self._looking is not None:
            await call_off([self._looking])

    def _looked(self, task: asyncio.Task[Look]) -> None:
        self._looking = None
        if not task.cancelled() and task.exception() is None:
            self._last = task.result()

    async def _look(self) -> Look:
        members: dict[str, int] = {}
        found: list[Position] = []
        left_out = groups_left_out = 0
        for table in list(self._broker.coordinator.tables()):
            turn = self._turn()
            for group_id in list(table):
                if turn.is_over():
                    await asyncio.sleep(0)
                    turn = self._turn()
                group = table.get(group_id)
                if group is None or group.state is GroupState.DEAD:
                    continue
                if len(group_id) > LONGEST_ID or len(members) >= MOST_GROUPS:
                    groups_left_out += 1
                    left_out += group.offset_count
                    continue
                members[group_id] = len(group.members)
                for part in self._positions_of(group):
                    room = max(0, MOST_POSITIONS - len(found))
                    found += part[:room]
                    left_out += len(part) - len(part[:room])
                    if turn.is_over():
                        await asyncio.sleep(0)
                        turn = self._turn()
        ends = await self._ends(found)
        now = self._broker.loop.time()
        return Look(now, members, found, ends, left_out, groups_left_out)

    def _turn(self) -> Turn:
        return Turn(self._broker.clock, AT_ONCE, TURN_MS)

    def _positions_of(self, group: Group) -> Iterator[list[Position]]:
        """Yield a group's positions in parts."""
        life_of = self._broker.metadata.id_of
        for topic in list(group.offsets):
            numbers = list(group.offsets.get(topic, ()))
            for first in range(0, len(numbers), AT_ONCE):
                wanted = [(topic, numbers[first : first + AT_ONCE])]
                yield [
                    (group.group_id, TopicPartition(topic, index), committed.offset)
                    for _, committeds in fetch_offsets(group, wanted, life_of)
                    for index, committed in committeds
                    if committed is not None
                ]

    async def _ends(self, found: list[Position]) -> dict[TopicPartition, int]:
        """Return the high watermarks of what groups read, as far as their leaders tell."""
        ends: dict[TopicPartition, int] = {}
        elsewhere: dict[int, dict[TopicPartition, None]] = {}
        turn = self._turn()
        for _, where, _ in found:
            hosted = self._broker.partitions.get(*where)
            if hosted is not None and hosted.is_leader:
                ends[where] = hosted.high_watermark
            else:
                known = self._broker.metadata.partition(*where)
                if known is not None and known.leader >= 0:
                    elsewhere.setdefault(known.leader, {})[where] = None
            if turn.is_over():
                await asyncio.sleep(0)
                turn = self._turn()
        asked = [self._ask(leader, list(part)) for leader, part in elsewhere.items()]
        for told in await asyncio.gather(*asked):
            ends.update(told)
        return ends

    async def _ask(self, leader: int, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask one broker; what it does not tell in time is left out."""
        name = self._broker.configs.inter_broker_listener_name
        known = self._broker.metadata.brokers.get(leader)
        endpoint = None if known is None else known.endpoints.get(name)
        found: dict[TopicPartition, int] = {}
        if endpoint is None:
            return found
        connection = None
        try:
            async with asyncio.timeout(ANSWER_MS / 1000):
                connection = await connect(
                    *endpoint,
                    client_id=f"group-lag-{self._broker.node_id}",
                    connect_timeout_ms=ANSWER_MS,
                    secret=self._broker.secret,
                )
                version = connection.version_of(ApiKey.LIST_OFFSETS, ENDS_VERSION)
                for first in range(0, len(wanted), ASKED_AT_ONCE):
                    request = _request(wanted[first : first + ASKED_AT_ONCE])
                    answer = await connection.send(request, version, ANSWER_MS)
                    found.update(_told(answer))
        except (ClientError, TimeoutError) as error:
            logger.debug("broker %d does not tell the ends of what groups read: %s", leader, error)
        finally:
            if connection is not None:
                connection.close("its ends are known")
        return found


def _request(wanted: Iterable[TopicPartition]) -> messages.ListOffsetsRequest:
    ask_for = messages.ListOffsetsRequest
    topics = topics_field(
        wanted,
        ask_for.ListOffsetsTopic,
        lambda where: ask_for.ListOffsetsPartition(
            partition_index=where.partition, timestamp=LATEST
        ),
    )
    return ask_for(replica_id=-1, topics=topics)


def _told(answer: messages.ListOffsetsResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): part.offset
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code and part.offset >= 0
    }
