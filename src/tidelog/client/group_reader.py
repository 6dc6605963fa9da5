"""Reading topics as a member of a group: assignments, positions, commits.

Owns the cycle join -> positions -> fetch -> commit -> rejoin (eager: everything is given back
before a rejoin). The public Consumer grows from this.

At least once: a position is committed only after ``poll`` was called again (or ``commit``), so
what was handed out and not finished is read again after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from tidelog.client import offsets
from tidelog.client.batches import Fetched
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.client.fetch_requests import FetchOptions
from tidelog.client.fetcher import Fetcher, OffsetReset
from tidelog.client.group_member import (
    HEARTBEAT_INTERVAL_MS,
    PARTITION_CHECK_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    GroupMember,
)
from tidelog.client.group_offsets import Position, committed_offsets
from tidelog.client.offsets import IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

AUTO_COMMIT_INTERVAL_MS = 5_000

_COMMIT_LOST = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


class GroupReader:
    """Reads as a group's member. ``async with`` leaves the group at the end."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Iterable[str],
        *,
        reset: OffsetReset = OffsetReset.LATEST,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        auto_commit_ms: int | None = AUTO_COMMIT_INTERVAL_MS,
        options: FetchOptions | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        partition_check_ms: int = PARTITION_CHECK_MS,
    ) -> None:
        self._cluster = cluster
        self._reset = reset
        self._isolation = isolation
        self._auto_commit_ms = auto_commit_ms
        self._member = GroupMember(
            cluster,
            group,
            topics,
            instance_id=instance_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            partition_check_ms=partition_check_ms,
        )
        self._fetcher = Fetcher(cluster, isolation=isolation, reset=reset, options=options)
        self._committed: dict[TopicPartition, int] = {}
        self._next_commit = 0.0

    async def __aenter__(self) -> GroupReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads now."""
        return list(self._fetcher.positions())

    async def poll(self, timeout_ms: int, max_bytes: int | None = None) -> list[Fetched]:
        """Return what has come of this member's partitions; joins and rejoins as it must.

        Calling it again says that everything handed out before is finished. Raises Refused.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        if self._member.must_join:
            await self._rejoin()
        elif self._auto_commit_ms is not None and loop.time() >= self._next_commit:
            await self.commit()
        left_ms = max(0, int((deadline - loop.time()) * 1000))
        return await self._fetcher.poll(left_ms, max_bytes)

    async def commit(self) -> None:
        """Commit the positions behind everything handed out, where they moved.

        A commit that comes too late for its generation is dropped: the records are read again by
        whoever has the partition then.
        """
        if self._auto_commit_ms is not None:
            now = asyncio.get_running_loop().time()
            self._next_commit = now + self._auto_commit_ms / 1000
        await self.commit_up_to(self._fetcher.positions())

    async def commit_up_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit these positions, which may be before what was handed out; as ``commit``."""
        moved = {
            partition: offset
            for partition, offset in positions.items()
            if self._committed.get(partition) != offset
        }
        if not moved:
            return
        try:
            await self._member.commit(
                {
                    partition: Position(offset, self._fetcher.epoch_before(partition, offset))
                    for partition, offset in moved.items()
                }
            )
        except Refused as error:
            if error.code not in _COMMIT_LOST:
                raise
            return
        self._committed.update(moved)

    async def close(self) -> None:
        """Stop reading and leave the group. Commits nothing: ``commit`` before, if all is done."""
        await self._fetcher.close()
        await self._member.leave()

    async def _rejoin(self) -> None:
        if self._auto_commit_ms is not None:
            await self.commit()
        self._fetcher.assign({})
        assigned = await self._member.join()
        found_at = await committed_offsets(self._cluster, self._member.group, assigned)
        self._committed = {partition: position.offset for partition, position in found_at.items()}
        positions = dict(self._committed)
        missing = [partition for partition in assigned if partition not in positions]
        if missing:
            if self._reset is OffsetReset.NONE:
                raise Refused(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    str(missing[0]),
                    f"group {self._member.group!r} has no committed offset",
                )
            earliest = self._reset is OffsetReset.EARLIEST
            where = offsets.EARLIEST if earliest else offsets.LATEST
            found = await offsets.list_offsets(
                self._cluster, dict.fromkeys(missing, where), isolation=self._isolation
            )
            positions.update((partition, item.offset) for partition, item in found.items())
        epochs = {partition: position.leader_epoch for partition, position in found_at.items()}
        self._fetcher.assign(positions, epochs=epochs)
