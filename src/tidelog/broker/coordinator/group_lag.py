"""Consumer group lag: committed offsets of the groups coordinated here, and log end offsets.

Owns the snapshots that ``/metrics`` shows. Not the requests to other leaders that they need: see
``metadata.leader_offsets`` and ``metadata.leader_fences``. A snapshot is taken on demand, in
several turns of the loop, and is valid for ``HOLDS_S``. The end offsets are read after the
committed offsets, so that a lag is never too small, and at least 0. Fences and seals are no
records, as for ``tidelog groups`` (``client.groups.lag``); where a leader does not name them they
count.

| what | limit |
|---|---|
| groups and positions of one snapshot; the rest is counted | ``MOST_GROUPS``, ``MOST_POSITIONS`` |
| the group id in a label: a client chooses it | ``LONGEST_ID`` |
| the wait of a scrape, which after that shows the previous snapshot | ``WAIT_S`` |
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidelog.broker.metadata.leader_fences import ask_for_fences
from tidelog.broker.metadata.leader_offsets import LATEST, ask_leader
from tidelog.client.groups.lag import lag_without
from tidelog.groups.group import GroupState
from tidelog.groups.offsets import fetch_offsets
from tidelog.model.topics import TopicPartition
from tidelog.runtime import pace
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.leader_fences import FencePlace
    from tidelog.broker.metadata.other_brokers import OtherBrokers
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.groups.group import Group
    from tidelog.groups.table import GroupTable
    from tidelog.runtime.clock import Clock
    from tidelog.storage.log.fences import FenceEntry

Found = TypeVar("Found")

logger = logging.getLogger(__name__)

HOLDS_S = 5.0
MOST_GROUPS = MOST_POSITIONS = 20_000
LONGEST_ID = 249
"""Characters, as for a topic name. A group id may have 32 kB and appears in up to four lines for
each position of its group. Ids are not shortened: two could become equal, and a scraper refuses a
page with such duplicates."""

PURPOSE = "group-lag"
WAIT_S = 1.5
Position = tuple[str, TopicPartition, int]
"""Group, partition and committed offset."""


@dataclass(frozen=True, slots=True)
class LagSnapshot:
    """Members, committed offsets and end offsets, read at one time of the loop's clock."""

    at: float
    members: dict[str, int] = field(default_factory=dict)
    """Number of members by group id."""
    positions: list[Position] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """High watermarks; a partition whose leader did not respond is absent."""
    fences: Mapping[TopicPartition, Sequence[FenceEntry | FencePlace]] = field(default_factory=dict)
    """Fences and seals, of partitions in which a group has not reached the end."""
    left_out: int = 0
    """Positions beyond the limits."""
    groups_left_out: int = 0

    def lag(self, where: TopicPartition, committed: int) -> int | None:
        """Return how many records follow a committed offset; None where the end is unknown."""
        end = self.ends.get(where)
        if end is None:
            return None
        fences = [place.offset for place in self.fences.get(where, ())]
        return lag_without((committed, end), fences)


NO_SNAPSHOT = LagSnapshot(float("-inf"))


class GroupTables(Protocol):
    """The groups that are coordinated here."""

    def tables(self) -> Iterator[GroupTable]:
        """Yield the tables that can be checked."""


