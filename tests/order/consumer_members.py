"""Members of a group that are the public consumers, and what they note for the order checker.

Owns their lives, and the checks of what their callbacks promise. Not members that stand on the
group's reader alone: see ``aware_clients``. A member is a consumer with a listener for the state of
keys, or without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from tests.order.aware_clients import SESSION_MS, GroupOfMembers, Member, Setting
from tests.order.history import KeyState
from tests.order.key_store import NO_STATE
from tidelog.aio.consumer import Consumer
from tidelog.aio.consumer_types import PartitionKeyRebalanceListener
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.groups.membership import MemberState
from tidelog.model.topics import TopicPartition

UNREAD_SHARE, UNANSWERED_SHARE = 0.05, 0.03
"""Of the calls of the store, those that it does not get, and of the writes it does not answer."""

CANCELLED_SHARE = 0.05
"""Of the polls, those that the application does not wait for."""


class ConsumerMember(Member, PartitionKeyRebalanceListener):
    """One member, its lives one after the other.

    Where it follows keys, each record makes another state of its key, which goes to other members
    by way of the group's store; C17 judges whether a member had all that was before.
    """

    strategy = "range"
    follows_keys = True

    def __init__(self, setting: Setting, group: GroupOfMembers, number: int) -> None:
        super().__init__(setting, group, number)
        self.open: dict[TopicPartition, dict[bytes, int]] = {}
        """The states that it has loaded, by partitions, between the callbacks of each."""
        self.changed: dict[TopicPartition, dict[bytes, int]] = {}
        """Those that it has to write."""
        self.owned: set[TopicPartition] = set()
        """Its partitions, by its callbacks."""
        self.is_polling = False
        self.is_killed = False
        """Whether its process is gone: nothing is written any more."""
        self.flushes = 0

    # --- what is called -------------------------------------------------------------------------

    def _is_called(self) -> bool:
        assert self.is_polling and not self.in_hand, f"{self.name} is called beside its work"
        return not self.is_killed

    async def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        if not self._is_called():
            return
        assert set(partitions) <= self.open.keys(), f"{self.name} has not loaded {partitions}"
        fate = self._rng.random()
        await self.setting.pause(self._rng.uniform(0, 0.02))
        if fate < UNREAD_SHARE:
            raise ClientError("the store of this member is away")
        for where in partitions:
            self.group.store.write(generation, self.changed.get(where, {}))
        if fate < UNREAD_SHARE + UNANSWERED_SHARE:
            raise ClientError("the store of this member did not answer")
        self._forget(partitions)
        self.flushes += 1

    async def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        if not self._is_called():
            return
        assert not set(partitions) & self.open.keys(), f"{self.name} has loaded {partitions} before"
        if self._rng.random() < UNREAD_SHARE:
            raise ClientError("the store of this member is away")
        found = self.group.store.read(generation)
        await self.setting.pause(self._rng.uniform(0, 0.02))
        for where in partitions:
            self.open[where] = dict(found)

    async def on_partition_key_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Its group went on without it: there is no flush, and others have loaded its state."""
        if self._is_called():
            assert self.reader is not None and self.reader.member.state is MemberState.OUT
            self._forget(partitions)

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        if self._is_called():
            again = set(partitions) & self.owned
            assert not again, f"{self.name} has {again} already"
            self.owned |= set(partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self._is_called():
            self._give_up(partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        if self._is_called():
            self._give_up(partitions)

    def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        gone = set(partitions)
        assert gone <= self.owned, f"{self.name} loses {gone}, and has {self.owned}"
        still = gone & self.open.keys()
        assert not still, f"{self.name} has the state of {still}"
        self.owned -= gone

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            self.open.pop(where, None)
            self.changed.pop(where, None)

    def _applied(self, index: int, row: Any) -> int | None:
        if not self.follows_keys:
            return None
        where = TopicPartition(self.setting.topic, index)
        states, number = self.open[where], next(self.group.store.numbers)
        before = states.get(row.key, NO_STATE)
        self.setting.note(KeyState(self.group.name, number, before, int(row.value)))
        states[row.key] = self.changed.setdefault(where, {})[row.key] = number
        return number

    # --- its lives ------------------------------------------------------------------------------

    async def _live(self, cluster: Cluster) -> None:
        rng = self._rng
        consumer = Consumer(
            cluster=cluster,
            now=lambda: self.setting.now,
            group_id=self.group.name,
            auto_offset_reset=self.group.reset.value,
            auto_commit_interval_ms=rng.choice((300, 1_500)),
            fetch_max_wait_ms=300,
            max_partition_fetch_bytes=2_000,
            session_timeout_ms=SESSION_MS,
            max_poll_interval_ms=15_000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=2_000,
            partition_assignment_strategy=[self.strategy],
        )
        of_keys = self if self.follows_keys else None
        consumer.subscribe([self.setting.topic], listener=self, partition_key_listener=of_keys)
        self.open.clear()
        self.changed.clear()
        self.owned.clear()
        self.is_killed = False
        reader = await consumer.ready()
        self._watch(reader)
        self.reader = reader
        end = self.setting.now + rng.uniform(5, 60)
        is_killed = rng.random() < 0.5
        try:
            while self.settles or self.setting.now < end:
                await self._turn(consumer)
        finally:
            self.reader = None
            if is_killed:
                self.is_killed = True
                reader.member.leave = reader.member._stop_tasks  # type: ignore[method-assign]
            self.is_polling = True
            try:
                await consumer.close(autocommit=not is_killed)
            except ClientError as error:
                self.last_error = str(error)
            finally:
                self.is_polling = False

    async def _turn(self, consumer: Consumer) -> None:
        rng = self._rng
        patience = rng.uniform(0, 0.5) if rng.random() < CANCELLED_SHARE else None
        self.is_polling = True
        try:
            async with asyncio.timeout(patience):
                found = await consumer.poll(1_000, max_records=rng.choice((1, 7, 100)))
            self.last_error = ""
        except TimeoutError:
            self.last_error = "a poll was cancelled"
            return
        except ClientError as error:
            self.last_error = str(error)
            await self.setting.pause(rng.uniform(0.05, 0.3))
            return
        finally:
            self.is_polling = False
        self.in_hand = sum(map(len, found.values()))
        for where, records in found.items():
            assert where in self.owned, f"{self.name} does not have {where}"
            assert not self.follows_keys or where in self.open, f"{self.name}: {where} is shut"
            for record in records:
                await self._receive(where.partition, record)
                self.in_hand -= 1


class CooperativeMember(ConsumerMember):
    """One that keeps its partitions through rebalances, and has no state."""

    strategy = "cooperative-sticky"
    follows_keys = False

    def is_removed(self, generation: int) -> bool:
        """A member that joins again goes on with its partitions meanwhile."""
        reader = self.reader
        is_joining = reader is not None and reader.is_joining
        return super().is_removed(generation) and not is_joining


class CooperativeKeysMember(CooperativeMember):
    """One that keeps its partitions through rebalances, and loads the state of their keys again."""

    follows_keys = True
