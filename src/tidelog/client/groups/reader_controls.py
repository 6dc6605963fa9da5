"""What a reader of a group offers between its polls: positions, seek, pause, commits.

Owns the parts that a reader is made of, and these methods. Not the cycle of joining, positions and
fetching: see ``group_reader``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from uuid import UUID

from tidelog.client.cluster import Cluster
from tidelog.client.errors import WrongState
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import PREFETCH_BYTES, Fetcher
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.groups.first_positions import Resets
from tidelog.client.groups.gating import Gating
from tidelog.client.groups.group_member import (
    HEARTBEAT_INTERVAL_MS,
    PARTITION_CHECK_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    GroupMember,
)
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.groups.key_turns import KeyTurns
from tidelog.client.groups.reader_commits import Commits
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.groups.reader_positions import ReaderPositions
from tidelog.client.groups.resized_topics import deleted_topics, stamps_of
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.metadata import Topic
from tidelog.client.offsets import IsolationLevel
from tidelog.model.topics import TopicPartition

logger = logging.getLogger(__name__)

AUTO_COMMIT_INTERVAL_MS = 5_000


class ReaderControls:
    """A reader with its parts; ``GroupReader`` polls."""

    def __init__(
        self,
        cluster: Cluster,
        group: str = "",
        topics: Iterable[str] = (),
        *,
        reset: OffsetReset = OffsetReset.LATEST,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        auto_commit_ms: int | None = AUTO_COMMIT_INTERVAL_MS,
        options: FetchOptions | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        instance_id: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        partition_check_ms: int = PARTITION_CHECK_MS,
        member: GroupMember | SelfAssigned | None = None,
        hooks: ReaderHooks | None = None,
        is_aware: bool = True,
    ) -> None:
        self._cluster = cluster
        self._is_aware = is_aware
        self._hooks = hooks or ReaderHooks()
        self._member = member or GroupMember(
            cluster,
            group,
            topics,
            instance_id=instance_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            partition_check_ms=partition_check_ms,
        )
        # A stopped partition is fetched again, and raises its error again.
        self._fetcher = Fetcher(
            cluster,
            isolation=isolation,
            reset=reset,
            options=options,
            prefetch_bytes=prefetch_bytes,
            again_after_ms=cluster.settings.backoff.max_ms,
            on_reset=lambda where, offset: self._resets.within(where, offset),
        )
        self._positions = ReaderPositions(self._fetcher, self._hooks)
        self._commits = Commits(
            self._member,
            self._positions.epoch_before,
            lambda: deleted_topics(self._seen, cluster.view),
            auto_commit_ms,
        )
        self._resets = Resets(cluster, reset, isolation, self._member, self._commits)
        keys = HeldKeys() if self._hooks.follows_keys else None
        before_report = None if auto_commit_ms is None else self._commits.before_report
        self._gating = Gating(cluster, self._member, self._fetcher, before_report, keys)
        self._turns = KeyTurns(keys, self._member, self._gating, self._hooks, self.positions)
        self._begin_empty(heartbeat_interval_ms)

    def _begin_empty(self, heartbeat_interval_ms: int) -> None:
        self._seen: dict[str, Topic] = {}
        """The ordered topics of this generation, by the metadata that it reads with."""
        self._ids: dict[str, UUID] = {}
        """The id of each topic that this member has read, in the newest generation that did."""
        self._reborn_topics: set[str] = set()
        """Topics of this generation that were deleted and created again since this member read
        them: a position of a record in them was committed by one that read the former topic."""
        self._unordered: frozenset[str] = frozenset()
        """Its other topics: one that becomes ordered has gates, and lets the member join again."""
        self._assigned: list[TopicPartition] = []
        self._given: list[TopicPartition] = []
        """What the join in flight, or the last one, gave this member."""
        self._has_begun = False
        """Whether this generation has its metadata and gates."""
        self._is_entering = False
        """Whether the last join is done, and what it gave is not taken up yet."""
        self._has_given_up = False
        """Whether the callbacks before the next join have run."""
        self._step_ms = heartbeat_interval_ms
        self._placing_step_ms = min(heartbeat_interval_ms, self._cluster.settings.backoff.max_ms)
        self._unplaced: list[TopicPartition] = []
        """Assigned partitions without a position yet."""
        self._sought: dict[TopicPartition, int] = {}
        """Positions that the application has set before they could be read from."""
        self._place_at = 0.0
        self._joining: asyncio.Task[bool] | None = None
        self._placing: asyncio.Task[None] | None = None
        self._is_woken = False
        self._closed = False
        self.paused: set[TopicPartition] = set()
        """Partitions of which nothing is returned; one that goes away is not any more."""

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads."""
        return list(self._fetcher.positions())

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of the application in the partitions that have one."""
        return self._positions.all()

    def wake(self) -> None:
        """Let a ``poll`` that waits return."""
        self._is_woken = True
        self._fetcher.interrupt()

    @property
    def wants_attention(self) -> bool:
        """Whether ``poll`` has something to do, apart from returning what was fetched."""
        return self._joining is not None or self._member.must_join or self.has_shut or self._closed

    @property
    def has_shut(self) -> bool:
        """Whether a gate has shut that was open when something beyond it was returned."""
        return self._gating.has_shut

    @property
    def given(self) -> list[TopicPartition]:
        """The partitions that the last join gave this member, with and without a position."""
        return list(self._assigned)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are fetched and not returned."""
        return self._fetcher.buffered_bytes

    def pause_only(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions, and of all others again."""
        paused = set(partitions)
        self._fetcher.resume(self.paused - paused)
        self._fetcher.pause(paused)
        self.paused = paused

    async def commit(self) -> None:
        """Commit the positions after all returned batches, where they have changed.

        A commit of an ended generation is dropped: the next owner of the partition reads these
        records again. Raises CommitRefused with the error of each refused partition; the positions
        of the others are committed.
        """
        self._commits.note()
        await self._commits.up_to(self.positions())

    async def commit_up_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit these positions, which may be before the returned batches; like ``commit``."""
        await self._commits.up_to(positions)

    async def commit_exactly(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit these positions. Raises Refused also where ``commit`` drops them."""
        if positions:
            await self._commits.exactly(positions)

    def places(self) -> dict[TopicPartition, Position]:
        """Return the positions of the application as they are committed."""
        return {
            where: Position(offset, self._positions.epoch_before(where, offset))
            for where, offset in self.positions().items()
        }

    # Positions that the application sets

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset of an assigned partition. Raises ClientError for another one.

        Beyond a shut gate it is delivered when the gate opens; a line in the log says so.
        """
        self._commits.sought(partition)
        if partition in self._fetcher.positions():
            self._positions.set(partition, offset)
        elif partition in self._assigned or partition in self._given:
            self._sought[partition] = offset
            if self._has_begun:
                self._begin({partition: offset})
        else:
            raise WrongState(f"{partition} is not assigned to this consumer: it cannot seek")
        end = self._gating.ends.get(partition)
        if end is not None and end <= offset:
            said = "%s: nothing is delivered from offset %d until its gate opens: %s"
            logger.warning(said, partition, offset, self._gating.why_shut(partition))

    def seek_first(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin at these offsets in partitions that are not assigned yet."""
        self._sought.update(positions)

    def why_waiting(self) -> dict[TopicPartition, str]:
        """Return what each partition with a shut gate waits for."""
        return {each: self._gating.why_shut(each) for each in self._gating.ends}

    def _begin(
        self,
        positions: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._unplaced = [where for where in self._unplaced if where not in positions]
        self._fetcher.add(positions, epochs, stamps_of(self._seen, positions))
        self._fetcher.pause(self.paused)
        if self._hooks.follows_keys:
            # Their state is loaded by ``poll``.
            self._fetcher.interrupt()
