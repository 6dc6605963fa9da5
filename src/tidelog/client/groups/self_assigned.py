"""A reader that assigns itself: given partitions, or all partitions of topics without a group.

Owns what stands in for membership there. Not a member of a group: see ``group_member``, which has
the same methods. With a group it commits as a client that is no member, and learns the positions of
partitions that it does not read from what is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.groups.committed_offsets import Membership, Position, commit_offsets
from tidelog.client.groups.group_positions import exchange_positions
from tidelog.client.groups.membership import MemberState
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import GroupPosition
from tidelog.runtime.tasks import call_off

PARTITION_CHECK_S = 30.0
"""How often subscribed topics are checked for new partitions."""


class SelfAssigned:
    """``assign`` or ``subscribe`` before ``join``; both may be called again."""

    is_cooperative = True
    """It keeps its positions where it keeps its partitions."""

    def __init__(self, cluster: Cluster, group: str | None) -> None:
        self.group = group or ""
        self.is_alone = group is None
        self.topics: list[str] = []
        self.state = MemberState.OUT
        self.membership = Membership()
        self.assigned_with: dict[str, int] = {}
        self._cluster = cluster
        self._partitions: list[TopicPartition] | None = None
        self._watch: asyncio.Task[None] | None = None

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions."""
        self._partitions = list(dict.fromkeys(partitions))
        self.rejoin()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read all partitions of these topics."""
        names = sorted(set(topics))
        if names != self.topics:
            self.topics = names
            self.rejoin()

    @property
    def must_join(self) -> bool:
        """Whether to call ``join`` next."""
        return self.state in (MemberState.OUT, MemberState.RECALLED)

    async def join(self, owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Return the partitions to read. Raises ClientError."""
        if self._partitions is not None:
            self.state = MemberState.JOINED
            return list(self._partitions)
        asked_for = None
        while asked_for != self.topics:
            asked_for = self.topics
            partitions = await self._listed()
        self.state = MemberState.JOINED
        if self._watch is None:
            watch = self._watch_partitions(partitions)
            self._watch = asyncio.get_running_loop().create_task(watch)
        return partitions

    async def _listed(self) -> list[TopicPartition]:
        if not self.topics:
            return []
        await self._cluster.describe(self.topics)
        topics = self._cluster.view.topics
        return [
            TopicPartition(name, index)
            for name in self.topics
            if name in topics and not topics[name].error
            for index in topics[name].partitions
        ]

    async def _watch_partitions(self, assigned: list[TopicPartition]) -> None:
        """Join again when the partitions have changed; without an answer nothing has."""
        while True:
            await asyncio.sleep(PARTITION_CHECK_S)
            with contextlib.suppress(ClientError):
                listed = await self._listed()
                if listed != assigned:
                    assigned = listed
                    self.rejoin()

    def positioned(self) -> None:
        """Record that the positions of all partitions are known."""
        if self.state is MemberState.JOINED:
            self.state = MemberState.READING

    def rejoin(self) -> None:
        """Record that the partitions may have changed."""
        if self.state is not MemberState.OUT:
            self.state = MemberState.RECALLED

    def gave_up(self) -> None:
        """Record that partitions were given up: no other member waits for them."""

    def polled(self) -> None:
        """Record that the application polls: no coordinator waits for it."""

    def check_may_commit(self) -> None:
        """It has no generation: whether it may commit, its group says."""

    async def commit(
        self,
        positions: Mapping[TopicPartition, Position],
        *,
        asked_as: Membership | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit as a client that is no member. Raises Refused where the group has members."""
        if self.is_alone:
            raise Refused(ErrorCode.INVALID_GROUP_ID, "a commit", "the consumer has no group_id")
        await commit_offsets(
            self._cluster, self.group, positions, self.membership, timeout_ms=timeout_ms
        )

    async def exchange_positions(
        self, report: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
    ) -> dict[TopicPartition, GroupPosition]:
        """Return what the group has committed of partitions that this reader does not have."""
        names = list(wanted)
        if self.is_alone or not names:
            return {}
        return await exchange_positions(self._cluster, self.group, self.membership, {}, names)

    async def leave(self) -> None:
        """Stop; nothing is left on the coordinator."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await call_off([watch])
        self.state = MemberState.OUT
