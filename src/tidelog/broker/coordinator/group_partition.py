"""What groups need of their own in one led partition: requests in parts, and topics that are gone.

Owns the order of a group's events while a request or a removal of very many positions is decided
in parts; the sweeps over all groups (retention, deleted topics); that a group forgets a deleted
topic before it takes a commit for the next one of that name; and what surrounds a load: the
metadata that it waits for, and the removal of positions in former topic ids. Not when the groups
are served and how they are written: see ``led_partition``; not the parts: see ``parts``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tidelog.broker.coordinator import parts
from tidelog.broker.coordinator.parts import InParts, RestOfRemoval
from tidelog.broker.coordinator.pending_response import give
from tidelog.groups.events import (
    CommitInTransaction,
    CommitOffsets,
    EndTransaction,
    Event,
    Expire,
    MarkerResult,
    OffsetsResult,
    RemoveFormerTopicIds,
    RemoveTopics,
    refuse,
)
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.coordinator.table import Shell
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.groups.table import GroupTable
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

_LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class GroupPartition:
    """The groups' own part of one led partition: a ``table.OwnPart``."""

    def __init__(
        self,
        shell: Shell[GroupTable],
        metadata: MetadataCache,
        clock: Clock,
        one_by_one: pace.OneByOne,
    ) -> None:
        self._shell = shell
        self._metadata = metadata
        self._clock = clock
        # By group; ``one_by_one`` decides those of one in each turn of the loop, of all partitions.
        self._long: dict[str, InParts | RestOfRemoval] = {}
        self._one_by_one = one_by_one
        self._deleted_while_loading: set[str] = set()
        self._gone: dict[str, int] = {}
        """Topics that some groups here have not forgotten yet, and the number of their deletion."""
        self._deletions = 0

    # Requests ----------------------------------------------------------------------------------

    def decide(self, group_id: str, event: Event | InParts) -> None:
        """Decide an event now, or after the request of its group that is decided in parts."""
        if self._gone and isinstance(event, InParts | CommitOffsets | CommitInTransaction):
            self._forget_before_commit(group_id)
        present = self._long.get(group_id)
        if present is not None:
            present.later.append(event)
        elif isinstance(event, InParts):
            self._begin(group_id, event)
        else:
            self._decide_now(group_id, event)
            if self._shell.table.removes(group_id):
                has_more = partial(self._shell.table.removes, group_id)
                self._begin(group_id, RestOfRemoval(has_more, partial(self._interrupt, group_id)))

    def _forget_before_commit(self, group_id: str) -> None:
        """Forget deleted topics before the turn of a group: of an offset without a topic id only
        the order says that it is of the former topic, and in a transaction the next one would not
        replace it."""
        group = self._shell.table.get(group_id)
        if group is None:
            return
        held = self._gone.keys() & group.offsets.keys()
        held.update(topic for topic in group.flying.topics() if topic in self._gone)
        if held:
            self.decide(group_id, RemoveTopics(frozenset(held), self._metadata.id_of))

    def _decide_now(self, group_id: str, event: Event) -> None:
        """Decide an event, or refuse offsets of a transaction that has ended while they waited."""
        if isinstance(event, CommitInTransaction) and (late := event.why_late()):
            give(Answer(event.pending_response, cast(OffsetsResult, refuse(event, late))))
        else:
            self._shell.decide_now(group_id, event)

    def carry_out(self, effect: Any) -> None:
        """Groups have no effect of their own."""
        raise TypeError(f"nothing performs {effect!r}")

    def close(self) -> None:
        """Do nothing: each request in parts ends when it finds that."""

    def end_transaction(self, event: EndTransaction) -> None:
        """Write a marker. It is of no group, and waits for none that is decided in parts."""
        error = self._shell.error
        if error is not ErrorCode.NONE:
            give(Answer(event.pending_response, MarkerResult(ErrorCode.NONE).refused(error)))
            return
        self._shell.perform(self._shell.table.end_transaction(event, self._shell.now()))
        self._shell.arm()

    def _begin(self, group_id: str, long: InParts | RestOfRemoval) -> None:
        self._long[group_id] = long
        self._one_by_one.add(self._deciding(group_id, long))

    def _interrupt(self, group_id: str) -> None:
        self._shell.perform(self._shell.table.interrupted(group_id))

    def _deciding(self, group_id: str, long: InParts | RestOfRemoval) -> Work[None]:
        """Decide the parts of a request; after the last part the later events."""
        shell = self._shell
        try:
            while (error := shell.error) is ErrorCode.NONE:
                part = parts.part_of(long, removes=shell.table.removes(group_id))
                if part is None:
                    break
                self._decide_now(group_id, part)
                shell.arm()
                yield None
            long.refuse_rest(error)
        except Exception:
            # A bug must not block the later events of the group.
            logger.exception("a large request for group %(group)s failed", {"group": group_id})
            self._interrupt(group_id)
            long.fail()
        del self._long[group_id]
        # A later event that is decided in parts is the next that the others wait for.
        while long.later:
            shell.decide(group_id, long.later.popleft())

    # Loading -----------------------------------------------------------------------------------

    async def before_loaded(self) -> None:
        """Wait until the metadata cache is at least as new as this leadership.

        LeaderAndIsr arrives before UpdateMetadata. Until then the cache may have a former topic id
        of a topic while the log has offsets of the current one, which would be removed.
        """
        shell = self._shell
        at, since = shell.hosted.key, shell.since
        while shell.error is _LOADING:
            known = self._metadata.partition(at.topic, at.partition)
            if known is not None and known.leader_epoch >= since:
                return
            changed = self._metadata.changed()
            await asyncio.wait((changed, shell.closed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def after_loaded(self) -> None:
        """Remove the offsets of topics that were deleted or have another topic id now."""
        if self._deleted_while_loading:
            await self.forget_topics(frozenset(self._deleted_while_loading))
        await self._for_all(RemoveFormerTopicIds(self._metadata.id_of))

    # Sweeps ------------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Expire offsets of all groups by their retention, one turn at a time."""
        await self._for_all(Expire())

    @property
    def forgets(self) -> Collection[str]:
        """The deleted topics that some groups here have not forgotten yet."""
        return self._gone.keys()

    def topic_gone(self, topic: str) -> None:
        """A topic was deleted: ``forget_topics`` comes later."""
        self._deletions += 1
        self._gone[topic] = self._deletions

    async def forget_topics(self, topics: frozenset[str]) -> None:
        """Remove the offsets of deleted topics from every group, by topic id."""
        if self._shell.state is _LOADING:
            self._deleted_while_loading |= topics
            return
        numbers = {topic: self._gone.get(topic) for topic in topics}
        await self._for_all(RemoveTopics(topics, self._metadata.id_of))
        for topic, number in numbers.items():
            # One that was deleted again meanwhile has another sweep.
            if self._gone.get(topic) == number:
                self._gone.pop(topic, None)

    async def _for_all(self, event: Event) -> None:
        shell, turn = self._shell, pace.Turn(self._clock)
        for group_id in list(shell.table):
            group, present = shell.table.get(group_id), event
            if group is not None and isinstance(event, Expire):
                present = await pace.run(parts.expiry_of(group, shell.now()), self._clock)
            if shell.error is not ErrorCode.NONE:
                return
            if shell.table.get(group_id) is not None:
                shell.decide(group_id, present)
            await turn.pause()
