"""A consumer of a group: assignments, positions, commits.

Owns the cycle join -> positions -> fetch -> commit -> rejoin (eager: all partitions are revoked
before a rejoin). The public Consumer will use this.

Joining and looking up positions each run in a task: they continue when a ``poll`` is cancelled or
times out. A ``poll`` raises their error, and the next one retries. A partition is read as soon as
its position is known, also when the lookup of others fails; a recalled member cancels the lookup.

A generation reads with the metadata of its begin (KIP-253): with these counts and resize epochs it
fetches, and ``gating`` holds back what must wait for other partitions. The member joins again when
it sees a newer resize epoch. A position of a reset is committed before it is read from, or the
rebalance of a resize would reset again, and skip.

At least once: a position is committed only after the next ``poll`` (or ``commit``), so records that
were returned and not processed are read again after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from tidelog.client import offsets
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import Fetcher, OffsetReset
from tidelog.client.groups.committed_offsets import (
    CommitRefused,
    PartitionsRefused,
    Position,
    look_up_committed,
)
from tidelog.client.groups.gating import Gating
from tidelog.client.groups.group_member import (
    HEARTBEAT_INTERVAL_MS,
    PARTITION_CHECK_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    GroupMember,
)
from tidelog.client.groups.membership import MemberState
from tidelog.client.groups.resized_topics import (
    catch_up,
    former_topics,
    is_resized,
    ordered_topics,
    stamps_of,
)
from tidelog.client.metadata import Topic
from tidelog.client.offsets import IsolationLevel
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, by_topic
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

AUTO_COMMIT_INTERVAL_MS = 5_000

_COMMIT_LOST = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


class GroupReader:
    """Reads as a member of a group. ``async with`` leaves the group at the end."""

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
        # There is no seek: a stopped partition is fetched again, and raises its error again.
        self._fetcher = Fetcher(
            cluster,
            isolation=isolation,
            reset=reset,
            options=options,
            again_after_ms=cluster.settings.backoff.max_ms,
        )
        self._gating = Gating(
            cluster,
            self._member,
            self._fetcher,
            None if auto_commit_ms is None else self._commit_before_report,
        )
        self._seen: dict[str, Topic] = {}
        """The ordered topics of this generation, by the metadata that it reads with."""
        self._assigned: list[TopicPartition] = []
        self._has_begun = False
        """Whether this generation has its metadata and gates."""
        self._committed: dict[TopicPartition, int] = {}
        self._next_commit = 0.0
        self._step_ms = heartbeat_interval_ms
        self._placing_step_ms = min(heartbeat_interval_ms, cluster.settings.backoff.max_ms)
        self._unplaced: list[TopicPartition] = []
        """Assigned partitions without a position yet."""
        self._place_at = 0.0
        self._joining: asyncio.Task[None] | None = None
        self._placing: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> GroupReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads."""
        return list(self._fetcher.positions())

    async def poll(self, timeout_ms: int, max_bytes: int | None = None) -> list[Fetched]:
        """Return fetched batches of this member's partitions; joins and rejoins when needed.

        A call means that all batches returned before are processed. Raises Refused
        (PartitionsRefused when some partitions cannot be read), and continues with the next call; a
        closed reader raises ClientError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        if timeout_ms <= 0:
            # A caller that polls without waiting must still let the loop run the requests.
            await asyncio.sleep(0)
        if self._gating.is_active:
            self._gating.raise_problem()
            self._gating.delivered(self._fetcher.positions())
        while True:
            self._refuse_closed()
            if self._seen and is_resized(self._seen, self._assigned, self._cluster.view):
                self._member.rejoin()
            if self._joining is not None or self._member.must_join:
                if not await self._joined(deadline):
                    return []
            elif self._auto_commit_ms is not None and loop.time() >= self._next_commit:
                self._commit_aside()
            self._place_aside()
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            # In steps: a recalled member must not wait for the caller's whole timeout.
            step_ms = self._step_ms if self._placing is None else self._placing_step_ms
            taken = await self._fetcher.poll(min(left_ms, step_ms), max_bytes)
            if taken or left_ms <= step_ms:
                return taken

    async def commit(self) -> None:
        """Commit the positions after all returned batches, where they have changed.

        A commit of an ended generation is dropped: the next owner of the partition reads these
        records again. Raises CommitRefused with the error of each refused partition; the positions
        of the others are committed.
        """
        self._note_commit()
        await self._commit_up_to(self._fetcher.positions())

    async def commit_up_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit these positions, which may be before the returned batches; like ``commit``."""
        await self._commit_up_to(positions)

    async def close(self) -> None:
        """Stop reading and leave the group. Commits nothing: call ``commit`` before if needed.

        A concurrent ``poll`` raises ClientError. If cancelled, it still completes the remaining
        steps, so that reading stops; a member whose LeaveGroup is cancelled stays in the group
        until its session expires.
        """
        self._closed = True
        tasks = [self._joining, self._placing, self._committing]
        try:
            await self._gating.stop()
            await call_off(task for task in tasks if task is not None)
        finally:
            try:
                await self._fetcher.close()
            finally:
                await self._member.leave()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClientError(f"the reader of group {self._member.group!r} is closed")

    # Committing

    def _note_commit(self) -> None:
        if self._auto_commit_ms is not None:
            now = asyncio.get_running_loop().time()
            self._next_commit = now + self._auto_commit_ms / 1000

    def _commit_aside(self) -> None:
        """Commit processed positions in the background of ``poll``; one commit at a time."""
        if self._committing is None or self._committing.done():
            self._note_commit()
            positions = self._fetcher.positions()
            self._committing = asyncio.get_running_loop().create_task(self._try_commit(positions))

    async def _try_commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit automatically: a failure is logged, and the next commit includes the positions."""
        try:
            await self._commit_moved(positions, timeout_ms=self._auto_commit_ms)
        except ClientError as error:
            logger.warning("group %s: offsets were not committed: %s", self._member.group, error)

    async def _commit_before_report(self, positions: dict[TopicPartition, int]) -> None:
        """Commit positions that are going to be reported; one commit at a time."""
        while self._committing is not None and not self._committing.done():
            await asyncio.wait([self._committing])
        # A commit that a later ``poll`` began may have been faster: this one is older then.
        newer = {at: each for at, each in positions.items() if each > self._committed.get(at, -1)}
        # A later commit may take its place while this one is under way.
        own = asyncio.get_running_loop().create_task(self._commit_moved(newer))
        own.add_done_callback(_look_at_error)
        self._committing = own
        await asyncio.wait([own])
        own.result()

    async def _commit_up_to(self, positions: Mapping[TopicPartition, int]) -> None:
        # An older commit in flight must not be applied after this one.
        if self._committing is not None:
            await asyncio.wait([self._committing])
        await self._commit_moved(positions)

    async def _commit_moved(
        self, positions: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> None:
        # The topic that has the name of a deleted one now begins without commits.
        former = former_topics(self._seen, self._cluster.view)
        moved = {
            partition: Position(offset, self._fetcher.epoch_before(partition, offset))
            for partition, offset in positions.items()
            if self._committed.get(partition) != offset and partition.topic not in former
        }
        if not moved:
            return
        try:
            await self._member.commit(moved, timeout_ms=timeout_ms)
        except CommitRefused as error:
            self._note_committed(moved, error.errors)
            raise
        except Refused as error:
            if error.code not in _COMMIT_LOST:
                raise
            return
        self._note_committed(moved, ())

    def _note_committed(
        self, moved: Mapping[TopicPartition, Position], but: Collection[TopicPartition]
    ) -> None:
        done = {where: item.offset for where, item in moved.items() if where not in but}
        self._committed.update(done)

    # Entering a generation

    async def _joined(self, deadline: float) -> bool:
        """Wait until the member has joined, or the deadline; raises the error of a failed join."""
        loop = asyncio.get_running_loop()
        if self._joining is None:
            self._joining = loop.create_task(self._join())
            self._joining.add_done_callback(_look_at_error)
        joining = self._joining
        await asyncio.wait([joining], timeout=max(0.0, deadline - loop.time()))
        if not joining.done():
            return False
        self._refuse_closed()
        self._joining = None
        joining.result()
        return True

    async def _join(self) -> None:
        """Revoke all partitions, and join."""
        placing, self._placing = self._placing, None
        if placing is not None:
            await call_off([placing])
        await self._gating.stop()
        if self._auto_commit_ms is not None:
            if self._committing is not None:
                await asyncio.wait([self._committing])
            await self._try_commit(self._fetcher.positions())
        self._fetcher.assign({})
        self._committed, self._unplaced, self._place_at = {}, [], 0.0
        self._seen, self._has_begun = {}, False
        self._assigned = self._unplaced = await self._member.join()

    def _place_aside(self) -> None:
        """Look up missing positions while other partitions are read; raises a previous error."""
        loop = asyncio.get_running_loop()
        placing = self._placing
        if placing is not None and placing.done():
            self._placing = None
            placing.result()
        may = self._placing is None and self._member.state is MemberState.JOINED
        if may and loop.time() >= self._place_at:
            self._placing = loop.create_task(self._place())
            self._placing.add_done_callback(_look_at_error)

    async def _place(self) -> None:
        """Look up positions, then read. Raises the errors of partitions without a position."""
        try:
            errors = await self._look_up()
        finally:
            backoff_s = self._cluster.settings.backoff.max_ms / 1000
            self._place_at = asyncio.get_running_loop().time() + backoff_s
        if errors:
            raise PartitionsRefused(self._member.group, errors)
        self._member.positioned()

    async def _look_up(self) -> dict[TopicPartition, Refused]:
        """Start reading each partition as soon as its position is known; return the errors.

        One request per topic without committed offsets, so that a topic that is deleted, or has no
        leader, does not delay others. Grows with partitions.
        """
        group, wanted = self._member.group, self._unplaced
        await self._begin_generation()
        found, errors = await look_up_committed(self._cluster, group, wanted)
        positions = {partition: item.offset for partition, item in found.items()}
        self._committed.update(positions)
        self._begin(positions, {partition: item.leader_epoch for partition, item in found.items()})
        missing = [where for where in wanted if where not in found and where not in errors]
        if self._reset is OffsetReset.NONE:
            errors.update({where: _no_position(group, where) for where in missing})
        else:
            topics = by_topic(missing).values()
            for failed in await asyncio.gather(*map(self._reset_positions, topics)):
                errors.update(failed)
        for where in self._unplaced:
            unanswered = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(where), "no broker responded")
            errors.setdefault(where, unanswered)
        return errors

    async def _begin_generation(self) -> None:
        """Get metadata that are as new as those of the assignment, and begin with its gates."""
        if self._has_begun:
            return
        await catch_up(self._cluster, self._member.assigned_with)
        names = {where.topic for where in self._unplaced}
        unknown = sorted(name for name in names if name not in self._cluster.view.topics)
        if unknown:
            await self._cluster.describe(unknown)
        self._seen = ordered_topics(self._cluster.view, names)
        self._gating.start(self._seen, self._unplaced)
        self._has_begun = True

    def _begin(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> None:
        self._unplaced = [where for where in self._unplaced if where not in positions]
        self._fetcher.add(positions, epochs, stamps_of(self._seen, positions))

    async def _reset_positions(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, Refused]:
        """Look up the starts or ends of one topic's partitions; return the errors."""
        where = offsets.EARLIEST if self._reset is OffsetReset.EARLIEST else offsets.LATEST
        failed: dict[TopicPartition, ClientError] = {}
        is_ordered = partitions[0].topic in self._seen

        def begin(found: Mapping[TopicPartition, offsets.FoundOffset]) -> None:
            if not is_ordered:
                self._begin({each: at.offset for each, at in found.items()}, {})

        found = await offsets.list_offsets(
            self._cluster,
            dict.fromkeys(partitions, where),
            isolation=self._isolation,
            failed=failed,
            taken=begin,
        )
        if is_ordered and found:
            positions = {each: at.offset for each, at in found.items()}
            try:
                await self._commit_moved(positions)
            except CommitRefused as error:
                failed.update(error.errors)
            except ClientError as error:
                failed.update(dict.fromkeys(positions, error))
            # Where the generation is over nothing was committed, and nothing is read.
            done = {each: at for each, at in positions.items() if self._committed.get(each) == at}
            self._begin(done, {})
        return {each: _refused(each, error) for each, error in failed.items()}


def _refused(partition: TopicPartition, error: ClientError) -> Refused:
    if isinstance(error, Refused):
        return error
    return Refused(ErrorCode.NETWORK_EXCEPTION, str(partition), str(error))


def _no_position(group: str, partition: TopicPartition) -> Refused:
    said = f"group {group!r} has no committed offset"
    return Refused(ErrorCode.OFFSET_OUT_OF_RANGE, str(partition), said)


def _look_at_error(task: asyncio.Task[None]) -> None:
    # A waiting caller gets the error; retrieve it here, so that the loop does not warn otherwise.
    if not task.cancelled():
        task.exception()
