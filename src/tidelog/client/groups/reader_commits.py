"""Commits of a reader: automatic ones, those before a report, those that the application asks for.

Owns what is committed, and that one commit at a time is in flight. Not the request: see
``committed_offsets``. Not when positions count: see ``group_reader``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import NamedTuple

from tidelog.client.errors import ClientError, GaveUp, Refused, RequestTimedOut, WrongState
from tidelog.client.groups.committed_offsets import CommitRefused, Membership, Position
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

MOST_WAITING = 1_000
"""Commits that may wait for a response: the application gets an error instead of another one."""

Offsets = Mapping[TopicPartition, int]


class Terms(NamedTuple):
    """As which member a commit was asked for, and when it fails, on the loop's clock."""

    membership: Membership | None
    """None: as the member that it is when the commit is sent."""
    until: float

    def left_s(self) -> float:
        """Return the time that is left."""
        return max(0.0, self.until - asyncio.get_running_loop().time())


Places = Mapping[TopicPartition, Position]
Work = Callable[[Terms], Coroutine[None, None, None]]


class Commits:
    """The commits of one reader.

    ``epoch_before`` gives the leader epoch before a position; ``former`` the topics that were
    deleted since this generation began, whether they were created again or not. A commit fails
    ``timeout_ms`` after it was asked for, or soon after that where its request is on its way; one
    before a join after half of ``rebalance_ms``. It is refused where the member has another
    generation by then.
    """

    def __init__(
        self,
        member: GroupMember | SelfAssigned,
        epoch_before: Callable[[TopicPartition, int], int],
        former: Callable[[], Collection[str]],
        auto_ms: int | None,
        timeout_ms: int = 60_000,
        rebalance_ms: int = 120_000,
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
        self._automatic: asyncio.Task[None] | None = None
        self._attempt: tuple[asyncio.Task[None], Offsets] | None = None
        self._queued: dict[asyncio.Task[None], None] = {}
        self._member = member
        self._epoch_before = epoch_before
        self._former = former
        self._timeout_ms = timeout_ms
        # The join itself must be in time, too.
        self._before_join_ms = min(rebalance_ms // 2, timeout_ms)
        self._next_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether positions must be committed automatically by now: the last time is over."""
        is_time = self.auto_ms is not None and now >= self._next_at
        return is_time and (self._automatic is None or self._automatic.done())

    def note(self) -> None:
        """Begin to count the time to the next automatic commit."""
        if self.auto_ms is not None:
            self._next_at = asyncio.get_running_loop().time() + self.auto_ms / 1000

    def aside(self, positions: Offsets) -> None:
        """Commit processed positions in the background of ``poll``, unless that has not ended."""
        if self._automatic is None or self._automatic.done():
            self.note()
            self.begin(positions)

    def begin(self, positions: Offsets) -> None:
        """Commit automatically in the background, before all that is asked for from now on."""
        self._automatic = self._queue(self._terms(), partial(self._tried, positions))

    def begin_before_join(self, positions: Offsets) -> None:
        """Do the same in the time that the group gives a member that is to join again."""
        terms = self._terms(self._before_join_ms)
        self._automatic = self._queue(terms, partial(self._tried, positions))

    async def attempt(self, positions: Offsets) -> None:
        """Begin that, and wait for it as long; what fails is logged.

        What a cancelled caller has begun goes on: the next call waits for it.
        """
        task, attempted = self._attempt or (None, {})
        if task is None or task.done() or attempted != positions:
            self.begin_before_join(positions)
            assert self._automatic is not None
            self._attempt = self._automatic, positions
        await self.settle_before_join()

    async def _tried(self, positions: Offsets, terms: Terms) -> None:
        try:
            await self._moved(positions, terms)
        except ClientError as error:
            self._failed(error)
        except asyncio.CancelledError:
            self._failed("the consumer was closed before a response")
            raise

    def _failed(self, why: object) -> None:
        logger.warning("group %s: offsets were not committed: %s", self._member.group, why)

    def before_report(self, positions: Offsets) -> Coroutine[None, None, None]:
        """Commit positions that are going to be reported."""
        return self._alone(partial(self._newer, positions))

    async def _newer(self, positions: Offsets, terms: Terms) -> None:
        # A commit that a later ``poll`` began may have been faster: this one is older then.
        committed = self.committed
        newer = {tp: offset for tp, offset in positions.items() if offset > committed.get(tp, -1)}
        await self._moved(newer, terms)

    def up_to(self, positions: Offsets) -> Coroutine[None, None, None]:
        """Commit where positions have changed, after the commit in flight, if any.

        One of an ended generation is dropped.
        """
        return self._alone(partial(self._moved, positions))

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return what is in flight, and all that waits for it."""
        return list(self._queued)

    async def settle(self, until: float | None = None) -> None:
        """Wait for what was asked for: an older commit must not be applied after a newer one.

        ``until``: on the loop's clock, at the latest.
        """
        if self.running is not None and not self.running.done():
            now = asyncio.get_running_loop().time()
            left_s = None if until is None else max(0.0, until - now)
            await asyncio.wait([self.running], timeout=left_s)

    async def settle_before_join(self) -> None:
        """Wait for it as long as the group waits for a member that is to join again.

        What is in flight then is of the former generation, and its coordinator refuses it.
        """
        left_s = self._before_join_ms / 1000
        await self.settle(asyncio.get_running_loop().time() + left_s)

    def _terms(self, timeout_ms: int | None = None) -> Terms:
        left_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        until = asyncio.get_running_loop().time() + left_ms / 1000
        return Terms(self._member.membership, until)

    def _queue(self, terms: Terms, work: Work) -> asyncio.Task[None]:
        """Do this when all that was asked for before has ended: one commit is in flight."""
        own = asyncio.get_running_loop().create_task(_after(self.running, terms, work))
        self.running = own
        self._queued[own] = None
        own.add_done_callback(lambda own: self._queued.pop(own))
        own.add_done_callback(retrieve_error)
        return own

    def _alone(self, work: Work) -> Coroutine[None, None, None]:
        """Do this in its turn, which it has from now on, and wait for it.

        Once it has begun it goes on when its caller is cancelled: its request may be on its way.
        """
        terms = self._terms()
        is_wanted, has_begun = True, False

        async def if_wanted(terms: Terms) -> None:
            nonlocal has_begun
            if is_wanted:
                has_begun = True
                await work(terms)

        own = self._queue(terms, if_wanted)

        async def ended() -> None:
            nonlocal is_wanted
            try:
                await asyncio.wait([own], timeout=terms.left_s())
                if has_begun:
                    # It ends soon: its request has the same deadline, and one attempt may be late.
                    await asyncio.wait([own])
            except asyncio.CancelledError:
                is_wanted = False
                raise
            if not own.done():
                is_wanted = False
                raise self._not_sent()
            if own.cancelled():
                raise WrongState(f"{self._group}: the consumer was closed before a response")
            own.result()

        return ended()

    @property
    def _group(self) -> str:
        return f"a commit of group {self._member.group!r}"

    def _not_sent(self) -> GaveUp:
        return GaveUp(f"{self._group}: it was not sent in time: those before have no response")

    def exactly(self, positions: Places) -> Coroutine[None, None, None]:
        """Commit these positions, changed or not. Raises Refused also for an ended generation.

        It has its turn from the call on; awaiting the result waits for its end.
        """
        return self._ask(positions, lambda: positions)

    def returned(self, positions: Places) -> Coroutine[None, None, None]:
        """Do this with all positions of the application, where they count: not in the topic that
        has the name of a deleted one, and not before the offset where a reset goes on."""
        waiting = self._ask(positions, lambda: self._counting(positions))
        self.note()
        return waiting

    def _ask(self, given: Places, wanted: Callable[[], Places]) -> Coroutine[None, None, None]:
        if given:
            self._member.check_may_commit()
        # Without positions it waits for those before, and commits nothing, as in Kafka.
        if len(self._queued) >= MOST_WAITING:
            raise GaveUp(
                f"{self._group}: {MOST_WAITING} commits wait for a response already: wait for "
                "one, or commit less often"
            )
        return self._alone(partial(self._exactly, wanted))

    async def _exactly(self, wanted: Callable[[], Places], terms: Terms) -> None:
        await self._send(wanted(), terms)

    async def _send(self, positions: Places, terms: Terms) -> None:
        if not positions:
            return
        if not terms.left_s():
            raise self._not_sent()
        timeout_ms = int(terms.left_s() * 1000)
        try:
            await self._member.commit(positions, asked_as=terms.membership, timeout_ms=timeout_ms)
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

        async def if_it_counts(terms: Terms) -> None:
            # Commits before it may take long: the application may have gone on elsewhere, or the
            # partition to another member, whose commit this one must not replace.
            if self._resetting.get(partition) == offset:
                # Of another generation of this member it counts as well.
                await self._moved({partition: offset}, terms._replace(membership=None))

        try:
            await self._alone(if_it_counts)
        except ClientError as error:
            self._reset_to.pop(partition, None)
            if isinstance(error, GaveUp):
                # Later it may be made: the partition must not stop for good.
                raise RequestTimedOut(str(error)) from error
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

    def _counting(self, positions: Places) -> Places:
        # The topic that has the name of a deleted one now begins without commits.
        former = self._former()
        return {
            partition: place
            for partition, place in positions.items()
            if partition.topic not in former
            and not self._is_short_of_reset(partition, place.offset)
        }

    async def _moved(self, positions: Offsets, terms: Terms) -> None:
        places = {
            partition: Position(offset, self._epoch_before(partition, offset))
            for partition, offset in positions.items()
            if self.committed.get(partition) != offset
        }
        try:
            await self._send(self._counting(places), terms)
        except Refused as error:
            if error.code not in COMMIT_LOST:
                raise

    def _note_committed(self, moved: Places, but: Collection[TopicPartition]) -> None:
        done = {tp: item.offset for tp, item in moved.items() if tp not in but}
        self.committed.update(done)


async def _after(before: asyncio.Task[None] | None, terms: Terms, work: Work) -> None:
    if before is not None and not before.done():
        await asyncio.wait([before])
    await work(terms)
