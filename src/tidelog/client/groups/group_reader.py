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
import logging
from math import ceil
from typing import Any

from tidelog.client.errors import GaveUp, Refused, WrongState
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.committed_offsets import (
    PartitionsRefused,
    Position,
    look_up_committed,
)
from tidelog.client.groups.first_positions import no_position
from tidelog.client.groups.group_member import MembershipLost
from tidelog.client.groups.membership import MemberState
from tidelog.client.groups.reader_controls import ReaderControls
from tidelog.client.groups.resized_topics import (
    catch_up,
    is_resized,
    looked_up_apart,
    ordered_topics,
    reborn,
    stamps_of,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, by_topic
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

AUTO_COMMIT_INTERVAL_MS = 5_000
_ASSIGNED = frozenset({MemberState.JOINED, MemberState.READING})


class GroupReader(ReaderControls):
    """Reads as a member of a group. ``async with`` leaves the group at the end.

    ``member``: instead of a member with these settings. ``is_aware=False``: as a stock consumer.
    """

    async def __aenter__(self) -> GroupReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
            self._gating.delivered(self.positions())
        while True:
            self._refuse_closed()
            self._member.polled()
            if self._is_outdated():
                self._member.rejoin()
            if self._is_entering:
                await self._enter()
            if self._joining is not None or self._member.must_join:
                if not await self._joined(deadline) and not self._member.is_cooperative:
                    return []
            elif self._commits.is_due(loop.time()):
                await self._turns.flush_received()
                self._commits.aside(self._turns.done_with())
            if self._has_begun and self._member.state in _ASSIGNED:
                await self._turns.turn()
                if self._member.must_join:
                    # A callback took too long: nothing more of these partitions is returned.
                    continue
            if self._gating.has_shut:
                self._gating.has_shut = False
                self._positions.take_back(beyond_gates=True)
            self._place_aside()
            left_ms = whole_ms(deadline - loop.time())
            # In steps: a recalled member must not wait for the caller's whole timeout.
            step_ms = self._step_ms if self._placing is None else self._placing_step_ms
            taken = await self._fetcher.poll(min(left_ms, step_ms), max_bytes)
            if taken or left_ms <= step_ms or self._is_woken:
                self._is_woken = False
                return taken

    async def settle(self) -> None:
        """Take up what a reader was given that assigns itself, without a poll."""
        while self._joining is not None or self._member.must_join:
            await self._joined(0)
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop reading and leave the group. Commits nothing: call ``commit`` before if needed.

        A concurrent ``poll`` raises ClientError. If cancelled, it still completes the remaining
        steps, so that reading stops; a member whose LeaveGroup is cancelled stays in the group
        until its session expires.
        """
        self._closed = True
        tasks = [self._joining, self._placing, self._commits.running]
        try:
            await self._gating.stop()
            await call_off(task for task in tasks if task is not None)
        finally:
            try:
                await self._fetcher.close()
            finally:
                await self._member.leave()

    def _is_outdated(self) -> bool:
        """Whether metadata show another epoch of a topic than this generation reads with."""
        view = self._cluster.view
        if self._seen and is_resized(self._seen, self._assigned, view):
            return True
        return bool(self._unordered) and bool(ordered_topics(view, self._unordered))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise WrongState(f"the reader of group {self._member.group!r} is closed")

    async def placed(self, partition: TopicPartition, timeout_ms: int) -> int:
        """Return the position of an assigned partition, once it is known."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            known = self.positions()
            if partition in known:
                return known[partition]
            if partition not in self._assigned:
                raise WrongState(f"{partition} is not assigned to this consumer")
            self._place_aside()
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
            await self._give_up_before_join()
            self._joining = loop.create_task(self._join(self._turns.done_with()))
            self._joining.add_done_callback(self._has_joined)
        joining = self._joining
        wait_s = 0.0 if self._member.is_cooperative else max(0.0, deadline - loop.time())
        await asyncio.wait([joining], timeout=wait_s)
        if not joining.done():
            return False
        self._refuse_closed()
        self._joining = None
        self._has_given_up = False
        if not joining.result():
            return await self._joined(deadline)
        self._is_entering = True
        await self._enter()
        return True

    def _has_joined(self, task: asyncio.Task[bool]) -> None:
        _look_at_error(task)
        self._fetcher.interrupt()

    async def _give_up_before_join(self) -> None:
        """Call back for what goes away, inside ``poll``; once before each join."""
        if self._has_given_up:
            return
        is_lost = self._member.state is MemberState.OUT
        await (self._turns.lose_loaded() if is_lost else self._turns.flush_loaded())
        self._has_given_up = True
        if not self._assigned or (self._member.is_cooperative and not is_lost):
            return
        try:
            await (self._hooks.lost if is_lost else self._hooks.revoked)(self._assigned)
        finally:
            # Nothing of it is returned any more, and positions stay where the application is.
            if is_lost:
                self._forget(None)
            else:
                self._positions.take_back(beyond_gates=False)

    async def give_up(self, *, commits: bool = True) -> None:
        """Call back and commit as before a rebalance: the consumer ends."""
        if self._joining is None and self._assigned and self._member.state is not MemberState.OUT:
            await self._turns.flush_loaded()
            if commits and self._commits.auto_ms is not None:
                await self._commits.settle()
                await self._commits.attempt(self._turns.done_with())
            await self._hooks.revoked(self._assigned)

    async def _join(self, done_with: dict[TopicPartition, int]) -> bool:
        """Commit, give up what is revoked, and join.

        False: the group removed a cooperative member meanwhile. Others may have read what it kept;
        it loses that first, inside ``poll``.
        """
        placing, self._placing = self._placing, None
        if placing is not None:
            await call_off([placing])
        await self._gating.stop()
        if self._commits.auto_ms is not None:
            await self._commits.settle()
            await self._commits.attempt(done_with)
        self._place_at = 0.0
        if self._member.is_cooperative and self._assigned:
            if self._member.state is MemberState.OUT:
                return False
            try:
                self._given = await self._member.join(self._assigned)
            except MembershipLost:
                return False
        else:
            self._forget(None)
            self._given = await self._member.join()
        return True

    def _forget(self, partitions: list[TopicPartition] | None) -> None:
        """Stop reading partitions; None: all of them."""
        self._hooks.drop(partitions)
        if partitions is None:
            self._fetcher.assign({})
            if self._assigned:
                self._sought, self.paused = {}, set()
            self._assigned, self._unplaced = [], []
            self._seen, self._unordered = {}, frozenset()
            self._commits.forget_all()
            self._has_begun = False
            return
        self._fetcher.remove(partitions)
        gone = frozenset(partitions)
        self.paused -= gone
        self._assigned = [each for each in self._assigned if each not in gone]
        self._unplaced = [each for each in self._unplaced if each not in gone]
        for partition in partitions:
            self._commits.forget(partition)
            self._sought.pop(partition, None)

    async def _enter(self) -> None:
        """Begin with what the last join gave; call back, inside ``poll``.

        A poll that is cancelled meanwhile, or whose callback raises, leaves the rest to the next.
        """
        given = frozenset(self._given)
        revoked = [each for each in self._assigned if each not in given]
        if revoked:
            await self._give_up_afterwards(revoked)
        self._is_entering = False
        had = frozenset(self._assigned)
        added = [each for each in self._given if each not in had]
        self._assigned = list(self._given)
        placed = self._fetcher.positions()
        self._unplaced = [each for each in self._given if each not in placed]
        self._seen, self._unordered, self._has_begun = {}, frozenset(), False
        self._turns.begin_again()
        await self._hooks.assigned(added)

    async def _give_up_afterwards(self, revoked: list[TopicPartition]) -> None:
        """Give up what a cooperative member does not get again."""
        if self._commits.auto_ms is not None:
            await self._commits.settle()
            done = self._turns.done_with()
            await self._commits.attempt({at: done[at] for at in revoked if at in done})
        try:
            await self._hooks.revoked(revoked)
        finally:
            self._forget(revoked)
            # Others get them when it has joined once more.
            self._member.gave_up()

    # Positions of a new assignment

    def _place_aside(self) -> None:
        """Look up missing positions while other partitions are read; raises a previous error."""
        loop = asyncio.get_running_loop()
        placing = self._placing
        if placing is not None and placing.done():
            self._placing = None
            placing.result()
        may = self._placing is None and self._joining is None
        may = may and self._member.state is MemberState.JOINED
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

        A part that fails is an error of its partitions, and the error of all if every part fails.
        """
        await self._begin_generation()
        wanted = list(self._unplaced)
        if self._member.is_alone:
            return self._without_answer(await self._reset(wanted, {}))
        parts = looked_up_apart(self._cluster.view, wanted)
        outcomes = await asyncio.gather(*map(self._look_up_part, parts), return_exceptions=True)
        errors: dict[TopicPartition, Refused] = {}
        failures: list[BaseException] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failures.append(outcome)
                if isinstance(outcome, Refused):
                    errors.update(dict.fromkeys(part, outcome))
            else:
                errors.update(outcome)
        final = [each for each in failures if not isinstance(each, Refused)]
        if final or (failures and len(failures) == len(parts)):
            raise (final or failures)[0]
        return self._without_answer(errors)

    async def _look_up_part(self, wanted: list[TopicPartition]) -> dict[TopicPartition, Refused]:
        found, errors = await look_up_committed(self._cluster, self._member.group, wanted)
        found = {at: each for at, each in found.items() if not self._is_of_former(at, each)}
        positions = {partition: item.offset for partition, item in found.items()}
        self._commits.committed.update(positions)
        wanted = [where for where in wanted if where in self._unplaced and where not in found]
        self._begin(positions, {partition: item.leader_epoch for partition, item in found.items()})
        return await self._reset(wanted, errors)

    async def _reset(
        self, wanted: list[TopicPartition], errors: dict[TopicPartition, Refused]
    ) -> dict[TopicPartition, Refused]:
        """Start reading what has no committed offset where the policy says; return all errors.

        One request per topic, so that a topic that is deleted, or has no leader, does not delay
        others. Grows with partitions.
        """
        missing = [where for where in wanted if where not in errors]
        errors = dict(errors)
        if self._resets.policy is OffsetReset.NONE:
            group = self._member.group
            errors.update({where: no_position(group, where) for where in missing})
            return errors
        topics = by_topic(missing).values()
        for failed in await asyncio.gather(
            *(self._resets.of_topic(each, self._begin) for each in topics)
        ):
            errors.update(failed)
        return errors

    def _without_answer(
        self, errors: dict[TopicPartition, Refused]
    ) -> dict[TopicPartition, Refused]:
        """Return the errors with those of partitions of which nothing is known."""
        for where in self._unplaced:
            unanswered = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(where), "no broker responded")
            errors.setdefault(where, unanswered)
        return errors

    def _is_of_former(self, where: TopicPartition, committed: Position) -> bool:
        """Whether a position was committed after a record of a topic that had the name before.

        Commits are by name, so one that was on its way while the topic was created again counts in
        the new one. A birth offset, and one that nothing was read before, has no leader epoch.
        """
        return where.topic in self._reborn_topics and committed.leader_epoch >= 0

    async def _begin_generation(self) -> None:
        """Get metadata that are as new as those of the assignment, and begin with its gates."""
        if self._has_begun:
            return
        await catch_up(self._cluster, self._member.assigned_with)
        names = {where.topic for where in self._assigned}
        unknown = sorted(name for name in names if name not in self._cluster.view.topics)
        if unknown:
            await self._cluster.describe(unknown)
        self._seen = ordered_topics(self._cluster.view, names) if self._is_aware else {}
        self._unordered = frozenset(names - self._seen.keys() if self._is_aware else ())
        ids = {name: topic.topic_id for name, topic in self._seen.items()}
        self._reborn_topics = {name for name in ids if self._ids.get(name, ids[name]) != ids[name]}
        self._ids |= ids
        stamps = stamps_of(self._seen, self._fetcher.positions())
        kept = [at for at in self._fetcher.positions() if at.topic in self._reborn_topics]
        self._begin_incarnations_again(list({*kept, *reborn(self._fetcher.named(), stamps)}))
        self._fetcher.restamp(stamps)
        self._resets.ordered = frozenset(self._seen)
        self._gating.start(self._seen, self._assigned)
        self._has_begun = True
        sought, self._sought = self._sought, {}
        self._begin(sought)

    def _begin_incarnations_again(self, partitions: list[TopicPartition]) -> None:
        """Look up positions of kept partitions that were removed and created again meanwhile.

        What was read was the former incarnation; in the new one that offset may be out of range.
        """
        if partitions:
            assigned = self._assigned
            self._forget(partitions)
            self._assigned = assigned
            self._unplaced += partitions


def whole_ms(left_s: float) -> int:
    """Return the time that is left in ms, rounded up: a caller with time left must wait, not spin.

    A deadline in 1 ms is less than 1 ms away when a float cannot hold it.
    """
    return max(0, ceil(left_s * 1000))


def _look_at_error(task: asyncio.Task[Any]) -> None:
    # A waiting caller gets the error; retrieve it here, so that the loop does not warn otherwise.
    if not task.cancelled():
        task.exception()
