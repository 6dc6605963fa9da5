"""A reader of a group: assignments, positions, commits. The public consumer stands on it.

Owns the cycle join -> positions -> fetch -> commit -> rejoin. An eager member gives all partitions
up before it joins again; a cooperative one (KIP-429) goes on with them, gives up afterwards what
went to others, and joins once more.

Joining and looking up positions each run in a task: they continue when a ``poll`` is cancelled or
times out. A ``poll`` raises their error, and the next one retries. A partition is read as soon as
its position is known, also when the lookup of others fails; a recalled member cancels the lookup.

A generation reads with the metadata of its beginning (KIP-253): with these counts and resize epochs
it fetches, and ``gating`` holds back what must wait for other partitions. The member joins again
when it sees a newer resize epoch. A position of a reset is committed before it is read from, or the
rebalance of a resize would reset again, and skip.

At least once: a position is committed only after the next ``poll`` (or ``commit``), so records that
were returned and not processed are read again after a crash. With a listener for the state of keys
it is committed and reported only after that state was flushed: see ``held_keys``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Iterable
from functools import partial
from math import ceil

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, GaveUp, WrongState
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import PREFETCH_BYTES, Fetcher
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.first_positions import Resets
from tidelog.client.groups.gating import Gating
from tidelog.client.groups.group_member import (
    HEARTBEAT_INTERVAL_MS,
    PARTITION_CHECK_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    GroupMember,
    MembershipLost,
)
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.groups.key_turns import KeyTurns
from tidelog.client.groups.membership import MemberState
from tidelog.client.groups.position_lookup import PositionLookup
from tidelog.client.groups.reader_commits import Commits
from tidelog.client.groups.reader_controls import ReaderControls
from tidelog.client.groups.reader_hooks import ReaderHooks
from tidelog.client.groups.reader_positions import ReaderPositions
from tidelog.client.groups.reading_generation import ReadingGeneration
from tidelog.client.groups.resized_topics import deleted_topics
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.client.offsets import IsolationLevel
from tidelog.model.topics import TopicPartition
from tidelog.runtime.tasks import call_off, retrieve_error

AUTO_COMMIT_INTERVAL_MS = 5_000
_ASSIGNED = frozenset({MemberState.JOINED, MemberState.READING})


class GroupReader:
    """Reads as a member of a group. ``async with`` leaves the group at the end.

    ``member``: instead of a member with these settings. ``is_aware=False``: as a stock consumer.
    """

    _last_calls: list[Callable[[], Awaitable[None]]] | None = None
    """What the end calls back, once it has asked for its commit; None before."""

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
        self._hooks = hooks = hooks or ReaderHooks()
        self.member = member = member or GroupMember(
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
        self.fetcher = fetcher = Fetcher(
            cluster,
            isolation=isolation,
            reset=reset,
            options=options,
            prefetch_bytes=prefetch_bytes,
            again_after_ms=cluster.settings.backoff.max_ms,
            on_reset=lambda partition, offset: resets.within(partition, offset),
        )
        self._positions = ReaderPositions(fetcher, hooks)
        self.commits = commits = Commits(
            member,
            self._positions.epoch_before,
            lambda: deleted_topics(self.generation.topics, cluster.view),
            auto_commit_ms,
            cluster.settings.default_api_timeout_ms,
            rebalance_timeout_ms,
        )
        resets = Resets(cluster, reset, isolation, member, commits)
        keys = HeldKeys() if hooks.follows_keys else None
        before_report = None if auto_commit_ms is None else commits.before_report
        self.gating = gating = Gating(cluster, member, fetcher, before_report, keys)
        self._turns = KeyTurns(keys, member, gating, hooks, self.positions)
        self.generation = generation = ReadingGeneration(
            cluster, member, fetcher, hooks, commits, resets, gating, is_aware=is_aware
        )
        self.lookup = PositionLookup(cluster, member, generation, commits, resets)
        self.controls = ReaderControls(generation, fetcher, self._positions, commits, gating)
        self.step_ms = heartbeat_interval_ms
        """How long one wait for fetched batches lasts at most."""
        self._joining: asyncio.Task[bool] | None = None
        self._is_entering = False
        """Whether the last join is done, and what it gave is not taken up yet."""
        self._has_given_up = False
        """Whether the callbacks before the next join have begun, and its automatic commit."""
        self._calling = asyncio.Lock()
        """Held while callbacks run: the end waits for those of ``poll``, and goes on from there."""
        self._is_woken = self._closed = False

    # What it has and where it is

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads."""
        return list(self.fetcher.positions())

    @property
    def given(self) -> list[TopicPartition]:
        """The partitions that the last join gave this member, with and without a position."""
        return list(self.generation.assigned)

    @property
    def is_joining(self) -> bool:
        """Whether a join is in flight, or its result is not taken up yet."""
        return self._joining is not None

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of the application in the partitions that have one."""
        return self._positions.all()

    @property
    def wants_attention(self) -> bool:
        """Whether ``poll`` has something to do, apart from returning what was fetched."""
        return self.is_joining or self.member.must_join or self.has_shut or self._closed

    @property
    def has_shut(self) -> bool:
        """Whether a gate has shut that was open when something beyond it was returned."""
        return self.gating.has_shut

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are fetched and not returned."""
        return self.fetcher.buffered_bytes

    def wake(self) -> None:
        """Let a ``poll`` that waits return."""
        self._is_woken = True
        self.fetcher.interrupt()

    # The cycle

    async def __aenter__(self) -> GroupReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def poll(
        self,
        timeout_ms: int,
        max_bytes: int | None = None,
        only: Container[TopicPartition] | None = None,
    ) -> list[Fetched]:
        """Return fetched batches of this member's partitions; joins and rejoins when needed.

        ``only``: of these; what was fetched of others is returned by a later call.
        A call means that all batches returned before are processed. Raises Refused
        (PartitionsRefused when some partitions cannot be read), and continues with the next call; a
        closed reader raises ClientError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        if timeout_ms <= 0:
            # A caller that polls without waiting must still let the loop run the requests.
            await asyncio.sleep(0)
        if self.gating.is_active:
            self.gating.raise_problem()
            # Only now: this call says that all that was returned before is processed.
            self.gating.delivered(self.positions())
        while True:
            self._refuse_closed()
            self.member.polled()
            if self.generation.is_outdated():
                self.member.rejoin()
            if self._is_entering:
                await self._enter()
            if self._joining is not None or self.member.must_join:
                # An eager member returns nothing while it joins: others may read its partitions by
                # then.
                if not await self._joined(deadline) and not self.member.is_cooperative:
                    return []
            elif self.commits.is_due(loop.time()):
                await self._call_back(self._turns.flush_received)
                self.commits.aside(self._turns.done_with())
            if self.generation.has_begun and self.member.state in _ASSIGNED:
                await self._call_back(self._turns.turn)
                if self.member.must_join:
                    # A callback took too long: nothing more of these partitions is returned.
                    continue
            if self.gating.has_shut:
                self.gating.has_shut = False
                self._positions.take_back(beyond_gates=True)
            self._refuse_closed()
            self.lookup.go_on(may_begin=not self.is_joining)
            left_ms = whole_ms(deadline - loop.time())
            # In steps: a recalled member must not wait for the caller's whole timeout.
            step_ms = self.lookup.step_ms(self.step_ms)
            taken = await self.fetcher.poll(min(left_ms, step_ms), max_bytes, only)
            if taken or left_ms <= step_ms or self._is_woken:
                self._is_woken = False
                return taken

    async def settle(self) -> None:
        """Take up what a reader was given that assigns itself, without a poll."""
        while self.is_joining or self.member.must_join:
            await self._joined(0)
            if self._joining is not None:
                await asyncio.wait([self._joining])

    async def close(self, until: float | None = None) -> None:
        """Stop reading and leave the group. Commits nothing: call ``commit`` before if needed.

        Waits for commits that were asked for until then, on the loop's clock; the others fail. A
        concurrent ``poll`` raises ClientError. If cancelled, it still completes the remaining
        steps, so that reading stops; a member whose LeaveGroup is cancelled stays in the group
        until its session expires.
        """
        self._closed = True
        async with contextlib.AsyncExitStack() as last_first:
            last_first.push_async_exit(self._leave)
            last_first.push_async_callback(self.fetcher.close)
            last_first.push_async_callback(self._call_off)
            if until is not None:
                await self.commits.settle(until)

    async def _leave(self, _: object, ended_by: BaseException | None, __: object) -> None:
        try:
            await self.member.leave()
        except ClientError:
            # It must not replace a cancellation.
            if ended_by is None:
                raise

    async def _call_off(self) -> None:
        try:
            await self.gating.stop()
        finally:
            tasks = [self._joining, self.lookup.task, *self.commits.tasks()]
            await call_off(task for task in tasks if task is not None)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise WrongState(f"the reader of group {self.member.group!r} is closed")

    async def placed(self, partition: TopicPartition, timeout_ms: int) -> int:
        """Return the position of an assigned partition, once it is known."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            positions = self.positions()
            if partition in positions:
                return positions[partition]
            if partition not in self.generation.assigned:
                raise WrongState(f"{partition} is not assigned to this consumer")
            self._refuse_closed()
            self.lookup.go_on(may_begin=not self.is_joining)
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise GaveUp(f"the position of {partition} is not known within {timeout_ms} ms")
            await asyncio.sleep(min(left_s, 0.01))

    # Entering a generation

    async def _joined(self, deadline: float) -> bool:
        """Wait until the member has joined, or the deadline; raises the error of a failed join.

        A cooperative member does not wait: it reads on meanwhile.
        """
        loop = asyncio.get_running_loop()
        if self._joining is None:
            await self._call_back(self._give_up_before_join)
            self._refuse_closed()
        if self._joining is None:
            self._joining = loop.create_task(self._join())
            self._joining.add_done_callback(self._has_joined)
        joining = self._joining
        wait_s = 0.0 if self.member.is_cooperative else max(0.0, deadline - loop.time())
        await asyncio.wait([joining], timeout=wait_s)
        if not joining.done():
            return False
        self._refuse_closed()
        if self._joining is joining:
            self._joining = None
            self._has_given_up = False
            if not joining.result():
                return await self._joined(deadline)
            self._is_entering = True
        await self._enter()
        return True

    def _has_joined(self, task: asyncio.Task[bool]) -> None:
        retrieve_error(task)
        self.fetcher.interrupt()

    async def _call_back(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what calls back, inside ``poll``: never beside another callback, nor after the end."""
        # Before it waits, too: the end holds the lock until it has committed.
        self._refuse_closed()
        async with self._calling:
            self._refuse_closed()
            await work()

    async def _give_up_before_join(self) -> None:
        """Commit and call back for what goes away, inside ``poll``; once before each join."""
        if self._has_given_up:
            return
        is_lost = self.member.state is MemberState.OUT
        await (self._turns.lose_loaded() if is_lost else self._turns.flush_loaded())
        self._has_given_up = True
        if not is_lost and self.commits.auto_ms is not None:
            # At once: a cooperative member reads on, and what it is done with later is committed
            # later. As in Kafka, what a callback commits comes after it.
            self.commits.begin_before_join(self._turns.done_with())
        assigned = self.generation.assigned
        if not assigned or (self.member.is_cooperative and not is_lost):
            return
        try:
            await (self._hooks.lost if is_lost else self._hooks.revoked)(assigned)
        finally:
            # Nothing of it is returned any more, and positions stay where the application is.
            if is_lost:
                self.generation.forget(None)
            else:
                self._positions.take_back(beyond_gates=False)

    async def give_up(self, until: float, *, commits: bool = True) -> float:
        """Commit and call back as before a rebalance: the consumer ends, and no poll goes on.

        Waits for a callback of ``poll``, and for all commits that were asked for, until then on the
        loop's clock. Returns a later time instead: callbacks do not use up the time of commits.
        After a cancellation the next call goes on from there.
        """
        self._closed = True
        # A ``poll`` that waits for records ends.
        self.fetcher.interrupt()
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._calling:
            if self._joining is not None:
                await call_off([self._joining])
            if self._last_calls is None:
                await self._begin_to_give_up(commits)
            until += loop.time() - began
            await self.commits.settle(until)
            began = loop.time()
            while self._last_calls:
                await self._last_calls.pop()()
            return until + loop.time() - began

    async def _begin_to_give_up(self, commits: bool) -> None:
        # What an eager member gave up before its join is committed, too.
        has_called = self._has_given_up and not self.member.is_cooperative
        assigned = [] if has_called else self.generation.assigned
        # Others may have what a member held that its group removed, or that had not joined again.
        is_lost = self.member.state is MemberState.OUT
        if assigned:
            await (self._turns.lose_loaded() if is_lost else self._turns.flush_loaded())
            if commits and not is_lost and self.commits.auto_ms is not None:
                self.commits.begin(self._turns.done_with())
        call = self._hooks.lost if is_lost else self._hooks.revoked
        self._last_calls = [partial(call, assigned)] if assigned else []

    async def _join(self) -> bool:
        """Wait for the commits, give up what is revoked, and join.

        False: the group removed a cooperative member meanwhile. Others may have read what it kept;
        it loses that first, inside ``poll``.
        """
        generation = self.generation
        await self.lookup.stop()
        await self.gating.stop()
        # Without a generation a commit counts before and after.
        if isinstance(self.member, GroupMember):
            await self.commits.settle_before_join()
        if self.member.is_cooperative and generation.assigned:
            if self.member.state is MemberState.OUT:
                return False
            try:
                generation.given = await self.member.join(generation.assigned)
            except MembershipLost:
                return False
        else:
            generation.forget(None)
            generation.given = await self.member.join()
        return True

    async def _enter(self) -> None:
        """Begin with what the last join gave; commit what goes, and call back, inside ``poll``.

        A poll that is cancelled meanwhile, or whose callback raises, leaves the rest to the next.
        """
        if self.commits.auto_ms is not None and (revoked := self.generation.revoked()):
            # Not as a callback: the end does not wait for it.
            done = self._turns.done_with()
            theirs = {partition: done[partition] for partition in revoked if partition in done}
            await self.commits.attempt(theirs)
        await self._call_back(self._take_up)

    async def _take_up(self) -> None:
        if not self._is_entering:
            return
        if revoked := self.generation.revoked():
            await self._give_up_afterwards(revoked)
            # The end waits for this, and gives up what is left.
            self._refuse_closed()
        self._is_entering = False
        added = self.generation.take_up()
        self._turns.begin_again()
        await self._hooks.assigned(added)

    async def _give_up_afterwards(self, revoked: list[TopicPartition]) -> None:
        """Give up what a cooperative member does not get again."""
        try:
            await self._hooks.revoked(revoked)
        finally:
            self.generation.forget(revoked)
            # Others get them when it has joined once more.
            self.member.gave_up()


def whole_ms(left_s: float) -> int:
    """Return the time that is left in ms, rounded up: a caller with time left must wait, not spin.

    A deadline in 1 ms is less than 1 ms away when a float cannot hold it.
    """
    return max(0, ceil(left_s * 1000))