class GroupLag:
    """The lag snapshots of one broker. Made on its loop; other threads call ``latest``."""

    def __init__(
        self,
        groups: GroupTables,
        partitions: Partitions,
        metadata: MetadataCache,
        others: OtherBrokers,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._partitions = partitions
        self._metadata = metadata
        self._others = others
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._last = NO_SNAPSHOT
        self._taking: asyncio.Task[LagSnapshot] | None = None
        self._loops_thread = threading.get_ident()

    def latest(self) -> LagSnapshot:
        """Return a snapshot that is at most ``HOLDS_S`` old; blocks for up to ``WAIT_S``.

        Returns the previous one when none is ready by then, or when the loop's own thread calls.
        """
        if threading.get_ident() == self._loops_thread:
            return self._last
        try:
            asked = asyncio.run_coroutine_threadsafe(self.snapshot(), self._loop)
        except RuntimeError:
            return self._last  # the loop has ended
        try:
            return asked.result(WAIT_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            pass
        except Exception:
            logger.exception("the lag of the groups could not be computed")
        return self._last

    async def snapshot(self) -> LagSnapshot:
        """Take a snapshot, or wait for the one under way. Network errors are not raised."""
        if self._loop.time() - self._last.at < HOLDS_S:
            return self._last
        if self._taking is None:
            self._taking = self._loop.create_task(self._take(), name="group-lag")
            self._taking.add_done_callback(self._taken)
        return await asyncio.shield(self._taking)

    async def close(self) -> None:
        """Cancel a snapshot that is under way."""
        if self._taking is not None:
            await call_off([self._taking])

    def _taken(self, task: asyncio.Task[LagSnapshot]) -> None:
        self._taking = None
        if not task.cancelled() and task.exception() is None:
            self._last = task.result()

    async def _take(self) -> LagSnapshot:
        members: dict[str, int] = {}
        found: list[Position] = []
        left_out = groups_left_out = 0
        turn = pace.Turn(self._clock)
        for table in list(self._groups.tables()):
            for group_id in list(table):
                await turn.pause()
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
                    await turn.pause()
        latest = partial(ask_leader, timestamp=LATEST)
        ends = await self._of_leaders(found, lambda *_: True, lambda x: x.high_watermark, latest)

        def is_behind(where: TopicPartition, committed: int) -> bool:
            topic = self._metadata.topics.get(where.topic)
            return bool(topic and topic.resize_epoch > 0 and ends.get(where, 0) > committed)

        def fences_of(hosted: HostedPartition) -> Sequence[FenceEntry | FencePlace]:
            return hosted.log.fences.below(ends[hosted.key]).entries

        fences = await self._of_leaders(found, is_behind, fences_of, ask_for_fences)
        now = self._loop.time()
        return LagSnapshot(now, members, found, ends, fences, left_out, groups_left_out)

    def _positions_of(self, group: Group) -> Iterator[list[Position]]:
        """Yield a group's positions, a part at a time."""
        topic_id_of = self._metadata.id_of
        for topic in list(group.offsets):
            numbers = list(group.offsets.get(topic, ()))
            for part in pace.parts(numbers):
                wanted = [(topic, list(part))]
                yield [
                    (group.group_id, TopicPartition(topic, index), committed.offset)
                    for _, committeds in fetch_offsets(group, wanted, topic_id_of)
                    for index, committed in committeds
                    if committed is not None
                ]

    async def _of_leaders(
        self,
        positions: list[Position],
        is_wanted: Callable[[TopicPartition, int], bool],
        here: Callable[[HostedPartition], Found],
        ask: Callable[..., Awaitable[Mapping[TopicPartition, Found]]],
    ) -> dict[TopicPartition, Found]:
        """Return what the leaders know of partitions: this broker, and others that respond."""
        found: dict[TopicPartition, Found] = {}
        by_leader: dict[int, dict[TopicPartition, None]] = {}
        turn = pace.Turn(self._clock)
        for _, partition, committed in positions:
            await turn.pause()
            if not is_wanted(partition, committed):
                continue
            hosted = self._partitions.get(*partition)
            known = self._metadata.partition(*partition)
            if hosted is not None and hosted.is_leader:
                found[partition] = here(hosted)
            elif known is not None and known.leader >= 0:
                by_leader.setdefault(known.leader, {})[partition] = None
        asked = [ask(self._others, to, PURPOSE, list(part)) for to, part in by_leader.items()]
        for theirs in await asyncio.gather(*asked):
            found.update(theirs)
        return found
