"""Commits of a reader: automatic ones, those before a report, those that the application asks for.

Owns what is committed, and that one commit at a time is in flight. Not the request: see
``committed_offsets``. Not when positions count: see ``group_reader``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial

from tidelog.client.errors import ClientError, Refused
from tidelog.client.groups.committed_offsets import CommitRefused, Position
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.runtime.tasks import retrieve_error

logger = logging.getLogger(__name__)

COMMIT_LOST = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
"""Errors of a commit whose generation is over: the next owner reads these records again."""

Offsets = Mapping[TopicPartition, int]


class Commits:
    """The commits of one reader.

    ``epoch_before`` gives the leader epoch before a position; ``former`` the topics that were
    deleted since this generation began, whether they were created again or not.
    """

    def __init__(
        self,
        member: GroupMember | SelfAssigned,
        epoch_before: Callable[[TopicPartition, int], int],
        former: Callable[[], Collection[str]],
        auto_ms: int | None,
    ) -> None:
        self.committed: dict[TopicPartition, int] = {}
        """What this generation has committed, or found as committed."""
        self._reset_to: dict[TopicPartition, int] = {}
        """Where resets went on, until the application is done with more than that."""
        self._resetting: dict[TopicPartition, int] = {}
        """Resets whose commit has not ended, and that nothing has overtaken."""
        self.auto_ms = auto_ms
        self.running: asyncio.Task[None] | None = None
        """The commit that was asked for last: it is in flight, waits for those before, or ended."""
        self._queued: set[asyncio.Task[None]] = set()
        self._member = member
        self._epoch_before = epoch_before
        self._former = former
        self._next_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether positions must be committed automatically by now."""
        return self.auto_ms is not None and now >= self._next_at

    def note(self) -> None:
        """Begin to count the time to the next automatic commit."""
        if self.auto_ms is not None:
            self._next_at = asyncio.get_running_loop().time() + self.auto_ms / 1000

    def aside(self, positions: Offsets) -> None:
        """Commit processed positions in the background of ``poll``, unless one is in flight."""
        if self.running is None or self.running.done():
            self.note()
            self.begin(positions)

    def begin(self, positions: Offsets) -> None:
        """Commit automatically in the background, before all that is asked for from now on."""
        self._queue(partial(self._tried, positions))

    async def attempt(self, positions: Offsets) -> None:
        """Commit automatically: a failure is logged, and the next commit includes the positions."""
        await self._alone(partial(self._tried, positions))

    async def _tried(self, positions: Offsets) -> None:
        try:
            await self.moved(positions, timeout_ms=self.auto_ms)
        except ClientError as error:
            logger.warning("group %s: offsets were not committed: %s", self._member.group, error)

    async def before_report(self, positions: Offsets) -> None:
        """Commit positions that are going to be reported."""
        await self._alone(partial(self._newer, positions))

    async def _newer(self, positions: Offsets) -> None:
        # A commit that a later ``poll`` began may have been faster: this one is older then.
        committed = self.committed
        await self.moved(
            {tp: offset for tp, offset in positions.items() if offset > committed.get(tp, -1)}
        )

    async def up_to(self, positions: Offsets) -> None:
        """Commit where positions have changed, after the commit in flight, if any."""
        await self._alone(partial(self.moved, positions))

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return what is in flight, and all that waits for it."""
        return list(self._queued)

    async def settle(self) -> None:
        """Wait for what was asked for: an older commit must not be applied after a newer one."""
        if self.running is not None and not self.running.done():
            await asyncio.wait([self.running])

    def _queue(self, work: Callable[[], Coroutine[None, None, None]]) -> asyncio.Task[None]:
        """Do this when all that was asked for before has ended: one commit is in flight."""
        own = asyncio.get_running_loop().create_task(_after(self.running, work))
        self.running = own
        self._queued.add(own)
        own.add_done_callback(self._queued.discard)
        own.add_done_callback(retrieve_error)
        return own

    async def _alone(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do this in its turn, and wait for it.

        Once it has begun it goes on when its caller is cancelled: its request may be on its way.
        """
        is_wanted = True

        async def if_wanted() -> None:
            if is_wanted:
                await work()

        own = self._queue(if_wanted)
        try:
            await asyncio.wait([own])
        except asyncio.CancelledError:
            is_wanted = False
            raise
        own.result()

    async def exactly(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit these positions, changed or not. Raises Refused also for an ended generation."""
        self.note()
        await self._alone(partial(self._exactly, positions))

    async def _exactly(self, positions: Mapping[TopicPartition, Position]) -> None:
        try:
            await self._member.commit(positions)
        except CommitRefused as error:
            self._note_committed(positions, error.errors)
            raise
        self._note_committed(positions, ())

    async def reset(self, partition: TopicPartition, offset: int) -> None:
        """Commit where a reset goes on, before anything is read there.

        What the application is done with may be less for a while, because it is asked to flush
        meanwhile. That is not committed: the next owner would be out of range there, too, and with
        ``latest`` it would skip what has been written since.
        """
        self._reset_to[partition] = self._resetting[partition] = offset

        async def if_it_counts() -> None:
            # Commits before it may take long: the application may have gone on elsewhere, or the
            # partition to another member, whose commit this one must not replace.
            if self._resetting.get(partition) == offset:
                await self.moved({partition: offset})

        try:
            await self._alone(if_it_counts)
        except ClientError:
            self._reset_to.pop(partition, None)
            raise
        finally:
            if self._resetting.get(partition) == offset:
                del self._resetting[partition]

    def sought(self, partition: TopicPartition) -> None:
        """The application goes on elsewhere: its positions there count, lower ones, too."""
        self._reset_to.pop(partition, None)
        self._resetting.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """A partition is read no longer."""
        self.committed.pop(partition, None)
        self.sought(partition)

    def forget_all(self) -> None:
        """The generation is over."""
        self.committed, self._reset_to, self._resetting = {}, {}, {}

    def _is_short_of_reset(self, partition: TopicPartition, offset: int) -> bool:
        reset_to = self._reset_to.get(partition)
        if reset_to is not None and offset > reset_to:
            del self._reset_to[partition]
        return reset_to is not None and offset < reset_to

    async def moved(self, positions: Offsets, timeout_ms: int | None = None) -> None:
        """Commit where positions have changed; one of an ended generation is dropped."""
        # The topic that has the name of a deleted one now begins without commits.
        former = self._former()
        changed = {
            partition: Position(offset, self._epoch_before(partition, offset))
            for partition, offset in positions.items()
            if self.committed.get(partition) != offset
            and partition.topic not in former
            and not self._is_short_of_reset(partition, offset)
        }
        if not changed:
            return
        try:
            await self._member.commit(changed, timeout_ms=timeout_ms)
        except CommitRefused as error:
            self._note_committed(changed, error.errors)
            raise
        except Refused as error:
            if error.code not in COMMIT_LOST:
                raise
            return
        self._note_committed(changed, ())

    def _note_committed(
        self, moved: Mapping[TopicPartition, Position], but: Collection[TopicPartition]
    ) -> None:
        done = {tp: item.offset for tp, item in moved.items() if tp not in but}
        self.committed.update(done)


async def _after(
    before: asyncio.Task[None] | None, work: Callable[[], Coroutine[None, None, None]]
) -> None:
    if before is not None and not before.done():
        await asyncio.wait([before])
    await work()
