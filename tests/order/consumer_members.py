"""Members of a group that are the public consumers, and what they note for the order checker.

Owns their lives, and the checks of what their callbacks promise. Not members that stand on the
group's reader alone: see ``aware_clients``. A member is a consumer with a listener for the state of
keys, or without one.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.order.aware_clients import SESSION_MS, GroupOfMembers, Member, Setting
from tidelog.aio.consumer import Consumer
from tidelog.aio.consumer_types import PartitionKeyRebalanceListener
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.groups.membership import MemberState
from tidelog.model.topics import TopicPartition


class ConsumerMember(Member, PartitionKeyRebalanceListener):
    """One member, its lives one after the other."""

    strategy = "range"
    follows_keys = True

    def __init__(self, setting: Setting, group: GroupOfMembers, number: int) -> None:
        super().__init__(setting, group, number)
        self.open: set[TopicPartition] = set()
        """Partitions whose state it has loaded, by its callbacks."""
        self.is_polling = False
        self.flushes = 0

    async def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        assert self.is_polling and not self.in_hand, f"{self.name} is called beside its work"
        assert set(partitions) <= self.open, f"{self.name} has not loaded {partitions}"
        await self.setting.pause(self._rng.uniform(0, 0.02))
        self.open -= set(partitions)
        self.flushes += 1

    async def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> None:
        assert self.is_polling and not self.in_hand, f"{self.name} is called beside its work"
        assert not set(partitions) & self.open, f"{self.name} has loaded {partitions} before"
        if self._rng.random() < 0.05:
            raise ClientError("the store of this member is away")
        await self.setting.pause(self._rng.uniform(0, 0.02))
        self.open |= set(partitions)

    async def on_partition_key_lost(self, partitions: Collection[TopicPartition]) -> None:
        assert self.is_polling and not self.in_hand, f"{self.name} is called beside its work"
        assert self.reader is not None and self.reader._member.state is MemberState.OUT
        self.open -= set(partitions)

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
        listener = self if self.follows_keys else None
        consumer.subscribe([self.setting.topic], partition_key_listener=listener)
        self.open.clear()
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
                reader._member.leave = reader._member._stop_tasks  # type: ignore[method-assign]
            self.is_polling = True
            try:
                await consumer.close(autocommit=not is_killed)
            except ClientError as error:
                self.last_error = str(error)
            finally:
                self.is_polling = False

    async def _turn(self, consumer: Consumer) -> None:
        self.is_polling = True
        try:
            found = await consumer.poll(1_000, max_records=self._rng.choice((1, 7, 100)))
            self.last_error = ""
        except ClientError as error:
            self.last_error = str(error)
            await self.setting.pause(self._rng.uniform(0.05, 0.3))
            return
        finally:
            self.is_polling = False
        self.in_hand = sum(map(len, found.values()))
        for where, records in found.items():
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
        is_joining = reader is not None and reader._joining is not None
        return super().is_removed(generation) and not is_joining
